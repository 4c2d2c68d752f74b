// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Set;

/**
 * A framework as its own users would set it up. A program is one call of {@link Main#run} with a Peer. It is started twice, as a
 * server and as a client.
 */
public interface Peer {
  /** As in tables: "grpc-java". */
  String name();

  /** What a reader has to know to judge it: the codec, the connections, the threads. The JVM's flags are added to it. */
  String setup();

  /** What it can do. */
  Set<Work> works();

  /** Serves all works on a free port of host, a loopback address, until it is closed. */
  Server serve(String host) throws Exception;

  /** Connects to servers that serve has made. */
  Client dial(Options options) throws Exception;

  /** The framework's version, which Maven has put into the module. */
  default String version() throws IOException {
    try (var in = getClass().getResourceAsStream("/peer.version")) {
      return new String(in.readAllBytes(), StandardCharsets.UTF_8).strip();
    }
  }

  /** A server that serves. */
  record Server(String addr, AutoCloseable stop) {}
}
