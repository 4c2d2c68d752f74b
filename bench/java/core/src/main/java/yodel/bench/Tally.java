// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Stream;
import org.HdrHistogram.AbstractHistogram;
import org.HdrHistogram.AtomicHistogram;
import org.HdrHistogram.Histogram;

/** Counts the calls of a measurement. */
final class Tally {
  /** The time of a call that nobody looked at. */
  static final long NOT_TAKEN = -1;

  /** Latencies are kept to three digits, between 100 ns and two minutes. */
  private static final long SHORTEST = 100;
  private static final long LONGEST = 120_000_000_000L;
  private static final int DIGITS = 3;

  /** So many histograms keep callers out of each other's way; one for each of thousands of callers would take a gigabyte. */
  private static final int STRIPES = 16;

  private final AbstractHistogram[] latencies =
      Stream.generate(() -> new AtomicHistogram(SHORTEST, LONGEST, DIGITS)).limit(STRIPES).toArray(AbstractHistogram[]::new);
  private final LongAdder calls = new LongAdder();
  private final LongAdder errors = new LongAdder();
  private final LongAdder late = new LongAdder();
  private final AtomicReference<Throwable> firstError = new AtomicReference<>();
  private final AtomicReference<Throwable> outside = new AtomicReference<>();
  private final AtomicLong firstBegin = new AtomicLong(Long.MAX_VALUE); // both since the span's begin
  private final LongAccumulator lastEnd = new LongAccumulator(Math::max, 0);
  private volatile Span span = new Span(Long.MAX_VALUE, Long.MAX_VALUE);

  private record Span(long begin, long end) {
    boolean has(long time) {
      return time - begin >= 0 && time - end < 0;
    }
  }

  record Latency(double min, double mean, double p50, double p90, double p99, double p999, double max) {
    static Latency of(AbstractHistogram h) {
      if (h.getTotalCount() == 0) {
        return new Latency(0, 0, 0, 0, 0, 0, 0);
      }
      return new Latency(
          h.getValueAtPercentile(0) / 1e3,
          h.getMean() / 1e3,
          h.getValueAtPercentile(50) / 1e3,
          h.getValueAtPercentile(90) / 1e3,
          h.getValueAtPercentile(99) / 1e3,
          h.getValueAtPercentile(99.9) / 1e3,
          h.getMaxValue() / 1e3);
    }
  }

  record Result(
      String event,
      long calls,
      long errors,
      String firstError,
      double seconds,
      Latency latencyUs,
      long mallocs,
      long bytes,
      long gcs,
      long late) {}

  /** Calls that begin in the span are counted; none were before. */
  void open(long begin, long end) {
    span = new Span(begin, end);
  }

  /** Counts a call that began at a time, took so many nanoseconds and failed or did not (null). */
  void add(long begun, long nanos, Throwable failure) {
    var s = span;
    if (!s.has(begun)) {
      outside.compareAndSet(null, failure);
      return;
    }
    if (nanos != NOT_TAKEN) {
      long since = begun - s.begin;
      if (since < firstBegin.get()) { // hardly ever
        firstBegin.accumulateAndGet(since, Math::min);
      }
      lastEnd.accumulate(since + nanos);
    }
    if (failure != null) {
      errors.increment();
      firstError.compareAndSet(null, failure);
      return;
    }
    calls.increment();
    if (nanos != NOT_TAKEN) {
      latencies[(int) (Thread.currentThread().getId() % STRIPES)].recordValue(Math.min(nanos, LONGEST));
    }
  }

  /** What the first failed call failed with that does not count, or null. */
  Throwable failureOutside() {
    return outside.get();
  }

  /** From the begin of the first call that counts to the end of the last one, in nanoseconds; 0 without any. */
  long span() {
    return Math.max(0, lastEnd.get() - firstBegin.get());
  }

  void addLate(long begun) {
    if (span.has(begun)) {
      late.increment();
    }
  }

  Result result(double seconds) {
    var all = new Histogram(SHORTEST, LONGEST, DIGITS);
    for (var h : latencies) {
      all.add(h);
    }
    var failure = firstError.get();
    return new Result(
        "done",
        calls.sum(),
        errors.sum(),
        failure == null ? "" : failure.toString(),
        seconds,
        Latency.of(all),
        0,
        0,
        0,
        late.sum());
  }
}
