// SPDX-License-Identifier: Apache-2.0
package yodel.bench.dubbo;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.dubbo.config.ProtocolConfig;
import yodel.bench.Client;
import yodel.bench.Main;
import yodel.bench.Options;
import yodel.bench.Peer;
import yodel.bench.Plain;
import yodel.bench.Work;

/** Dubbo with the dubbo protocol and plain classes. */
public final class Dubbo implements Peer {
  private static final String SERIALIZATION = "hessian2";

  public static void main(String[] args) {
    Main.run(new Dubbo(), args);
  }

  @Override
  public String name() {
    return "dubbo";
  }

  @Override
  public String setup() {
    return "dubbo protocol, " + SERIALIZATION + ", one connection, handlers on the connection's thread (dispatcher direct)";
  }

  @Override
  public Set<Work> works() {
    return EnumSet.allOf(Work.class);
  }

  @Override
  public Server serve(String host) throws Exception {
    var protocol = new ProtocolConfig("dubbo");
    protocol.setSerialization(SERIALIZATION);
    protocol.setDispatcher("direct"); // by default 200 threads refuse what they cannot take at once
    return Bootstrap.serve(host, protocol, Plain.Service.class, new Plain.Implementation());
  }

  @Override
  public Client dial(Options o) {
    return Bootstrap.dial(
        o, "dubbo", Map.of("serialization", SERIALIZATION), Plain.Service.class, () -> Plain.Exchange.of(o));
  }
}
