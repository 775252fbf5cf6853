import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Waiters that each put the next message when their last one is durable: with futures and a few
 * threads as RocketMQ's broker does it, which is faster than a thread for each of many waiters.
 */
final class SyncLoop {
    private static final double NANOS = 1e9;

    private SyncLoop() {}

    /** Returns the messages per second that {@code waiters} waiters got acknowledged. */
    static double rate(BenchStore opened, int waiters, int queues, double length)
            throws Exception {
        AtomicLong acknowledged = new AtomicLong();
        ExecutorService pool =
                Executors.newFixedThreadPool(Runtime.getRuntime().availableProcessors());
        CompletableFuture<?>[] ended = new CompletableFuture<?>[waiters];
        long start = System.nanoTime();
        long end = start + (long) (length * NANOS);
        for (int number = 0; number < waiters; number++) {
            int own = number;
            CompletableFuture<Void> done = new CompletableFuture<>();
            ended[number] = done;
            pool.execute(new Runnable() {
                @Override
                public void run() {
                    if (System.nanoTime() >= end) {
                        done.complete(null);
                        return;
                    }
                    opened.store.asyncPutMessage(BenchStore.message(own, queues))
                            .thenAcceptAsync(result -> {
                                BenchStore.check(result);
                                acknowledged.incrementAndGet();
                                run();
                            }, pool)
                            .exceptionally(error -> {
                                done.completeExceptionally(error);
                                return null;
                            });
                }
            });
        }
        CompletableFuture.allOf(ended).get();
        double rate = acknowledged.get() / ((System.nanoTime() - start) / NANOS);
        pool.shutdown();
        return rate;
    }
}
