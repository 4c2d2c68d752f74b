// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.io.Serializable;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import java.util.function.Function;

/** The works as a plain Java interface with plain classes, for frameworks that take those. */
public final class Plain {
  private Plain() {}

  /** The interface of the service. */
  public interface Service {
    BenchmarkMessage say(BenchmarkMessage m);

    byte[] echo(byte[] body);

    Kiss kiss(Kiss k);
  }

  /** The service. */
  public static final class Implementation implements Service {
    @Override
    public BenchmarkMessage say(BenchmarkMessage m) {
      m.field1 = "OK";
      m.field2 = 100;
      return m;
    }

    @Override
    public byte[] echo(byte[] body) {
      return body;
    }

    @Override
    public Kiss kiss(Kiss k) {
      return new Kiss(k.s + Check.KISSED + k.i, k.num, k.i + 1, k.d + 0.2);
    }
  }

  /** One call: what is sent, how it is sent where the framework makes an object of the interface S, and how the reply is checked. */
  public record Exchange<S>(Object request, Function<S, Object> send, Consumer<Object> check) {
    public static Exchange<Service> of(Options o) {
      return switch (o.work()) {
        case MESSAGE -> {
          var m = BenchmarkMessage.filled();
          yield new Exchange<>(m, s -> s.say(m), r -> {
            var back = (BenchmarkMessage) r;
            Check.message(back.field1, back.field2, back.field102);
          });
        }
        case ECHO -> {
          var body = new byte[o.size()];
          ThreadLocalRandom.current().nextBytes(body);
          yield new Exchange<>(body, s -> s.echo(body), r -> Check.echo(body, r));
        }
        case KISS -> {
          var k = new Kiss(Check.ASKED, Check.NUM, Check.I, Check.D);
          yield new Exchange<>(k, s -> s.kiss(k), r -> {
            var back = (Kiss) r;
            Check.kiss(back.s, back.num, back.i, back.d);
          });
        }
      };
    }
  }

  /** kiss-rpc's four values. */
  public static final class Kiss implements Serializable {
    public String s;
    public long num;
    public long i;
    public double d;

    public Kiss() {}

    Kiss(String s, long num, long i, double d) {
      this.s = s;
      this.num = num;
      this.i = i;
      this.d = d;
    }
  }
}
