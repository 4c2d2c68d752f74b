// SPDX-License-Identifier: Apache-2.0

// Calls grpc.testing.TestService with @grpc/grpc-js, and with @connectrpc/connect-node by gRPC,
// gRPC-Web and Connect: client.js ADDRESS DESCRIPTORS. It prints a line for each case that passes.

const assert = require("node:assert");
const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const { createFileRegistry, fromBinary } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema, StringValueSchema } = require("@bufbuild/protobuf/wkt");
const { Code, ConnectError, createClient } = require("@connectrpc/connect");
const node = require("@connectrpc/connect-node");

const [address, path] = process.argv.slice(2);
const descriptors = fs.readFileSync(path);
const ms = (n) => n * 1000;
const sizes = (list, intervalUs = 0) => ({ responseParameters: list.map((size) => ({ size, intervalUs })) });

async function failure(promise) {
  try {
    await promise;
  } catch (e) {
    return e;
  }
  throw new Error("the call succeeded");
}

async function all(stream) {
  const got = [];
  for await (const m of stream) got.push(m.payload ? m.payload.body.length : 0);
  return got;
}

async function grpcJS() {
  // The names of fields are those of the descriptors.
  const sizes = (list, us = 0) => ({ response_parameters: list.map((size) => ({ size, interval_us: us })) });
  const passed = (name) => console.log("passed grpc-js", name);
  const types = grpc.loadPackageDefinition(loader.loadFileDescriptorSetFromBuffer(descriptors));
  const client = new types.grpc.testing.TestService(address, grpc.credentials.createInsecure());
  const deadline = () => ({ deadline: Date.now() + ms(20) });
  const unary = (method, request, metadata = new grpc.Metadata(), options = deadline()) =>
    new Promise((resolve, reject) => {
      let header, trailer;
      const call = client[method](request, metadata, options, (err, reply) => {
        if (err) reject(err);
        else setImmediate(() => resolve({ reply, header, trailer }));
      });
      call.on("metadata", (m) => (header = m));
      call.on("status", (s) => (trailer = s.metadata));
    });

  assert.equal((await unary("unaryCall", { response_size: 314159 })).reply.payload.body.length, 314159);
  passed("unary");
  assert.deepEqual(await all(client.streamingOutputCall(sizes([1, 20000, 3]), deadline())), [1, 20000, 3]);
  passed("feed");
  const sum = await new Promise((resolve, reject) => {
    const call = client.streamingInputCall(deadline(), (err, reply) => (err ? reject(err) : resolve(reply.aggregated_payload_size)));
    for (const n of [1, 20000, 3]) call.write({ payload: { body: Buffer.alloc(n) } });
    call.end();
  });
  assert.equal(sum, 20004);
  passed("upload");
  const talk = client.fullDuplexCall(deadline());
  talk.write(sizes([1]));
  talk.write(sizes([20000, 3]));
  talk.end();
  assert.deepEqual(await all(talk), [1, 20000, 3]);
  passed("duplex");

  const metadata = new grpc.Metadata();
  metadata.set("x-grpc-test-echo-initial", "a");
  metadata.set("x-grpc-test-echo-trailing-bin", Buffer.from([0, 255]));
  const { header, trailer } = await unary("unaryCall", {}, metadata);
  assert.deepEqual(header.get("x-grpc-test-echo-initial"), ["a"]);
  assert.deepEqual(trailer.get("x-grpc-test-echo-trailing-bin"), [Buffer.from([0, 255])]);
  passed("metadata");

  let e = await failure(unary("unaryCall", { response_status: { code: 9, message: "\tä %" } }));
  assert.equal(e.code, grpc.status.FAILED_PRECONDITION);
  assert.equal(e.details, "\tä %");
  assert.ok(e.metadata.get("grpc-status-details-bin")[0].includes("a detail"));
  passed("error details");
  e = await failure(unary("unimplementedCall", {}));
  assert.equal(e.code, grpc.status.UNIMPLEMENTED);
  passed("unimplemented");
  e = await failure(all(client.streamingOutputCall(sizes([1], ms(60000)), { deadline: Date.now() + 200 })));
  assert.equal(e.code, grpc.status.DEADLINE_EXCEEDED);
  passed("deadline");
  const long = client.streamingOutputCall(sizes(Array(1000).fill(1), ms(20)), deadline());
  long.once("data", () => long.cancel());
  e = await new Promise((resolve) => long.on("error", resolve));
  assert.equal(e.code, grpc.status.CANCELLED);
  passed("cancellation");
  const health = new types.grpc.health.v1.Health(address, grpc.credentials.createInsecure());
  const status = await new Promise((resolve, reject) => health.check({ service: "" }, deadline(), (err, reply) => (err ? reject(err) : resolve(reply.status))));
  assert.equal(status, 1);
  passed("health");
  health.close();
  client.close();
}

async function connectNode(name, transport, streams) {
  const passed = (what) => console.log("passed", name, what);
  const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, descriptors));
  const client = createClient(registry.getService("grpc.testing.TestService"), transport);
  const timeout = { timeoutMs: ms(20) };
  async function* list(messages) {
    yield* messages;
  }

  assert.equal((await client.unaryCall({ responseSize: 314159 }, timeout)).payload.body.length, 314159);
  passed("unary");
  assert.deepEqual(await all(client.streamingOutputCall(sizes([1, 20000, 3]), timeout)), [1, 20000, 3]);
  passed("feed");
  const inputs = [1, 20000, 3].map((n) => ({ payload: { body: new Uint8Array(n) } }));
  assert.equal((await client.streamingInputCall(list(inputs), timeout)).aggregatedPayloadSize, 20004);
  passed("upload");
  if (streams) {
    assert.deepEqual(await all(client.fullDuplexCall(list([sizes([1]), sizes([20000, 3])]), timeout)), [1, 20000, 3]);
    passed("duplex");
  }

  let header, trailer;
  await client.unaryCall({}, {
    ...timeout,
    headers: { "x-grpc-test-echo-initial": "a", "x-grpc-test-echo-trailing-bin": "AP8" },
    onHeader: (h) => (header = h),
    onTrailer: (t) => (trailer = t),
  });
  assert.equal(header.get("x-grpc-test-echo-initial"), "a");
  assert.equal(trailer.get("x-grpc-test-echo-trailing-bin"), "AP8");
  passed("metadata");

  let e = ConnectError.from(await failure(client.unaryCall({ responseStatus: { code: 9, message: "\tä %" } }, timeout)));
  assert.equal(e.code, Code.FailedPrecondition);
  assert.equal(e.rawMessage, "\tä %");
  assert.equal(e.findDetails(StringValueSchema)[0].value, "a detail");
  passed("error details");
  e = ConnectError.from(await failure(all(client.streamingOutputCall({ responseStatus: { code: 9, message: "no" } }, timeout))));
  assert.equal(e.code, Code.FailedPrecondition);
  passed("error of a feed");
  e = ConnectError.from(await failure(client.unimplementedCall({}, timeout)));
  assert.equal(e.code, Code.Unimplemented);
  passed("unimplemented");
  e = ConnectError.from(await failure(all(client.streamingOutputCall(sizes([1], ms(60000)), { timeoutMs: 200 }))));
  assert.equal(e.code, Code.DeadlineExceeded);
  passed("deadline");
  const abort = new AbortController();
  e = ConnectError.from(await failure((async () => {
    for await (const _ of client.streamingOutputCall(sizes(Array(1000).fill(1), ms(20)), { ...timeout, signal: abort.signal })) abort.abort();
  })()));
  assert.equal(e.code, Code.Canceled);
  passed("cancellation");
  const health = createClient(registry.getService("grpc.health.v1.Health"), transport);
  assert.equal((await health.check({}, timeout)).status, 1);
  passed("health");
}

(async () => {
  const baseUrl = "http://" + address;
  await grpcJS();
  await connectNode("gRPC", node.createGrpcTransport({ baseUrl }), true);
  await connectNode("gRPC-Web", node.createGrpcWebTransport({ baseUrl, httpVersion: "1.1" }), false);
  await connectNode("gRPC-Web 2", node.createGrpcWebTransport({ baseUrl, httpVersion: "2" }), true);
  await connectNode("Connect", node.createConnectTransport({ baseUrl, httpVersion: "1.1" }), false);
  await connectNode("Connect 2", node.createConnectTransport({ baseUrl, httpVersion: "2", useBinaryFormat: true }), true);
  process.exit(0); // the sessions of HTTP/2 are kept open
})().catch((e) => {
  console.error(e);
  process.exit(1);
});
