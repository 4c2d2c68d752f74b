// SPDX-License-Identifier: Apache-2.0

import io.grpc.testing.integration.TestServiceClient;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/** Runs test cases of grpc-java's TestServiceClient in one process: Interop PORT TLS CASE..., where TLS is true or false. */
class Interop {
	public static void main(String[] args) throws Exception {
		for (int i = 2; i < args.length; i++) {
			TestServiceClient client = new TestServiceClient();
			call(client, "parseArgs", new Class<?>[] {String[].class},
				new Object[] {new String[] {"--server_host=127.0.0.1", "--server_host_override=foo.test.google.fr", "--use_test_ca=true",
					"--server_port=" + args[0], "--use_tls=" + args[1], "--test_case=" + args[i],
					"--soak_per_iteration_max_acceptable_latency_ms=20000", "--soak_overall_timeout_seconds=60"}});
			call(client, "setUp", new Class<?>[0]);
			try {
				call(client, "run", new Class<?>[0]);
				System.out.println("passed " + args[i]);
			} catch (InvocationTargetException e) {
				System.out.println("failed " + args[i] + ": " + e.getCause().toString().replace('\n', ' '));
			}
			call(client, "tearDown", new Class<?>[0]);
		}
		System.exit(0);
	}

	static void call(Object o, String name, Class<?>[] types, Object... args) throws Exception {
		Method m = TestServiceClient.class.getDeclaredMethod(name, types);
		m.setAccessible(true);
		m.invoke(o, args);
	}
}
