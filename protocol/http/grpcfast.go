// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/binary"
	"errors"
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

// A direct is a method that clients call by gRPC with a content type. Its method is empty if an
// exchange has to serve the calls.
type direct struct {
	method string
	media  *fieldUse
	short  atomic.Bool // a call runs on the reader, because the last one was of a short method
	next   *direct     // the same path with another content type
}

// A pathUse has the methods that a path names. The reader of a connection finds it once for each
// path that its client repeats.
type pathUse struct{ first atomic.Pointer[direct] }

// find returns the method for a content type, or nil if nobody has looked yet.
func (u *pathUse) find(media *fieldUse) *direct {
	m := u.first.Load()
	for m != nil && m.media != media {
		m = m.next
	}
	return m
}

// A server remembers mostPaths paths of its methods, of at most mostName bytes each.
const mostPaths, mostName = 10_000, 256

// directs are the methods that the clients of a server have called.
type directs struct {
	mu    sync.Mutex
	media map[string]*fieldUse // the content types of codecs of the server
	paths map[string]*pathUse  // of methods of the server
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

// meaning is the Meaning of the connection's h2.Config.
func (c *multiplexed) meaning(name, value string) any {
	switch name {
	case ":path":
		if !isPlainPath(value) {
			return nil
		}
		c.methods.mu.Lock()
		defer c.methods.mu.Unlock()
		if known := c.methods.paths[value]; known != nil {
			return known
		}
		return new(pathUse)
	case "content-type":
		return c.contentType(value)
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
	return len(path) <= mostName && strings.Count(path, "/") == 2 && path[0] == '/'
}

// contentType returns the meaning of a content type. That of gRPC has a codec of the server.
func (c *multiplexed) contentType(value string) *fieldUse {
	name := httpwire.ContentType(value)
	subtype, ok := strings.CutPrefix(name, "application/grpc")
	if !ok || subtype != "" && subtype[0] != '+' {
		return odd
	}
	codec := c.session.Codec(httpwire.Codec(strings.TrimPrefix(subtype, "+")))
	if codec == nil {
		return odd
	}
	c.methods.mu.Lock()
	defer c.methods.mu.Unlock()
	if known := c.methods.media[name]; known != nil {
		return known
	}
	name = strings.Clone(name)
	c.methods.media[name] = &fieldUse{kind: useMedia, name: name, codec: codec}
	return c.methods.media[name]
}

// find returns the path and the content type of a request, or nil if an exchange has to serve the
// request because of its fields.
func find(s *h2.Stream) (path *pathUse, media *fieldUse) {
	path, ok := s.PathMeaning.(*pathUse)
	if !ok || s.Method != std.MethodPost || s.Scheme != "http" && s.Scheme != "https" || strings.Contains(s.Authority, "@") {
		return nil, nil
	}
	for i := range s.Fields {
		switch as, _ := s.Fields[i].Meaning.(*fieldUse); {
		case as == nil || as.kind == useOdd || as.kind == useMedia && media != nil:
			return nil, nil
		case as.kind == useMedia:
			media = as
		}
	}
	return path, media
}

// An unknown is a path whose method nobody has looked for yet.
type unknown struct {
	path  *pathUse
	media *fieldUse
}

// learn looks for the method of a path, for later requests. It runs on the goroutine of a request,
// because it calls the codec.
func (c *multiplexed) learn(s *h2.Stream, u *unknown) {
	caller := ""
	for i := range s.Fields {
		if s.Fields[i].Meaning == any(agent) {
			caller = s.Fields[i].Value
		}
	}
	c.know(caller) // also if it is empty: Begin reads it
	m := &direct{media: u.media}
	if name := s.Path[1:]; c.takes(name, u.media) {
		m.method = strings.Clone(name)
	}
	for {
		first := u.path.first.Load()
		if u.path.find(u.media) != nil {
			return // another request was faster
		}
		if m.next = first; u.path.first.CompareAndSwap(first, m) {
			break
		}
	}
	d := c.methods
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.method != "" && len(d.paths) < mostPaths && d.paths[s.Path] == nil {
		d.paths[strings.Clone(s.Path)] = u.path
	}
}

// takes reports whether the server has a unary method of this name, which the codec carries.
func (c *multiplexed) takes(name string, media *fieldUse) (ok bool) {
	v := c.session.Begin(name, media.codec, nil)
	defer v.End()
	if v.Kind() != "unary" {
		return false
	}
	x := &exchange{router: &c.router, v: v}
	guarded(c.session, func() { ok = x.unfit(media.codec, media.codec.Name(), "gRPC", media.name) == nil })
	return ok
}

// Head implements h2.Handler.
func (c *multiplexed) Head(s *h2.Stream) h2.Plan {
	if !c.direct {
		return h2.Plan{}
	}
	path, media := find(s)
	if media == nil {
		return h2.Plan{}
	}
	switch m := path.find(media); {
	case m == nil:
		s.User = &unknown{path, media}
		return h2.Plan{}
	case m.method == "":
		return h2.Plan{}
	default:
		s.User = m
		return h2.Plan{Whole: mostDirect, Inline: m.short.Load()}
	}
}

// Serve implements h2.Handler.
func (c *multiplexed) Serve(s *h2.Stream) {
	defer c.rescue(s)
	switch as := s.User.(type) {
	case *direct:
		if c.serveDirect(s, as) {
			return
		}
	case *unknown:
		c.learn(s, as)
	}
	s.HandOver()
	c.requests.Serve(s)
}

// rescue ends a request whose own goroutine has panicked outside of its handler, and keeps the
// process.
func (c *multiplexed) rescue(s *h2.Stream) {
	if value := recover(); value != nil {
		defer s.Reset(internalError)
		c.logPanic(value)
	}
}

// internalError is an error code of HTTP/2 (RFC 9113, section 7).
const internalError = 2

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
	v := c.session.Begin(m.method, media.codec, nil)
	defer v.Free()
	if v.Kind() != "unary" { // it was registered anew
		return false
	}
	v.Caller = httpwire.Caller(caller)
	call := v.Call()
	call.Metadata, call.Trace, call.Deadline = metadata, metadata["traceparent"], deadline
	inline := m.short.Load()
	s.OnFailure(v.Canceler()) // Admit may wait
	e := v.Admit(len(body), !inline)
	if e != nil && inline { // an exchange can wait for room
		s.OnFailure(nil)
		return false
	}
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
	defer keepReply(buf)
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
	*buf = reply
	d.reply(reply)
}

// replies are buffers for encoded replies.
var replies = sync.Pool{New: func() any { return new([]byte) }}

// mostReply is the size of the largest buffer that is used for another reply, in bytes.
const mostReply = 2 << 20

// keepReply keeps a buffer for another reply.
func keepReply(buf *[]byte) {
	if *buf = (*buf)[:0]; cap(*buf) <= mostReply {
		replies.Put(buf)
	}
}

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
	d.send(header, body, trailer)
}

// send sends a reply. If it has no memory, the client gets a reset, and the call has failed.
func (d *directCall) send(header []h2.Field, body []byte, trailer []h2.Field) {
	if err := d.stream.Reply(header, body, trailer); errors.Is(err, h2.ErrNoMemory) { // otherwise the client has gone
		_ = d.v.Fail(err) // nobody is there to hear of it
	}
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
	d.send(header, nil, trailer)
}
