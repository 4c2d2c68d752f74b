// SPDX-License-Identifier: Apache-2.0
package yodel.bench.grpc;

import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import yodel.bench.Client;
import yodel.bench.Main;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Work;
import yodel.bench.pb.BenchGrpc;
import yodel.bench.pb.BenchmarkMessage;
import yodel.bench.pb.Body;
import yodel.bench.pb.Kissed;
import yodel.bench.pb.Protobuf;

/** grpc-java. */
public final class Grpc implements Peer {
  private static final int WINDOW = 1 << 20;

  public static void main(String[] args) {
    Main.run(new Grpc(), args);
  }

  @Override
  public String name() {
    return "grpc-java";
  }

  @Override
  public String setup() {
    return "protobuf, shaded netty with epoll, direct executor, blocking stub (asynchronous: async stub), one connection, windows of 1 MiB";
  }

  @Override
  public Set<Work> works() {
    return EnumSet.allOf(Work.class);
  }

  @Override
  public Server serve(String host) throws Exception {
    var server = NettyServerBuilder.forAddress(new InetSocketAddress(host, 0))
        .addService(new Service())
        .directExecutor()
        .flowControlWindow(WINDOW)
        .maxConcurrentCallsPerConnection(Integer.MAX_VALUE)
        .build()
        .start();
    return new Server(host + ":" + server.getPort(), () -> server.shutdownNow().awaitTermination(5, TimeUnit.SECONDS));
  }

  @Override
  public Client dial(Options o) {
    var channels = new ArrayList<ManagedChannel>();
    for (int i = 0; i < Math.max(o.conns(), o.addrs().size()); i++) {
      channels.add(NettyChannelBuilder.forAddress(o.sockets().get(i % o.addrs().size()))
          .usePlaintext()
          .directExecutor()
          .flowControlWindow(WINDOW)
          .build());
    }
    return new Calls(o, channels);
  }

  private static final class Service extends BenchGrpc.BenchImplBase {
    @Override
    public void say(BenchmarkMessage m, StreamObserver<BenchmarkMessage> reply) {
      reply.onNext(Protobuf.said(m));
      reply.onCompleted();
    }

    @Override
    public void echo(Body body, StreamObserver<Body> reply) {
      reply.onNext(body);
      reply.onCompleted();
    }

    @Override
    public void kiss(Kissed k, StreamObserver<Kissed> reply) {
      reply.onNext(Protobuf.kissed(k));
      reply.onCompleted();
    }
  }

  private static final class Calls implements Client.Starter {
    private final Options options;
    private final List<ManagedChannel> channels;
    private final AtomicInteger turn = new AtomicInteger();
    private final List<BenchGrpc.BenchStub> stubs;
    private final BenchmarkMessage message = Protobuf.message();
    private final Body body;
    private final Kissed kiss = Protobuf.kiss();
    private int started;

    Calls(Options options, List<ManagedChannel> channels) {
      this.options = options;
      this.channels = channels;
      this.stubs = channels.stream().map(BenchGrpc::newStub).toList();
      this.body = Protobuf.body(options.size());
    }

    @Override
    public Call caller() {
      var stub = BenchGrpc.newBlockingStub(channels.get(turn.getAndIncrement() % channels.size()));
      return switch (options.work()) {
        case MESSAGE -> () -> Protobuf.check(stub.say(message));
        case ECHO -> () -> Protobuf.check(body, stub.echo(body));
        case KISS -> () -> Protobuf.check(stub.kiss(kiss));
      };
    }

    @Override
    public void start(Consumer<Throwable> done) {
      var stub = stubs.get(started++ % stubs.size());
      switch (options.work()) {
        case MESSAGE -> stub.say(message, new Reply<>(Protobuf::check, done));
        case ECHO -> stub.echo(body, new Reply<>(back -> Protobuf.check(body, back), done));
        case KISS -> stub.kiss(kiss, new Reply<>(Protobuf::check, done));
      }
    }

    @Override
    public void close() throws InterruptedException {
      channels.forEach(ManagedChannel::shutdown);
      for (var c : channels) {
        c.awaitTermination(5, TimeUnit.SECONDS);
      }
    }
  }

  /** Waits for the reply of an asynchronous call, checks it and tells. */
  private static final class Reply<M> implements StreamObserver<M> {
    private final Consumer<M> check;
    private final Consumer<Throwable> done;
    private Throwable failure;

    Reply(Consumer<M> check, Consumer<Throwable> done) {
      this.check = check;
      this.done = done;
    }

    @Override
    public void onNext(M reply) {
      try {
        check.accept(reply);
      } catch (RuntimeException e) {
        failure = e;
      }
    }

    @Override
    public void onError(Throwable e) {
      done.accept(e);
    }

    @Override
    public void onCompleted() {
      done.accept(failure);
    }
  }
}
