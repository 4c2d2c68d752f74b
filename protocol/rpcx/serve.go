// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// A conn is the server's side of a connection.
type conn struct {
	session  *yodel.Session
	protocol *protocol
	limits   yodel.Limits
	frames   frameReader
	replies  *pipelined.Replies
	name     string // of the method of the last request; only next uses it

	mu      sync.Mutex
	open    int  // calls
	refused bool // a call was not authenticated: the connection ends when open is 0
}

// An incoming is a request that the server executes.
type incoming struct {
	head
	conn   *conn
	served *yodel.Served
	cost   int    // bytes that Session.Reserve has counted for the head
	runs   func() // run
}

// freed has what was used for earlier requests.
var freed sync.Pool

func newIncoming(c *conn) *incoming {
	q, again := freed.Get().(*incoming)
	if !again {
		q = new(incoming)
		q.runs = q.run
	}
	q.conn = c
	return q
}

// free gives the memory of a request to a later one.
func (q *incoming) free() {
	q.head, q.conn, q.served, q.cost = head{}, nil, nil, 0
	freed.Put(q)
}

// next reads one frame. If it is a request, next starts its execution.
func (c *conn) next() error {
	q := newIncoming(c)
	begun := false
	defer func() {
		if !begun {
			q.free()
		}
	}()
	h := &q.head
	if err := c.frames.read(h); err != nil {
		return err
	}
	if h.is(response) {
		return fmt.Errorf("the client sent a response, to %.40q", h.name())
	}
	if h.is(heartbeat) {
		return c.echo(h)
	}
	if !c.begin() { // the connection ends
		return c.frames.skip(h.payload)
	}
	begun = true
	return q.begin()
}

// cost returns how much memory the head of a request takes. A pair of metadata takes about 100
// bytes as an entry of a map.
func (h *head) cost() int { return len(h.path) + len(h.method) + len(h.metadata) + 100*h.pairs }

// nameOf returns the name of the method of a request, which is often that of the last one.
func (c *conn) nameOf(h *head) string {
	if n := len(h.path); n == 0 || len(c.name) != n+1+len(h.method) || c.name[:n] != h.path || c.name[n] != '.' || c.name[n+1:] != h.method {
		c.name = h.name()
	}
	return c.name
}

// begin reads the payload of a request and starts its execution.
func (q *incoming) begin() error {
	c, h := q.conn, &q.head
	codec := c.session.Codec(c.protocol.codecs[h.serialize])
	compressor, known := c.compressor(h)
	if !known {
		defer q.free()
		c.end()
		return fmt.Errorf("a request has the compress type %d, which rpcx does not define", h.compressType())
	}
	v := c.session.Begin(c.nameOf(h), codec, compressor)
	v.Call().OneWay = h.is(oneWay)
	q.served, q.cost = v, h.cost()
	skip := h.payload
	var e *yodel.Error
	if !c.session.Reserve(q.cost) {
		q.cost, e = 0, framebody.NoMemory(v.Call().Method)
	} else if e = c.describe(h, v); e != nil { // the hook Connect, which Admit calls, may refuse the connection
		e = cmp.Or(v.Admit(0, true), e)
	}
	if e == nil {
		var err error
		if v.Body, skip, e, err = framebody.Receive(v, c.session, nil, c.frames, h.payload); err != nil {
			q.end()
			return err
		}
	}
	if e != nil {
		defer q.end()
		q.answer(e)
		return c.frames.skip(skip)
	}
	v.Owned, v.Compressed = true, h.compressType() != 0
	v.Go(q.runs)
	return nil
}

// run executes a request and sends its reply.
func (q *incoming) run() {
	defer q.end()
	defer func() { q.answer(q.served.Outcome()) }() // deferred, because the handler may end the goroutine
	_ = q.served.Run()                              // q.served.Outcome returns the error
}

// end ends a request that begin has begun.
func (q *incoming) end() {
	c := q.conn
	q.served.Free()
	c.session.Release(q.cost)
	q.free()
	c.end()
}

// describe describes the call. It returns the reason if the call cannot run.
func (c *conn) describe(h *head, v *yodel.Served) *yodel.Error {
	call := v.Call()
	if h.pairs > 0 {
		rpcxwire.Describe(call, h.all(), h.pairs, time.Now())
	}
	if h.excess != "" {
		e := refused("YDL2203", "%s: %s", call.Method, h.excess)
		e.Code = yodel.ResourceExhausted
		return e
	}
	if h.compressType() != 0 && call.Compressor == nil {
		e := refused("YDL2004", `%s: this server does not have the compressor "gzip"`, call.Method)
		e.Code = yodel.Unimplemented
		return e
	}
	return nil
}

// refused returns the error of a call that was not executed.
func refused(id, format string, args ...any) *yodel.Error {
	return linkerror.Refused(yodel.ResourceExhausted, id, format, args...)
}

// compressor returns the compressor of a request, or nil. It reports false for a compress type that
// has no meaning.
func (c *conn) compressor(h *head) (_ compress.Compressor, known bool) {
	switch h.compressType() {
	case 0:
		return nil, true
	case 1:
		return c.session.Compressor("gzip"), true
	}
	return nil, false
}

// echo answers a heartbeat, which is not a call.
func (c *conn) echo(h *head) error {
	if h.payload > c.limits.MaxMessage || h.excess != "" {
		return errTooLarge
	}
	size := h.size() + h.payload
	if !c.session.Reserve(size) {
		return fmt.Errorf("the server has no memory left for a heartbeat of %d bytes", size)
	}
	defer c.session.Release(size)
	h.flags |= response
	frame := h.append(make([]byte, 0, size))
	body := frame[len(frame):size]
	if _, err := io.ReadFull(c.frames, body); err != nil {
		return framebody.Unexpected(err)
	}
	c.replies.Send(frame[:size])
	return nil
}

// begin counts an open call. It returns false if the connection takes no more calls.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused {
		return false
	}
	c.open++
	return true
}

// end ends a call that begin has counted. It closes the connection after the last call, if a call
// was not authenticated.
func (c *conn) end() {
	c.mu.Lock()
	c.open--
	last := c.refused && c.open == 0
	c.mu.Unlock()
	if last {
		_ = c.session.Conn.Close() // then next returns an error
	}
}

// refuse makes the connection end after the open calls.
func (c *conn) refuse() {
	c.mu.Lock()
	c.refused = true
	c.mu.Unlock()
}

func (c *conn) closing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused && c.open == 0
}
