// SPDX-License-Identifier: Apache-2.0

package grpcgo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
)

// Conn returns a connection for the New functions of generated code, whose calls go through c, for
// example a *yodel.Client. It may be used concurrently. It supports the call options Header,
// Trailer, Peer, OnFinish, StaticMethod, MaxCallRecvMsgSize, MaxCallSendMsgSize, and
// PerRPCCredentials that need no transport security. WaitForReady, UseCompressor and
// MaxRetryRPCBufferSize have no effect: retry.UntilConnected among the middleware of the client
// makes calls wait, and ClientOptions.Compressor compresses. A call with another option fails.
//
// On yodel's own protocol, the header of a stream arrives with its end, and the text of an error is
// in one line.
func Conn(c yodel.Caller) grpc.ClientConnInterface { return &conn{c} }

type conn struct{ caller yodel.Caller }

// options are the options of a call.
type options struct {
	header, trailer []*metadata.MD
	peer            []*peer.Peer
	finish          []func(error)
	credentials     []credentials.PerRPCCredentials
	// maxSend and maxReceive are the sizes of the largest messages, in bytes. 0 means that the
	// client's limit holds alone.
	maxSend, maxReceive int
}

// parse returns the options of a call.
func parse(opts []grpc.CallOption) (*options, error) {
	o := new(options)
	for _, opt := range opts {
		switch opt := opt.(type) {
		case grpc.HeaderCallOption:
			o.header = append(o.header, opt.HeaderAddr)
		case grpc.TrailerCallOption:
			o.trailer = append(o.trailer, opt.TrailerAddr)
		case grpc.PeerCallOption:
			o.peer = append(o.peer, opt.PeerAddr)
		case grpc.OnFinishCallOption:
			o.finish = append(o.finish, opt.OnFinish)
		case grpc.MaxSendMsgSizeCallOption:
			o.maxSend = opt.MaxSendMsgSize
		case grpc.MaxRecvMsgSizeCallOption:
			o.maxReceive = opt.MaxRecvMsgSize
		case grpc.PerRPCCredsCallOption:
			if opt.Creds.RequireTransportSecurity() { // the endpoint is not known yet
				return nil, status.Errorf(codes.Unimplemented, "package grpcgo has no %T, which needs transport security: use middleware/auth", opt.Creds)
			}
			o.credentials = append(o.credentials, opt.Creds)
		case grpc.FailFastCallOption, grpc.StaticMethodCallOption, grpc.EmptyCallOption, grpc.CompressorCallOption, grpc.MaxRetryRPCBufferSizeCallOption:
		default:
			return nil, status.Errorf(codes.Unimplemented, "package grpcgo has no call option %T", opt)
		}
	}
	return o, nil
}

// ended fills in what the options ask for.
func (o *options) ended(call *yodel.Call, err error) {
	for _, md := range o.header {
		*md = metadataOf(call.Header())
	}
	for _, md := range o.trailer {
		*md = metadataOf(call.Trailer)
	}
	for _, p := range o.peer {
		if call.Endpoint != nil {
			p.Addr = addr(call.Endpoint.Addr())
		}
	}
	for _, f := range o.finish {
		f(err)
	}
}

// An addr is the address of an endpoint.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// Invoke implements grpc.ClientConnInterface.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	o, err := parse(opts)
	if err != nil {
		return err
	}
	call, err := o.newCall(ctx, method)
	if err != nil {
		return err
	}
	call.Args, call.Reply = args, reply
	if err = checkSize(args, o.maxSend); err == nil {
		err = statusOf(c.caller.Do(ctx, call))
	}
	if err == nil {
		err = checkSize(reply, o.maxReceive)
	}
	o.ended(call, err)
	return err
}

// newCall returns a call with the metadata of the context and of the credentials.
func (o *options) newCall(ctx context.Context, method string) (*yodel.Call, error) {
	call := &yodel.Call{Method: strings.TrimPrefix(method, "/"), Metadata: outgoing(ctx), Codec: codec{}}
	service, _, _ := strings.Cut(call.Method, "/")
	for _, c := range o.credentials {
		md, err := c.GetRequestMetadata(ctx, "/"+service)
		if err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "%s: the credentials of the call: %v", call.Method, err)
		}
		if call.Metadata == nil {
			call.Metadata = make(yodel.Metadata, len(md))
		}
		maps.Copy(call.Metadata, yodelMetadata(metadata.New(md)))
	}
	return call, nil
}

// checkSize returns an error if a message has more than limit bytes and limit is not 0.
func checkSize(message any, limit int) error {
	m, ok := message.(proto.Message)
	if !ok || limit == 0 {
		return nil
	}
	if n := proto.Size(m); n > limit {
		return status.Errorf(codes.ResourceExhausted, "the message has %d bytes, the limit of the call is %d", n, limit)
	}
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o, err := parse(opts)
	if err != nil {
		return nil, err
	}
	call, err := o.newCall(ctx, method)
	if err != nil {
		return nil, err
	}
	st := &clientStream{
		caller: c.caller, desc: desc, options: o, call: call, ready: make(chan struct{}), closed: make(chan struct{}),
		messages: make(chan []byte), done: make(chan struct{}),
	}
	st.ctx, st.cancel = context.WithCancelCause(ctx)
	if desc.ClientStreams {
		go st.run(nil) // it ends with the call
	}
	return st, nil
}

// A clientStream is a grpc.ClientStream. A goroutine makes the call, and passes the messages on.
type clientStream struct {
	caller  yodel.Caller
	desc    *grpc.StreamDesc
	options *options
	ctx     context.Context //nolint:containedctx // of the call
	cancel  context.CancelCauseFunc
	call    *yodel.Call

	begun    atomic.Bool   // SendMsg has taken the request of a feed
	ready    chan struct{} // closed when send is set
	send     yodel.Send[any]
	closing  sync.Once
	closed   chan struct{} // closed by CloseSend
	messages chan []byte
	done     chan struct{} // closed when the call has ended
	err      error         // of the call; valid when done is closed

	delivered bool // a message was passed to messages; of the goroutine of the call

	mu      sync.Mutex
	header  metadata.MD // as of the first message, or of the end; guarded by mu
	failure error       // of SendMsg; guarded by mu

	first    []byte // a message that Header has received
	received bool   // a message was received
}

// run makes the call, and ends the stream. A panic of a message or of OnFinish fails the stream,
// because the goroutine is not the caller's.
func (st *clientStream) run(request any) {
	defer close(st.done)
	defer st.cancel(nil)
	err := status.Error(codes.Internal, "the goroutine of the stream was ended")
	defer func() {
		if p := recover(); p != nil {
			err = status.Errorf(codes.Internal, "the stream panicked: %v", p)
		}
		st.finish(err)
	}()
	err = st.carry(request)
}

// finish stores the outcome, and fills in what the options ask for.
func (st *clientStream) finish(err error) {
	if failure := st.failed(); failure != nil {
		err = failure
	}
	st.err = statusOf(err)
	st.takeHeader()
	defer func() {
		if p := recover(); p != nil {
			st.err = status.Errorf(codes.Internal, "OnFinish panicked: %v", p)
		}
	}()
	st.options.ended(st.call, st.err)
}

// takeHeader stores the header for Header. Only the goroutine of the call may read it from there.
func (st *clientStream) takeHeader() {
	header := metadataOf(st.call.Header())
	st.mu.Lock()
	defer st.mu.Unlock()
	st.header = header
}

// failed returns the error of SendMsg.
func (st *clientStream) failed() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.failure
}

// fail ends the call, because a message was not sent.
func (st *clientStream) fail(err error) {
	st.mu.Lock()
	if st.failure == nil {
		st.failure = err
	}
	st.mu.Unlock()
	st.cancel(err)
}

// carry makes the call.
func (st *clientStream) carry(request any) (err error) {
	name := st.call.Method
	switch {
	case !st.desc.ClientStreams:
		for msg, failed := range (yodel.Feed[any, any](name)).Do(st.ctx, st.caller, st.call, &request) {
			if err = failed; err == nil {
				err = st.deliver(msg)
			}
			if err != nil {
				break
			}
		}
	case !st.desc.ServerStreams:
		var reply *any
		reply, err = yodel.Upload[any, any](name).Do(st.ctx, st.caller, st.call, func(send yodel.Send[any]) error {
			st.send = send
			close(st.ready)
			return st.untilClosed()
		})
		if err == nil {
			err = st.deliver(reply)
		}
	default:
		err = yodel.Duplex[any, any](name).Do(st.ctx, st.caller, st.call, func(recv yodel.Recv[any], send yodel.Send[any]) error {
			st.send = send
			close(st.ready)
			for msg, err := range recv {
				if err != nil {
					return err
				}
				if err := st.deliver(msg); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return err
}

// untilClosed waits for CloseSend. It returns the error of SendMsg if a message was not sent.
func (st *clientStream) untilClosed() error {
	select {
	case <-st.closed:
		return st.failed()
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	}
}

// deliver passes a message to RecvMsg.
func (st *clientStream) deliver(msg *any) error {
	if !st.delivered {
		st.delivered = true
		st.takeHeader()
	}
	select {
	case st.messages <- (*msg).([]byte): //nolint:forcetypeassert // the codec made it
		return nil
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	}
}

// Context implements grpc.ClientStream.
func (st *clientStream) Context() context.Context { return st.ctx }

// Header implements grpc.ClientStream. It waits for the first message.
func (st *clientStream) Header() (metadata.MD, error) {
	if !st.received {
		b, err := st.next()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		st.first = b
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.header.Copy(), nil
}

// Trailer implements grpc.ClientStream.
func (st *clientStream) Trailer() metadata.MD {
	<-st.done
	return metadataOf(st.call.Trailer)
}

// CloseSend implements grpc.ClientStream.
func (st *clientStream) CloseSend() error {
	st.closing.Do(func() { close(st.closed) })
	if st.desc.ClientStreams && st.desc.ServerStreams {
		select {
		case <-st.ready:
			return statusOf(st.send.End())
		case <-st.done:
		}
	}
	return nil
}

// SendMsg implements grpc.ClientStream.
func (st *clientStream) SendMsg(m any) error {
	if err := checkSize(m, st.options.maxSend); err != nil {
		st.fail(err)
		return err
	}
	if !st.desc.ClientStreams {
		if st.begun.Swap(true) {
			return status.Error(codes.Internal, "the method has one request, which was sent already")
		}
		go st.run(m) // it ends with the call
		return nil
	}
	select {
	case <-st.ready:
	case <-st.done:
		return io.EOF
	}
	err := st.send(&m)
	if err == nil {
		return nil
	}
	failed := statusOf(err)
	switch code := status.Code(failed); {
	case errors.Is(err, io.EOF), code == codes.Canceled, code == codes.DeadlineExceeded, code == codes.Unavailable:
		return io.EOF // the stream has ended: RecvMsg returns the reason
	}
	st.fail(err)
	return failed
}

// RecvMsg implements grpc.ClientStream.
func (st *clientStream) RecvMsg(m any) error {
	b := st.first
	if st.first = nil; b == nil {
		var err error
		if b, err = st.next(); err != nil {
			return err
		}
	}
	if limit := st.options.maxReceive; limit > 0 && len(b) > limit {
		err := status.Errorf(codes.ResourceExhausted, "the message has %d bytes, the limit of the call is %d", len(b), limit)
		st.fail(err)
		return err
	}
	message, ok := m.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "%T is no message of Protocol Buffers", m)
	}
	if err := proto.Unmarshal(b, message); err != nil {
		return status.Error(codes.Internal, fmt.Sprintf("the message does not fit %T: %v", m, err))
	}
	if !st.desc.ServerStreams {
		<-st.done
		return st.err
	}
	return nil
}

// next returns the next message, the error of the call, or io.EOF after the last message.
func (st *clientStream) next() ([]byte, error) {
	select {
	case b := <-st.messages:
		st.received = true
		if b == nil {
			b = []byte{}
		}
		return b, nil
	case <-st.done:
		if st.err != nil {
			return nil, st.err
		}
		return nil, io.EOF
	}
}
