// SPDX-License-Identifier: Apache-2.0

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.thrift.TMultiplexedProcessor;
import org.apache.thrift.TProcessor;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.protocol.TCompactProtocol;
import org.apache.thrift.server.ServerTestBase;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TSSLTransportFactory;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TTransportFactory;
import org.apache.thrift.transport.layered.TFramedTransport;
import thrift.test.SecondService;
import thrift.test.ThriftTest;

/**
 * Servers runs the servers of Apache's cross test in one process, with Apache's handler. Unlike
 * Apache's TestServer, they listen on loopback only. When all of them listen, the file that the
 * argument names has a line for each: protocol, transport, socket and port.
 */
public final class Servers {
  public static void main(String[] args) throws Exception {
    StringBuilder ports = new StringBuilder();
    for (String protocol : new String[] {"binary", "compact", "multi", "multic"}) {
      for (String transport : new String[] {"buffered", "framed"}) {
        for (String socket : new String[] {"ip", "ip-ssl"}) {
          int port = serve(protocol, transport.equals("framed"), socket.equals("ip-ssl"));
          ports.append(String.join(" ", protocol, transport, socket)).append(' ').append(port).append('\n');
        }
      }
    }
    Path file = Path.of(args[0]);
    Path unfinished = file.resolveSibling("unfinished");
    Files.writeString(unfinished, ports);
    Files.move(unfinished, file, StandardCopyOption.ATOMIC_MOVE);
  }

  private static int serve(String protocol, boolean framed, boolean ssl) throws Exception {
    InetAddress loopback = InetAddress.getByName("127.0.0.1");
    TServerSocket socket =
        ssl
            ? TSSLTransportFactory.getServerSocket(0, 0, false, loopback)
            : new TServerSocket(
                new TServerSocket.ServerSocketTransportArgs().bindAddr(new InetSocketAddress(loopback, 0)));
    TProcessor processor = new ThriftTest.Processor<>(new ServerTestBase.TestHandler());
    if (protocol.startsWith("multi")) {
      TMultiplexedProcessor both = new TMultiplexedProcessor();
      both.registerProcessor("ThriftTest", processor);
      SecondService.Iface second = thing -> "testString(\"" + thing + "\")";
      both.registerProcessor("SecondService", new SecondService.Processor<>(second));
      processor = both;
    }
    boolean compact = protocol.equals("compact") || protocol.equals("multic");
    TThreadPoolServer server =
        new TThreadPoolServer(
            new TThreadPoolServer.Args(socket)
                .processor(processor)
                .protocolFactory(compact ? new TCompactProtocol.Factory() : new TBinaryProtocol.Factory())
                .transportFactory(framed ? new TFramedTransport.Factory() : new TTransportFactory()));
    new Thread(server::serve).start();
    return socket.getServerSocket().getLocalPort();
  }
}
