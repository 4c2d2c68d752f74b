// SPDX-License-Identifier: Apache-2.0
package yodel.bench.kraps;

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import net.neoremind.kraps.RpcConf;
import net.neoremind.kraps.rpc.RpcAddress;
import net.neoremind.kraps.rpc.RpcEndpointRef;
import net.neoremind.kraps.rpc.RpcEnv;
import net.neoremind.kraps.rpc.RpcEnvClientConfig;
import net.neoremind.kraps.rpc.RpcEnvServerConfig;
import net.neoremind.kraps.rpc.netty.NettyRpcEnvFactory;
import scala.concurrent.Await;
import scala.concurrent.ExecutionContext$;
import scala.concurrent.Future;
import scala.concurrent.duration.Duration;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;
import scala.util.Try;
import yodel.bench.Client;
import yodel.bench.FreePort;
import yodel.bench.Main;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Plain;
import yodel.bench.Plain.Exchange;
import yodel.bench.Work;

/** kraps-rpc, the RPC of Spark 2.1. */
public final class Kraps implements Peer {
  private static final String ENDPOINT = "bench";
  private static final ClassTag<Object> ANY = ClassTag$.MODULE$.apply(Object.class);

  public static void main(String[] args) {
    Main.run(new Kraps(), args);
  }

  @Override
  public String name() {
    return "kraps-rpc";
  }

  @Override
  public String setup() {
    return "Java's serialization, one connection, ask, all settings as they come";
  }

  @Override
  public Set<Work> works() {
    return EnumSet.allOf(Work.class);
  }

  @Override
  public Server serve(String host) throws Exception {
    int port = FreePort.of(host);
    var env = NettyRpcEnvFactory.create(RpcEnvServerConfig.apply(new RpcConf(), "server", host, port));
    env.setupEndpoint(ENDPOINT, new Endpoint(env));
    return new Server(host + ":" + env.address().port(), env::shutdown);
  }

  /** An environment has one connection to each server. */
  @Override
  public Client dial(Options o) {
    var envs = new ArrayList<RpcEnv>();
    var refs = new ArrayList<RpcEndpointRef>();
    for (int i = 0; i < Math.max(1, o.conns()); i++) {
      var env = NettyRpcEnvFactory.create(RpcEnvClientConfig.apply(new RpcConf(), "client"));
      envs.add(env);
      for (InetSocketAddress a : o.sockets()) {
        refs.add(env.setupEndpointRef(RpcAddress.apply(a.getHostString(), a.getPort()), ENDPOINT));
      }
    }
    return new Calls(o, envs, refs, Exchange.of(o), new AtomicInteger());
  }

  private record Calls(
      Options options, List<RpcEnv> envs, List<RpcEndpointRef> refs, Exchange<Plain.Service> started, AtomicInteger turn)
      implements Client.Starter {
    @Override
    public Call caller() {
      var ref = next();
      var x = Exchange.of(options);
      return () -> {
        Future<Object> reply = ref.ask(x.request(), ANY);
        x.check().accept(Await.result(reply, Duration.Inf())); // the ask ends after 120 s at the latest
      };
    }

    @Override
    public void start(Consumer<Throwable> done) {
      Future<Object> reply = next().ask(started.request(), ANY);
      reply.onComplete(new Reply(started.check(), done), ExecutionContext$.MODULE$.global());
    }

    /** As there is no balancing, callers and asynchronous calls take turns. */
    private RpcEndpointRef next() {
      return refs.get(Math.floorMod(turn.getAndIncrement(), refs.size()));
    }

    @Override
    public void close() {
      envs.forEach(RpcEnv::shutdown);
    }
  }

  /** Waits for the reply of an asynchronous call, checks it and tells. */
  private static final class Reply extends AbstractFunction1<Try<Object>, BoxedUnit> {
    private final Consumer<Object> check;
    private final Consumer<Throwable> done;

    Reply(Consumer<Object> check, Consumer<Throwable> done) {
      this.check = check;
      this.done = done;
    }

    @Override
    public BoxedUnit apply(Try<Object> reply) {
      Throwable failure = null;
      try {
        check.accept(reply.get()); // throws what the call has failed with
      } catch (Throwable e) {
        failure = e;
      }
      done.accept(failure);
      return BoxedUnit.UNIT;
    }
  }
}
