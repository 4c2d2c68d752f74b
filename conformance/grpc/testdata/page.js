// SPDX-License-Identifier: Apache-2.0

// Calls grpc.testing.TestService from a web page by gRPC-Web and Connect, and posts the result to
// the page's own server.

import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema, StringValueSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";

const lines = [];

function equal(what, got, want) {
  if (String(got) !== String(want)) throw new Error(`${what}: got ${got}, want ${want}`);
}

async function check(name, service, transport) {
  const client = createClient(service, transport);
  let header;
  const reply = await client.unaryCall({ responseSize: 20000 }, { headers: { "x-grpc-test-echo-initial": "a" }, onHeader: (h) => (header = h) });
  equal("unary", reply.payload.body.length, 20000);
  equal("header", header.get("x-grpc-test-echo-initial"), "a");
  lines.push("passed " + name + " unary");
  const sizes = [];
  for await (const m of client.streamingOutputCall({ responseParameters: [{ size: 1 }, { size: 20000, intervalUs: 1000 }] })) sizes.push(m.payload.body.length);
  equal("feed", sizes, [1, 20000]);
  lines.push("passed " + name + " feed");
  for (const failing of [
    () => client.unaryCall({ responseStatus: { code: 9, message: "no" } }),
    async () => {
      for await (const _ of client.streamingOutputCall({ responseStatus: { code: 9, message: "no" } }));
    },
  ]) {
    let e;
    try {
      await failing();
    } catch (err) {
      e = ConnectError.from(err);
    }
    equal("code", e && e.code, Code.FailedPrecondition);
    equal("message", e.rawMessage, "no");
    equal("detail", e.findDetails(StringValueSchema)[0].value, "a detail");
  }
  lines.push("passed " + name + " errors");
}

async function checkEvents(baseUrl) {
  const message = encodeURIComponent(JSON.stringify({ responseParameters: [{ size: 1 }, { size: 3 }] }));
  const source = new EventSource(`${baseUrl}/grpc.testing.TestService/StreamingOutputCall?encoding=json&message=${message}`);
  const sizes = await new Promise((resolve, reject) => {
    const got = [];
    source.onmessage = (e) => got.push(atob(JSON.parse(e.data).payload.body).length);
    source.addEventListener("end", () => resolve(got));
    source.onerror = () => reject(new Error("the EventSource failed"));
  });
  source.close();
  equal("events", sizes, [1, 3]);
  lines.push("passed EventSource");
}

(async () => {
  try {
    const baseUrl = new URLSearchParams(location.search).get("server");
    const descriptors = new Uint8Array(await (await fetch("/descriptors")).arrayBuffer());
    const service = createFileRegistry(fromBinary(FileDescriptorSetSchema, descriptors)).getService("grpc.testing.TestService");
    await check("gRPC-Web", service, createGrpcWebTransport({ baseUrl }));
    await check("Connect", service, createConnectTransport({ baseUrl, useBinaryFormat: true }));
    await check("Connect JSON", service, createConnectTransport({ baseUrl }));
    await checkEvents(baseUrl);
  } catch (e) {
    lines.push("failed: " + e);
  }
  await fetch("/result", { method: "POST", body: lines.join("\n") });
})();
