// SPDX-License-Identifier: Apache-2.0
package yodel.bench.dubbo;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.dubbo.config.ProtocolConfig;
import yodel.bench.Client;
import yodel.bench.Main;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Plain.Exchange;
import yodel.bench.Work;
import yodel.bench.pb.BenchmarkMessage;
import yodel.bench.pb.Body;
import yodel.bench.pb.Kissed;
import yodel.bench.pb.Protobuf;

/** Dubbo with the triple protocol, which is gRPC's, and protobuf. */
public final class Triple implements Peer {
  /** By default 200 threads refuse what they cannot take at once. */
  private static final int QUEUE = 10_000;

  public static void main(String[] args) {
    Main.run(new Triple(), args);
  }

  /** The interface of the service. */
  public interface Service {
    BenchmarkMessage say(BenchmarkMessage m);

    Body echo(Body body);

    Kissed kiss(Kissed k);
  }

  private static final class Implementation implements Service {
    @Override
    public BenchmarkMessage say(BenchmarkMessage m) {
      return Protobuf.said(m);
    }

    @Override
    public Body echo(Body body) {
      return body;
    }

    @Override
    public Kissed kiss(Kissed k) {
      return Protobuf.kissed(k);
    }
  }

  @Override
  public String name() {
    return "dubbo-triple";
  }

  @Override
  public String setup() {
    return "triple protocol, protobuf, one connection, 200 server threads with a queue for 10000 calls";
  }

  @Override
  public Set<Work> works() {
    return EnumSet.allOf(Work.class);
  }

  @Override
  public Server serve(String host) throws Exception {
    var protocol = new ProtocolConfig("tri");
    protocol.setQueues(QUEUE);
    return Bootstrap.serve(host, protocol, Service.class, new Implementation());
  }

  @Override
  public Client dial(Options o) {
    if (o.conns() > 1) {
      throw new UnsupportedOperationException("triple has one connection to a server");
    }
    return Bootstrap.dial(o, "tri", Map.of(), Service.class, () -> exchange(o));
  }

  private static Exchange<Service> exchange(Options o) {
    return switch (o.work()) {
      case MESSAGE -> {
        var m = Protobuf.message();
        yield new Exchange<>(m, s -> s.say(m), back -> Protobuf.check((BenchmarkMessage) back));
      }
      case ECHO -> {
        var body = Protobuf.body(o.size());
        yield new Exchange<>(body, s -> s.echo(body), back -> Protobuf.check(body, (Body) back));
      }
      case KISS -> {
        var k = Protobuf.kiss();
        yield new Exchange<>(k, s -> s.kiss(k), back -> Protobuf.check((Kissed) back));
      }
    };
  }
}
