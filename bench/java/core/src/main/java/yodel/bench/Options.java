// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.net.InetSocketAddress;
import java.util.List;

/**
 * How to dial.
 *
 * @param addrs of one server, or of several that the calls are spread over as the framework does that
 * @param size bytes of an echo
 * @param callers how many threads will call at once
 * @param async Starter.start will be called instead of Client.caller, by one thread
 * @param conns how many connections to use: 0 is as many as the framework's users would take to be fastest with so many callers
 */
public record Options(Work work, List<String> addrs, int size, int callers, boolean async, int conns) {

  public List<InetSocketAddress> sockets() {
    return addrs.stream().map(Options::socket).toList();
  }

  private static InetSocketAddress socket(String addr) {
    int colon = addr.lastIndexOf(':');
    return new InetSocketAddress(addr.substring(0, colon), Integer.parseInt(addr.substring(colon + 1)));
  }
}
