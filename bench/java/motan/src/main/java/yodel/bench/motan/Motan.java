// SPDX-License-Identifier: Apache-2.0
package yodel.bench.motan;

import com.weibo.api.motan.config.ProtocolConfig;
import com.weibo.api.motan.config.RefererConfig;
import com.weibo.api.motan.config.RegistryConfig;
import com.weibo.api.motan.config.ServiceConfig;
import com.weibo.api.motan.rpc.Future;
import com.weibo.api.motan.rpc.ResponseFuture;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import yodel.bench.BenchmarkMessage;
import yodel.bench.Client;
import yodel.bench.FreePort;
import yodel.bench.Main;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Plain;
import yodel.bench.Plain.Exchange;
import yodel.bench.Work;

/** Motan. */
public final class Motan implements Peer {
  private static final String PROTOCOL = "motan2";
  private static final String SERIALIZATION = "hessian2";
  private static final int TIMEOUT_MS = 60_000;

  /** By default 800 threads refuse what they cannot take at once. */
  private static final int QUEUE = 10_000;

  public static void main(String[] args) {
    System.setProperty("io.netty.bootstrap.extensions", "serviceload"); // so that OnLoopback is found
    Main.run(new Motan(), args);
  }

  @Override
  public String name() {
    return "motan";
  }

  @Override
  public String setup() {
    return PROTOCOL + " protocol, " + SERIALIZATION + ", two shared connections, up to 800 server threads with a queue for 10000 calls, no protection";
  }

  @Override
  public Set<Work> works() {
    return EnumSet.allOf(Work.class);
  }

  @Override
  public Server serve(String host) throws Exception {
    int port = FreePort.of(host);
    var protocol = protocol();
    protocol.setWorkerQueueSize(QUEUE);
    protocol.setParameters(Map.of("providerProtectedStrategy", "none"));
    var service = new ServiceConfig<Bench>();
    service.setInterface(Bench.class);
    service.setRef(new Implementation());
    service.setProtocol(protocol);
    service.setRegistry(noRegistry());
    service.setShareChannel(true);
    service.setHost(host);
    service.setExport("bench:" + port);
    service.export();
    return new Server(host + ":" + port, service::unexport);
  }

  private static final class Implementation implements Bench {
    private final Plain.Implementation plain = new Plain.Implementation();

    @Override
    public BenchmarkMessage say(BenchmarkMessage m) {
      return plain.say(m);
    }

    @Override
    public byte[] echo(byte[] body) {
      return plain.echo(body);
    }

    @Override
    public Plain.Kiss kiss(Plain.Kiss k) {
      return plain.kiss(k);
    }
  }

  @Override
  public Client dial(Options o) {
    var protocol = protocol();
    if (o.conns() > 0) {
      protocol.setMinClientConnection(o.conns());
    }
    protocol.setLoadbalance("roundrobin");
    var referer = new RefererConfig<BenchAsync>();
    referer.setInterface(BenchAsync.class);
    referer.setProtocol(protocol);
    referer.setRegistry(noRegistry());
    referer.setDirectUrl(String.join(",", o.addrs()));
    referer.setShareChannel(true);
    referer.setAsyncInitConnection(false);
    referer.setRequestTimeout(TIMEOUT_MS);
    return new Calls(o, referer, referer.getRef(), Exchange.of(o));
  }

  private static ProtocolConfig protocol() {
    var p = new ProtocolConfig();
    p.setId("bench");
    p.setName(PROTOCOL);
    p.setSerialization(SERIALIZATION);
    return p;
  }

  private static RegistryConfig noRegistry() {
    var r = new RegistryConfig();
    r.setRegProtocol("local");
    return r;
  }

  private record Calls(Options options, RefererConfig<BenchAsync> referer, BenchAsync service, Exchange<Plain.Service> started)
      implements Client.Starter {
    @Override
    public Call caller() {
      var x = Exchange.of(options);
      return () -> x.check().accept(x.send().apply(service));
    }

    @Override
    public void start(Consumer<Throwable> done) {
      ResponseFuture future = switch (options.work()) {
        case MESSAGE -> service.sayAsync((BenchmarkMessage) started.request());
        case ECHO -> service.echoAsync((byte[]) started.request());
        case KISS -> service.kissAsync((Plain.Kiss) started.request());
      };
      future.addListener(f -> done.accept(failure(f)));
    }

    private Throwable failure(Future reply) {
      try {
        started.check().accept(reply.getValue()); // throws what the call has failed with
        return null;
      } catch (RuntimeException e) {
        return e;
      }
    }

    @Override
    public void close() {
      referer.destroy();
    }
  }
}
