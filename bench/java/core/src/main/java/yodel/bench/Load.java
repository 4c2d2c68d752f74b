// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import yodel.bench.Client.Call;
import yodel.bench.Client.Starter;

/** Calls and measures, in one of four modes. */
final class Load implements AutoCloseable {
  /** Of a caller: the JVM's default would be a megabyte, and there may be thousands. */
  private static final long STACK = 512 << 10;

  /** How long calls may go on after the measurement, before they are given up. */
  private static final long PATIENCE = TimeUnit.SECONDS.toNanos(60);

  /** An open call is late when it begins so much after its time though a caller was free. */
  private static final long LATE = TimeUnit.MILLISECONDS.toNanos(1);

  /** Of asynchronous calls every so many has its latency taken. */
  private static final int SAMPLED = 64;

  private final Peer peer;
  private final Main.Order order;
  private final Options options;
  private final Tally tally = new Tally();
  private final List<Thread> threads = new ArrayList<>();
  private Client client; // none when every call has its own
  private Semaphore window; // of asynchronous calls

  private volatile long end = Long.MAX_VALUE; // no call begins after it
  private volatile Schedule schedule; // of open calls

  private Load(Peer peer, Main.Order order) {
    this.peer = peer;
    this.order = order;
    this.options = order.options();
  }

  /** Dials and begins to call. */
  static Load start(Peer peer, Main.Order order) throws Exception {
    order.check();
    var load = new Load(peer, order);
    if (!peer.works().contains(load.options.work())) {
      throw new UnsupportedOperationException(peer.name() + " has no " + order.work());
    }
    if (!order.mode().equals("fresh")) {
      load.client = peer.dial(load.options);
    }
    load.prepare();
    load.threads.forEach(Thread::start);
    return load;
  }

  private void prepare() throws Exception {
    switch (order.mode()) {
      case "closed" -> addCallers(this::closed);
      case "fresh" -> addCallers(this::closed);
      case "open" -> {
        schedule = new Schedule(System.nanoTime(), 1e9 / order.rate());
        addCallers(this::open);
      }
      case "async" -> {
        if (!(client instanceof Starter starter)) {
          throw new UnsupportedOperationException(peer.name() + " has no asynchronous calls");
        }
        window = new Semaphore(order.window());
        add(() -> async(starter));
      }
      default -> throw new IllegalArgumentException("no mode " + order.mode());
    }
  }

  private interface Loop {
    void run(Call call);
  }

  private void addCallers(Loop loop) throws Exception {
    for (int i = 0; i < order.callers(); i++) {
      Call call = client == null ? this::callFresh : client.caller();
      add(() -> loop.run(call));
    }
  }

  private void add(Runnable run) {
    var t = new Thread(null, run, "caller", STACK);
    t.setDaemon(true);
    threads.add(t);
  }

  private void callFresh() throws Exception {
    try (var own = peer.dial(options)) {
      own.caller().call();
    }
  }

  private void closed(Call call) {
    for (long begun = System.nanoTime(); begun - end < 0; begun = System.nanoTime()) {
      var failure = outcome(call);
      tally.add(begun, System.nanoTime() - begun, failure);
    }
  }

  /** Begins each call at its time, or as soon as a caller is free, and counts its latency from its time. */
  private void open(Call call) {
    while (true) {
      var s = schedule;
      long due = s.next();
      if (due - end >= 0) {
        return;
      }
      boolean waits = due - System.nanoTime() > 0; // otherwise all callers were busy
      for (long left = due - System.nanoTime(); left > 0 && s == schedule; left = due - System.nanoTime()) {
        LockSupport.parkNanos(left);
      }
      if (s != schedule) {
        continue; // the measurement has begun
      }
      boolean late = waits && System.nanoTime() - due > LATE;
      var failure = outcome(call);
      tally.add(due, System.nanoTime() - due, failure);
      if (late) {
        tally.addLate(due);
      }
    }
  }

  private void async(Starter starter) {
    for (int i = 0; ; i++) {
      window.acquireUninterruptibly();
      boolean sampled = i % SAMPLED == 0;
      long begun = System.nanoTime();
      if (begun - end >= 0) {
        window.release();
        return;
      }
      try {
        starter.start(failure -> {
          tally.add(begun, sampled ? System.nanoTime() - begun : Tally.NOT_TAKEN, failure);
          window.release();
        });
      } catch (Exception e) {
        tally.add(begun, Tally.NOT_TAKEN, e);
        window.release();
      }
    }
  }

  private static Throwable outcome(Call call) {
    try {
      call.call();
      return null;
    } catch (Exception e) {
      return e;
    }
  }

  /** The times of open calls. */
  private record Schedule(long start, double interval, AtomicLong taken) {
    Schedule(long start, double interval) {
      this(start, interval, new AtomicLong());
    }

    long next() {
      return start + (long) (taken.getAndIncrement() * interval);
    }
  }

  /** Fails when a call has failed that does not count. */
  void checkWarmUp() {
    var failure = tally.failureOutside();
    if (failure != null) {
      throw new IllegalStateException("a call before the measurement: " + failure, failure);
    }
  }

  /** Counts the calls that begin from now on until the order's time has passed, and waits for their replies. */
  Tally.Result measure() throws InterruptedException, TimeoutException {
    long begin = System.nanoTime();
    long length = TimeUnit.MILLISECONDS.toNanos(order.measureMs());
    tally.open(begin, begin + length);
    end = begin + length;
    if (schedule != null) {
      schedule = new Schedule(begin, 1e9 / order.rate()); // the warm-up's arrears are no part of it
      threads.forEach(LockSupport::unpark);
    }
    long deadline = end + PATIENCE;
    for (var t : threads) {
      t.join(Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime())));
      if (t.isAlive()) {
        throw new TimeoutException("calls do not end after the measurement");
      }
    }
    if (window != null && !window.tryAcquire(order.window(), deadline - System.nanoTime(), TimeUnit.NANOSECONDS)) {
      throw new TimeoutException("asynchronous calls do not end after the measurement");
    }
    checkWarmUp(); // one may have failed at the end
    return tally.result(took(length) / 1e9);
  }

  /**
   * The time in which the calls were made. A single caller makes them between the begin of its first one and the end of its last
   * one, so that long calls, of which few fit into a measurement, are counted right too; an open loop that cannot keep up takes
   * longer than it was meant to. Several callers end one after the other, with less and less load, which has no part in it.
   */
  private long took(long length) {
    if (schedule != null) {
      return Math.max(length, tally.span());
    }
    return threads.size() == 1 && window == null && tally.span() > 0 ? tally.span() : length;
  }

  @Override
  public void close() throws Exception {
    if (client != null) {
      client.close();
    }
  }
}
