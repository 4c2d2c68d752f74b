# SPDX-License-Identifier: Apache-2.0
"""Calls grpc.testing.TestService with grpcio: client.py ADDRESS DESCRIPTORS. It prints a line for each case that passes."""

import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

pool = descriptor_pool.Default()
with open(sys.argv[2], "rb") as f:
    for file in descriptor_pb2.FileDescriptorSet.FromString(f.read()).file:
        if file.package != "grpc.health.v1":  # grpc_health has its own
            pool.Add(file)


def message(name):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("grpc.testing." + name))


Empty, Request, Response = message("Empty"), message("SimpleRequest"), message("SimpleResponse")
Out, OutReply, In, InReply = (message(n) for n in (
    "StreamingOutputCallRequest", "StreamingOutputCallResponse", "StreamingInputCallRequest", "StreamingInputCallResponse"))


def out(*sizes, interval_us=0):
    return Out(response_parameters=[{"size": n, "interval_us": interval_us} for n in sizes])


with grpc.insecure_channel(sys.argv[1]) as channel:
    def method(make, name, request, reply):
        return make("/grpc.testing.TestService/" + name, request_serializer=request.SerializeToString, response_deserializer=reply.FromString)

    unary = method(channel.unary_unary, "UnaryCall", Request, Response)
    download = method(channel.unary_stream, "StreamingOutputCall", Out, OutReply)
    upload = method(channel.stream_unary, "StreamingInputCall", In, InReply)
    duplex = method(channel.stream_stream, "FullDuplexCall", Out, OutReply)

    def failure(f):
        try:
            f()
        except grpc.RpcError as e:
            return e
        raise AssertionError("the call succeeded")

    def passed(name):
        print("passed", name, flush=True)

    assert len(unary(Request(response_size=314159), timeout=20).payload.body) == 314159
    passed("unary")
    assert len(unary(Request(response_size=10000), timeout=20, compression=grpc.Compression.Gzip).payload.body) == 10000
    passed("compression")
    assert [len(r.payload.body) for r in download(out(1, 20000, 3), timeout=20)] == [1, 20000, 3]
    passed("feed")
    assert upload(iter([In(payload={"body": b"x" * n}) for n in (1, 20000, 3)]), timeout=20).aggregated_payload_size == 20004
    passed("upload")
    assert [len(r.payload.body) for r in duplex(iter([out(1), out(20000, 3)]), timeout=20)] == [1, 20000, 3]
    passed("duplex")

    reply, call = unary.with_call(Request(), timeout=20, metadata=[("x-grpc-test-echo-initial", "a"), ("x-grpc-test-echo-trailing-bin", b"\x00\xff")])
    assert ("x-grpc-test-echo-initial", "a") in [tuple(m) for m in call.initial_metadata()]
    assert ("x-grpc-test-echo-trailing-bin", b"\x00\xff") in [tuple(m) for m in call.trailing_metadata()]
    passed("metadata")

    e = failure(lambda: unary(Request(response_status={"code": 9, "message": "\t\u00e4 %"}), timeout=20))
    assert e.code() == grpc.StatusCode.FAILED_PRECONDITION and e.details() == "\t\u00e4 %", e
    detail = wrappers_pb2.StringValue()
    assert rpc_status.from_call(e).details[0].Unpack(detail) and detail.value == "a detail"
    passed("error details")
    e = failure(lambda: list(download(Out(response_status={"code": 9, "message": "no"}), timeout=20)))
    assert e.code() == grpc.StatusCode.FAILED_PRECONDITION and e.details() == "no", e
    passed("error of a feed")
    e = failure(lambda: method(channel.unary_unary, "UnimplementedCall", Empty, Empty)(Empty(), timeout=20))
    assert e.code() == grpc.StatusCode.UNIMPLEMENTED, e
    passed("unimplemented")

    e = failure(lambda: list(download(out(1, interval_us=60_000_000), timeout=0.2)))
    assert e.code() == grpc.StatusCode.DEADLINE_EXCEEDED, e
    passed("deadline")

    call = download(out(*[1] * 1000, interval_us=20_000), timeout=30)
    next(call)
    call.cancel()
    assert failure(lambda: list(call)).code() == grpc.StatusCode.CANCELLED
    passed("cancellation")

    health = health_pb2_grpc.HealthStub(channel)
    for service in "", "grpc.testing.TestService":
        assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    assert failure(lambda: health.Check(health_pb2.HealthCheckRequest(service="no"), timeout=20)).code() == grpc.StatusCode.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(service="no"), timeout=20)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
    passed("health")

    database = ProtoReflectionDescriptorDatabase(channel)
    assert "grpc.testing.TestService" in database.get_services()
    assert database.FindFileContainingSymbol("grpc.testing.TestService").service[0].name == "TestService"
    passed("reflection")
