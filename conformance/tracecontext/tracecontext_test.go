// SPDX-License-Identifier: Apache-2.0

// Package tracecontext has no code but this test: which protocols carry the trace context of a
// call. docs/wires.md has the table.
package tracecontext_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state  = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
	trace  = parent + " " + state
)

// Nothing is the request of the methods, and Seen is their reply: the trace context that the
// handler has got.
type (
	Nothing struct {
		N int64 `json:"n" thrift:"1"`
	}
	Seen struct {
		Trace string `json:"trace" thrift:"1"`
	}
)

// JavaClassName implements an interface of hessian2, as the next one does.
func (Nothing) JavaClassName() string { return "trace.Nothing" }

// JavaClassName implements an interface of hessian2.
func (Seen) JavaClassName() string { return "trace.Seen" }

const (
	see  yodel.Method[Nothing, Seen] = "Trace.See"
	feed yodel.Feed[Nothing, Seen]   = "Trace.Feed"
)

// serve starts a server that speaks all protocols, and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{gob.Codec, thriftcodec.Codec, hessian2.Codec},
		Protocols: []yodel.Protocol{
			http.New(&http.Options{JSONRPC: "/rpc", Routes: []http.Route{{Pattern: "POST /see", Method: string(see)}}}),
			rpcx.Protocol, netrpc.Protocol, jsonrpc.Protocol, thrift.New(&thrift.Options{Service: "Trace"}), dubbo.Protocol,
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	see.Handle(s, func(ctx context.Context, _ *Nothing) (*Seen, error) { return &Seen{yodel.CallFrom(ctx).Trace}, nil })
	feed.Handle(s, func(ctx context.Context, _ *Nothing, send yodel.Send[Seen]) error {
		return send(&Seen{yodel.CallFrom(ctx).Trace})
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestTraceContextOverEveryWire(t *testing.T) {
	addr := serve(t)
	for _, test := range []struct {
		name    string
		wire    yodel.Wire
		codec   yodel.Codec
		want    string // what the handler gets
		streams bool
	}{
		{"yodel", nil, yodel.JSON, trace, true},
		{"gRPC", grpc.Wire, yodel.JSON, trace, true},
		{"gRPC-Web", grpc.Web, yodel.JSON, trace, true},
		{"Connect", connect.Wire(nil), yodel.JSON, trace, true},
		{"rpcx", rpcx.Wire(yodel.JSON), yodel.JSON, trace, false},
		{"Dubbo", dubbo.Wire(hessian2.Codec, nil), hessian2.Codec, trace, false},
		{"JSON-RPC 2.0", jsonrpc.Wire(yodel.JSON), yodel.JSON, "", false},
		{"JSON-RPC 1.0", jsonrpc.Wire1(yodel.JSON), yodel.JSON, "", false},
		{"net/rpc", netrpc.Wire(gob.Codec), gob.Codec, "", false},
		{"Thrift", thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "Trace"}), thriftcodec.Codec, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, to := &yodel.ClientOptions{Codec: test.codec, Logger: slog.New(slog.DiscardHandler)}, addr
			if test.wire != nil {
				o.Wires, to = []yodel.Wire{test.wire}, test.wire.Name()+"://"+addr
			}
			c := yodel.NewClient(discovery.Static(to), o)
			defer c.Close()
			for _, sent := range []string{trace, parent, ""} {
				want := sent
				if test.want == "" {
					want = ""
				}
				got, err := see.Do(t.Context(), c, &yodel.Call{Trace: sent}, &Nothing{})
				if err != nil {
					t.Fatal(err)
				}
				if got.Trace != want {
					t.Errorf("sent %q, got %q, want %q", sent, got.Trace, want)
				}
				if !test.streams {
					continue
				}
				for got, err := range feed.Do(t.Context(), c, &yodel.Call{Trace: sent}, &Nothing{}) {
					if err != nil {
						t.Fatal(err)
					}
					if got.Trace != want {
						t.Errorf("feed: sent %q, got %q, want %q", sent, got.Trace, want)
					}
				}
			}
		})
	}
}

// Clients of HTTP send the trace context as headers. A tracestate may be divided among several.
func TestTraceContextInHeaders(t *testing.T) {
	addr := serve(t)
	client := &std.Client{Transport: &std.Transport{}}
	defer client.CloseIdleConnections()
	one, another, _ := strings.Cut(state, ",")
	for _, test := range []struct{ name, method, path, body string }{
		{"JSON over HTTP", "POST", "/Trace.See", "{}"},
		{"JSON over HTTP with a path", "POST", "/Trace/See", "{}"},
		{"route", "POST", "/see", "{}"},
		{"JSON-RPC over HTTP", "POST", "/rpc", `{"jsonrpc":"2.0","id":1,"method":"Trace.See","params":{}}`},
	} {
		for _, states := range [][]string{nil, {state}, {one, another}} {
			r, err := std.NewRequestWithContext(t.Context(), test.method, "http://"+addr+test.path, bytes.NewReader([]byte(test.body)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Traceparent", parent)
			want := parent
			if r.Header["Tracestate"] = states; states != nil {
				want = trace
			}
			reply, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(reply.Body)
			reply.Body.Close()
			if err != nil || !strings.Contains(string(body), `"`+want+`"`) {
				t.Errorf("%s with %q: got %s, %v, want %q", test.name, states, body, err, want)
			}
		}
	}
}
