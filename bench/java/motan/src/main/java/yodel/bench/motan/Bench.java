// SPDX-License-Identifier: Apache-2.0
package yodel.bench.motan;

import com.weibo.api.motan.transport.async.MotanAsync;
import yodel.bench.Plain;

/** The service, which Motan derives BenchAsync from when it is compiled. */
@MotanAsync
public interface Bench extends Plain.Service {}
