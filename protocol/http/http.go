// SPDX-License-Identifier: Apache-2.0

// Package http lets clients that speak HTTP call the methods of a yodel server, on the port on
// which it serves yodel's own clients:
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:    []yodel.Codec{protobuf.Codec},
//		Protocols: []yodel.Protocol{http.New(nil)},
//	})
//
// It serves these protocols, over HTTP/1.1 and HTTP/2, with TLS and without it:
//
//   - gRPC and gRPC-Web, all kinds of methods;
//   - Connect, all kinds of methods;
//   - JSON: POST /Service/Method or /Service.Method with a JSON body, and GET
//     /Service/Method?encoding=json&message={} for methods that Server.MarkReadOnly names;
//   - JSON at paths of your own: see Route;
//   - JSON-RPC, if Options.JSONRPC is set, and a description with OpenAPI, if Options.OpenAPI is;
//   - the requests of rpcx's HTTP gateway, if Options.RPCX is set;
//   - server-sent events for feeds: the request accepts text/event-stream. An EventSource of a
//     browser sends GET, so the feed has to be read-only.
//
// Content types name the codec: "proto" is the codec called "protobuf", "x-msgpack" is "msgpack",
// and "octet-stream" is "raw". All other codecs have their own names, for example "json". A method
// with several arguments takes a JSON array of them, and returns an array of its results unless it
// has exactly one.
//
// Headers are the metadata of a call, except for those of one hop of HTTP and of the protocols.
// Metadata keys that end in "-bin" have base64 values, as in gRPC. A reply is sent without metadata
// that HTTP cannot carry: see yodel.Served.LeftOut. Attachments cannot be carried: a method that
// sets Call.ReplyAttachment fails. Calls pass through the server's middleware and observers, and
// its limits and statistics include them.
package http

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	std "net/http"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/inline"
)

// Options configures a Protocol. The zero value and nil mean the defaults.
type Options struct {
	// Handler serves the requests that are no calls of a method of the server, in all protocols
	// over HTTP. It can be a server of grpc-go or a handler of connect-go with services that the
	// server does not have. Unless HandlerMethod is set, ServerOptions.Connect is not called for
	// these requests, and middleware does not see them. Default: the call of an unknown method
	// fails as the protocol of the call has it, and other requests get status 404.
	Handler std.Handler
	// HandlerMethod makes the requests for Handler pass through the server's middleware first, as
	// calls of a unary method with this name, for example "web.Pages". So authentication refuses
	// them, limits and the drain of a shutdown count them, and observers see them. The server need
	// not have a method of this name. The metadata of the call is the header of the request. Its
	// body is not read: Handler reads it. The context of the request is that of a method:
	// yodel.CallFrom, auth.IdentityFrom and others take it. A request that middleware refuses gets
	// the error as a call does. Otherwise the call succeeds, whatever status Handler sends, unless
	// Handler panics. The request has no idempotency key. Default: requests for Handler do not pass
	// through middleware.
	HandlerMethod string
	// JSONRPC is the path at which the server takes JSON-RPC 2.0 and 1.0, for example "/rpc". The
	// body of each POST is a request or a batch, with the content type application/json and without
	// compression. Headers are the metadata of all its calls, and the header Connect-Timeout-Ms
	// sets their deadline. The metadata of the reply to a single request becomes headers, as in
	// JSON. That of the replies of a batch is left out, because JSON-RPC has no place for it. If
	// all requests are notifications, there is no reply, and the status is 204. Otherwise the
	// status is 200, also for errors. Default: none.
	JSONRPC string
	// OpenAPI is the path at which a GET returns a description of the methods, for example
	// "/openapi.json". It has the unary methods, the feeds as server-sent events, and the uploads
	// and duplex methods as streams of Connect, with the types that the built-in method yodel.Info
	// reports. With Forms, unary methods have the forms that they take. yodel's own methods, and
	// health and reflection of gRPC, are left out. The server calls yodel.Info for it, so
	// middleware can refuse callers, and ServerOptions.NoIntrospection turns it off. Default: none.
	OpenAPI string
	// RPCX makes the server take the requests of clients of rpcx's HTTP gateway. These are the
	// requests with a header that begins with X-RPCX-, at any path. The server answers them as rpcx
	// does: with the headers of rpcx, and with status 200, 401 or 500. As in rpcx, bodies are not
	// compressed, whatever X-RPCX-CompressType says. The codecs are those of the serialize types 0
	// to 4. X-RPCX-Meta and Authorization are the metadata, and no other headers are. In addition,
	// the server takes JSON-RPC at any path, as for JSONRPC, if the request has the header
	// "X-JSONRPC-2.0: true". Such a request needs no content type, and X-RPCX-Meta is metadata too.
	// Default: false.
	RPCX bool
	// Routes are paths for methods in addition to /Service/Method. Default: none.
	Routes []Route
	// Forms makes the server take the forms that a browser posts, as multipart/form-data or
	// application/x-www-form-urlencoded, for unary methods with one message and for routes. The
	// fields of the form are those of the request in JSON, named as the parameters of a Route are.
	// A file is a field of the type []byte, or string if it is text. Several files of one name are
	// a list. The whole form is within MaxRequest. Browsers send forms of any page, with cookies
	// and without asking, so the server refuses those of pages of another origin, unless Origins
	// names it; "*" does not. Default: false, so such requests get status 415.
	Forms bool
	// ExposeErrors makes the server send clients the text of every error, as servers of grpc-go
	// and connect-go do. Default: false, so clients see only messages that were written for
	// callers: see yodel.Session.HideErrors. In place of other errors, such as fmt.Errorf makes and
	// as calls of the handler return, they get the number of a line in the server's log. The code
	// is then Internal, or that of the error if it is Canceled, DeadlineExceeded,
	// ResourceExhausted, Aborted or Unavailable.
	ExposeErrors bool
	// MaxRequest is the size of the largest message that clients may send, in bytes, as it is sent.
	// Default: Limits.MaxMessage, which it cannot exceed.
	MaxRequest int
	// Origins are the origins of web pages that may call the server from other sites, for example
	// "https://shop.example", or "*" for all. Default: none, so a browser lets only pages of the
	// same origin read replies.
	Origins []string
	// Hosts are the hosts that the server answers, as the Host header or :authority names them,
	// without the port. Other requests get status 421. It keeps out pages of other sites that
	// make a name of their own resolve to the server (DNS rebinding): to a browser they have its
	// origin, so Origins does not stop them. Set it for a server without authentication that
	// browsers can reach. Default: all hosts.
	Hosts []string
	// OnRequest is called for every call, with the HTTP request that makes it, before all
	// middleware and so also for unauthenticated callers. The fields of the call are set, and its
	// body is not read yet. OnRequest may change Call.Metadata and other fields, for example to
	// show middleware the address or a cookie of the request. It must neither read the body nor
	// keep the request. If it returns an error, the call fails when the middleware has passed it:
	// with an *yodel.Error, or otherwise with PermissionDenied and without the text. Each call of a
	// JSON-RPC batch has the request of the batch. Default: none.
	OnRequest func(r *std.Request, call *yodel.Call) error
	// Logger logs panics of Handler. Default: slog.Default().
	Logger *slog.Logger
}

// A Protocol serves the protocols over HTTP. It is a yodel.Protocol.
type Protocol struct {
	opts   Options
	routes *std.ServeMux // nil for none
	binds  bool          // there are routes with a Binding
	verbs  []string      // the HTTP methods of the routes
	clock  clock         // of the connections of HTTP/2
	watch  *inline.Watch // the same
	server std.Server    // what handlers find in the contexts of requests of HTTP/2
}

// New returns a Protocol. Options may be nil, and must not be changed afterwards. New panics if the
// pattern of a route is malformed or conflicts with another one, as http.ServeMux does.
func New(options *Options) *Protocol {
	p := &Protocol{watch: inline.NewWatch()}
	if options != nil {
		p.opts = *options
	}
	p.routes, p.verbs = muxOf(p.opts.Routes), verbsOf(p.opts.Routes)
	p.binds = slices.ContainsFunc(p.opts.Routes, func(r Route) bool { return r.Binding != nil })
	return p
}

// Name implements yodel.Protocol.
func (*Protocol) Name() string { return "http" }

// maxVerb is the largest length of the method of the first request of a connection.
const maxVerb = 32

// Match implements yodel.Protocol. A connection of HTTP/1 begins with any method, a space, and a
// path, "*" or a URL. One of HTTP/2 begins with "PRI * HTTP/2.0". The method CONNECT is that of
// other protocols.
func (*Protocol) Match(first []byte) (ok, more bool) {
	for i, c := range first {
		switch {
		case c == ' ' && i > 0:
			return len(first) > i+1 && strings.IndexByte("/*h", first[i+1]) >= 0 && string(first[:i]) != std.MethodConnect, len(first) == i+1
		case i == maxVerb || !isToken(c):
			return false, false
		}
	}
	return false, true
}

// isToken reports whether c may stand in the method of a request.
func isToken(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// Serve implements yodel.Protocol. Package net/http serves HTTP/1, and internal/h2 serves HTTP/2.
func (p *Protocol) Serve(ctx context.Context, s *yodel.Session) error {
	c, one, first := p.begin(ctx, s)
	switch {
	case one != nil:
		return one.serve()
	case c == nil: // the connection has ended
		return nil
	}
	defer p.clock.leave(c.conn)
	c.conn.Serve(first, c.ended)
	return c.err
}

// begin returns what serves a connection of HTTP/2, with what was read from it, or one of HTTP/1.
// It is not a part of Serve, because the frame of that stays on the stack as long as the
// connection.
//
//go:noinline
func (p *Protocol) begin(ctx context.Context, s *yodel.Session) (c *multiplexed, one *connection, first []byte) {
	s.HideErrors = !p.opts.ExposeErrors
	conn := s.AsConn().(ofSession) //nolint:forcetypeassert // every one is
	if bytes.HasPrefix(conn.First(), []byte("PRI ")) {
		c, first = p.multiplex(ctx, s, conn)
		return c, nil, first
	}
	return nil, newConnection(ctx, p, s, conn), nil
}

// A router passes the requests of one session to the protocols that serve them.
type router struct {
	protocol *Protocol
	session  *yodel.Session
}

// route serves one request.
func (c *router) route(w std.ResponseWriter, r *std.Request) {
	p, serve := c.protocol, (*exchange).misdirected
	if p.answers(r.Host) {
		if p.crossOrigin(w, r) {
			return
		}
		if serve = c.find(r); serve == nil { //nolint:contextcheck // the context of a call is that of its session
			p.opts.Handler.ServeHTTP(w, r)
			return
		}
	}
	x := newExchange(c, w, r)
	defer x.forget()
	defer x.finish()
	serve(x)
}

// find returns what serves a request, or nil if that is Options.Handler.
func (c *router) find(r *std.Request) (serve func(*exchange)) {
	p := c.protocol
	if path := p.opts.JSONRPC; path != "" && r.URL.Path == path || p.isRPCXJSON(r.Header) {
		return (*exchange).serveJSONRPC
	}
	if p.isRPCX(r.Header) {
		return (*exchange).serveRPCX
	}
	if path := p.opts.OpenAPI; path != "" && r.URL.Path == path {
		return (*exchange).serveOpenAPI
	}
	if serve := c.routed(r); serve != nil {
		return serve
	}
	switch kind := kindOf(r); {
	case kind.serve != nil && r.Method != std.MethodPost:
		return func(x *exchange) { x.reject(std.StatusMethodNotAllowed, std.MethodPost, "calls need the method POST") }
	case kind.serve != nil:
		return func(x *exchange) { kind.serve(x, kind) }
	case c.isForeign(r):
		return nil
	}
	return (*exchange).routeUnary
}

// misdirected answers a request for another host.
func (x *exchange) misdirected() {
	x.reject(std.StatusMisdirectedRequest, "", "the server does not answer for this host")
}

// answers applies Options.Hosts.
func (p *Protocol) answers(host string) bool {
	if p.opts.Hosts == nil {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return slices.ContainsFunc(p.opts.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// crossOrigin applies Options.Origins. It reports whether it has answered the request.
func (p *Protocol) crossOrigin(w std.ResponseWriter, r *std.Request) (answered bool) {
	if len(p.opts.Origins) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin") // also without Origin, because a cache may keep the response
	origin := r.Header.Get("Origin")
	if origin == "" || !p.allows(origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "*, Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin")
	if r.Method != std.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", r.Header.Get("Access-Control-Request-Method")) // routes and Handler have any
	if names := r.Header.Get("Access-Control-Request-Headers"); names != "" {
		h.Set("Access-Control-Allow-Headers", names)
	}
	h.Set("Access-Control-Max-Age", "7200")
	w.WriteHeader(std.StatusNoContent)
	return true
}

func (p *Protocol) allows(origin string) bool {
	for _, allowed := range p.opts.Origins {
		if allowed == "*" || strings.EqualFold(allowed, origin) {
			return true
		}
	}
	return false
}
