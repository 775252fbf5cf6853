import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.proxy.ProxyStartup;

/**
 * RocketMQ as its bin/mqnamesrv and bin/mqproxy start it, in one JVM: the name server, and the proxy
 * in local mode, which has the broker in it.
 *
 * <p>Arguments: the name server's address and configuration, the broker's configuration, the proxy's.
 */
public final class RocketmqServer {
    private RocketmqServer() {}

    public static void main(String[] arguments) {
        NamesrvStartup.main(new String[] {"-c", arguments[1]});
        ProxyStartup.main(new String[] {
            "-n", arguments[0], "-pm", "local", "-bc", arguments[2], "-pc", arguments[3],
        });
    }
}
