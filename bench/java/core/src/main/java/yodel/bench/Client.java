// SPDX-License-Identifier: Apache-2.0
package yodel.bench;

import java.util.function.Consumer;

/** Makes calls. */
public interface Client extends AutoCloseable {
  /** What one thread calls with. It is asked for once for each calling thread, before the measurement. */
  Call caller() throws Exception;

  /** Makes one call of the work, waits for the reply and checks it. */
  interface Call {
    void call() throws Exception;
  }

  /** A Client that can call asynchronously. */
  interface Starter extends Client {
    /**
     * Makes one call without waiting for the reply. done is called once, from any thread, when the reply has come and was
     * checked: with null, or with what went wrong. It does not block. start may block while the framework holds it up. One
     * thread calls start.
     */
    void start(Consumer<Throwable> done) throws Exception;
  }
}
