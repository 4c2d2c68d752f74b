// SPDX-License-Identifier: Apache-2.0

// Package everywhere has no code but its tests: each guarantee of the framework, over each wire. A
// row of the table is a guarantee, a column is a wire, and a cell has a control: the same server
// without what gives the guarantee, where the check has to fail.
package everywhere_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	std "net/http"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
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

// A wire is a way to call a server.
type wire struct {
	name    string
	keys    bool // it carries idempotency keys
	streams bool // it carries feeds, uploads and duplexes
	oneWay  bool // it carries one-way calls
	// UnaryIsOne says that a request does not tell a unary call from a stream with one message, so
	// that a call is what its method is.
	unaryIsOne bool
	oneAtATime bool // a connection carries one call
	compresses bool // it carries compressed messages

	// Clients of yodel use wire, or yodel's own protocol if wire is nil, and codec, or JSON.
	wire  yodel.Wire
	codec yodel.Codec
	// Dial returns the caller of another kind, or nil.
	dial func(t *testing.T, tr *trial) yodel.Caller
}

var wires = []wire{
	{name: "yodel", keys: true, compresses: true, streams: true, oneWay: true},
	{name: "in process", keys: true, dial: func(_ *testing.T, tr *trial) yodel.Caller { return tr.server }},
	{name: "server to client", keys: true, streams: true, oneWay: true, dial: dialPeer},
	{name: "gRPC", keys: true, compresses: true, streams: true, unaryIsOne: true, wire: grpc.Wire},
	{name: "gRPC-Web", keys: true, compresses: true, streams: true, unaryIsOne: true, wire: grpc.Web},
	{name: "gRPC-Web over HTTP 1", keys: true, compresses: true, unaryIsOne: true, oneAtATime: true, wire: grpc.Web1},
	{name: "Connect", keys: true, compresses: true, streams: true, wire: connect.Wire(nil)},
	{name: "Connect over HTTP 1", keys: true, compresses: true, oneAtATime: true, wire: connect.Wire(&connect.Options{HTTP1: true})},
	{name: "JSON over HTTP", keys: true, dial: dialHTTP},
	{name: "JSON-RPC 2", oneWay: true, wire: jsonrpc.Wire(yodel.JSON)},
	{name: "JSON-RPC 1", wire: jsonrpc.Wire1(yodel.JSON)},
	{name: "net rpc", wire: netrpc.Wire(gob.Codec), codec: gob.Codec},
	{name: "rpcx", keys: true, compresses: true, oneWay: true, wire: rpcx.Wire(yodel.JSON)},
	{name: "Thrift", oneWay: true, wire: thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "All"}), codec: thriftcodec.Codec, oneAtATime: true},
	{name: "Dubbo", keys: true, oneWay: true, wire: dubbo.Wire(hessian2.Codec, dubboTypes), codec: hessian2.Codec},
}

// dubboTypes has the types of encoded arguments.
var dubboTypes = &dubbo.WireOptions{Parameters: map[string]string{string(unary): "Lall/Ask;", string(say): "Lall/Saying;"}}

// protocols are those of every server of the table.
func protocols() []yodel.Protocol {
	return []yodel.Protocol{http.New(nil), rpcx.Protocol, netrpc.Protocol, jsonrpc.Protocol, thrift.New(&thrift.Options{Service: "All"}), dubbo.Protocol}
}

// codecs are those that the servers of the table have in addition to JSON.
func codecs() []yodel.Codec { return []yodel.Codec{gob.Codec, thriftcodec.Codec, hessian2.Codec} }

// caller returns a caller of the trial's server over w, with which n calls can run at once.
func (w *wire) caller(t *testing.T, tr *trial, n int) yodel.Caller {
	t.Helper()
	if w.dial != nil {
		return w.dial(t, tr)
	}
	o, to := tr.client, serve(t, tr.server, tr.tls)
	o.Codec = w.codec
	if o.Logger == nil {
		o.Logger = silent
	}
	if w.wire != nil {
		o.Wires, to = []yodel.Wire{w.wire}, w.wire.Name()+"://"+to
	}
	if !w.oneAtATime {
		n = 1
	}
	among := new(spread)
	for range n {
		c := yodel.NewClient(yodel.Static(to), &o)
		t.Cleanup(c.Close)
		among.clients = append(among.clients, c)
	}
	return among
}

// A spread divides calls among clients.
type spread struct {
	clients []*yodel.Client
	next    atomic.Uint64
}

// Do implements yodel.Caller.
func (s *spread) Do(ctx context.Context, call *yodel.Call) error {
	return s.clients[s.next.Add(1)%uint64(len(s.clients))].Do(ctx, call)
}

var silent = slog.New(slog.DiscardHandler)

// dialPeer makes the trial's server one that a client has, and returns how its server calls it.
func dialPeer(t *testing.T, tr *trial) yodel.Caller {
	t.Helper()
	connected := make(chan *yodel.Peer, 1)
	caller := yodel.NewServer(&yodel.ServerOptions{Logger: silent, Connect: func(_ context.Context, p *yodel.Peer) error {
		connected <- p
		return nil
	}})
	c := yodel.NewClient(yodel.Static(serve(t, caller, nil)), &yodel.ClientOptions{Server: tr.server, Logger: silent})
	t.Cleanup(c.Close)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return <-connected
}

// A poster makes calls as a program does that knows HTTP and JSON only.
type poster struct {
	client *std.Client
	url    string
}

func dialHTTP(t *testing.T, tr *trial) yodel.Caller {
	t.Helper()
	p := &poster{&std.Client{Transport: &std.Transport{}}, "http://" + serve(t, tr.server, nil)}
	t.Cleanup(p.client.CloseIdleConnections)
	return p
}

// Do implements yodel.Caller.
func (p *poster) Do(ctx context.Context, call *yodel.Call) error {
	body, err := json.Marshal(call.Args)
	if err != nil {
		return err
	}
	r, err := std.NewRequestWithContext(ctx, std.MethodPost, p.url+"/"+call.Method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if call.IdempotencyKey != "" {
		r.Header.Set("Idempotency-Key", call.IdempotencyKey)
	}
	reply, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if body, err = io.ReadAll(reply.Body); err != nil {
		return err
	}
	if reply.StatusCode != std.StatusOK {
		e := yodel.Errorf(yodel.Unknown, "%s", body)
		var said struct{ Code string }
		if json.Unmarshal(body, &said) == nil {
			for e.Code = yodel.Canceled; e.Code < yodel.Unauthenticated && e.Code.String() != said.Code; {
				e.Code++
			}
		}
		return fmt.Errorf("%s: %w", reply.Status, e)
	}
	return json.Unmarshal(body, call.Reply)
}
