import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * RocketMQ finds this class by the file in META-INF/service. A lone broker needs no replication, and
 * a benchmark no port that the whole network can reach.
 */
public final class NoReplication extends DefaultHAService {
    @Override
    public void start() {}
}
