// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.util.Objects;

/** What requests are filled with and what replies have to be. */
public final class Check {
  private Check() {}

  /** In every string, bool and integer of a BenchmarkMessage, as the benchmarks of RPC frameworks have it. */
  public static final String TEXT = "许多往事在眼前一幕一幕，变的那麼模糊";
  public static final int NUMBER = 100_000;

  /** The reply to a kiss starts with what was sent. */
  public static final String KISSED = ":server response";

  /** A reply that is not what the server had to send. */
  public static final class WrongReply extends RuntimeException {
    WrongReply(String text) {
      super(text);
    }
  }

  public static void message(String field1, int field2, String field102) {
    if (!"OK".equals(field1) || field2 != 100 || !TEXT.equals(field102)) {
      throw new WrongReply("the reply is not the message: field1 " + field1 + ", field2 " + field2 + ", field102 " + field102);
    }
  }

  /** Of byte arrays or of what has an equals. */
  public static void echo(Object sent, Object back) {
    if (!Objects.deepEquals(sent, back)) {
      throw new WrongReply("the reply is not the echo");
    }
  }

  /** What a kiss sends, as all peers do. */
  public static final String ASKED = "test hello client";
  public static final long NUM = 1;
  public static final long I = 1;
  public static final double D = 0.1;

  /** Of the reply to a kiss. */
  public static void kiss(String s, long num, long i, double d) {
    if (!(ASKED + KISSED + I).equals(s) || num != NUM || i != I + 1 || d != D + 0.2) {
      throw new WrongReply("the reply is not the kiss: " + s + ", " + num + ", " + i + ", " + d);
    }
  }
}
