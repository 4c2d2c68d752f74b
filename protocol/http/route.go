// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"context"
	"errors"
	std "net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// A Route is a path at which clients call a method, in addition to its own.
//
// The request is a JSON object. Path values and the parameters of the query are its fields: a dot
// separates the names of nested fields, as in "item.sku", and a parameter that comes several times
// is an array. The server converts them to the type of the field. It refuses parameters for which
// the type has no field. If the request has a body, it is a JSON object with further fields, and
// path values and parameters take precedence.
//
// The body of a request without path values and without a query may also be a message in another
// codec of the server, with its content type, such as application/x-protobuf. The reply is then in
// that codec too.
//
// GET and HEAD need a method that Server.MarkReadOnly names, and POST needs the content type
// of its codec, so that pages of other sites cannot make calls. Feeds are server-sent events,
// if the request accepts text/event-stream. Other streams, and methods with several arguments, have
// no routes.
type Route struct {
	// Pattern is a pattern of http.ServeMux with an HTTP method, for example "GET /v1/carts/{id}".
	Pattern string
	// Method is the name of the method, for example "shop.Cart.Get".
	Method string
	// Binding replaces the rules above for paths, parameters and bodies. Pattern is then only a
	// description. Package transcode makes such routes of google.api.http annotations. Patterns are
	// matched first, and then the bindings in the order of the routes. Default: none.
	Binding Binding
}

// A Binding maps a request to the message of a method, and the reply to a response. Its methods are
// called concurrently. The messages are in JSON.
type Binding interface {
	// Match reports whether the route serves a request with the HTTP method verb and an escaped
	// path. The values are for Request.
	Match(verb, path string) (values []string, ok bool)
	// Request returns the message of a request. The body of a GET is empty. If Request fails, the
	// call fails with its error. The code is invalid_argument, or that of a *yodel.Error.
	Request(values []string, query url.Values, body []byte) ([]byte, error)
	// Reply returns a function that returns the body of the response to a call that is not a feed,
	// or nil if the body is the message.
	Reply() func(message []byte) ([]byte, error)
}

// exchangeKey is the key of the exchange in the context of a request with a route.
type exchangeKey struct{}

// muxOf returns the routes, or nil if there are none.
func muxOf(routes []Route) *std.ServeMux {
	if len(routes) == 0 {
		return nil
	}
	mux := std.NewServeMux()
	for _, route := range routes {
		if route.Binding != nil {
			continue
		}
		names := wildcards(route.Pattern)
		mux.HandleFunc(route.Pattern, func(_ std.ResponseWriter, r *std.Request) {
			x, _ := r.Context().Value(exchangeKey{}).(*exchange)
			x.r = r                                                                                                                                // with the path values
			x.serveRoute(route.Method, len(names) == 0, func(query url.Values, body []byte) ([]byte, error) { return x.bind(names, query, body) }) //nolint:contextcheck // the context of a call is that of its session
		})
	}
	return mux
}

// wildcards returns the names of the path values of a pattern.
func wildcards(pattern string) (names []string) {
	for _, rest := range strings.Split(pattern, "{")[1:] {
		name, _, _ := strings.Cut(rest, "}")
		if name = strings.TrimSuffix(name, "..."); name != "$" {
			names = append(names, name)
		}
	}
	return names
}

// routed returns what serves a request that has a route, or nil.
func (c *router) routed(r *std.Request) (serve func(*exchange)) {
	mux := c.protocol.routes
	if mux == nil {
		return nil
	}
	if _, pattern := mux.Handler(r); pattern != "" {
		return func(x *exchange) {
			mux.ServeHTTP(x.w, x.r.WithContext(context.WithValue(x.r.Context(), exchangeKey{}, x)))
		}
	}
	if !c.protocol.binds {
		return nil
	}
	var found *Route
	var values []string
	var rewrite func([]byte) ([]byte, error)
	if !guarded(c.session, func() { found, values, rewrite = c.protocol.bound(r) }) {
		return func(x *exchange) { x.reject(std.StatusInternalServerError, "", "the binding of a route panicked") }
	}
	if found == nil {
		return nil
	}
	return func(x *exchange) {
		x.annotated, x.rewrite = true, rewrite
		x.serveRoute(found.Method, false, func(query url.Values, body []byte) ([]byte, error) { return found.Binding.Request(values, query, body) })
	}
}

// needsJSON is the text of the answer to a request of a route with another content type.
const needsJSON = "the request needs the content type application/json"

// verbsOf returns the HTTP methods of the patterns of routes.
func verbsOf(routes []Route) (verbs []string) {
	for _, route := range routes {
		verb, _, _ := strings.Cut(route.Pattern, " ")
		if verb == std.MethodGet {
			verbs = append(verbs, std.MethodHead)
		}
		verbs = append(verbs, verb)
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

// allowed lists the HTTP methods other than that of a request for which its path has a route. If
// one of GET and HEAD is not allowed, the other is not either.
func (c *router) allowed(r *std.Request) string {
	var list []string
	read := []string{std.MethodGet, std.MethodHead}
	guarded(c.session, func() {
		for _, verb := range c.protocol.verbs {
			if verb == r.Method || slices.Contains(read, verb) && slices.Contains(read, r.Method) {
				continue
			}
			other := r.WithContext(r.Context()) // a copy
			other.Method = verb
			_, pattern := c.protocol.routes.Handler(other)
			if route, _, _ := c.protocol.bound(other); route != nil || pattern != "" {
				list = append(list, verb)
			}
		}
	})
	return strings.Join(list, ", ")
}

// bound returns the first route with a Binding that matches a request, or nil.
func (p *Protocol) bound(r *std.Request) (route *Route, values []string, rewrite func([]byte) ([]byte, error)) {
	for i := range p.opts.Routes {
		route := &p.opts.Routes[i]
		if route.Binding == nil {
			continue
		}
		if values, ok := route.Binding.Match(r.Method, r.URL.EscapedPath()); ok {
			return route, values, route.Binding.Reply()
		}
	}
	return nil, nil, nil
}

// serveRoute serves a call of a method by its route. Bind makes the request of the query and the
// body. Whole says that the body alone is the request if there is no query. The client may then
// encode the body in any codec of the server.
func (x *exchange) serveRoute(method string, whole bool, bind func(query url.Values, body []byte) ([]byte, error)) {
	get := x.r.Method == std.MethodGet || x.r.Method == std.MethodHead
	plain, e := x.negotiate(x.r.Header.Get("Content-Encoding"), x.r.Header.Get("Accept-Encoding"))
	codec, subtype := x.session.Codec("json"), "json"
	media := httpwire.ContentType(x.r.Header.Get("Content-Type"))
	if name, ok := strings.CutPrefix(media, "application/"); ok && name != "" && whole && !get && x.r.URL.RawQuery == "" {
		if other := x.session.Codec(httpwire.Codec(name)); other != nil {
			codec, subtype = other, name
		}
	}
	if refused := x.beginMethod(method, codec); e == nil {
		e = refused
	}
	defer x.end()
	x.v.Plain = plain || x.rewrite != nil
	bodiless := x.r.Method != std.MethodPost && (x.r.ContentLength == 0 || x.r.ContentLength < 0 && media == "") // as far as the header tells
	form := x.isForm(media)
	switch {
	case form && x.foreignForm():
		x.refuse(std.StatusForbidden, "", needsOrigin)
		return
	case !get && !form && media != "application/"+subtype && !bodiless:
		x.refuse(std.StatusUnsupportedMediaType, "application/json", needsJSON)
		return
	case get && x.v.Kind() != "" && !x.v.ReadOnly():
		x.refuse(std.StatusMethodNotAllowed, x.router.allowed(x.r), "the method changes something, so it cannot be called with "+x.r.Method)
		return
	}
	x.v.Refusal = x.unfit(codec, codec.Name(), "HTTP", "application/json")
	if x.v.Refusal == nil && x.v.Positional() {
		x.v.Refusal = yodel.Errorf(yodel.Unimplemented, "%s: the method takes several values, so it has no route", method)
	}
	if fields := bind; form {
		bind = func(query url.Values, body []byte) ([]byte, error) {
			message, err := x.formJSON(body)
			if err != nil {
				return nil, err
			}
			return fields(query, message)
		}
	}
	if codec.Name() == "json" {
		x.source = func() *yodel.Error { return x.readRoute(bind, get, bodiless && media != "application/json") }
		if x.v.Kind() == "feed" && x.acceptsEvents() {
			x.serveEvents(e)
			return
		}
	}
	x.serveUnary(codec, subtype, e)
}

// readRoute reads the body of a request of a route into v.Body, after it has admitted the call. The
// server makes the message of the body and the query. With empty, there must be no body.
func (x *exchange) readRoute(bind func(query url.Values, body []byte) ([]byte, error), get, empty bool) *yodel.Error {
	if get {
		x.v.Compressed = false
		if e := x.v.Admit(len(x.r.URL.Path)+len(x.r.URL.RawQuery), true); e != nil {
			return e
		}
	} else if e := x.readBody(); e != nil {
		return e
	}
	if empty && !get && len(x.v.Body) > 0 {
		e := rejection(std.StatusUnsupportedMediaType, needsJSON)
		e.Cause = errUnserved
		return x.refuseLater(e)
	}
	x.v.Owned = true
	x.v.Transform = func(body []byte) ([]byte, error) {
		query, err := url.ParseQuery(x.r.URL.RawQuery)
		if err == nil {
			body, err = bind(query, body)
		}
		if err != nil {
			return nil, x.wrongParameter(err)
		}
		return body, nil
	}
	return nil
}

// bind returns the request of a route with a pattern that has path values of the given names.
func (x *exchange) bind(names []string, query url.Values, body []byte) ([]byte, error) {
	for _, name := range names {
		query[name] = []string{x.r.PathValue(name)}
	}
	in, _ := x.v.Types()
	fields, err := fieldsOf(in, query)
	if err != nil {
		return nil, err
	}
	body = bytes.TrimSpace(body)
	switch {
	case len(body) == 0:
		return fields, nil
	case body[0] != '{' || body[len(body)-1] != '}':
		return nil, errors.New("the request must be a JSON object")
	case len(fields) > len("{}"):
		return joined(body, fields), nil
	}
	return body, nil
}

// joined returns an object with the members of two others. Those of fields come last, so that they
// take precedence.
func joined(body, fields []byte) []byte {
	inner := bytes.TrimSpace(body[1 : len(body)-1])
	if len(inner) == 0 {
		return fields
	}
	out := append(make([]byte, 0, len(body)+len(fields)), '{')
	return append(append(append(out, inner...), ','), fields[1:]...)
}

func (x *exchange) wrongParameter(err error) *yodel.Error {
	e := &yodel.Error{Code: yodel.InvalidArgument, Message: err.Error(), NotProcessed: true}
	if told, ok := errors.AsType[*yodel.Error](err); ok {
		e.Code, e.Message = told.Code, told.Message
	}
	e.Message = x.v.Call().Method + ": " + e.Message
	return e
}
