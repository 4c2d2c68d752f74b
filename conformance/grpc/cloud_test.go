// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"sync"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// This file serves Cloud KMS and Pub/Sub, two public services, with the code that Google generates
// for them. Their only stream is in both directions, so grpc.testing.TestService, which has all
// kinds of methods, is served too.

// A recorder stands behind the methods of all servers.
type recorder struct {
	mu      sync.Mutex
	method  string // that was called last
	got     []proto.Message
	replies []proto.Message
	err     error // that the method returns, after its replies if it streams them
}

func (r *recorder) prepare(replies []proto.Message, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.method, r.got, r.replies, r.err = "", nil, replies, err
}

// called returns what the last call has brought.
func (r *recorder) called() (method string, got []proto.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.method, r.got
}

func (r *recorder) record(method string, in ...proto.Message) (replies []proto.Message, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.method, r.got = method, append(r.got, in...)
	return r.replies, r.err
}

// answer is a unary method.
func answer[Reply proto.Message](_ context.Context, r *recorder, method string, in proto.Message) (reply Reply, err error) {
	replies, err := r.record(method, in)
	if err != nil {
		return reply, err
	}
	reply, ok := replies[0].(Reply)
	if !ok {
		return reply, fmt.Errorf("%s was called, and the reply is a %T", method, replies[0])
	}
	return reply, nil
}

// stream is a method that streams: it answers each message with one, and sends the others at the
// end.
func stream(r *recorder, method string, st grpc.ServerStream, request func() proto.Message) error {
	sent := 0
	for {
		in := request()
		switch err := st.RecvMsg(in); {
		case errors.Is(err, io.EOF):
			replies, wanted := r.record(method)
			for ; sent < len(replies); sent++ {
				if err := st.SendMsg(replies[sent]); err != nil {
					return err
				}
			}
			return wanted
		case err != nil:
			return err
		}
		replies, _ := r.record(method, in)
		if sent < len(replies) {
			if err := st.SendMsg(replies[sent]); err != nil {
				return err
			}
			sent++
		}
	}
}

func (s subscriberStub) StreamingPull(st pubsubpb.Subscriber_StreamingPullServer) error {
	return stream(s.recorder, "StreamingPull", st, func() proto.Message { return new(pubsubpb.StreamingPullRequest) })
}

// A testStub has the methods of TestService.
type testStub struct {
	testpb.UnimplementedTestServiceServer
	*recorder
}

func (s testStub) EmptyCall(ctx context.Context, in *testpb.Empty) (*testpb.Empty, error) {
	return answer[*testpb.Empty](ctx, s.recorder, "EmptyCall", in)
}

func (s testStub) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return answer[*testpb.SimpleResponse](ctx, s.recorder, "UnaryCall", in)
}

func (s testStub) CacheableUnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return answer[*testpb.SimpleResponse](ctx, s.recorder, "CacheableUnaryCall", in)
}

func (s testStub) UnimplementedCall(ctx context.Context, in *testpb.Empty) (*testpb.Empty, error) {
	return answer[*testpb.Empty](ctx, s.recorder, "UnimplementedCall", in)
}

func (s testStub) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, st testpb.TestService_StreamingOutputCallServer) error {
	replies, wanted := s.record("StreamingOutputCall", in)
	for _, reply := range replies {
		if err := st.SendMsg(reply); err != nil {
			return err
		}
	}
	return wanted
}

func (s testStub) StreamingInputCall(st testpb.TestService_StreamingInputCallServer) error {
	for {
		in, err := st.Recv()
		switch {
		case errors.Is(err, io.EOF):
			replies, wanted := s.record("StreamingInputCall")
			if wanted != nil {
				return wanted
			}
			return st.SendMsg(replies[0])
		case err != nil:
			return err
		}
		_, _ = s.record("StreamingInputCall", in)
	}
}

func (s testStub) FullDuplexCall(st testpb.TestService_FullDuplexCallServer) error {
	return stream(s.recorder, "FullDuplexCall", st, func() proto.Message { return new(testpb.StreamingOutputCallRequest) })
}

func (s testStub) HalfDuplexCall(st testpb.TestService_HalfDuplexCallServer) error {
	return stream(s.recorder, "HalfDuplexCall", st, func() proto.Message { return new(testpb.StreamingOutputCallRequest) })
}

// registerCloud registers all services.
func registerCloud(to grpc.ServiceRegistrar, r *recorder) {
	kmspb.RegisterAutokeyAdminServer(to, autokeyAdminStub{recorder: r})
	kmspb.RegisterAutokeyServer(to, autokeyStub{recorder: r})
	kmspb.RegisterEkmServiceServer(to, ekmServiceStub{recorder: r})
	kmspb.RegisterHsmManagementServer(to, hsmManagementStub{recorder: r})
	kmspb.RegisterKeyManagementServiceServer(to, keyManagementServiceStub{recorder: r})
	pubsubpb.RegisterPublisherServer(to, publisherStub{recorder: r})
	pubsubpb.RegisterSubscriberServer(to, subscriberStub{recorder: r})
	pubsubpb.RegisterSchemaServiceServer(to, schemaServiceStub{recorder: r})
	testpb.RegisterTestServiceServer(to, testStub{recorder: r})
}

// cloudClients returns the generated clients of all services.
func cloudClients(conn grpc.ClientConnInterface) map[protoreflect.FullName]any {
	return map[protoreflect.FullName]any{
		"google.cloud.kms.v1.AutokeyAdmin":         kmspb.NewAutokeyAdminClient(conn),
		"google.cloud.kms.v1.Autokey":              kmspb.NewAutokeyClient(conn),
		"google.cloud.kms.v1.EkmService":           kmspb.NewEkmServiceClient(conn),
		"google.cloud.kms.v1.HsmManagement":        kmspb.NewHsmManagementClient(conn),
		"google.cloud.kms.v1.KeyManagementService": kmspb.NewKeyManagementServiceClient(conn),
		"google.pubsub.v1.Publisher":               pubsubpb.NewPublisherClient(conn),
		"google.pubsub.v1.Subscriber":              pubsubpb.NewSubscriberClient(conn),
		"google.pubsub.v1.SchemaService":           pubsubpb.NewSchemaServiceClient(conn),
		"grpc.testing.TestService":                 testpb.NewTestServiceClient(conn),
	}
}

// cloudMethods returns the methods of all services of KMS and Pub/Sub that are linked into the
// test, and of TestService.
func cloudMethods() (all []protoreflect.MethodDescriptor) {
	add := func(s protoreflect.ServiceDescriptor) {
		for i := range s.Methods().Len() {
			all = append(all, s.Methods().Get(i))
		}
	}
	for _, name := range []protoreflect.FullName{"google.cloud.kms.v1", "google.pubsub.v1"} {
		protoregistry.GlobalFiles.RangeFilesByPackage(name, func(f protoreflect.FileDescriptor) bool {
			for i := range f.Services().Len() {
				add(f.Services().Get(i))
			}
			return true
		})
	}
	add(testpb.File_grpc_testing_test_proto.Services().ByName("TestService"))
	return all
}

// results returns the error of a call, which is its last result, and the others.
func results(out []reflect.Value) (reply reflect.Value, err error) {
	err, _ = reflect.TypeAssert[error](out[len(out)-1])
	return out[0], err
}

// callMethod calls a method of a generated client.
func callMethod(ctx context.Context, client any, m protoreflect.MethodDescriptor, requests []proto.Message) (replies []proto.Message, err error) {
	in := []reflect.Value{reflect.ValueOf(ctx)}
	if !m.IsStreamingClient() {
		in = append(in, reflect.ValueOf(requests[0]))
	}
	out, err := results(reflect.ValueOf(client).MethodByName(string(m.Name())).Call(in))
	if err != nil {
		return nil, err
	}
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return []proto.Message{out.Interface().(proto.Message)}, nil
	}
	receive := func(from string) error {
		reply, err := results(out.MethodByName(from).Call(nil))
		if err == nil {
			replies = append(replies, reply.Interface().(proto.Message))
		}
		return err
	}
	if m.IsStreamingClient() {
		for _, request := range requests {
			_, err := results(out.MethodByName("Send").Call([]reflect.Value{reflect.ValueOf(request)}))
			if err == nil && m.IsStreamingServer() {
				err = receive("Recv") // the reply to this message, before the next is sent
			}
			if err != nil {
				return replies, err
			}
		}
		if !m.IsStreamingServer() {
			return replies, receive("CloseAndRecv")
		}
		if _, err := results(out.MethodByName("CloseSend").Call(nil)); err != nil {
			return replies, err
		}
	}
	for range 100 {
		if err := receive("Recv"); errors.Is(err, io.EOF) {
			return replies, nil
		} else if err != nil {
			return replies, err
		}
	}
	return replies, errors.New("the stream does not end")
}

// equalMessages reports whether messages are the same.
func equalMessages(a, b []proto.Message) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// checkCloud calls all methods, with each member of their oneofs, and checks that requests, replies
// and errors arrive as they were.
func checkCloud(t *testing.T, conn grpc.ClientConnInterface, r *recorder) {
	t.Helper()
	clients := cloudClients(conn)
	services, calls := make(map[protoreflect.FullName]int), 0
	for at, m := range cloudMethods() {
		client, ok := clients[m.Parent().FullName()]
		if !ok {
			t.Errorf("%s has no client in this test", m.Parent().FullName())
			continue
		}
		services[m.Parent().FullName()]++
		for variant, more := 0, true; more; variant++ {
			f := &filler{variant: variant}
			requests, replies := f.messages(t, m.Input(), m.IsStreamingClient(), 3), f.messages(t, m.Output(), m.IsStreamingServer(), 5)
			r.prepare(replies, nil)
			got, err := callMethod(t.Context(), client, m, requests)
			method, received := r.called()
			if err != nil || !equalMessages(got, replies) {
				t.Errorf("%s: got %v and error %v, want %v", m.FullName(), got, err, replies)
			}
			if method != string(m.Name()) || !equalMessages(received, requests) {
				t.Errorf("%s: the server's method %s got %v, want %v", m.FullName(), method, received, requests)
			}
			calls++
			more = variant+1 < f.members
		}
		checkCloudError(t, client, m, r, codes.Code(at%16+1))
	}
	t.Logf("%d calls of methods: %v", calls, services)
	sum := 0
	for _, n := range services {
		sum += n
	}
	if len(services) != len(clients) || sum != 57+35+8 { // of KMS, Pub/Sub and TestService
		t.Errorf("%d services and %d methods were called: %v", len(services), sum, services)
	}
}

// checkCloudError calls a method that fails with an error with details.
func checkCloudError(t *testing.T, client any, m protoreflect.MethodDescriptor, r *recorder, code codes.Code) {
	t.Helper()
	f := new(filler)
	info, failure := new(errdetails.ErrorInfo), new(errdetails.QuotaFailure)
	f.fill(info.ProtoReflect(), 0)
	f.fill(failure.ProtoReflect(), 0)
	want, err := status.New(code, "the method has failed: "+string(m.Name())).WithDetails(info, failure)
	if err != nil {
		t.Fatal(err)
	}
	requests, replies := f.messages(t, m.Input(), m.IsStreamingClient(), 3), f.messages(t, m.Output(), m.IsStreamingServer(), 5)
	r.prepare(replies, want.Err())
	got, err := callMethod(t.Context(), client, m, requests)
	if s := status.Convert(err); !proto.Equal(s.Proto(), want.Proto()) {
		t.Errorf("%s: got the error %v, want %v", m.FullName(), s.Proto(), want.Proto())
	}
	if m.IsStreamingServer() && !equalMessages(got, replies) {
		t.Errorf("%s: got %v before the error, want %v", m.FullName(), got, replies)
	}
	if _, received := r.called(); !equalMessages(received, requests) {
		t.Errorf("%s: the server got %v before the error, want %v", m.FullName(), received, requests)
	}
}

// TestCloudServices calls every method of Cloud KMS and Pub/Sub with their generated clients.
func TestCloudServices(t *testing.T) {
	r := new(recorder)
	theirs := grpc.NewServer()
	registerCloud(theirs, r)
	ours := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}, Logger: slog.New(slog.DiscardHandler),
	})
	registerCloud(grpcgo.Registrar(ours), r)
	theirAddr, addr := startGRPC(t, theirs), start(t, ours)
	original := func(t *testing.T, addr string) grpc.ClientConnInterface {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(t, err)
		t.Cleanup(func() { must(t, conn.Close()) })
		return conn
	}
	native := func(t *testing.T, addr string) grpc.ClientConnInterface {
		c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Codec: protobuf.Codec, Wires: []yodel.Wire{wire.Wire}})
		t.Cleanup(c.Close)
		return grpcgo.Conn(c)
	}
	for _, pair := range []struct {
		name, addr string
		dial       func(t *testing.T, addr string) grpc.ClientConnInterface
	}{
		{"grpc-go to grpc-go", theirAddr, original}, // the test itself is right
		{"grpc-go to yodel", addr, original},
		{"yodel to yodel", addr, native},
		{"yodel over gRPC to yodel", "grpc://" + addr, native},
		{"yodel over gRPC to grpc-go", "grpc://" + theirAddr, native},
	} {
		t.Run(pair.name, func(t *testing.T) { checkCloud(t, pair.dial(t, pair.addr), r) })
	}
}
