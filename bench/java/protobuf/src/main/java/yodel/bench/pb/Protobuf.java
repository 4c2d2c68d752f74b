// SPDX-License-Identifier: Apache-2.0
package yodel.bench.pb;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.FieldDescriptor;
import java.util.concurrent.ThreadLocalRandom;
import yodel.bench.Check;

/** The requests, what the server makes of them, and how replies are checked, for frameworks with protobuf. */
public final class Protobuf {
  private Protobuf() {}

  public static BenchmarkMessage message() {
    var m = BenchmarkMessage.newBuilder();
    for (var f : BenchmarkMessage.getDescriptor().getFields()) {
      if (!f.isRepeated()) {
        m.setField(f, value(f));
      }
    }
    return m.build();
  }

  private static Object value(FieldDescriptor f) {
    return switch (f.getJavaType()) {
      case STRING -> Check.TEXT;
      case BOOLEAN -> true;
      case INT -> Check.NUMBER;
      case LONG -> (long) Check.NUMBER;
      default -> throw new IllegalArgumentException("a BenchmarkMessage has no " + f.getJavaType());
    };
  }

  public static BenchmarkMessage said(BenchmarkMessage m) {
    return m.toBuilder().setField1("OK").setField2(100).build();
  }

  public static void check(BenchmarkMessage back) {
    Check.message(back.getField1(), back.getField2(), back.getField102());
  }

  public static Body body(int size) {
    var bytes = new byte[size];
    ThreadLocalRandom.current().nextBytes(bytes);
    return Body.newBuilder().setBody(ByteString.copyFrom(bytes)).build();
  }

  public static void check(Body sent, Body back) {
    Check.echo(sent.getBody(), back.getBody());
  }

  public static Kissed kiss() {
    return Kissed.newBuilder().setS(Check.ASKED).setNum(Check.NUM).setI(Check.I).setD(Check.D).build();
  }

  public static Kissed kissed(Kissed k) {
    return Kissed.newBuilder()
        .setS(k.getS() + Check.KISSED + k.getI())
        .setNum(k.getNum())
        .setI(k.getI() + 1)
        .setD(k.getD() + 0.2)
        .build();
  }

  public static void check(Kissed back) {
    Check.kiss(back.getS(), back.getNum(), back.getI(), back.getD());
  }
}
