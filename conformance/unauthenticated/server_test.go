// SPDX-License-Identifier: Apache-2.0

package unauthenticated_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A message is the request and the reply of most methods.
type message struct {
	A int `thrift:"a,1"`
	B int `thrift:"b,2"`
}

// The methods of the server. Their names have the same length, so that answers do too.
const (
	one     yodel.Method[message, message] = "T.One"
	read    yodel.Method[message, message] = "T.Get" // it is read-only
	several                                = "T.Two"
	feed    yodel.Feed[message, message]   = "T.Fed"
	upload  yodel.Upload[message, message] = "T.Upl"
	duplex  yodel.Duplex[message, message] = "T.Dup"
	unknown                                = "T.Nix"
)

// methods are the methods of the server, and one that it does not have.
var methods = []string{string(one), string(read), several, string(feed), string(upload), string(duplex), unknown}

// A counter counts what a server decompresses and decodes.
type counter struct{ decompressed, decoded atomic.Int64 }

// total returns both counts together.
func (c *counter) total() int64 { return c.decompressed.Load() + c.decoded.Load() }

type countedCodec struct {
	yodel.Codec
	*counter
}

func (c countedCodec) Decode(src []byte, v any) error {
	c.decoded.Add(1)
	return c.Codec.Decode(src, v)
}

type countedCompressor struct {
	compress.Compressor
	*counter
}

func (c countedCompressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	c.decompressed.Add(1)
	return c.Compressor.Decompress(dst, src, limit)
}

// options returns the options of a server that counts. It is open to callers without a token, or
// closed.
func options(c *counter, closed bool) *yodel.ServerOptions {
	o := &yodel.ServerOptions{Compressors: []compress.Compressor{countedCompressor{gzip.Compressor, c}}}
	for _, codec := range []yodel.Codec{yodel.JSON, gob.Codec, hessian2.Codec, thriftcodec.Codec} {
		o.Codecs = append(o.Codecs, countedCodec{codec, c})
	}
	if closed {
		o.Middleware = []yodel.Middleware{auth.Check(func(context.Context, string, string) (context.Context, error) {
			return nil, errors.New("no token is accepted")
		})}
	}
	o.Protocols = []yodel.Protocol{
		http.New(&http.Options{JSONRPC: "/rpc", RPCX: true, Routes: routes()}), rpcx.Protocol, netrpc.Protocol, jsonrpc.Protocol,
		thrift.New(&thrift.Options{Service: "T"}), dubbo.Protocol,
	}
	return o
}

// routes returns a route by POST and one by GET for each method.
func routes() (all []http.Route) {
	for _, method := range methods {
		all = append(all, http.Route{Pattern: "POST /v1/" + method, Method: method}, http.Route{Pattern: "GET /v1/" + method, Method: method})
	}
	return all
}

// register registers the methods.
func register(t testing.TB, s *yodel.Server) {
	t.Helper()
	echo := func(_ context.Context, in *message) (*message, error) { return in, nil }
	one.Handle(s, echo)
	read.Handle(s, echo)
	s.MarkReadOnly(string(read))
	if err := s.Handle(several, func(_ context.Context, a, b int) (int, error) { return a + b, nil }); err != nil {
		t.Fatal(err)
	}
	feed.Handle(s, func(context.Context, *message, yodel.Send[message]) error { return nil })
	upload.Handle(s, func(_ context.Context, recv yodel.Recv[message]) (*message, error) {
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
		}
		return new(message), nil
	})
	duplex.Handle(s, func(_ context.Context, recv yodel.Recv[message], _ yodel.Send[message]) error {
		for _, err := range recv {
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// serve starts a server and returns its address.
func serve(t testing.TB, o *yodel.ServerOptions) (addr string, s *yodel.Server) {
	t.Helper()
	s = yodel.NewServer(o)
	register(t, s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // connections of wrong bytes need not drain
		_ = s.Shutdown(ctx)
		if err := <-served; !errors.Is(err, yodel.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String(), s
}
