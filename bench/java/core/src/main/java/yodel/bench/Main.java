// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;

/** What a program says and understands: a JSON object a line, commands on its standard input and answers on its standard output. */
public final class Main {
  private static final Gson JSON =
      new GsonBuilder().setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES).create();

  private final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
  private final PrintStream out = System.out;

  private Main() {}

  record Listening(String addr, String name, String version, String setup) {}

  /** Counters of the runtime, which the JVM does not have. */
  record Figures(long mallocs, long bytes, long gcs) {}

  /** The command that a load begins with. */
  record Order(
      String work,
      List<String> addrs,
      int size,
      int callers,
      int conns,
      int messages,
      String mode,
      double rate,
      int window,
      long warmupMs,
      long measureMs) {
    Options options() {
      int atOnce = mode.equals("fresh") ? 1 : callers; // over one connection
      return new Options(Work.valueOf(work.toUpperCase(Locale.ROOT)), addrs, size, atOnce, mode.equals("async"), conns);
    }

    void check() {
      boolean counted = switch (mode) {
        case "async" -> window > 0;
        case "open" -> callers > 0 && rate > 0;
        default -> callers > 0;
      };
      if (!counted || addrs == null || addrs.isEmpty() || measureMs <= 0) {
        throw new IllegalArgumentException("an order needs addrs, measure_ms, and a rate, a window or callers");
      }
    }
  }

  /** Declined says that it is nothing that the framework does, rather than a failure. */
  private record Event(String event, String text, boolean declined) {}

  /** Is the program of a peer: "serve" or "load". */
  public static void run(Peer peer, String... args) {
    var program = new Main();
    System.setOut(System.err); // standard output is the runner's: what a framework prints is for people
    try {
      switch (args.length == 1 ? args[0] : "") {
        case "serve" -> program.serve(peer);
        case "load" -> program.load(peer);
        default -> throw new IllegalArgumentException("usage: serve | load");
      }
    } catch (Throwable e) {
      e.printStackTrace();
      program.print(new Event("error", e.toString(), e instanceof UnsupportedOperationException));
      System.exit(1);
    }
    System.exit(0); // frameworks leave threads behind that are not daemons
  }

  private void serve(Peer peer) throws Exception {
    var server = peer.serve("127.0.0.1");
    var flags = String.join(" ", ManagementFactory.getRuntimeMXBean().getInputArguments());
    var setup = peer.setup() + "; JDK " + System.getProperty("java.version") + " " + flags;
    print(new Listening(server.addr(), peer.name(), peer.version(), setup));
    while (next() != null) { // there is but one command
      print(new Figures(0, 0, 0));
    }
    server.stop().close();
  }

  private void load(Peer peer) throws Exception {
    String line = next();
    if (line == null) {
      return;
    }
    var order = JSON.fromJson(line, Order.class);
    var load = Load.start(peer, order);
    Thread.sleep(order.warmupMs());
    load.checkWarmUp();
    print(new Event("ready", null, false));
    if (next() == null) {
      return;
    }
    print(load.measure());
    while (next() != null) { // until the runner has looked at the process and ends it
    }
    load.close();
  }

  /** The next command, or null at the end. */
  private String next() throws IOException {
    String line = in.readLine();
    while (line != null && line.isBlank()) {
      line = in.readLine();
    }
    return line;
  }

  private void print(Object answer) {
    out.println(JSON.toJson(answer));
    out.flush();
  }
}
