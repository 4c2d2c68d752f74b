// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;

/** For frameworks that do not let the system choose the port. */
public final class FreePort {
  private FreePort() {}

  /** A port of host that was free a moment ago. */
  public static int of(String host) throws IOException {
    try (var s = new ServerSocket(0, 1, InetAddress.getByName(host))) {
      return s.getLocalPort();
    }
  }
}
