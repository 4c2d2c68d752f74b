// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/examples/internal/process"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// Args is two numbers. Thrift takes the numbers of its fields from the tags.
type Args struct {
	A int64 `json:"a" thrift:"1"`
	B int64 `json:"b" thrift:"2"`
}

// Number is a result.
type Number struct {
	N int64 `json:"n" thrift:"1"`
}

// Seen is what a call carried besides its arguments.
type Seen struct {
	User     string `json:"user"     thrift:"1"`
	Deadline bool   `json:"deadline" thrift:"2"`
}

// The methods of the service.
const (
	Add    yodel.Method[Args, Number] = "Arith.Add"
	Divide yodel.Method[Args, Number] = "Arith.Divide"
	See    yodel.Method[Args, Seen]   = "Arith.See"
	Count  yodel.Feed[Args, Number]   = "Arith.Count"
)

// newServer returns a server that speaks all protocols. The methods know nothing of them.
func newServer() *yodel.Server {
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:      []yodel.Codec{gob.Codec, thriftcodec.Codec, thriftcodec.Compact},
		Compressors: []compress.Compressor{gzip.Compressor},
		Protocols: []yodel.Protocol{
			http.New(&http.Options{JSONRPC: "/rpc", OpenAPI: "/openapi.json"}),
			rpcx.Protocol,
			netrpc.Protocol,
			jsonrpc.Protocol,
			thrift.New(&thrift.Options{Service: "Arith"}),
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	Add.Handle(s, func(_ context.Context, a *Args) (*Number, error) { return &Number{a.A + a.B}, nil })
	Divide.Handle(s, func(_ context.Context, a *Args) (*Number, error) {
		if a.B == 0 {
			return nil, yodel.Errorf(yodel.InvalidArgument, "division by zero")
		}
		return &Number{a.A / a.B}, nil
	})
	See.Handle(s, func(ctx context.Context, _ *Args) (*Seen, error) {
		_, deadline := ctx.Deadline()
		return &Seen{yodel.CallFrom(ctx).Metadata["user"], deadline}, nil
	})
	Count.Handle(s, func(_ context.Context, a *Args, send yodel.Send[Number]) error {
		for n := a.A; n <= a.B; n++ {
			if err := send(&Number{n}); err != nil {
				return err
			}
		}
		return nil
	})
	s.MarkIdempotent(string(Add), string(Divide), string(See))
	return s
}

// serve serves until ctx ends. It calls ready with the address.
func serve(ctx context.Context, addr string, ready func(addr string)) error {
	l, err := listen(ctx, addr)
	if err != nil {
		return err
	}
	ready(l.Addr().String())
	return newServer().Serve(ctx, l)
}

// listen listens at an address. The process that has used it may have ended just now.
func listen(ctx context.Context, addr string) (l net.Listener, err error) {
	for range 50 {
		if l, err = new(net.ListenConfig).Listen(ctx, "tcp", addr); err == nil {
			return l, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
	return nil, err
}

// serveAsChild serves until the parent closes the standard input of the process.
func serveAsChild(addr string) error {
	ctx := process.UntilToldToEnd(func(line string) error { return fmt.Errorf("the order %q is unknown", line) })
	return serve(ctx, addr, func(addr string) { fmt.Println(addr) })
}

// printCommands prints commands that call the service.
func printCommands(addr string) {
	fmt.Printf(`One server, one port, all protocols:

  curl -d '{"a":6,"b":7}' -H 'Content-Type: application/json' http://%[1]s/Arith/Add
  curl -d '{"jsonrpc":"2.0","id":1,"method":"Arith.Add","params":{"a":6,"b":7}}' -H 'Content-Type: application/json' http://%[1]s/rpc
  curl http://%[1]s/openapi.json
  go run ./examples/wires -check

Ctrl-C ends it.
`, addr)
}
