// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.io.Serializable;

/** The message of the benchmarks of RPC frameworks, for codecs that take plain classes. */
public final class BenchmarkMessage implements Serializable {
  public String field1;
  public int field2;
  public int field3;
  public String field4;
  public long[] field5;
  public int field6;
  public String field7;
  public String field9;
  public boolean field12;
  public boolean field13;
  public boolean field14;
  public int field16;
  public boolean field17;
  public String field18;
  public long field22;
  public int field23;
  public boolean field24;
  public int field25;
  public int field29;
  public boolean field30;
  public boolean field59;
  public int field60;
  public int field67;
  public int field68;
  public boolean field78;
  public boolean field80;
  public boolean field81;
  public int field100;
  public int field101;
  public String field102;
  public String field103;
  public int field104;
  public int field128;
  public String field129;
  public int field130;
  public int field131;
  public int field150;
  public int field271;
  public int field272;
  public int field280;

  static BenchmarkMessage filled() {
    var m = new BenchmarkMessage();
    try {
      for (var f : BenchmarkMessage.class.getFields()) {
        if (f.getType() == String.class) {
          f.set(m, Check.TEXT);
        } else if (f.getType() == boolean.class) {
          f.setBoolean(m, true);
        } else if (!f.getType().isArray()) {
          f.set(m, f.getType() == int.class ? (Object) Check.NUMBER : (Object) (long) Check.NUMBER);
        }
      }
    } catch (IllegalAccessException e) {
      throw new AssertionError("fields are public", e);
    }
    return m;
  }
}
