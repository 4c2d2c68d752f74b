// SPDX-License-Identifier: Apache-2.0
package yodel.bench.thrift;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import org.apache.thrift.TException;
import org.apache.thrift.async.AsyncMethodCallback;
import org.apache.thrift.async.TAsyncClientManager;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadedSelectorServer;
import org.apache.thrift.transport.TNonblockingServerSocket;
import org.apache.thrift.transport.TNonblockingSocket;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.layered.TFramedTransport;
import yodel.bench.Check;
import yodel.bench.Client;
import yodel.bench.Main;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Work;
import yodel.bench.thrift.gen.Bench;
import yodel.bench.thrift.gen.BenchmarkMessage;
import yodel.bench.thrift.gen.Kissed;

/** Thrift. A connection carries one call at a time. */
public final class Thrift implements Peer {
  /** The pool of asynchronous calls where none is asked for. */
  private static final int ASYNC_CONNECTIONS = 100;

  public static void main(String[] args) {
    Main.run(new Thrift(), args);
  }

  @Override
  public String name() {
    return "thrift-java";
  }

  @Override
  public String setup() {
    return "binary protocol, framed, non-blocking server with two selectors that call the handler themselves, "
        + "a connection per caller (asynchronous: a pool of " + ASYNC_CONNECTIONS + ")";
  }

  @Override
  public Set<Work> works() {
    return EnumSet.allOf(Work.class);
  }

  @Override
  public Server serve(String host) throws Exception {
    var socket = new TNonblockingServerSocket(new InetSocketAddress(host, 0));
    var server = new TThreadedSelectorServer(new TThreadedSelectorServer.Args(socket)
        .processor(new Bench.Processor<>(new Handler()))
        .protocolFactory(new TBinaryProtocol.Factory())
        .selectorThreads(2)
        .workerThreads(0)) {
      @Override
      protected void gracefullyShutdownInvokerPool() {} // it would miss the pool that zero workers do not have
    };
    var thread = new Thread(server::serve, "thrift");
    thread.start();
    return new Server(host + ":" + socket.getPort(), () -> {
      server.stop();
      thread.join(5_000);
    });
  }

  private static final class Handler implements Bench.Iface {
    @Override
    public BenchmarkMessage say(BenchmarkMessage m) {
      m.setField1("OK");
      m.setField2(100);
      return m;
    }

    @Override
    public ByteBuffer echo(ByteBuffer body) {
      return body;
    }

    @Override
    public Kissed kiss(Kissed k) {
      return new Kissed(k.getS() + Check.KISSED + k.getI(), k.getNum(), k.getI() + 1, k.getD() + 0.2);
    }
  }

  @Override
  public Client dial(Options o) throws Exception {
    return o.async() ? new AsyncCalls(o) : new Calls(o);
  }

  /** What is sent and how replies are checked. */
  private static final class Exchange {
    final BenchmarkMessage message = filled();
    final ByteBuffer body;
    final Kissed kiss = new Kissed(Check.ASKED, Check.NUM, Check.I, Check.D);

    Exchange(Options o) {
      var bytes = new byte[o.size()];
      ThreadLocalRandom.current().nextBytes(bytes);
      body = ByteBuffer.wrap(bytes);
    }

    void check(Object reply) {
      if (reply instanceof BenchmarkMessage m) {
        Check.message(m.getField1(), m.getField2(), m.getField102());
      } else if (reply instanceof Kissed k) {
        Check.kiss(k.getS(), k.getNum(), k.getI(), k.getD());
      } else {
        Check.echo(body, reply);
      }
    }

    private static BenchmarkMessage filled() {
      var m = new BenchmarkMessage();
      for (var f : BenchmarkMessage._Fields.values()) {
        m.setFieldValue(f, value(m.getFieldValue(f)));
      }
      return m;
    }

    private static Object value(Object empty) {
      if (empty instanceof Boolean) {
        return true;
      }
      if (empty instanceof Integer) {
        return Check.NUMBER;
      }
      return empty instanceof Long ? (Object) (long) Check.NUMBER : Check.TEXT;
    }
  }

  private static final class Calls implements Client {
    private final Options options;
    private final BlockingQueue<Bench.Client> pool; // none when each caller has its own
    private final List<TTransport> transports = new ArrayList<>();

    Calls(Options options) throws TException {
      this.options = options;
      this.pool = options.conns() == 0 ? null : new ArrayBlockingQueue<>(options.conns());
      for (int i = 0; i < options.conns(); i++) {
        pool.add(connect());
      }
    }

    private Bench.Client connect() throws TException {
      var a = options.sockets().get(transports.size() % options.addrs().size());
      var t = new TFramedTransport(new TSocket(a.getHostString(), a.getPort()));
      t.open();
      transports.add(t);
      return new Bench.Client(new TBinaryProtocol(t));
    }

    @Override
    public Call caller() throws TException {
      var x = new Exchange(options);
      if (pool == null) {
        var own = connect();
        return () -> call(own, x);
      }
      return () -> {
        var c = pool.take();
        try {
          call(c, x);
        } finally {
          pool.add(c);
        }
      };
    }

    private void call(Bench.Client c, Exchange x) throws TException {
      x.check(switch (options.work()) {
        case MESSAGE -> c.say(x.message);
        case ECHO -> c.echo(x.body);
        case KISS -> c.kiss(x.kiss);
      });
    }

    @Override
    public void close() {
      transports.forEach(TTransport::close);
    }
  }

  private static final class AsyncCalls implements Client.Starter {
    private final Options options;
    private final Exchange exchange;
    private final TAsyncClientManager manager = new TAsyncClientManager();
    private final List<TNonblockingSocket> sockets = new ArrayList<>();
    private final BlockingQueue<Bench.AsyncClient> idle;

    AsyncCalls(Options options) throws IOException, TException {
      this.options = options;
      this.exchange = new Exchange(options);
      int n = options.conns() == 0 ? ASYNC_CONNECTIONS : options.conns();
      idle = new ArrayBlockingQueue<>(n);
      for (int i = 0; i < n; i++) {
        var a = options.sockets().get(i % options.addrs().size());
        var s = new TNonblockingSocket(a.getHostString(), a.getPort());
        sockets.add(s);
        idle.add(new Bench.AsyncClient(new TBinaryProtocol.Factory(), manager, s));
      }
    }

    @Override
    public Call caller() {
      throw new UnsupportedOperationException("was dialled for asynchronous calls");
    }

    @Override
    public void start(Consumer<Throwable> done) throws Exception {
      var c = idle.take();
      try {
        switch (options.work()) {
          case MESSAGE -> c.say(exchange.message, new Reply<>(c, done));
          case ECHO -> c.echo(exchange.body, new Reply<>(c, done));
          case KISS -> c.kiss(exchange.kiss, new Reply<>(c, done));
        }
      } catch (TException | RuntimeException e) {
        idle.add(c);
        throw e;
      }
    }

    @Override
    public void close() {
      manager.stop();
      sockets.forEach(TNonblockingSocket::close);
    }

    /** Waits for the reply of a call, checks it and tells. */
    private final class Reply<M> implements AsyncMethodCallback<M> {
      private final Bench.AsyncClient client;
      private final Consumer<Throwable> done;

      Reply(Bench.AsyncClient client, Consumer<Throwable> done) {
        this.client = client;
        this.done = done;
      }

      @Override
      public void onComplete(M reply) {
        Throwable failure = null;
        try {
          exchange.check(reply);
        } catch (RuntimeException e) {
          failure = e;
        }
        idle.add(client);
        done.accept(failure);
      }

      @Override
      public void onError(Exception e) {
        idle.add(client); // it refuses all further calls, so that they fail too instead of waiting for ever
        done.accept(e);
      }
    }
  }
}
