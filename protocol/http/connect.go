// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	std "net/http"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// This file serves Connect, as described in its protocol reference, and JSON over HTTP, which is
// the unary part of Connect without the header Connect-Protocol-Version.

// connectTimeout returns the timeout of a request.
func (x *exchange) connectTimeout() (time.Duration, *yodel.Error) {
	h := x.r.Header
	if version := h.Get("Connect-Protocol-Version"); version != "" && version != "1" {
		return 0, yodel.Errorf(yodel.InvalidArgument, "the server has version 1 of Connect, not %.20q", version)
	}
	d, err := httpwire.ParseMillis(h.Get("Connect-Timeout-Ms"))
	if err != nil {
		return 0, yodel.Errorf(yodel.InvalidArgument, "the header connect-timeout-ms is malformed")
	}
	return d, nil
}

// serveConnect serves a call by Connect of any kind of method, with envelopes.
func (x *exchange) serveConnect(k kind) {
	st, e := x.open(k, x.r.Body, x.w)
	defer st.close()
	if x.passOn() {
		return
	}
	if x.session.Codec(k.codec) == nil {
		x.w.Header().Set("Accept-Post", "application/connect+json")
		std.Error(x.w, "the server does not have the codec of "+x.r.Header.Get("Content-Type"), std.StatusUnsupportedMediaType)
		return
	}
	timeout, wrong := x.connectTimeout()
	if x.limit(timeout); e == nil {
		e = wrong
	}
	if e == nil {
		e = st.execute()
	}
	st.endConnect(e)
}

// endConnect writes the last message of the response.
func (st *stream) endConnect(e *yodel.Error) {
	if err := st.start(); err != nil && e == nil {
		e = st.v.Fail(err)
	}
	body := st.lastMessage(e)
	st.allow(len(body))
	_ = st.write(httpwire.FlagEnd, body) // if it fails, the client has gone
}

// lastMessage returns the last message of a stream, which has the error and the trailer.
func (x *exchange) lastMessage(e *yodel.Error) []byte {
	end := httpwire.EndOfStream{Metadata: make(std.Header)}
	if err := x.setMetadata(end.Metadata, "", x.v.Call().Trailer); err != nil && e == nil {
		e = x.v.Fail(err)
	}
	if e != nil {
		end.Error = httpwire.NewJSONError(e)
		httpwire.SetError(end.Metadata, "", e)
	}
	body, err := json.Marshal(end)
	if err != nil {
		panic(err) // it has only strings
	}
	return body
}

// passOn passes the request to Options.Handler if the server does not have the method. It reports
// whether it did. The call must have begun.
func (x *exchange) passOn() bool {
	handler := x.router.protocol.opts.Handler
	if handler == nil || x.v.Kind() != "" {
		return false
	}
	x.finished, x.r.Body = true, x.body.ReadCloser
	handler.ServeHTTP(x.w, x.r)
	return true
}

// routeUnary serves a unary call whose body is the message, and passes all other requests on.
func (x *exchange) routeUnary() {
	media := httpwire.ContentType(x.r.Header.Get("Content-Type"))
	subtype, ok := strings.CutPrefix(media, "application/")
	get := x.r.Method == std.MethodGet || x.r.Method == std.MethodHead
	query := x.r.URL.Query()
	if get {
		subtype, ok = query.Get("encoding"), query.Has("encoding") && query.Has("message")
	}
	var codec yodel.Codec
	if ok {
		codec = x.session.Codec(httpwire.Codec(subtype))
	}
	sent := x.r.Header.Get("Content-Encoding")
	if get {
		sent = query.Get("compression")
	}
	plain, e := x.negotiate(sent, x.r.Header.Get("Accept-Encoding"))
	if refused := x.begin(codec); e == nil {
		e = refused
	}
	defer x.end()
	x.v.Plain = plain
	if x.passOn() {
		return
	}
	if answer := x.unserved(codec, media, get); answer != nil {
		x.refuse(answer)
		return
	}
	if get {
		x.source = x.readQuery
	}
	x.v.Refusal = x.unfit(codec, codec.Name(), "HTTP", "application/json")
	if x.v.Kind() == "feed" && x.acceptsEvents() && codec.Name() == "json" {
		x.serveEvents(e)
		return
	}
	x.serveUnary(codec, subtype, e)
}

// unserved returns a function that answers a request that is not a call of the method, or nil if it
// is a call.
func (x *exchange) unserved(codec yodel.Codec, media string, get bool) (answer func()) {
	fail := func(status int, header, value, text string) func() {
		return func() {
			x.w.Header().Set(header, value)
			std.Error(x.w, text, status)
		}
	}
	switch kind := x.v.Kind(); {
	case kind == "" && codec == nil:
		return func() { std.NotFound(x.w, x.r) }
	case x.r.Method != std.MethodPost && (x.r.Method != std.MethodGet || !x.v.ReadOnly() && kind != ""):
		if x.v.ReadOnly() {
			return fail(std.StatusMethodNotAllowed, "Allow", "GET, POST", "a call of this method needs GET or POST")
		}
		return fail(std.StatusMethodNotAllowed, "Allow", std.MethodPost, "a call of this method needs POST")
	case codec == nil && get:
		return func() {
			std.Error(x.w, "a call by GET needs the parameters encoding and message, for example ?encoding=json&message={}", std.StatusUnsupportedMediaType)
		}
	case codec == nil:
		text := fmt.Sprintf("the server has no codec for the content type %q; send JSON with application/json", media)
		return fail(std.StatusUnsupportedMediaType, "Accept-Post", "application/json", text)
	}
	return nil
}

// serveUnary serves a call whose request comes from x.source.
func (x *exchange) serveUnary(codec yodel.Codec, subtype string, e *yodel.Error) {
	x.v.Compressed = x.compressed
	timeout, wrong := x.connectTimeout()
	if x.limit(timeout); e == nil {
		e = wrong
	}
	if e == nil {
		e = x.source()
	}
	if e == nil {
		x.spread(codec)
		e = x.run(true)
	}
	if e == nil {
		e = x.collect()
	}
	if e == nil && x.rewrite != nil {
		var err error
		if e = x.guarded("the binding of the route", func() { x.reply, err = x.rewrite(x.reply) }); e != nil {
			err = e
		}
		if err != nil {
			e = x.v.Fail(err)
		}
	}
	x.sendUnary(subtype, unaryOnly(x.v, e))
}

// unaryOnly returns the error of a call whose request was that of a unary method. If the method is
// of another kind, the code says that the server cannot serve it in this way.
func unaryOnly(v *yodel.Served, e *yodel.Error) *yodel.Error {
	kind := v.Kind()
	if e == nil || !e.NotProcessed || e.Code != yodel.InvalidArgument || kind == "unary" || kind == "" {
		return e
	}
	told := *e
	told.Code = yodel.Unimplemented
	if told.Message += ": call it by gRPC, gRPC-Web or Connect"; kind == "feed" {
		told.Message += ", or in JSON and accept text/event-stream"
	}
	return &told
}

// readQuery reads the request from the query of a GET into v.Body, after it has admitted the call.
func (x *exchange) readQuery() *yodel.Error {
	query := x.r.URL.Query()
	if connect := query.Get("connect"); connect != "" && connect != "v1" {
		return yodel.Errorf(yodel.InvalidArgument, "the server has version 1 of Connect, not %.20q", connect)
	}
	message := []byte(query.Get("message"))
	if query.Get("base64") == "1" {
		var err error
		if message, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(string(message), "=")); err != nil {
			return x.refuseLater(yodel.Errorf(yodel.InvalidArgument, "the parameter message is not base64"))
		}
	}
	if e := x.v.Admit(len(message), true); e != nil {
		return e
	}
	x.v.Body, x.v.Owned = message, true
	return nil
}

// sendUnary sends the response of a unary call.
func (x *exchange) sendUnary(subtype string, e *yodel.Error) {
	h, call := x.w.Header(), x.v.Call()
	if all := x.compressions(); all != "" {
		h["Accept-Encoding"] = []string{all}
	}
	err := errors.Join(x.setHeader("", call.Header()), x.setHeader("Trailer-", call.Trailer))
	if err != nil && e == nil {
		e = x.v.Fail(err)
	}
	if e != nil {
		x.sendError(e)
		return
	}
	h["Content-Type"] = []string{"application/" + subtype}
	if x.packed {
		h["Content-Encoding"] = []string{x.encoding()}
	}
	if x.r.Method == std.MethodGet {
		h.Add("Vary", "Accept-Encoding")
	}
	x.within(len(x.reply))
	if _, err := x.w.Write(x.reply); err != nil { //nolint:gosec // the content type is that of the codec, not HTML
		_ = x.v.Fail(err) // the client has gone
	}
}

// sendError sends an error as the response of a unary call. If the deadline of the call has passed,
// it lets the client end the call first: a client that has received only the header of the response
// at that time would take it for a malformed one.
func (x *exchange) sendError(e *yodel.Error) {
	if at := x.v.Call().Deadline; e.Code == yodel.DeadlineExceeded && !at.IsZero() && !time.Now().Before(at) {
		select {
		case <-time.After(httpwire.Skew):
		case <-x.r.Context().Done():
		}
	}
	h := x.w.Header()
	h["Content-Type"] = []string{"application/json"}
	httpwire.SetError(h, "", e)
	if seconds := int(e.RetryAfter.Seconds()); seconds > 0 {
		h["Retry-After"] = []string{fmt.Sprint(seconds)}
	}
	body, err := json.Marshal(httpwire.NewJSONError(e))
	if err != nil {
		panic(err) // it has only strings
	}
	x.within(len(body))
	status := httpwire.Status(e.Code)
	if x.v.Kind() == "" && e.Code == yodel.Unimplemented {
		status = std.StatusNotFound
	}
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // if it fails, the client has gone
}
