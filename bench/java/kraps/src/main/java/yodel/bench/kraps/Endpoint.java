// SPDX-License-Identifier: Apache-2.0
package yodel.bench.kraps;

import net.neoremind.kraps.rpc.RpcAddress;
import net.neoremind.kraps.rpc.RpcCallContext;
import net.neoremind.kraps.rpc.RpcEndpoint;
import net.neoremind.kraps.rpc.RpcEndpoint$class;
import net.neoremind.kraps.rpc.RpcEndpointRef;
import net.neoremind.kraps.rpc.RpcEnv;
import scala.PartialFunction;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;
import yodel.bench.BenchmarkMessage;
import yodel.bench.Plain;

/** The service as an endpoint. Java does not see what a trait of Scala 2.11 implements, so that all of it is said here. */
final class Endpoint implements RpcEndpoint {
  private final RpcEnv env;
  private final Plain.Service service = new Plain.Implementation();

  Endpoint(RpcEnv env) {
    this.env = env;
  }

  @Override
  public PartialFunction<Object, BoxedUnit> receiveAndReply(RpcCallContext context) {
    return new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(Object request) {
        return request instanceof BenchmarkMessage || request instanceof byte[] || request instanceof Plain.Kiss;
      }

      @Override
      public BoxedUnit apply(Object request) {
        context.reply(answer(request));
        return BoxedUnit.UNIT;
      }
    };
  }

  private Object answer(Object request) {
    if (request instanceof BenchmarkMessage m) {
      return service.say(m);
    }
    return request instanceof Plain.Kiss k ? service.kiss(k) : service.echo((byte[]) request);
  }

  @Override
  public RpcEnv rpcEnv() {
    return env;
  }

  @Override
  public RpcEndpointRef self() {
    return RpcEndpoint$class.self(this);
  }

  @Override
  @SuppressWarnings("unchecked")
  public PartialFunction<Object, BoxedUnit> receive() {
    return RpcEndpoint$class.receive(this);
  }

  @Override
  public void onError(Throwable cause) {
    RpcEndpoint$class.onError(this, cause);
  }

  @Override
  public void onConnected(RpcAddress remote) {}

  @Override
  public void onDisconnected(RpcAddress remote) {}

  @Override
  public void onNetworkError(Throwable cause, RpcAddress remote) {}

  @Override
  public void onStart() {}

  @Override
  public void onStop() {}

  @Override
  public void stop() {
    RpcEndpoint$class.stop(this);
  }
}
