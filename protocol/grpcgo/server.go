// SPDX-License-Identifier: Apache-2.0

package grpcgo

import (
	"context"
	"errors"
	"io"
	"maps"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/yodel-rpc/yodel"
)

// Registrar returns a registrar for the Register functions of generated code. They register their
// methods on the server as "package.Service/Method". The server needs the codec "protobuf", and for
// callers with JSON the codec protobuf.JSON. RegisterService panics if a name is taken.
func Registrar(s *yodel.Server) grpc.ServiceRegistrar { return registrar{s} }

type registrar struct{ server *yodel.Server }

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	for _, m := range desc.Methods {
		name := desc.ServiceName + "/" + m.MethodName
		must(r.server.HandleCall(name, func(ctx context.Context, call *yodel.Call) error {
			t := newTransport(ctx, call)
			reply, err := m.Handler(impl, t.ctx, t.decode, t.interceptor()) //nolint:contextcheck // t.ctx is made from ctx
			t.finish()
			if err == nil {
				call.Reply = reply
			}
			return err
		}, typesOf(desc.ServiceName, m.MethodName)...))
	}
	for _, d := range desc.Streams {
		name, kind := desc.ServiceName+"/"+d.StreamName, "duplex"
		switch {
		case !d.ClientStreams:
			kind = "feed"
		case !d.ServerStreams:
			kind = "upload"
		}
		must(r.server.HandleStream(name, kind, func(ctx context.Context, call *yodel.Call, recv, send func(any) error) error {
			t := newTransport(ctx, call)
			t.kind, t.recv, t.send = kind, recv, send
			err := d.Handler(impl, t.stream())
			t.finish()
			return err
		}, typesOf(desc.ServiceName, d.StreamName)...))
	}
}

// A transport is what grpc-go's functions for headers and trailers find in the context of a
// handler. The interceptors and the handler of a call share one.
type transport struct {
	ctx     context.Context //nolint:containedctx // of the interceptor or the handler that runs
	call    *yodel.Call
	decoded bool // Unary has decoded the request

	// of streams
	kind       string
	recv, send func(any) error   // nil until the method of a stub begins
	outer      grpc.ServerStream // what the last interceptor has passed on; nil if there is none
	received   bool              // the request of a feed

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the header was sent
}

// newTransport returns the transport of the call, with a context for the interceptor or the handler
// that begins.
func newTransport(ctx context.Context, call *yodel.Call) *transport {
	if t, ok := grpc.ServerTransportStreamFromContext(ctx).(*transport); ok && t.call == call {
		t.ctx = ctx
		return t
	}
	t := &transport{call: call}
	md := metadataOf(call.Metadata)
	if p := call.Peer(); p != nil {
		if p.Agent != "" && md["user-agent"] == nil {
			md["user-agent"] = []string{p.Agent}
		}
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: p.Addr})
	}
	t.ctx = grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(ctx, md), t)
	return t
}

// Method implements grpc.ServerTransportStream.
func (t *transport) Method() string { return "/" + t.call.Method }

// SetHeader implements grpc.ServerTransportStream.
func (t *transport) SetHeader(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent {
		return status.Error(codes.Internal, "the header was sent already")
	}
	t.header = metadata.Join(t.header, md)
	t.call.SetHeader(yodelMetadata(t.header))
	return nil
}

// SendHeader implements grpc.ServerTransportStream.
func (t *transport) SendHeader(md metadata.MD) error {
	if err := t.SetHeader(md); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = true
	return statusOf(t.call.SendHeader())
}

// SetTrailer implements grpc.ServerTransportStream.
func (t *transport) SetTrailer(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trailer = metadata.Join(t.trailer, md)
	return nil
}

// finish passes the trailer to the call.
func (t *transport) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if trailer := yodelMetadata(t.trailer); len(t.call.Trailer) == 0 {
		t.call.Trailer = trailer
	} else {
		t.call.Trailer = maps.Clone(t.call.Trailer) // it may be the middleware's
		maps.Copy(t.call.Trailer, trailer)
	}
}

// decode decodes the request of a unary call into v, unless Unary has decoded it.
func (t *transport) decode(v any) error {
	if t.decoded {
		return nil
	}
	return refusalOf(t.call.DecodeInto(v))
}

// A requestError is the error of a request that cannot be decoded. The service and its interceptors
// see Internal, as in grpc-go. The client gets err, with the code of its protocol.
type requestError struct{ err *yodel.Error }

// GRPCStatus returns the status of grpc-go.
func (e requestError) GRPCStatus() *status.Status { return status.New(codes.Internal, e.err.Message) }

// Error implements error.
func (e requestError) Error() string { return e.GRPCStatus().Err().Error() }

// Unwrap returns the error for the client.
func (e requestError) Unwrap() error { return e.err }

// refusalOf is statusOf for the error of a request.
func refusalOf(err error) error {
	if e, ok := errors.AsType[*yodel.Error](err); ok && e.Code == yodel.InvalidArgument && e.AboutMessage() {
		return requestError{e}
	}
	return statusOf(err)
}

// interceptor returns an interceptor that passes on the request which Unary has decoded, or nil.
func (t *transport) interceptor() grpc.UnaryServerInterceptor {
	if !t.decoded {
		return nil
	}
	return func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(ctx, t.call.Args)
	}
}

// stream returns the stream for the interceptor or the handler that begins.
func (t *transport) stream() grpc.ServerStream {
	if t.outer == nil {
		return &serverStream{t}
	}
	return &innerStream{t.outer, t.ctx}
}

// An innerStream is the stream that an interceptor has passed on, with the context of the next one.
type innerStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // of the stream
}

// Context implements grpc.ServerStream.
func (st *innerStream) Context() context.Context { return st.ctx }

// A serverStream is a grpc.ServerStream.
type serverStream struct{ *transport }

// Context implements grpc.ServerStream.
func (st *serverStream) Context() context.Context { return st.ctx }

// SetTrailer implements grpc.ServerStream.
func (st *serverStream) SetTrailer(md metadata.MD) { _ = st.transport.SetTrailer(md) } // it never fails

var errNoMessages = status.Error(codes.Unimplemented, "interceptors send and receive messages only of methods that grpcgo.Registrar has registered, while the method runs")

// SendMsg implements grpc.ServerStream.
func (st *serverStream) SendMsg(m any) error {
	if st.send == nil {
		return errNoMessages
	}
	if st.kind == "upload" {
		st.call.Reply = m
		return nil
	}
	st.mu.Lock()
	st.sent = true
	st.mu.Unlock()
	if p, ok := m.(proto.Message); ok && !p.ProtoReflect().IsValid() {
		m = p.ProtoReflect().Type().New().Interface() // grpc-go sends a nil pointer as an empty message
	}
	return statusOf(st.send(m))
}

// RecvMsg implements grpc.ServerStream.
func (st *serverStream) RecvMsg(m any) error {
	if st.recv == nil {
		return errNoMessages
	}
	if st.kind == "feed" {
		if st.received {
			return io.EOF
		}
		st.received = true
		return refusalOf(st.call.DecodeInto(m))
	}
	if err := st.recv(m); err != io.EOF { //nolint:errorlint // it is bare
		return refusalOf(err)
	}
	return io.EOF
}

// typesOf returns the types of the request and the reply of a method that generated code describes,
// or nil.
func typesOf(service, method string) (types []reflect.Type) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	m, ok := d.(protoreflect.MethodDescriptor)
	if err != nil || !ok {
		return nil
	}
	for _, message := range []protoreflect.MessageDescriptor{m.Input(), m.Output()} {
		t, err := protoregistry.GlobalTypes.FindMessageByName(message.FullName())
		if err != nil {
			return nil
		}
		types = append(types, reflect.TypeOf(t.Zero().Interface()).Elem())
	}
	return types
}
