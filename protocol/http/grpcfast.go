// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/binary"
	std "net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/h2"
	"github.com/yodel-rpc/yodel/protocol/internal/h2http"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// This file serves the common unary call of gRPC over HTTP/2 without an http.Request: one small
// message without compression, whose fields are none but metadata. An exchange serves all other
// requests, and those whose form is wrong. So what this file does not do yet is done there.

// mostDirect is the size of the largest message that is served so, in bytes. The body of a larger
// one must arrive at the least pace, which an exchange sees to.
const mostDirect = 64 << 10

// A direct is a method that clients call by gRPC with a codec. The reader of a connection finds it
// once for each path that its client repeats.
type direct struct {
	method string
	codec  yodel.Codec
	short  atomic.Bool // a call runs on the reader, because the last one was of a short method
}

// mostPaths is how many paths and content types a connection remembers.
const mostPaths = 1024

// directs finds the methods of a connection. Only the reader uses it.
type directs struct {
	of    *multiplexed
	paths map[string]map[*fieldUse]*direct // nil entries are for methods that an exchange serves
	media map[string]*fieldUse
}

// A fieldUse is what a field of a request means to a call.
type fieldUse struct {
	kind  uint8
	name  string      // the content type, as the response has it
	codec yodel.Codec // that the content type names
}

const (
	useOdd     = iota // an exchange has to serve the request
	useNothing        // it does not concern the call
	usePair           // metadata
	useAgent          // metadata, and the name of the caller
	useTimeout
	useMedia
)

// These have nothing that depends on the value.
var (
	odd     = &fieldUse{kind: useOdd}
	nothing = &fieldUse{kind: useNothing}
	pair    = &fieldUse{kind: usePair}
	agent   = &fieldUse{kind: useAgent}
	timeout = &fieldUse{kind: useTimeout}
)

// takesDirect reports whether calls may be served without an exchange at all.
func (p *Protocol) takesDirect() bool {
	o := &p.opts
	return o.OnRequest == nil && o.Hosts == nil && p.routes == nil && !p.binds && o.JSONRPC == "" && o.OpenAPI == "" && !o.RPCX
}

// meaning is the Meaning of a connection's h2.Config.
func (d *directs) meaning(name, value string) any {
	switch name {
	case ":path":
		if byMedia := d.paths[value]; byMedia != nil {
			return byMedia
		}
		if len(d.paths) >= mostPaths || !isPlainPath(value) {
			return nil
		}
		byMedia := make(map[*fieldUse]*direct)
		d.paths[strings.Clone(value)] = byMedia
		return byMedia
	case "content-type":
		return d.contentType(value)
	case "grpc-timeout":
		return timeout
	case "user-agent":
		return agent
	case "te", "content-length":
		return nothing
	case "grpc-encoding", "grpc-accept-encoding", "cookie", "expect", "origin", "idempotency-key", "tracestate", "grpc-previous-rpc-attempts", "trailer", "host":
		return odd
	}
	if strings.HasPrefix(name, "yodel") || !httpwire.GRPC.Carries(name) {
		return odd
	}
	return pair
}

// isPlainPath reports whether a path is that of a method as it is.
func isPlainPath(path string) bool {
	for i := range len(path) {
		if c := path[i]; (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '/' && c != '.' && c != '_' {
			return false
		}
	}
	return strings.Count(path, "/") == 2 && path[0] == '/'
}

// contentType returns the meaning of a content type. That of gRPC has a codec of the server.
func (d *directs) contentType(value string) *fieldUse {
	if known := d.media[value]; known != nil {
		return known
	}
	name := httpwire.ContentType(value)
	subtype, ok := strings.CutPrefix(name, "application/grpc")
	if !ok || subtype != "" && subtype[0] != '+' || len(d.media) >= mostPaths {
		return odd
	}
	codec := d.of.session.Codec(httpwire.Codec(strings.TrimPrefix(subtype, "+")))
	if codec == nil {
		return odd
	}
	as := &fieldUse{kind: useMedia, name: name, codec: codec}
	d.media[strings.Clone(value)] = as
	return as
}

// find returns the method that a request calls, or nil if an exchange has to serve the request.
func (d *directs) find(s *h2.Stream) *direct {
	byMedia, ok := s.PathMeaning.(map[*fieldUse]*direct)
	if !ok || s.Method != std.MethodPost {
		return nil
	}
	var media *fieldUse
	agent := ""
	for i := range s.Fields {
		switch as, _ := s.Fields[i].Meaning.(*fieldUse); {
		case as == nil || as.kind == useOdd || as.kind == useMedia && media != nil:
			return nil
		case as.kind == useMedia:
			media = as
		case as.kind == useAgent:
			agent = s.Fields[i].Value
		}
	}
	if media == nil {
		return nil
	}
	m, known := byMedia[media]
	if !known {
		d.of.know(agent)
		m = d.look(s.Path[1:], media)
		byMedia[media] = m
	}
	return m
}

// look looks whether the server has a unary method of this name, which the codec carries.
func (d *directs) look(name string, media *fieldUse) *direct {
	v := d.of.session.Begin(name, media.codec, nil)
	defer v.End()
	x := &exchange{router: &d.of.router, v: v}
	if v.Kind() != "unary" || x.unfit(media.codec, media.codec.Name(), "gRPC", media.name) != nil {
		return nil
	}
	return &direct{method: strings.Clone(name), codec: media.codec}
}

// Head implements h2.Handler.
func (c *multiplexed) Head(s *h2.Stream) h2.Plan {
	if !c.direct {
		return h2.Plan{}
	}
	m := c.methods.find(s)
	if m == nil {
		return h2.Plan{}
	}
	s.User = m
	return h2.Plan{Whole: mostDirect, Inline: m.short.Load()}
}

// Serve implements h2.Handler.
func (c *multiplexed) Serve(s *h2.Stream) {
	if m, _ := s.User.(*direct); m == nil || !c.serveDirect(s, m) {
		s.HandOver()
		c.requests.Serve(s)
	}
}

// serveDirect serves a call. It returns false, and has done nothing, if an exchange has to serve
// it.
func (c *multiplexed) serveDirect(s *h2.Stream, m *direct) bool {
	body := s.Body()
	if len(body) < httpwire.PrefixSize || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-httpwire.PrefixSize || len(body)-httpwire.PrefixSize > c.most {
		return false
	}
	body = body[httpwire.PrefixSize:]
	metadata := make(yodel.Metadata, 4)
	var media *fieldUse
	var deadline time.Time
	for i := range s.Fields {
		f := &s.Fields[i]
		as, _ := f.Meaning.(*fieldUse)
		switch as.kind {
		case useMedia:
			media = as
		case useTimeout:
			d, err := httpwire.ParseTimeout(f.Value)
			if err != nil || !deadline.IsZero() {
				return false
			}
			deadline = deadlineIn(d)
		case usePair, useAgent:
			if _, twice := metadata[f.Name]; twice {
				return false
			}
			metadata[f.Name] = f.Value
		}
	}
	if s.Authority != "" {
		metadata[":authority"] = s.Authority
	}
	if fits(metadata, &c.limits) != nil {
		return false
	}
	caller := metadata["user-agent"]
	c.know(caller)
	v := c.session.Begin(m.method, m.codec, nil)
	defer v.End()
	if v.Kind() != "unary" { // it was registered anew
		return false
	}
	v.Caller = httpwire.Caller(caller)
	call := v.Call()
	call.Metadata, call.Trace, call.Deadline = metadata, metadata["traceparent"], deadline
	inline := m.short.Load()
	e := v.Admit(len(body), !inline)
	if e != nil && inline { // an exchange can wait for room
		return false
	}
	s.OnFailure(v)
	d := directCall{c, v, s, media.name}
	if e != nil {
		d.end(e)
		return true
	}
	v.Body = body
	d.run(m)
	return true
}

// A directCall is a call that is admitted.
type directCall struct {
	conn   *multiplexed
	v      *yodel.Served
	stream *h2.Stream
	media  string
}

// run executes the call, and replies also if the handler ends its goroutine.
func (d *directCall) run(m *direct) {
	returned := false
	defer func() {
		if short := d.v.Short(); short != m.short.Load() {
			m.short.Store(short)
		}
		if !returned {
			d.end(d.v.Outcome())
		}
	}()
	buf := replies.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer replies.Put(buf)
	var prefix [httpwire.PrefixSize]byte
	reply := append((*buf)[:0], prefix[:]...)
	e := d.v.Run()
	if e == nil {
		reply, _, e = d.v.AppendReply(reply)
	}
	if e == nil && d.v.Call().ReplyAttachment != nil {
		e = d.v.Fail(errAttachment)
	}
	if returned = true; e != nil {
		d.end(e)
		return
	}
	binary.BigEndian.PutUint32(reply[1:], uint32(len(reply)-httpwire.PrefixSize)) //nolint:gosec // at most MaxMessage
	if cap(reply) <= mostDirect {
		*buf = reply
	}
	d.reply(reply)
}

// replies are buffers for encoded replies.
var replies = sync.Pool{New: func() any { return new([]byte) }}

var (
	status200 = h2.Field{Name: ":status", Value: "200"}
	success   = []h2.Field{{Name: "grpc-status", Value: "0", Form: h2.Repeated}}
)

// reply sends the reply of a call that has succeeded.
func (d *directCall) reply(body []byte) {
	head := [2]h2.Field{status200, {Name: "content-type", Value: d.media, Form: h2.Repeated}}
	header, trailer := head[:], success
	if call := d.v.Call(); len(call.Header()) > 0 || len(call.Trailer) > 0 {
		header, trailer = d.fields(nil)
	}
	_ = d.stream.Reply(header, body, trailer) // if it fails, the client has gone
}

// fields returns the header and the trailer of the response.
func (d *directCall) fields(e *yodel.Error) (header, trailer []h2.Field) {
	x := &exchange{family: httpwire.GRPC, limits: d.conn.limits, v: d.v}
	h, t := make(std.Header), make(std.Header)
	x.setMetadata(d.v, h, "", d.v.Call().Header())
	x.setStatus(t, "", e)
	header = []h2.Field{status200, {Name: "content-type", Value: d.media, Form: h2.Repeated}}
	return h2http.Fields(header, h), h2http.Fields(nil, t)
}

// end sends the response of a call that has failed. See endGRPC for its form.
func (d *directCall) end(e *yodel.Error) {
	header, trailer := d.fields(e)
	if len(d.v.Call().Header()) == 0 {
		header, trailer = append(header, trailer...), nil
	}
	_ = d.stream.Reply(header, nil, trailer) // if it fails, the client has gone
}
