import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageBatch;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * Opens a store directory with RocketMQ's own classes and says what they see in it.
 *
 * <pre>
 * StoreProgram read  DIR LOG_FILE_BYTES QUEUE_FILE_BYTES INDEX_SLOTS INDEX_ENTRIES
 * StoreProgram write DIR ... NAME        says what is there, appends messages, stops cleanly
 * StoreProgram halt  DIR ... NAME        the same, and dies right after the last append
 * </pre>
 *
 * Every line of the output is a JSON object whose "kind" tells what it is about. NAME makes the
 * messages, the topic, the group and the offset that are written differ from those of other runs.
 */
public final class StoreProgram {
    private static final String GROUP = "StoreProgram";
    private static final int BATCH = 32;
    private static final int EVERYTHING = 100_000;

    /** A lone broker needs no replication, and a test no port that the whole network can reach. */
    public static final class NoReplication extends DefaultHAService {
        @Override
        public void start() {}
    }

    private static final PrintStream OUTPUT = System.out;

    private final BrokerController broker;
    private final DefaultMessageStore store;
    private final MessageStoreConfig config;

    private StoreProgram(String[] arguments) throws Exception {
        config = new MessageStoreConfig();
        config.setStorePathRootDir(arguments[1]);
        config.setStorePathCommitLog(Path.of(arguments[1], "commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.parseInt(arguments[2]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(arguments[3]));
        config.setMaxHashSlotNum(Integer.parseInt(arguments[4]));
        config.setMaxIndexNum(Integer.parseInt(arguments[5]));
        // Without this RocketMQ forgets index entries of its own at every unclean stop.
        config.setMessageIndexSafe(true);
        config.setMaxMsgsNumBatch(EVERYTHING);
        config.setDefaultQueryMaxNum(EVERYTHING);
        config.setMaxTransferCountOnMessageInMemory(BATCH);
        config.setMaxTransferBytesOnMessageInMemory(1 << 20);
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerIP1("127.0.0.1");
        brokerConfig.setBrokerIP2("127.0.0.1");
        broker = new BrokerController(
                brokerConfig, new NettyServerConfig(), new NettyClientConfig(), config);
        expect(broker.initializeMetadata(), "config/*.json");
        expect(broker.initializeMessageStore(), "the message store");
        store = (DefaultMessageStore) broker.getMessageStore();
        boolean clean = !Files.exists(Path.of(StorePathConfigHelper.getAbortFile(arguments[1])));
        expect(store.load(), "load()");
        store.start();
        awaitDispatch();
        say("store", Map.of("clean", clean, "minPhysicalOffset", store.getMinPhyOffset(),
                "maxPhysicalOffset", store.getMaxPhyOffset()));
    }

    /** Ends by halting: the broker's constructor starts threads that outlive everything else. */
    public static void main(String[] arguments) {
        System.setOut(System.err); // RocketMQ's logging prints there
        int exitCode = 0;
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            exitCode = 1;
        }
        OUTPUT.flush();
        Runtime.getRuntime().halt(exitCode);
    }

    private static void run(String[] arguments) throws Exception {
        StoreProgram program = new StoreProgram(arguments);
        program.sayMetadata();
        program.sayMessages();
        if (!arguments[0].equals("read")) {
            program.write(arguments[6]);
        }
        if (arguments[0].equals("halt")) {
            return;
        }
        program.store.shutdown();
        say("stopped", Map.of("clean",
                !Files.exists(Path.of(StorePathConfigHelper.getAbortFile(arguments[1])))));
    }

    private void sayMetadata() {
        broker.getTopicConfigManager().getTopicConfigTable().values().forEach(topic ->
                say("topic", Map.of("name", topic.getTopicName(), "perm", topic.getPerm(),
                        "readQueueNums", topic.getReadQueueNums(),
                        "writeQueueNums", topic.getWriteQueueNums(),
                        "attributes", topic.getAttributes())));
        broker.getSubscriptionGroupManager().getSubscriptionGroupTable().values().forEach(group ->
                say("group", Map.of("name", group.getGroupName(),
                        "retryMaxTimes", group.getRetryMaxTimes(),
                        "consumeMessageOrderly", group.isConsumeMessageOrderly())));
        broker.getConsumerOffsetManager().getOffsetTable().forEach((key, offsets) ->
                offsets.forEach((queueId, offset) ->
                        say("offset", Map.of("key", key, "queueId", queueId, "offset", offset))));
    }

    private void sayMessages() throws Exception {
        TreeSet<List<String>> keys =
                new TreeSet<>((left, right) -> left.toString().compareTo(right.toString()));
        for (Map.Entry<String, ? extends Map<Integer, ?>> topic
                : store.getConsumeQueueTable().entrySet()) {
            for (int queueId : topic.getValue().keySet()) {
                for (MessageExt message : sayQueue(topic.getKey(), queueId)) {
                    collectKeys(message, keys);
                }
            }
        }
        for (List<String> key : keys) {
            say("index", Map.of("topic", key.get(0), "type", key.get(1), "key", key.get(2),
                    "physicalOffsets", query(key.get(0), key.get(1), key.get(2))));
        }
    }

    /** Reads a queue as a consumer does. */
    private List<MessageExt> sayQueue(String topic, int queueId) throws Exception {
        long begin = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        say("queue",
                Map.of("topic", topic, "queueId", queueId, "minOffset", begin, "maxOffset", end));
        List<MessageExt> messages = new ArrayList<>();
        for (long offset = begin; offset < end; ) {
            GetMessageResult found =
                    store.getMessage(GROUP, topic, queueId, offset, BATCH, null);
            expect(found.getMessageCount() > 0, topic + " " + queueId + " " + offset + ": " + found);
            for (ByteBuffer buffer : found.getMessageBufferList()) {
                MessageExt message = decode(buffer);
                Map<String, Object> line = fields(message);
                line.put("offsetAtStoreTime",
                        store.getOffsetInQueueByTime(topic, queueId, message.getStoreTimestamp()));
                say("message", line);
                messages.add(message);
            }
            offset = found.getNextBeginOffset();
            found.release();
        }
        return messages;
    }

    private static void collectKeys(MessageExt message, TreeSet<List<String>> keys) {
        String topic = message.getTopic();
        String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        if (unique != null) {
            keys.add(List.of(topic, "KEY", unique));
        }
        if (message.getKeys() != null) {
            for (String key : message.getKeys().split(MessageConst.KEY_SEPARATOR)) {
                keys.add(List.of(topic, "KEY", key));
            }
        }
        if (message.getTags() != null) {
            keys.add(List.of(topic, "TAG", message.getTags()));
        }
    }

    private List<Long> query(String topic, String type, String key) {
        QueryMessageResult found = type.equals("TAG")
                ? store.queryMessage(topic, key, EVERYTHING, 0, Long.MAX_VALUE,
                        MessageConst.INDEX_TAG_TYPE, null)
                : store.queryMessage(topic, key, EVERYTHING, 0, Long.MAX_VALUE);
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer buffer : found.getMessageBufferList()) {
            offsets.add(decode(buffer).getCommitLogOffset());
        }
        found.release();
        offsets.sort(null);
        return offsets;
    }

    private void write(String name) throws Exception {
        InetSocketAddress ip4 = new InetSocketAddress(InetAddress.getByName("10.20.30.40"), 4567);
        InetSocketAddress ip6 = new InetSocketAddress(InetAddress.getByName("fd00::1:2"), 65535);
        String longTopic = "L".repeat(127 - name.length()) + name;
        List<PutMessageResult> results = new ArrayList<>();
        for (int number = 0; number < 60; number++) {
            String topic = number % 10 == 9 ? longTopic + "LL" : "Shared" + number % 2;
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            boolean isOdd = number % 2 == 1;
            fill(message, topic, number % 3, isOdd ? ip6 : ip4, number % 7 == 0 ? ip6 : ip4);
            message.setFlag(number);
            message.setReconsumeTimes(number % 3);
            message.setBody(body(number * 131 % 3001, number));
            describe(message, name + "-" + number, number);
            message.setPropertiesString(
                    MessageDecoder.messageProperties2String(message.getProperties()));
            message.setTagsCode(
                    MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
            results.add(store.putMessage(message));
        }
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, "Shared0", 0, ip4, ip6);
        List<Message> members = new ArrayList<>();
        for (int number = 0; number < 7; number++) {
            Message member = new Message("Shared0", body(number, number));
            describe(member, name + "-batch-" + number, number);
            members.add(member);
        }
        batch.setBody(MessageBatch.generateFromList(members).encode());
        results.add(store.putMessages(batch));
        // Read back by physical offset: whoever dies now has not dispatched them all.
        for (PutMessageResult result : results) {
            expect(result.isOk(), result.toString());
            for (String id : result.getAppendMessageResult().getMsgId().split(",")) {
                long offset = MessageDecoder.decodeMessageId(id).getOffset();
                say("written", fields(store.lookMessageByOffset(offset)));
            }
        }
        writeMetadata(name);
    }

    private void writeMetadata(String name) {
        TopicConfig topic = new TopicConfig("Topic" + name, 3, 5, 6);
        topic.setAttributes(Map.of("+message.type", "FIFO"));
        broker.getTopicConfigManager().updateTopicConfig(topic);
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("Group" + name);
        group.setRetryMaxTimes(7);
        group.setConsumeMessageOrderly(true);
        broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        broker.getConsumerOffsetManager()
                .commitOffset("127.0.0.1:1", "Group" + name, "Shared0", 0, 5);
        broker.getConsumerOffsetManager().persist();
    }

    private static void fill(MessageExtBrokerInner message, String topic, int queueId,
            SocketAddress bornHost, SocketAddress storeHost) {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBornTimestamp(System.currentTimeMillis() - 1000);
        message.setBornHost(bornHost);
        message.setStoreHost(storeHost);
        message.setSysFlag(0);
    }

    private static void describe(Message message, String id, int number) {
        message.putUserProperty("Umlaut\u00fc", "\u4e2d" + number);
        // The setters refuse this name to users.
        message.getProperties().put(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, id);
        if (number % 4 != 0) {
            message.setTags("tag" + number % 4);
        }
        if (number % 3 == 0) {
            message.setKeys(List.of("key" + number % 5, id + "-key"));
        }
    }

    private static byte[] body(int length, int seed) {
        byte[] bytes = new byte[length];
        new java.util.Random(seed).nextBytes(bytes);
        return bytes;
    }

    private void awaitDispatch() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    private static MessageExt decode(ByteBuffer buffer) {
        MessageExt message = MessageDecoder.decode(buffer, true, false, false, false, true);
        expect(message != null, "a record that can be decoded");
        return message;
    }

    private static Map<String, Object> fields(MessageExt message) throws Exception {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("size", message.getStoreSize());
        line.put("properties", message.getProperties());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("bodyCrc", message.getBodyCRC());
        line.put("bodySha256", HexFormat.of().formatHex(
                MessageDigest.getInstance("SHA-256").digest(body)));
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("bornHost", host(message.getBornHost()));
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("storeHost", host(message.getStoreHost()));
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        return line;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return HexFormat.of().formatHex(host.getAddress().getAddress()) + ":" + host.getPort();
    }

    private static void expect(boolean isTrue, String what) {
        if (!isTrue) {
            throw new IllegalStateException("RocketMQ refused: " + what);
        }
    }

    private static void say(String kind, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.putAll(fields);
        OUTPUT.println(JSON.toJSONString(line, JSONWriter.Feature.LargeObject));
    }
}
