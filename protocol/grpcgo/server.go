// SPDX-License-Identifier: Apache-2.0

package grpcgo

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

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
			t := newTransport(ctx, call, name, nil)
			reply, err := m.Handler(impl, t.ctx, func(v any) error { return statusOf(call.DecodeInto(v)) }, nil) //nolint:contextcheck // t.ctx is made from ctx
			t.finish()
			if err != nil {
				return errorOf(err)
			}
			call.Reply = reply
			return nil
		}))
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
			t := newTransport(ctx, call, name, send)
			st := &serverStream{transport: t, kind: kind, recv: recv}
			err := d.Handler(impl, st)
			t.finish()
			return errorOf(err)
		}))
	}
}

// A transport is what grpc-go's functions for headers and trailers find in the context of a
// handler.
type transport struct {
	ctx  context.Context //nolint:containedctx // of the handler
	call *yodel.Call
	name string
	send func(any) error // nil for unary methods

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the header was sent
}

func newTransport(ctx context.Context, call *yodel.Call, name string, send func(any) error) *transport {
	t := &transport{call: call, name: "/" + name, send: send}
	ctx = metadata.NewIncomingContext(ctx, metadataOf(call.Metadata))
	if p := call.Peer(); p != nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: p.Addr})
	}
	t.ctx = grpc.NewContextWithServerTransportStream(ctx, t)
	return t
}

// Method implements grpc.ServerTransportStream.
func (t *transport) Method() string { return t.name }

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
	t.call.Trailer = yodelMetadata(t.trailer)
}

// A serverStream is a grpc.ServerStream.
type serverStream struct {
	*transport
	kind     string
	recv     func(any) error
	received bool // the request of a feed
}

// Context implements grpc.ServerStream.
func (st *serverStream) Context() context.Context { return st.ctx }

// SetTrailer implements grpc.ServerStream.
func (st *serverStream) SetTrailer(md metadata.MD) { _ = st.transport.SetTrailer(md) } // it never fails

// SendMsg implements grpc.ServerStream.
func (st *serverStream) SendMsg(m any) error {
	if st.kind == "upload" {
		st.call.Reply = m
		return nil
	}
	st.mu.Lock()
	st.sent = true
	st.mu.Unlock()
	return statusOf(st.send(m))
}

// RecvMsg implements grpc.ServerStream.
func (st *serverStream) RecvMsg(m any) error {
	if st.kind == "feed" {
		if st.received {
			return io.EOF
		}
		st.received = true
		return statusOf(st.call.DecodeInto(m))
	}
	if err := st.recv(m); err != io.EOF { //nolint:errorlint // it is bare
		return statusOf(err)
	}
	return io.EOF
}
