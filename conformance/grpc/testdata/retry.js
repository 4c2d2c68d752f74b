// SPDX-License-Identifier: Apache-2.0

// Makes a unary call of grpc.testing.TestService with @grpc/grpc-js and a policy of its service
// config: retry.js ADDRESS DESCRIPTORS retryPolicy|hedgingPolicy. It fails unless the call succeeds.

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, path, policy] = process.argv.slice(2);
const policies = {
  retryPolicy: { maxAttempts: 4, initialBackoff: "0.001s", maxBackoff: "0.01s", backoffMultiplier: 1, retryableStatusCodes: ["UNAVAILABLE"] },
  // A failed attempt begins the next one at once. Without a failure it would begin after an hour.
  hedgingPolicy: { maxAttempts: 4, hedgingDelay: "3600s", nonFatalStatusCodes: ["UNAVAILABLE"] },
};
const config = { loadBalancingConfig: [], methodConfig: [{ name: [{ service: "grpc.testing.TestService" }], [policy]: policies[policy] }] };
const types = grpc.loadPackageDefinition(loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(path)));
const client = new types.grpc.testing.TestService(address, grpc.credentials.createInsecure(), { "grpc.service_config": JSON.stringify(config) });
client.unaryCall({}, { deadline: Date.now() + 20000 }, (err) => {
  if (err) {
    console.error(err);
    process.exitCode = 1;
  }
  client.close();
});
