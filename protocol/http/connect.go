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
	if d == 0 { // grpc-gateway has this header for JSON
		if d, err = httpwire.ParseTimeout(h.Get("Grpc-Timeout")); err != nil {
			return 0, yodel.Errorf(yodel.InvalidArgument, "the header grpc-timeout is malformed")
		}
	}
	return d, nil
}

// serveConnect serves a call by Connect of any kind of method, with envelopes.
func (x *exchange) serveConnect(k kind) {
	st, e := x.open(k, x.r.Body, x.w)
	defer st.close()
	if x.passOn(st.endConnect) {
		return
	}
	if x.session.Codec(k.codec) == nil {
		x.reject(std.StatusUnsupportedMediaType, "application/connect+json", "the server does not have the codec of "+x.r.Header.Get("Content-Type"))
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
	st.start()
	body := st.lastMessage(e)
	st.allow(len(body))
	_ = st.write(httpwire.FlagEnd, body) // if it fails, the client has gone
}

// lastMessage returns the last message of a stream, which has the error and the trailer.
func (x *exchange) lastMessage(e *yodel.Error) []byte {
	end := httpwire.EndOfStream{Metadata: make(std.Header)}
	x.setMetadata(x.v, end.Metadata, "", x.v.Call().Trailer)
	if e != nil {
		end.Error = httpwire.NewJSONError(e)
		httpwire.SetError(end.Metadata, "", e, e.Code)
	}
	body, err := json.Marshal(end)
	if err != nil {
		panic(err) // it has only strings
	}
	return body
}

// routeUnary serves a unary call whose body is the message, and passes all other requests on.
func (x *exchange) routeUnary() {
	media := httpwire.ContentType(x.r.Header.Get("Content-Type"))
	subtype, ok := strings.CutPrefix(media, "application/")
	get := x.r.Method == std.MethodGet || x.r.Method == std.MethodHead
	query := x.r.URL.Query()
	if get {
		if media, ok = "", query.Has("encoding") && query.Has("message"); ok {
			media, subtype = query.Get("encoding"), query.Get("encoding")
		}
	}
	var codec yodel.Codec
	form := x.isForm(media)
	if form {
		codec, subtype = x.session.Codec("json"), "json"
	} else if ok {
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
	if x.passOn(func(e *yodel.Error) { x.sendUnary("json", e) }) {
		return
	}
	if status, value, text := x.unserved(codec, media, get); status != 0 {
		x.refuse(status, value, text)
		return
	}
	switch {
	case get:
		x.source = x.readQuery
	case form && x.foreignForm():
		x.refuse(std.StatusForbidden, "", needsOrigin)
		return
	case form:
		x.source = x.readForm
	}
	x.v.Refusal = x.unfit(codec, codec.Name(), "HTTP", "application/json")
	if form && x.v.Refusal == nil && x.v.Positional() {
		x.v.Refusal = yodel.Errorf(yodel.Unimplemented, "%s: the method takes several values, so it takes no form", x.name())
	}
	if x.v.Kind() == "feed" && x.acceptsEvents() && codec.Name() == "json" {
		x.serveEvents(e)
		return
	}
	x.serveUnary(codec, subtype, e)
}

// unserved returns the arguments of refuse for a request that is not a call of the method. The
// status is 0 if it is a call. Media is the content type, or the encoding of a GET.
func (x *exchange) unserved(codec yodel.Codec, media string, get bool) (status int, value, text string) {
	kind, verb := x.v.Kind(), x.r.Method
	if kind == "" {
		if allow := x.router.allowed(x.r); allow != "" {
			return std.StatusMethodNotAllowed, allow, "the path needs another method: " + allow
		}
	}
	switch {
	case kind == "" && (codec == nil || !get && verb != std.MethodPost):
		return std.StatusNotFound, "", fmt.Sprintf("%.100q is not a method of the server", x.name())
	case verb != std.MethodPost && !get, get && kind != "" && !x.v.ReadOnly():
		allow := std.MethodPost
		if x.v.ReadOnly() {
			allow = "GET, HEAD, POST"
		}
		return std.StatusMethodNotAllowed, allow, "a call of this method needs " + allow
	case codec == nil && get && media != "":
		return std.StatusUnsupportedMediaType, "application/json", fmt.Sprintf("the server has no codec for the encoding %.100q; send JSON with encoding=json", media)
	case codec == nil && get:
		return std.StatusUnsupportedMediaType, "application/json", "a call by GET needs the parameters encoding and message, for example ?encoding=json&message={}"
	case codec == nil:
		return std.StatusUnsupportedMediaType, "application/json", fmt.Sprintf("the server has no codec for the content type %q; send JSON with application/json", media)
	}
	return 0, "", ""
}

// serveUnary serves a call whose request comes from x.source.
func (x *exchange) serveUnary(codec yodel.Codec, subtype string, e *yodel.Error) {
	x.v.Compressed = x.compressed
	if x.v.Refusal == nil {
		x.v.Refusal = unaryOnly(x.v)
	}
	timeout, wrong := x.connectTimeout()
	if x.limit(timeout); e == nil {
		e = wrong
	}
	if e == nil {
		e = x.source()
	}
	if e == nil {
		x.v.Compressed = x.v.Compressed && len(x.v.Body) > 0 // nothing stands for itself
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
	x.sendUnary(subtype, e)
}

// unaryOnly returns the error of a request whose form is that of a unary call if the method is of
// another kind, and nil otherwise. Its code says that the server cannot serve it in this way.
func unaryOnly(v *yodel.Served) *yodel.Error {
	kind := v.Kind()
	if kind == "unary" || kind == "" {
		return nil
	}
	e := unsupported("%s: the method is of the kind %s, and the request is for a unary method: call it by gRPC, gRPC-Web or Connect", v.Call().Method, kind)
	if e.ID = "YDL2006"; kind == "feed" {
		e.Message += ", or in JSON and accept text/event-stream"
	}
	return e
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
	x.setHeader("", call.Header())
	x.setHeader("Trailer-", call.Trailer)
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
	x.answer(x.statusOf(e), e)
}

// statusOf returns the status of a response with an error. The specification of Connect has one for
// each code. Other clients take 429 for a reason to repeat the request, so that they get the
// statuses of HTTP for what is too large.
func (x *exchange) statusOf(e *yodel.Error) int {
	switch {
	case x.v.Kind() == "" && e.Code == yodel.Unimplemented:
		return std.StatusNotFound
	case errors.Is(e, errUnserved):
		return std.StatusUnsupportedMediaType
	case x.specified():
	case errors.Is(e, errMetadata):
		return std.StatusRequestHeaderFieldsTooLarge
	case e.Code == yodel.ResourceExhausted && e.AboutMessage() && e.NotProcessed:
		return std.StatusRequestEntityTooLarge
	case e.Code == yodel.ResourceExhausted && e.AboutMessage(): // the reply
		return std.StatusInternalServerError
	}
	return httpwire.Status(e.Code)
}

// specified reports whether a client has sent the request by Connect, gRPC or gRPC-Web, whose
// specifications say what it takes from a response.
func (x *exchange) specified() bool {
	return x.r.Header.Get("Connect-Protocol-Version") != "" || x.r.URL.Query().Has("connect") || kindOf(x.r).serve != nil
}

// answer sends an error with a status.
func (x *exchange) answer(status int, e *yodel.Error) {
	told := any(httpwire.NewJSONError(e))
	if x.annotated {
		told = annotatedError{httpwire.NewJSONError(e), newGoogleError(status, e)}
	}
	body := errorBody(x.w.Header(), e, told)
	x.within(len(body))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // if it fails, the client has gone
}

// rejection returns the error of a request that is not a call of a method. The code is the one that
// clients of Connect take from the status. Statistics have it too.
func rejection(status int, text string) *yodel.Error {
	e := &yodel.Error{Code: httpwire.CodeOf(status), Message: text, NotProcessed: true}
	switch status {
	case std.StatusBadRequest:
		e.Code = yodel.InvalidArgument
	case std.StatusNotFound:
		e.ID = "YDL2002"
	case std.StatusUnsupportedMediaType:
		e.ID = "YDL2003"
	case std.StatusRequestHeaderFieldsTooLarge:
		e.Code, e.ID = yodel.ResourceExhausted, "YDL2203"
	case std.StatusInternalServerError:
		e.Code = yodel.Internal
	}
	return e
}

// reject answers a request that is not a call. Value is that of the header that the status needs:
// Allow, or Accept-Post. The specification of Connect has this form for errors. Those of gRPC and
// gRPC-Web have only the status, and their clients show the body as it is. The parameter of the
// content type tells a client that does not speak Connect that the JSON is not of Connect.
func (x *exchange) reject(status int, value, text string) {
	e := rejection(status, text)
	switch status {
	case std.StatusMethodNotAllowed:
		x.w.Header().Set("Allow", value)
	case std.StatusUnsupportedMediaType:
		x.w.Header().Set("Accept-Post", value)
	}
	if title := kindOf(x.r).title; !x.specified() || title != "" && title != "Connect" {
		x.w.Header()["Content-Type"] = []string{"application/json; charset=utf-8"}
	}
	x.answer(status, e)
}

// An annotatedError is an error in two forms: that of all errors, and in the member "error" that of
// Google's APIs, which clients that are made of annotations read.
type annotatedError struct {
	*httpwire.JSONError
	Google googleError `json:"error"`
}

type googleError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Status  string `json:"status"`
}

func newGoogleError(status int, e *yodel.Error) googleError {
	name := strings.ToUpper(e.Code.String())
	if e.Code == yodel.Canceled {
		name = "CANCELLED"
	}
	return googleError{status, strings.ToValidUTF8(e.Message, "\uFFFD"), name}
}

// errorBody returns the JSON of an error, and sets the header of the response.
func errorBody(h std.Header, e *yodel.Error, told any) []byte {
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = []string{"application/json"}
	}
	httpwire.SetError(h, "", e, e.Code)
	if e.RetryAfter > 0 {
		h["Retry-After"] = []string{fmt.Sprint(int64((e.RetryAfter + time.Second - 1) / time.Second))}
	}
	body, err := json.Marshal(told)
	if err != nil {
		panic(err) // it has only strings and a number
	}
	return body
}
