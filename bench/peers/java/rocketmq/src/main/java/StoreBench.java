import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;

/**
 * Does with RocketMQ's store what bench/store.py and bench/read.py do with ours.
 *
 * <p>Each line of the input is a command with numbers as key=value, each line of the output a JSON
 * object of figures. One process serves all rounds, so what was compiled stays compiled; before the
 * first measurement of a kind the same is done {@code warm} times unmeasured.
 */
public final class StoreBench {
    private static final double NANOS = 1e9;
    private static final PrintStream OUTPUT = System.out;

    private final Map<String, Integer> warmed = new HashMap<>();
    private Map<String, String> arguments = Map.of();
    private String command = "";

    /** Ends by halting: RocketMQ leaves threads behind that outlive everything else. */
    public static void main(String[] unused) {
        System.setOut(System.err); // RocketMQ's logging prints there
        int exitCode = 0;
        try {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            StoreBench bench = new StoreBench();
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                OUTPUT.println(JSON.toJSONString(bench.run(line.split(" "))));
            }
        } catch (Throwable error) {
            error.printStackTrace();
            exitCode = 1;
        }
        Runtime.getRuntime().halt(exitCode);
    }

    private Map<String, Double> run(String[] words) throws Exception {
        command = words[0];
        arguments = new HashMap<>();
        for (String word : Arrays.asList(words).subList(1, words.length)) {
            String[] pair = word.split("=", 2);
            arguments.put(pair[0], pair[1]);
        }
        return switch (command) {
            case "append" -> append();
            case "sync" -> sync();
            case "recovery" -> recovery();
            case "lookup" -> lookup();
            case "visible" -> visible();
            case "open" -> open();
            default -> throw new IllegalArgumentException(command);
        };
    }

    private int number(String name) {
        return Integer.parseInt(arguments.get(name));
    }

    private Path directory(String name) {
        return Path.of(arguments.get("directory"), name);
    }

    /** How often something is still to be done unmeasured: `warm` times, and only in the first round. */
    private int warmUps(String name) {
        int repeats = warmed.containsKey(name) ? 0 : number("warm");
        warmed.put(name, repeats);
        return repeats;
    }

    private static double seconds(long startNanos) {
        return (System.nanoTime() - startNanos) / NANOS;
    }

    /** One by one or, with a size above 1, in batches, while reput fills queues and index. */
    private Map<String, Double> append() throws Exception {
        int count = number("messages");
        int size = number("batch");
        int queues = number("queues");
        Map<String, Double> figures = new LinkedHashMap<>();
        try (BenchStore opened =
                BenchStore.start(directory("append"), FlushDiskType.ASYNC_FLUSH, queues, null)) {
            for (int round = -warmUps("append" + size); round <= 0; round++) {
                List<Runnable> puts = new ArrayList<>();
                if (size == 1) {
                    BenchStore.messages(0, count, queues)
                            .forEach(message -> puts.add(() -> opened.put(message)));
                } else {
                    BenchStore.batches(0, count, size, queues)
                            .forEach(batch -> puts.add(() -> opened.put(batch)));
                }
                System.gc();
                long start = System.nanoTime();
                long cpuStart = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
                puts.forEach(Runnable::run);
                long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpuStart;
                figures.put("appended", count / seconds(start));
                figures.put("cpu", cpu / NANOS / count);
                opened.awaitDispatch();
                figures.put("dispatched", count / seconds(start));
            }
        }
        return figures;
    }

    /** Waiters that each put the next message when the last one is durable. */
    private Map<String, Double> sync() throws Exception {
        Map<String, Double> figures = new LinkedHashMap<>();
        double length = Double.parseDouble(arguments.get("seconds"));
        int queues = number("queues");
        try (BenchStore opened =
                BenchStore.start(directory("sync"), FlushDiskType.SYNC_FLUSH, queues, null)) {
            for (String word : arguments.get("waiters").split(",")) {
                int waiters = Integer.parseInt(word);
                for (int round = -warmUps("sync" + word); round <= 0; round++) {
                    figures.put(word, SyncLoop.rate(opened, waiters, queues, length));
                }
            }
        }
        return figures;
    }

    private BenchStore filled(String name) throws Exception {
        int queues = number("queues");
        BenchStore opened =
                BenchStore.start(directory(name), FlushDiskType.ASYNC_FLUSH, queues, null);
        for (int number = 0; number < number("messages"); number++) {
            opened.put(BenchStore.message(number, queues));
        }
        opened.awaitDispatch();
        return opened;
    }

    /** Loads a store that was stopped cleanly, one that was not, and one without queues and index. */
    private Map<String, Double> recovery() throws Exception {
        Map<String, Double> figures = new LinkedHashMap<>();
        filled("recovery").close();
        for (int round = -warmUps("recovery"); round <= 0; round++) {
            restart(figures, "scan");
            BenchStore.fakeCrash(directory("recovery"));
            restart(figures, "crash");
            BenchStore.deleteDerived(directory("recovery"));
            restart(figures, "rebuild");
        }
        return figures;
    }

    /** From load() until all messages can be consumed; CPU time is that of load(), in its thread. */
    private void restart(Map<String, Double> figures, String name) throws Exception {
        int queues = number("queues");
        try (BenchStore opened =
                new BenchStore(directory("recovery"), FlushDiskType.ASYNC_FLUSH, queues, null)) {
            System.gc();
            long start = System.nanoTime();
            long cpuStart = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
            opened.load();
            long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpuStart;
            opened.store.start();
            opened.awaitDispatch();
            figures.put(name + "_cpu", cpu / NANOS);
            figures.put(name + "_wall", seconds(start));
            figures.put("bytes", (double) opened.store.getMaxPhyOffset());
            long visible = 0;
            for (int queue = 0; queue < queues; queue++) {
                visible += opened.store.getMaxOffsetInQueue(BenchStore.TOPIC, queue);
            }
            BenchStore.expect(visible == number("messages"), visible + " messages in the queues");
            find(opened, number("messages") - 1);
        }
    }

    private static void find(BenchStore opened, int number) {
        var found = opened.store.getIndexService()
                .queryOffset(BenchStore.TOPIC, BenchStore.key(number), 1, 0, Long.MAX_VALUE);
        BenchStore.expect(!found.getPhyOffsets().isEmpty(), BenchStore.key(number));
    }

    /** Finds single messages by key in the index, and fetches runs of 32 from a queue. */
    private Map<String, Double> lookup() throws Exception {
        int messages = number("messages");
        int queues = number("queues");
        int lookups = number("lookups");
        int fetches = number("fetches");
        Map<String, Double> figures = new LinkedHashMap<>();
        try (BenchStore opened = filled("lookup")) {
            for (int round = -5 * warmUps("lookup"); round <= 0; round++) {
                long start = System.nanoTime();
                for (int number = 0; number < lookups; number++) {
                    find(opened, (int) (number * 97L % messages));
                }
                figures.put("lookup", seconds(start) / lookups);
                start = System.nanoTime();
                for (int number = 0; number < fetches; number++) {
                    GetMessageResult found = opened.store.getMessage(
                            "bench", BenchStore.TOPIC, number % queues, number, 32, null);
                    BenchStore.expect(found.getMessageCount() == 32, found.toString());
                    found.release();
                }
                figures.put("fetch", seconds(start) / fetches);
            }
        }
        return figures;
    }

    /** Appends at a fixed rate and measures until the arrival of each message is told. */
    private Map<String, Double> visible() throws Exception {
        int queues = number("queues");
        int perSecond = number("per_second");
        int count = number("seconds") * perSecond;
        int warm = warmUps("visible") * count;
        long[] sent = new long[warm + count];
        double[] latencies = new double[warm + count];
        AtomicInteger arrived = new AtomicInteger();
        try (BenchStore opened = BenchStore.start(
                directory("visible"), FlushDiskType.ASYNC_FLUSH, queues,
                (topic, queueId, end, tagsCode, storeTime, filter, properties) -> {
                    long now = System.nanoTime();
                    int number = (int) (end - 1) * queues + queueId;
                    latencies[number] = (now - sent[number]) / NANOS;
                    arrived.incrementAndGet();
                })) {
            long begin = System.nanoTime();
            for (int number = 0; number < warm + count; number++) {
                long due = begin + number * 1_000_000_000L / perSecond;
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                MessageExtBrokerInner message = BenchStore.message(number, queues);
                sent[number] = System.nanoTime();
                opened.put(message);
            }
            opened.awaitDispatch();
        }
        BenchStore.expect(arrived.get() == warm + count, arrived + " arrivals");
        double[] measured = Arrays.copyOfRange(latencies, warm, warm + count);
        Arrays.sort(measured);
        return Map.of("p50", measured[count / 2], "p99", measured[(int) (count * 0.99)]);
    }

    /** Opens a store, uses it a little, and leaves it open and idle. */
    private Map<String, Double> open() throws Exception {
        BenchStore opened =
                BenchStore.start(directory("idle"), FlushDiskType.ASYNC_FLUSH, number("queues"), null);
        for (int number = 0; number < number("messages"); number++) {
            opened.put(BenchStore.message(number, number("queues")));
        }
        opened.awaitDispatch();
        System.gc();
        return Map.of();
    }
}
