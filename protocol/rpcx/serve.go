// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
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
	buffers  sync.Pool // of *[]byte, for replies

	mu      sync.Mutex
	open    int  // calls
	refused bool // a call was not authenticated: the connection ends when open is 0
}

// next reads one frame. If it is a request, next starts its execution.
func (c *conn) next() error {
	h, err := c.frames.next()
	if err != nil {
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
	return c.call(h)
}

// cost returns how much memory the head of a request takes. A pair of metadata takes about 100
// bytes as an entry of a map.
func (h *head) cost() int { return len(h.path) + len(h.method) + len(h.metadata) + 100*h.pairs }

// call reads the payload of a request and starts its execution.
func (c *conn) call(h *head) error {
	codec := c.session.Codec(c.protocol.codecs[h.serialize])
	compressor, known := c.compressor(h)
	if !known {
		c.end()
		return fmt.Errorf("a request has the compress type %d, which rpcx does not define", h.compressType())
	}
	v := c.session.Begin(h.name(), codec, compressor)
	v.Call().OneWay = h.is(oneWay)
	cost, skip := h.cost(), h.payload
	end := func() {
		v.Free()
		c.session.Release(cost)
		c.end()
	}
	var e *yodel.Error
	if !c.session.Reserve(cost) {
		cost, e = 0, framebody.NoMemory(v.Call().Method)
	} else if e = c.describe(h, v); e != nil { // the hook Connect, which Admit calls, may refuse the connection
		e = cmp.Or(v.Admit(0, true), e)
	}
	if e == nil {
		var err error
		if v.Body, skip, e, err = framebody.Receive(v, c.session, nil, c.frames, h.payload); err != nil {
			end()
			return err
		}
	}
	if e != nil {
		defer end()
		c.answer(h, v, e)
		return c.frames.skip(skip)
	}
	v.Owned, v.Compressed = true, h.compressType() != 0
	v.Go(func() {
		defer end()
		defer func() { c.answer(h, v, v.Outcome()) }() // deferred, because the handler may end the goroutine
		_ = v.Run()                                    // v.Outcome returns the error
	})
	return nil
}

// describe describes the call. It returns the reason if the call cannot run.
func (c *conn) describe(h *head, v *yodel.Served) *yodel.Error {
	call := v.Call()
	rpcxwire.Describe(call, h.all(), h.pairs, time.Now())
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
func (c *conn) compressor(h *head) (_ yodel.Compressor, known bool) {
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
