// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"context"
	std "net/http"
	"net/url"
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
// GET and HEAD need a method that Server.MarkReadOnly names, and POST needs the content type
// application/json, so that pages of other sites cannot make calls. Feeds are server-sent events,
// if the request accepts text/event-stream. Other streams, and methods with several arguments, have
// no routes.
type Route struct {
	// Pattern is a pattern of http.ServeMux with an HTTP method, for example "GET /v1/carts/{id}".
	Pattern string
	// Method is the name of the method, for example "shop.Cart.Get".
	Method string
}

// routerKey is the key of the router in the context of a request with a route.
type routerKey struct{}

// muxOf returns the routes, or nil if there are none.
func muxOf(routes []Route) *std.ServeMux {
	if len(routes) == 0 {
		return nil
	}
	mux := std.NewServeMux()
	for _, route := range routes {
		names := wildcards(route.Pattern)
		mux.HandleFunc(route.Pattern, func(w std.ResponseWriter, r *std.Request) {
			c, _ := r.Context().Value(routerKey{}).(*router)
			newExchange(c, w, r).serveRoute(route.Method, names) //nolint:contextcheck // the context of a call is that of its session
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

// routed serves a request that has a route, and reports whether it has one.
func (c *router) routed(w std.ResponseWriter, r *std.Request) bool {
	mux := c.protocol.routes
	if mux == nil {
		return false
	}
	if _, pattern := mux.Handler(r); pattern == "" {
		return false
	}
	mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routerKey{}, c)))
	return true
}

// serveRoute serves a call of a method by its route.
func (x *exchange) serveRoute(method string, names []string) {
	get := x.r.Method == std.MethodGet || x.r.Method == std.MethodHead
	media := httpwire.ContentType(x.r.Header.Get("Content-Type"))
	if !get && media != "application/json" && (x.r.Method == std.MethodPost || x.r.ContentLength != 0) {
		x.w.Header().Set("Accept-Post", "application/json")
		std.Error(x.w, "the request needs the content type application/json", std.StatusUnsupportedMediaType)
		return
	}
	plain, e := x.negotiate(x.r.Header.Get("Content-Encoding"), x.r.Header.Get("Accept-Encoding"))
	codec := x.session.Codec("json")
	if refused := x.beginMethod(method, codec); e == nil {
		e = refused
	}
	defer x.end()
	x.v.Plain = plain
	if get && x.v.Kind() != "" && !x.v.ReadOnly() {
		x.w.Header().Set("Allow", std.MethodPost)
		std.Error(x.w, "the method changes something, so it cannot be called with "+x.r.Method, std.StatusMethodNotAllowed)
		return
	}
	if e == nil && x.v.Positional() {
		e = yodel.Errorf(yodel.Unimplemented, "%s: the method takes several values, so it has no route", method)
	}
	x.source = func() *yodel.Error { return x.readRoute(names, get) }
	if x.v.Kind() == "feed" && x.acceptsEvents() {
		x.serveEvents(e)
		return
	}
	x.serveUnary(codec, "json", e)
}

// readRoute reads the request of a route into v.Body, after it has admitted the call.
func (x *exchange) readRoute(names []string, get bool) *yodel.Error {
	query, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return x.wrongParameter(err)
	}
	for _, name := range names {
		query[name] = []string{x.r.PathValue(name)}
	}
	in, _ := x.v.Types()
	fields, err := fieldsOf(in, query)
	if err != nil {
		return x.wrongParameter(err)
	}
	if get {
		x.v.Compressed = false
		if e := x.v.Admit(len(fields), true); e != nil {
			return e
		}
	} else if e := x.readBody(); e != nil {
		return e
	}
	if e := x.decompress(); e != nil {
		return e
	}
	body := bytes.TrimSpace(x.v.Body)
	switch {
	case len(body) == 0:
		x.v.Body = fields
	case body[0] != '{' || body[len(body)-1] != '}':
		return yodel.Errorf(yodel.InvalidArgument, "%s: the request must be a JSON object", x.v.Call().Method)
	case len(fields) > len("{}"):
		x.v.Body = joined(body, fields)
	}
	x.v.Owned = true
	return nil
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
	e := yodel.Errorf(yodel.InvalidArgument, "%s: %v", x.v.Call().Method, err)
	e.NotProcessed = true
	return e
}
