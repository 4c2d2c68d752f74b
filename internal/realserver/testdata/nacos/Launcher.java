// SPDX-License-Identifier: Apache-2.0

import com.alibaba.nacos.NacosServerBasicApplication;
import com.alibaba.nacos.NacosServerWebApplication;
import com.alibaba.nacos.core.listener.startup.NacosStartUp;
import com.alibaba.nacos.core.listener.startup.NacosStartUpManager;
import com.alibaba.nacos.sys.env.DeploymentType;
import com.alibaba.nacos.sys.env.EnvUtil;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.builder.SpringApplicationBuilder;

/**
 * Starts a Nacos server without its console, for clients that connect to a unix socket: it is in a network namespace of its own,
 * because it listens on all interfaces, and a file can be reached from everywhere. Arguments: its port, the socket. The socket with ".grpc"
 * behind its name is for clients that use gRPC.
 */
public final class Launcher {
    public static void main(String[] args) throws IOException {
        // A process that enters a namespace is not ended with its parent any more.
        ProcessHandle.current().parent().ifPresent(tests -> tests.onExit().thenRun(() -> Runtime.getRuntime().halt(1)));
        EnvUtil.setDeploymentType(DeploymentType.SERVER);
        NacosStartUpManager.start(NacosStartUp.CORE_START_UP_PHASE);
        var core = new SpringApplicationBuilder(NacosServerBasicApplication.class).web(WebApplicationType.NONE).run(args);
        NacosStartUpManager.start(NacosStartUp.WEB_START_UP_PHASE);
        new SpringApplicationBuilder(NacosServerWebApplication.class).parent(core).run(args);
        int port = Integer.parseInt(args[0]);
        new Thread(() -> serve(Path.of(args[1] + ".grpc"), port + 1000)).start();
        serve(Path.of(args[1]), port);
    }

    private static void serve(Path socket, int port) {
        var nacos = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        try (var server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
            Files.deleteIfExists(socket);
            server.bind(UnixDomainSocketAddress.of(socket));
            while (true) {
                SocketChannel client = server.accept();
                SocketChannel back = SocketChannel.open(nacos);
                new Thread(() -> copy(client, back)).start();
                new Thread(() -> copy(back, client)).start();
            }
        } catch (IOException e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void copy(SocketChannel from, SocketChannel to) {
        var buffer = ByteBuffer.allocate(1 << 16);
        try (from; to) {
            while (from.read(buffer.clear()) >= 0) {
                for (buffer.flip(); buffer.hasRemaining(); ) {
                    to.write(buffer);
                }
            }
        } catch (IOException ended) {
            // One of them has closed its connection, and now both are closed.
        }
    }
}
