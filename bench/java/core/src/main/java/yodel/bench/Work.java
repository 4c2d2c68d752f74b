// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

/** What a call carries and what the server does with it. */
public enum Work {
  /**
   * The BenchmarkMessage of 581 bytes in protobuf. The server sets field1 to "OK" and field2 to 100 in the message that it has
   * decoded, and returns it. The client checks both, and that field102 has come back.
   */
  MESSAGE,
  /** Options.size random bytes that come back, compared. */
  ECHO,
  /** kiss-rpc's call: (s, num, i, d) is answered by (s + ":server response" + i, num, i+1, d+0.2), all four compared. */
  KISS
}
