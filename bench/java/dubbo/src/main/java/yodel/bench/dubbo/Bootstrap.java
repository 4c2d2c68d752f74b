// SPDX-License-Identifier: Apache-2.0
package yodel.bench.dubbo;

import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.ReferenceConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.rpc.RpcContext;
import org.apache.dubbo.rpc.model.ApplicationModel;
import yodel.bench.Client;
import yodel.bench.FreePort;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Plain.Exchange;

/** Dubbo without registry, console, metadata and files, whatever the protocol. */
final class Bootstrap {
  private static final int TIMEOUT_MS = 60_000;

  private Bootstrap() {}

  static <S> Peer.Server serve(String host, ProtocolConfig protocol, Class<S> type, S implementation) throws Exception {
    configure();
    protocol.setHost(asNumber(InetAddress.getByName(host)));
    protocol.setPort(FreePort.of(host));
    var service = new ServiceConfig<S>();
    service.setInterface(type);
    service.setRef(implementation);
    service.setRegistry(new RegistryConfig(RegistryConfig.NO_AVAILABLE));
    service.setProtocol(protocol);
    service.export();
    return new Peer.Server(host + ":" + protocol.getPort(), ApplicationModel.defaultModel()::destroy);
  }

  /** Connects; each caller's exchange is a new one. */
  static <S> Client dial(Options o, String protocol, Map<String, String> parameters, Class<S> type, Supplier<Exchange<S>> exchange) {
    configure();
    var reference = new ReferenceConfig<S>();
    reference.setInterface(type);
    reference.setUrl(asUrls(protocol, o));
    reference.setLoadbalance("roundrobin");
    reference.setConnections(o.conns());
    reference.setTimeout(TIMEOUT_MS);
    reference.setRetries(0);
    reference.setParameters(parameters);
    return new Calls<>(reference, reference.get(), exchange, exchange.get());
  }

  private static synchronized void configure() {
    var configuration = ApplicationModel.defaultModel().getApplicationConfigManager();
    if (configuration.getApplication().isPresent()) {
      return; // dialling again
    }
    var application = new ApplicationConfig("bench");
    application.setQosEnable(false);
    application.setEnableFileCache(false);
    application.setRegisterMode("interface"); // the other modes export a service of metadata, on every interface
    configuration.setApplication(application);
  }

  /**
   * The address as one number: 2130706433 is 127.0.0.1. Of one that begins with 127. Dubbo makes "every interface" where it
   * listens, and the machine's outer address where it connects.
   */
  private static String asNumber(InetAddress host) {
    return Integer.toUnsignedString(ByteBuffer.wrap(host.getAddress()).getInt());
  }

  private static String asUrls(String protocol, Options o) {
    return o.sockets().stream()
        .map(s -> protocol + "://" + asNumber(s.getAddress()) + ":" + s.getPort())
        .collect(Collectors.joining(";"));
  }

  private record Calls<S>(ReferenceConfig<S> reference, S service, Supplier<Exchange<S>> exchange, Exchange<S> started)
      implements Client.Starter {
    @Override
    public Call caller() {
      var x = exchange.get();
      return () -> x.check().accept(x.send().apply(service));
    }

    @Override
    public void start(Consumer<Throwable> done) {
      RpcContext.getServiceContext()
          .asyncCall(() -> started.send().apply(service))
          .thenAccept(started.check())
          .whenComplete((nothing, failure) -> done.accept(failure));
    }

    @Override
    public void close() {
      reference.destroy();
    }
  }
}
