// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.reflect.TypeToken;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * Starts each peer of peers.json as the runner does, or those that are named, and sees that its calls go well. The figures are of
 * runs too short to mean anything. It ends with 1 if a call failed.
 */
public final class Smoke {
  private static final Gson JSON = new Gson();

  private final String name;
  private final List<String> command;
  private boolean failed;

  private Smoke(String name, List<String> command) {
    this.name = name;
    this.command = command;
  }

  private record Run(String work, String mode, int callers, int conns) {}

  private static final List<Run> RUNS = List.of(
      new Run("message", "closed", 1, 0),
      new Run("message", "closed", 100, 0),
      new Run("message", "closed", 1000, 0),
      new Run("message", "open", 100, 0),
      new Run("message", "fresh", 2, 0),
      new Run("message", "async", 1, 1),
      new Run("echo", "closed", 10, 2),
      new Run("echo", "async", 1, 0),
      new Run("kiss", "closed", 1, 1));

  public static void main(String[] args) throws Exception {
    Map<String, List<String>> peers;
    try (Reader r = Files.newBufferedReader(Path.of("peers.json"))) {
      peers = JSON.fromJson(r, new TypeToken<Map<String, List<String>>>() {}.getType());
    }
    Set<String> wanted = args.length == 0 ? peers.keySet() : Set.copyOf(Arrays.asList(args));
    boolean failed = false;
    for (String name : wanted) {
      var smoke = new Smoke(name, peers.get(name));
      smoke.all();
      failed |= smoke.failed;
    }
    System.exit(failed ? 1 : 0);
  }

  private void all() throws Exception {
    var servers = List.of(new Program("serve"), new Program("serve"));
    try {
      var addrs = new ArrayList<String>();
      for (var s : servers) {
        var line = s.read();
        System.out.println(line);
        addrs.add(line.get("addr").getAsString());
      }
      for (var run : RUNS) {
        load(run, addrs.subList(0, 1));
      }
      load(new Run("message", "closed", 10, 0), addrs);
    } finally {
      for (var s : servers) {
        s.end();
      }
    }
  }

  private void load(Run run, List<String> addrs) throws Exception {
    var p = new Program("load");
    try {
      p.write(Map.ofEntries(
          Map.entry("work", run.work), Map.entry("addrs", addrs), Map.entry("size", 128),
          Map.entry("callers", run.callers), Map.entry("conns", run.conns), Map.entry("messages", 0),
          Map.entry("mode", run.mode), Map.entry("rate", 500), Map.entry("window", 1000),
          Map.entry("warmup_ms", 2000), Map.entry("measure_ms", 2000)));
      var answer = p.read();
      if (answer.get("event").getAsString().equals("ready")) {
        p.write(Map.of("do", "go"));
        answer = p.read();
      }
      failed |= !goesWell(answer);
      System.out.printf("%-12s %-8s %-6s %5d callers, %d conns, %d servers: %s%n",
          name, run.work, run.mode, run.callers, run.conns, addrs.size(), answer);
    } finally {
      p.end();
    }
  }

  /** What a framework cannot do is no failure. */
  private static boolean goesWell(JsonObject answer) {
    if (answer.get("event").getAsString().equals("done")) {
      return answer.get("errors").getAsLong() == 0 && answer.get("calls").getAsLong() > 0;
    }
    return answer.get("text").getAsString().startsWith(UnsupportedOperationException.class.getName());
  }

  /** A program and its standard input and output. */
  private final class Program {
    private final Process process;
    private final BufferedReader out;

    Program(String role) throws IOException {
      var line = new ArrayList<>(command);
      line.add(role);
      process = new ProcessBuilder(line).redirectError(ProcessBuilder.Redirect.INHERIT).start();
      out = process.inputReader(StandardCharsets.UTF_8);
    }

    void write(Map<String, Object> command) throws IOException {
      var in = process.outputWriter(StandardCharsets.UTF_8);
      in.write(JSON.toJson(command));
      in.newLine();
      in.flush();
    }

    JsonObject read() throws IOException {
      var line = out.readLine();
      if (line == null) {
        throw new IOException(name + " has ended without an answer");
      }
      return JSON.fromJson(line, JsonObject.class);
    }

    /** Ends its input; a program that does not end then is in the wrong. */
    void end() throws Exception {
      process.getOutputStream().close();
      if (!process.waitFor(20, TimeUnit.SECONDS)) {
        process.destroyForcibly();
        failed = true;
        System.out.println(name + " did not end with its input");
      }
    }
  }
}
