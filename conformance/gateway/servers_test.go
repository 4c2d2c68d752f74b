// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/conformance/gateway/gen/examplepb"
	"github.com/yodel-rpc/yodel/conformance/gateway/gen/shapes"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/http/transcode"
)

// files are the files whose services both servers serve.
var files = []protoreflect.FileDescriptor{
	examplepb.File_examples_internal_proto_examplepb_a_bit_of_everything_proto,
	examplepb.File_examples_internal_proto_examplepb_camel_case_service_proto,
	examplepb.File_examples_internal_proto_examplepb_echo_service_proto,
	examplepb.File_examples_internal_proto_examplepb_enum_with_single_value_proto,
	examplepb.File_examples_internal_proto_examplepb_excess_body_proto,
	examplepb.File_examples_internal_proto_examplepb_flow_combination_proto,
	examplepb.File_examples_internal_proto_examplepb_non_standard_names_proto,
	examplepb.File_examples_internal_proto_examplepb_proto3_field_semantics_proto,
	examplepb.File_examples_internal_proto_examplepb_response_body_service_proto,
	examplepb.File_examples_internal_proto_examplepb_stream_proto,
	examplepb.File_examples_internal_proto_examplepb_wrappers_proto,
	shapes.File_shapes_shapes_proto,
}

// registerServices calls the Register functions that are generated for servers of gRPC.
func registerServices(r grpc.ServiceRegistrar) {
	examplepb.RegisterABitOfEverythingServiceServer(r, examplepb.UnimplementedABitOfEverythingServiceServer{})
	examplepb.RegisterCamelCaseServiceNameServer(r, examplepb.UnimplementedCamelCaseServiceNameServer{})
	examplepb.RegisterSnakeEnumServiceServer(r, examplepb.UnimplementedSnakeEnumServiceServer{})
	examplepb.RegisterCamel_CaseServiceServer(r, examplepb.UnimplementedCamel_CaseServiceServer{})
	examplepb.RegisterEchoServiceServer(r, examplepb.UnimplementedEchoServiceServer{})
	examplepb.RegisterEnumWithSingleValueServiceServer(r, examplepb.UnimplementedEnumWithSingleValueServiceServer{})
	examplepb.RegisterExcessBodyServiceServer(r, examplepb.UnimplementedExcessBodyServiceServer{})
	examplepb.RegisterFlowCombinationServer(r, examplepb.UnimplementedFlowCombinationServer{})
	examplepb.RegisterNonStandardServiceServer(r, examplepb.UnimplementedNonStandardServiceServer{})
	examplepb.RegisterProto3FieldSemanticsServiceServer(r, examplepb.UnimplementedProto3FieldSemanticsServiceServer{})
	examplepb.RegisterResponseBodyServiceServer(r, examplepb.UnimplementedResponseBodyServiceServer{})
	examplepb.RegisterStreamServiceServer(r, examplepb.UnimplementedStreamServiceServer{})
	examplepb.RegisterWrappersServiceServer(r, examplepb.UnimplementedWrappersServiceServer{})
	shapes.RegisterShapesServer(r, shapes.UnimplementedShapesServer{})
}

// handlers are the functions that are generated for the gateway.
var handlers = []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
	examplepb.RegisterABitOfEverythingServiceHandler,
	examplepb.RegisterCamelCaseServiceNameHandler,
	examplepb.RegisterSnakeEnumServiceHandler,
	examplepb.RegisterCamel_CaseServiceHandler,
	examplepb.RegisterEchoServiceHandler,
	examplepb.RegisterEnumWithSingleValueServiceHandler,
	examplepb.RegisterExcessBodyServiceHandler,
	examplepb.RegisterFlowCombinationHandler,
	examplepb.RegisterNonStandardServiceHandler,
	examplepb.RegisterProto3FieldSemanticsServiceHandler,
	examplepb.RegisterResponseBodyServiceHandler,
	examplepb.RegisterStreamServiceHandler,
	examplepb.RegisterWrappersServiceHandler,
	shapes.RegisterShapesHandler,
}

// A recorder implements all methods of the services it registers: it keeps the request, and returns
// it if it has the type of the reply, and otherwise a reply with the same fields of strings.
type recorder struct {
	to   grpc.ServiceRegistrar
	mu   sync.Mutex
	call call
}

// A call is what a method has received.
type call struct {
	method  string
	request proto.Message
}

// take returns the last call and forgets it.
func (r *recorder) take() call {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.call
	r.call = call{}
	return last
}

// RegisterService implements grpc.ServiceRegistrar.
func (r *recorder) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods = nil
	for _, m := range desc.Methods {
		in, out := r.types(desc.ServiceName, m.MethodName)
		m.Handler = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := in.New().Interface()
			if err := decode(request); err != nil {
				return nil, err
			}
			return r.serve(m.MethodName, request, out), nil
		}
		own.Methods = append(own.Methods, m)
	}
	own.Streams = nil
	for _, s := range desc.Streams {
		in, out := r.types(desc.ServiceName, s.StreamName)
		s.Handler = func(_ any, stream grpc.ServerStream) error {
			request := in.New().Interface()
			if err := stream.RecvMsg(request); err != nil {
				return err
			}
			return stream.SendMsg(r.serve(s.StreamName, request, out))
		}
		own.Streams = append(own.Streams, s)
	}
	r.to.RegisterService(&own, impl)
}

// types returns the types of the messages of a method.
func (*recorder) types(service, method string) (in, out protoreflect.MessageType) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		panic(err)
	}
	of := func(d protoreflect.MessageDescriptor) protoreflect.MessageType {
		t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			panic(err)
		}
		return t
	}
	m, _ := d.(protoreflect.MethodDescriptor)
	return of(m.Input()), of(m.Output())
}

func (r *recorder) serve(method string, request proto.Message, out protoreflect.MessageType) proto.Message {
	r.mu.Lock()
	r.call = call{method, proto.Clone(request)}
	r.mu.Unlock()
	if request.ProtoReflect().Descriptor() == out.Descriptor() {
		return withoutMasks(request) // they may have paths that JSON does not have
	}
	return filled(out, proto.Size(request) > 0, 0).Interface()
}

// withoutMasks returns a copy of a message without its fields that are masks.
func withoutMasks(m proto.Message) proto.Message {
	m = proto.Clone(m)
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.Message() != nil && f.Message().FullName() == "google.protobuf.FieldMask" {
			m.ProtoReflect().Clear(f)
		}
		return true
	})
	return m
}

// filled returns a message whose fields are set, or not.
func filled(of protoreflect.MessageType, set bool, depth int) protoreflect.Message {
	m := of.New()
	for i := range of.Descriptor().Fields().Len() {
		f := of.Descriptor().Fields().Get(i)
		required := f.Cardinality() == protoreflect.Required
		switch {
		case !set && !required || depth > 2 || f.IsMap():
		case f.Message() != nil && f.IsList():
			element := m.NewField(f).List().NewElement().Message().Type()
			m.Mutable(f).List().Append(protoreflect.ValueOfMessage(filled(element, true, depth+1)))
		case f.Message() != nil:
			m.Set(f, protoreflect.ValueOfMessage(filled(m.NewField(f).Message().Type(), true, depth+1)))
		case f.Kind() == protoreflect.StringKind && f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOfString("a \u00e4<>"))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("text of "+string(f.Name())))
		case f.Kind() == protoreflect.EnumKind && !f.IsList():
			values := f.Enum().Values()
			m.Set(f, protoreflect.ValueOfEnum(values.Get(values.Len()-1).Number()))
		}
	}
	return m
}

// A site is one of the two servers, and a connection to it.
type site struct {
	*recorder
	addr string
	conn net.Conn
	read *bufio.Reader
}

// serve serves on a port of its own until the test has ended.
func serve(t *testing.T, r *recorder, run func(ctx context.Context, l net.Listener) error) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, l) }()
	s := &site{recorder: r, addr: l.Addr().String()}
	t.Cleanup(func() {
		if s.conn != nil {
			_ = s.conn.Close()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// serveGateway serves grpc-gateway with its defaults, before a server of grpc-go.
func serveGateway(t *testing.T) *site {
	backend := grpc.NewServer()
	r := &recorder{to: backend}
	registerServices(r)
	behind := serve(t, r, func(ctx context.Context, l net.Listener) error {
		defer context.AfterFunc(ctx, backend.Stop)()
		return backend.Serve(l)
	})
	conn, err := grpc.NewClient(behind.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	mux := runtime.NewServeMux()
	for _, register := range handlers {
		if err := register(t.Context(), mux, conn); err != nil {
			t.Fatal(err)
		}
	}
	front := &std.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	return serve(t, r, func(ctx context.Context, l net.Listener) error {
		defer context.AfterFunc(ctx, func() { _ = front.Close() })()
		if err := front.Serve(l); err != std.ErrServerClosed {
			return err
		}
		return nil
	})
}

// serveYodel serves the same services with transcode.
func serveYodel(t *testing.T) *site {
	routes, err := transcode.Routes(files...)
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{protobuf.Codec, protobuf.FullJSON},
		Protocols: []yodel.Protocol{http.New(&http.Options{Routes: routes})},
		Logger:    slog.New(slog.DiscardHandler),
	})
	r := &recorder{to: grpcgo.Registrar(s)}
	registerServices(r)
	for _, route := range routes {
		if strings.HasPrefix(route.Pattern, "GET ") || strings.HasPrefix(route.Pattern, "HEAD ") {
			s.MarkReadOnly(route.Method)
		}
	}
	return serve(t, r, s.Serve)
}

// An answer is what a client sees of a response, and the call that the method has received.
type answer struct {
	call
	status int
	media  string // the content type
	body   string
	code   string // that of an error
	says   string // the text of an error
}

// do sends a request and returns the answer.
func (s *site) do(r request) (answer, error) {
	s.take()
	for attempt := range 2 {
		if s.conn == nil {
			conn, err := net.Dial("tcp", s.addr)
			if err != nil {
				return answer{}, err
			}
			s.conn, s.read = conn, bufio.NewReader(conn)
		}
		a, err := s.exchange(r)
		if err == nil {
			return a, nil
		}
		_ = s.conn.Close()
		s.conn = nil
		if attempt > 0 {
			return answer{}, fmt.Errorf("%s: %w", r, err)
		}
	}
	return answer{}, nil
}

// exchange sends a request as it stands: a client of package net/http would refuse some.
func (s *site) exchange(r request) (a answer, err error) {
	if err := s.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return a, err
	}
	head := r.verb + " " + r.target + " HTTP/1.1\r\nHost: " + s.addr + "\r\nAccept: application/json, text/event-stream\r\n"
	if r.media != "" {
		head += "Content-Type: " + r.media + "\r\n"
	}
	if r.body != "" || r.verb != "GET" {
		head += fmt.Sprintf("Content-Length: %d\r\n", len(r.body))
	}
	if _, err := io.WriteString(s.conn, head+"\r\n"+r.body); err != nil {
		return a, err
	}
	response, err := std.ReadResponse(s.read, &std.Request{Method: r.verb})
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	if response.Close {
		_ = s.conn.Close()
		s.conn = nil
	}
	a = answer{call: s.take(), status: response.StatusCode, media: response.Header.Get("Content-Type"), body: string(body)}
	if a.status != std.StatusOK {
		a.code, a.says = failure(body)
	}
	return a, nil
}

// failure returns the code and the text of an error in the form of the gateway, or of transcode.
func failure(body []byte) (code, text string) {
	var form struct {
		Code    any
		Message string
		Error   struct{ Status string }
	}
	if err := json.Unmarshal(body, &form); err != nil {
		return "", string(body)
	}
	if n, ok := form.Code.(float64); ok {
		var c codes.Code
		for name, value := range names {
			if value == int(n) {
				return name, form.Message
			}
		}
		return c.String(), form.Message
	}
	return form.Error.Status, form.Message
}
