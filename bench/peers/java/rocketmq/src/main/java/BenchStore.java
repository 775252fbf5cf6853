import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageBatch;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** One DefaultMessageStore of RocketMQ's defaults, and messages like those of bench/store.py. */
final class BenchStore implements AutoCloseable {
    static final String TOPIC = "Bench";
    private static final InetSocketAddress PRODUCER = new InetSocketAddress("127.0.0.1", 40000);
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final byte[] BODY = new byte[1024];

    static {
        for (int at = 0; at < BODY.length; at++) {
            BODY[at] = (byte) at;
        }
    }

    final DefaultMessageStore store;

    BenchStore(Path directory, FlushDiskType flush, int queues, MessageArrivingListener listener)
            throws IOException {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setFlushDiskType(flush);
        // Without this RocketMQ forgets index entries of its own at every unclean stop.
        config.setMessageIndexSafe(true);
        // A disk that others filled must not make it refuse or delete messages in the middle of a run.
        config.setDiskMaxUsedSpaceRatio(95);
        // Delayed messages and compacted topics are none of what is measured.
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        // Appends then go to locked memory first: faster, and lost when the process is killed.
        config.setTransientStorePoolEnable(Boolean.getBoolean("transientStorePool"));
        config.setTransientStorePoolSize(1); // one file's worth; no run appends more
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put(TOPIC, new TopicConfig(TOPIC, queues, queues));
        BrokerConfig broker = new BrokerConfig();
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker), listener, broker, topics);
    }

    /** Opens an empty or cleanly stopped store and starts its threads. */
    static BenchStore start(Path directory, FlushDiskType flush, int queues,
            MessageArrivingListener listener) throws Exception {
        BenchStore opened = new BenchStore(directory, flush, queues, listener);
        opened.load();
        opened.store.start();
        return opened;
    }

    void load() {
        expect(store.load(), "load()");
    }

    void put(MessageExtBrokerInner message) {
        check(store.putMessage(message));
    }

    void put(MessageExtBatch batch) {
        check(store.putMessages(batch));
    }

    static void check(PutMessageResult result) {
        expect(result.isOk(), result.toString());
    }

    void awaitDispatch() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** Waits for RocketMQ's own pauses: about five seconds. */
    @Override
    public void close() {
        store.shutdown();
    }

    /** Makes the next load() take the last stop for a crash. */
    static void fakeCrash(Path directory) throws IOException {
        Files.createFile(Path.of(StorePathConfigHelper.getAbortFile(directory.toString())));
    }

    /** Deletes all that follows from the log, as an operator would to have it made anew. */
    static void deleteDerived(Path directory) throws IOException {
        delete(directory.resolve("consumequeue"));
        delete(directory.resolve("index"));
        Files.delete(directory.resolve("checkpoint"));
    }

    private static void delete(Path directory) throws IOException {
        try (var paths = Files.walk(directory)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    static List<MessageExtBrokerInner> messages(int first, int count, int queues) {
        List<MessageExtBrokerInner> messages = new ArrayList<>(count);
        for (int number = first; number < first + count; number++) {
            messages.add(message(number, queues));
        }
        return messages;
    }

    static MessageExtBrokerInner message(int number, int queues) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        address(message, number % queues);
        describe(message, number);
        message.setBody(BODY);
        message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, message.getTags()));
        return message;
    }

    /** Batches as the broker gets them: of one queue, encoded by the producer. */
    static List<MessageExtBatch> batches(int first, int count, int size, int queues) {
        List<MessageExtBatch> batches = new ArrayList<>();
        for (int start = first; start < first + count; start += size) {
            List<Message> members = new ArrayList<>();
            for (int number = start; number < Math.min(start + size, first + count); number++) {
                Message member = new Message(TOPIC, BODY);
                describe(member, number);
                members.add(member);
            }
            MessageExtBatch batch = new MessageExtBatch();
            address(batch, start / size % queues);
            batch.setBody(MessageBatch.generateFromList(members).encode());
            batches.add(batch);
        }
        return batches;
    }

    static String key(int number) {
        return "key-" + number;
    }

    private static void address(MessageExtBrokerInner message, int queueId) {
        message.setTopic(TOPIC);
        message.setQueueId(queueId);
        message.setBornTimestamp(1_700_000_000_000L);
        message.setBornHost(PRODUCER);
        message.setStoreHost(HOST);
    }

    private static void describe(Message message, int number) {
        message.setTags("bench");
        message.setKeys(key(number));
        // The setters refuse these names to users.
        message.getProperties().put(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                String.format("01AABBCCDDEEFF0001%016X", number));
        message.getProperties().put(MessageConst.PROPERTY_CLUSTER, "DefaultCluster");
        message.getProperties().put(MessageConst.PROPERTY_TRACE_SWITCH, "true");
    }

    static void expect(boolean isTrue, String what) {
        if (!isTrue) {
            throw new IllegalStateException("RocketMQ refused: " + what);
        }
    }
}
