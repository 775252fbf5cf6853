import com.alibaba.fastjson2.JSON;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's fastest own ways in bulk: its remoting producer's batches, each acknowledged before the
 * thread sends the next one, then its pull consumer, a thread for each queue.
 *
 * <pre>
 * RemotingBench NAMESRV TOPIC BATCH THREADS SECONDS
 * </pre>
 *
 * <p>Does both twice and prints the figures of the second time, as a JSON object.
 */
public final class RemotingBench {
    private static final double NANOS = 1e9;
    private static final int PULL_MAX = 1024;
    private static final int ROUTE_SECONDS_MAX = 60;
    private static final long QUEUE_MESSAGES_MAX = 100_000;
    private static final byte[] BODY = new byte[1024];
    private static final PrintStream OUTPUT = System.out;

    private RemotingBench() {}

    /** Ends by halting: the clients leave threads behind. */
    public static void main(String[] arguments) {
        System.setOut(System.err); // the clients' logging prints there
        int exitCode = 0;
        try {
            run(arguments[0], arguments[1], Integer.parseInt(arguments[2]),
                    Integer.parseInt(arguments[3]), Double.parseDouble(arguments[4]));
        } catch (Throwable error) {
            error.printStackTrace();
            exitCode = 1;
        }
        OUTPUT.flush();
        Runtime.getRuntime().halt(exitCode);
    }

    private static void run(String nameServer, String topic, int batch, int threads, double length)
            throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bulk");
        producer.setNamesrvAddr(nameServer);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE); // bodies go as they are
        producer.start();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bulk");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        awaitRoute(producer, topic);
        produce(producer, topic, batch, threads, length);
        consume(consumer, topic);
        double produced = produce(producer, topic, batch, threads, length);
        double consumed = consume(consumer, topic);
        OUTPUT.println(JSON.toJSONString(Map.of("produced", produced, "consumed", consumed)));
    }

    /** The name server knows the topic some time after the proxy does. */
    private static void awaitRoute(DefaultMQProducer producer, String topic) throws Exception {
        double end = System.nanoTime() + ROUTE_SECONDS_MAX * NANOS;
        while (true) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (MQClientException error) {
                if (System.nanoTime() > end) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    private static double produce(DefaultMQProducer producer, String topic, int batch, int threads,
            double length) throws Exception {
        AtomicLong acknowledged = new AtomicLong();
        long start = System.nanoTime();
        long end = start + (long) (length * NANOS);
        List<Callable<Void>> loops = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            loops.add(() -> {
                while (System.nanoTime() < end) {
                    List<Message> messages = new ArrayList<>(batch);
                    for (int number = 0; number < batch; number++) {
                        messages.add(new Message(topic, "bench", "key-" + number, BODY));
                    }
                    SendResult result = producer.send(messages, 10_000);
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        throw new IllegalStateException(result.toString());
                    }
                    acknowledged.addAndGet(batch);
                }
                return null;
            });
        }
        inParallel(loops);
        return acknowledged.get() * NANOS / (System.nanoTime() - start);
    }

    /** Reads the topic from its beginning. */
    private static double consume(DefaultMQPullConsumer consumer, String topic) throws Exception {
        AtomicLong consumed = new AtomicLong();
        List<Callable<Void>> loops = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long end = Math.min(consumer.maxOffset(queue), QUEUE_MESSAGES_MAX);
            loops.add(() -> {
                for (long offset = 0; offset < end; ) {
                    PullResult result = consumer.pull(queue, "*", offset, PULL_MAX, 10_000);
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        throw new IllegalStateException(queue + " " + offset + " " + result);
                    }
                    consumed.addAndGet(result.getMsgFoundList().size());
                    offset = result.getNextBeginOffset();
                }
                return null;
            });
        }
        long start = System.nanoTime();
        inParallel(loops);
        return consumed.get() * NANOS / (System.nanoTime() - start);
    }

    private static void inParallel(List<Callable<Void>> loops) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(loops.size());
        try {
            for (Future<Void> done : pool.invokeAll(loops)) {
                done.get();
            }
        } finally {
            pool.shutdown();
            pool.awaitTermination(1, TimeUnit.MINUTES);
        }
    }
}
