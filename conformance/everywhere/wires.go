// SPDX-License-Identifier: Apache-2.0

// Package everywhere tries each guarantee of the framework over each wire. A row of the table is a
// guarantee, a column is a wire, and a cell has a control: the same server without what gives the
// guarantee, where the check has to fail. Tests of modules with a middleware of their own add rows
// with Hold.
package everywhere

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	std "net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
)

// A Wire is a way to call a server.
type Wire struct {
	Name     string
	Metadata bool // a call carries metadata, and so its trace context
	keys     bool // it carries idempotency keys
	remember bool // servers say that they remember keys
	deadline bool // it carries the deadline of a call
	cancels  bool // it carries that a call is canceled
	details  bool // errors have details
	// NotProcessed says that errors say whether the call was executed.
	notProcessed bool
	builtIn      bool // it carries the built-in methods
	streams      bool // it carries feeds, uploads and duplexes
	feeds        bool // it carries feeds, and the test has no clients for uploads and duplexes
	oneWay       bool // it carries one-way calls
	// UnaryIsOne says that a request does not tell a unary call from a stream with one message, so
	// that a call is what its method is.
	unaryIsOne bool
	oneAtATime bool // a connection carries one call
	compresses bool // it carries compressed messages

	// Clients of yodel use wire, or yodel's own protocol if wire is nil, and codec, or JSON.
	wire  yodel.Wire
	codec yodel.Codec
	// Dial returns the caller of another kind, or nil.
	dial func(t *testing.T, tr *Trial) yodel.Caller
}

// Wires are all ways to call a server.
var Wires = []Wire{
	{Name: "yodel", Metadata: true, keys: true, remember: true, details: true, notProcessed: true, deadline: true, cancels: true, builtIn: true, compresses: true, streams: true, oneWay: true},
	{Name: "in process", Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, builtIn: true, dial: func(_ *testing.T, tr *Trial) yodel.Caller { return tr.server }},
	{Name: "server to client", Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, builtIn: true, streams: true, oneWay: true, dial: dialPeer},
	{Name: "gRPC", builtIn: true, Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, compresses: true, streams: true, unaryIsOne: true, wire: grpc.Wire},
	{Name: "gRPC-Web", builtIn: true, Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, compresses: true, streams: true, unaryIsOne: true, wire: grpc.Web},
	{Name: "gRPC-Web over HTTP 1", builtIn: true, Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, compresses: true, unaryIsOne: true, oneAtATime: true, feeds: true, wire: grpc.Web1},
	{Name: "Connect", builtIn: true, Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, compresses: true, streams: true, wire: connect.Wire(nil)},
	{Name: "Connect over HTTP 1", builtIn: true, Metadata: true, keys: true, details: true, notProcessed: true, deadline: true, cancels: true, compresses: true, oneAtATime: true, feeds: true, wire: connect.Wire(&connect.Options{HTTP1: true})},
	{Name: "JSON over HTTP", notProcessed: true, oneAtATime: true, feeds: true, details: true, builtIn: true, Metadata: true, keys: true, deadline: true, cancels: true, dial: dialHTTP},
	{Name: "JSON-RPC 2", notProcessed: true, builtIn: true, details: true, oneWay: true, wire: jsonrpc.Wire(yodel.JSON)},
	{Name: "JSON-RPC 1", builtIn: true, wire: jsonrpc.Wire1(yodel.JSON)},
	{Name: "net rpc", builtIn: true, wire: netrpc.Wire(gob.Codec), codec: gob.Codec},
	{Name: "rpcx", builtIn: true, Metadata: true, keys: true, notProcessed: true, deadline: true, compresses: true, oneWay: true, wire: rpcx.Wire(yodel.JSON)},
	{Name: "Thrift", oneWay: true, wire: thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "All"}), codec: thriftcodec.Codec, oneAtATime: true},
	{Name: "Dubbo", notProcessed: true, builtIn: true, Metadata: true, keys: true, deadline: true, oneWay: true, wire: dubbo.Wire(hessian2.Codec, dubboTypes), codec: hessian2.Codec},
}

// dubboTypes has the types of encoded arguments.
var dubboTypes = &dubbo.WireOptions{Parameters: map[string]string{string(unary): "Lall/Ask;", "All.Say": "Lall/Saying;"}}

// protocols are those of every server of the table.
func (tr *Trial) protocols() []yodel.Protocol {
	return []yodel.Protocol{http.New(&http.Options{ExposeErrors: tr.exposes}), rpcx.Protocol, netrpc.Protocol, jsonrpc.Protocol, thrift.New(&thrift.Options{Service: "All"}), dubbo.Protocol}
}

// codecs are those that the servers of the table have in addition to JSON.
func codecs() []yodel.Codec { return []yodel.Codec{gob.Codec, thriftcodec.Codec, hessian2.Codec} }

// caller returns a caller of the trial's servers over w, with which n calls can run at once.
func (w *Wire) caller(t *testing.T, tr *Trial, n int) yodel.Caller {
	t.Helper()
	if w.dial != nil {
		return w.dial(t, tr)
	}
	if !w.oneAtATime {
		n = 1
	}
	tr.resolver = w.resolver(t, tr)
	among := new(spread)
	for range n {
		among.clients = append(among.clients, w.client(t, tr, tr.resolver))
	}
	return among
}

// client returns a client of the servers that resolver names.
func (w *Wire) client(t *testing.T, tr *Trial, resolver discovery.Resolver) *yodel.Client {
	t.Helper()
	o := tr.Client
	o.Codec = w.codec
	if o.Logger == nil {
		o.Logger = silent
	}
	if w.wire != nil {
		o.Wires = []yodel.Wire{w.wire}
	}
	create := yodel.NewClient
	if tr.NewClient != nil {
		create = tr.NewClient
	}
	c := create(resolver, &o)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := until(ctx, func() bool { return len(c.Endpoints()) == len(tr.servers) }); err != nil {
		t.Fatalf("the client does not find the servers: %v", err)
	}
	return c
}

// resolver starts the trial's servers, and returns a resolver that names them. The version of each
// is its number.
func (w *Wire) resolver(t *testing.T, tr *Trial) discovery.Resolver {
	t.Helper()
	var instances []discovery.Instance
	var addrs []string
	for i, s := range tr.servers {
		in := discovery.Instance{Addr: serve(t, s, tr.tls), Version: fmt.Sprint(i)}
		addr := in.Addr
		if w.wire != nil {
			in.Protocols = []string{w.wire.Name()}
			addr = w.wire.Name() + "://" + addr
		}
		tr.addrs = append(tr.addrs, in.Addr)
		instances, addrs = append(instances, in), append(addrs, addr)
	}
	if tr.resolve != nil {
		return tr.resolve(instances)
	}
	return discovery.Static(addrs...)
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
func dialPeer(t *testing.T, tr *Trial) yodel.Caller {
	t.Helper()
	connected := make(chan *yodel.Peer, 1)
	caller := yodel.NewServer(&yodel.ServerOptions{Logger: silent, Connect: func(_ context.Context, p *yodel.Peer) error {
		connected <- p
		return nil
	}})
	c := yodel.NewClient(discovery.Static(serve(t, caller, nil)), &yodel.ClientOptions{Server: tr.server, Limits: tr.Options.Limits, Logger: silent})
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

func dialHTTP(t *testing.T, tr *Trial) yodel.Caller {
	t.Helper()
	p := &poster{&std.Client{Transport: &std.Transport{}}, "http://" + serve(t, tr.server, nil)}
	t.Cleanup(p.client.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	announced := func() bool {
		return len(tr.server.Stats().Announced) > 0 && !tr.server.Stats().Announced[0].At.IsZero()
	}
	if err := until(ctx, func() bool { return tr.rules == nil || announced() }); err != nil {
		t.Fatalf("the server is not announced, and so follows no rules: %v", err)
	}
	return p
}

// Do implements yodel.Caller.
func (p *poster) Do(ctx context.Context, call *yodel.Call) error {
	reply, err := p.post(ctx, call, "")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	return json.NewDecoder(reply.Body).Decode(call.Reply)
}

// feed calls a feed, which arrives as server-sent events, and returns the number in its first
// message.
func (p *poster) feed(ctx context.Context, call *yodel.Call) (n int64, err error) {
	reply, err := p.post(ctx, call, "text/event-stream")
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	name := ""
	for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
		if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = event
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case name == "end":
			return n, nil
		case name == "error":
			var last struct {
				Error json.RawMessage `json:"error"`
			}
			if err := json.Unmarshal([]byte(data), &last); err != nil {
				return n, err
			}
			return n, failureOf(last.Error, false)
		default:
			var told Told
			if err := json.Unmarshal([]byte(data), &told); err != nil {
				return n, err
			}
			n = cmp.Or(n, told.N)
		}
	}
	return n, cmp.Or(ctx.Err(), errors.New("the events have no end"))
}

// post makes a request, and returns its reply if the call succeeds.
func (p *poster) post(ctx context.Context, call *yodel.Call, accept string) (*std.Response, error) {
	body, err := json.Marshal(call.Args)
	if err != nil {
		return nil, err
	}
	r, err := std.NewRequestWithContext(ctx, std.MethodPost, p.url+"/"+call.Method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	for key, value := range call.Metadata {
		r.Header.Set(key, value)
	}
	if !call.Deadline.IsZero() {
		r.Header.Set("Connect-Timeout-Ms", strconv.FormatInt(time.Until(call.Deadline).Milliseconds(), 10))
	}
	if parent, state, _ := strings.Cut(call.Trace, " "); parent != "" {
		r.Header.Set("Traceparent", parent)
		r.Header.Set("Tracestate", state)
	}
	if call.IdempotencyKey != "" {
		r.Header.Set("Idempotency-Key", call.IdempotencyKey)
	}
	reply, err := p.client.Do(r)
	if err != nil || reply.StatusCode == std.StatusOK {
		return reply, err
	}
	defer reply.Body.Close()
	if body, err = io.ReadAll(reply.Body); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s: %w", reply.Status, failureOf(body, reply.Header.Get("Yodel-Not-Processed") == "1"))
}

// failureOf returns an error of Connect.
func failureOf(text []byte, notProcessed bool) error {
	e := yodel.Errorf(yodel.Unknown, "%s", text)
	e.NotProcessed = notProcessed
	var said struct {
		Code    string `json:"code"`
		Details []struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"details"`
	}
	if json.Unmarshal(text, &said) != nil {
		return e
	}
	for _, d := range said.Details {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(d.Value, "="))
		if err != nil {
			return err
		}
		e.Details = append(e.Details, yodel.Detail{Type: d.Type, Value: value})
	}
	if err := e.Code.UnmarshalText([]byte(said.Code)); err != nil {
		return err
	}
	return e
}
