// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// writePatience is how long a victim may not read until the attacker stops writing.
const writePatience = 500 * time.Millisecond

// A Conn is a connection of the attacker, which writes any frames it likes. Methods that write
// append to a buffer; Flush sends it.
type Conn struct {
	net.Conn

	out     []byte
	blocked bool // the victim did not read for writePatience, or has closed the connection

	Replies      atomic.Int64 // final frames that have come; Receive counts
	NotProcessed atomic.Int64 // of these, those that say so
	GoAways      atomic.Int64
	codes        [17]atomic.Int64
	readers      sync.WaitGroup
	closed       chan struct{} // closed when the victim has closed the connection and Receive was called
}

// Dial connects to a server without sending anything.
func Dial(addr string) (*Conn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	nc, err := dialer.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: nc, closed: make(chan struct{})}, nil
}

// Hello appends the preface and settings.
func (c *Conn) Hello(settings *wire.Limits) {
	c.out = wire.AppendSettings(append(c.out, wire.Preface...), settings)
}

// Bind appends a Method frame for a method with the Raw codec.
func (c *Conn) Bind(number uint16, name string, kind uint64) {
	c.BindTo(number, &wire.Binding{Name: []byte(name), Codec: []byte("raw"), Kind: kind})
}

// BindTo appends a Method frame.
func (c *Conn) BindTo(number uint16, binding *wire.Binding) {
	c.out = wire.AppendMethod(c.out, number, 1, binding)
}

// ID returns the first id of a slot.
func ID(slot int) uint32 { return wire.NextID(uint32(slot)) } //nolint:gosec // slots are small

// Request appends a request that is one frame. Fields may be nil.
func (c *Conn) Request(number uint16, id uint32, flags wire.Flags, fields *wire.Fields, body []byte) {
	c.Message(wire.Header{Type: wire.Request, Flags: flags, Arg: number, ID: id}, fields, body)
}

// Send appends a request in as many frames as it takes.
func (c *Conn) Send(number uint16, id uint32, flags wire.Flags, body []byte) {
	const piece = 60_000
	if len(body) <= piece {
		c.Request(number, id, flags, nil, body)
		return
	}
	c.Request(number, id, flags|wire.More, &wire.Fields{Size: uint64(len(body))}, body[:piece])
	for rest := body[piece:]; len(rest) > 0; {
		n, more := min(piece, len(rest)), wire.More
		if n == len(rest) {
			more = 0
		}
		c.Message(wire.Header{Type: wire.Data, Flags: more, ID: id}, nil, rest[:n])
		rest = rest[n:]
	}
}

// Message appends a frame of a message. Fields may be nil.
func (c *Conn) Message(h wire.Header, fields *wire.Fields, body []byte) {
	if fields != nil {
		h.Flags |= wire.HasFields
	}
	start := len(c.out)
	c.out = wire.Begin(c.out, &h)
	if fields != nil {
		c.out = wire.AppendFields(c.out, fields)
	}
	c.out = wire.Finish(append(c.out, body...), start)
}

// Raw appends bytes.
func (c *Conn) Raw(b []byte) { c.out = append(c.out, b...) }

// Frame appends a frame with any payload.
func (c *Conn) Frame(h wire.Header, payload []byte) { c.out = wire.AppendFrame(c.out, &h, payload) }

// Flush writes what was appended. It reports whether the victim took it.
func (c *Conn) Flush() bool {
	if c.blocked {
		c.out = c.out[:0]
		return false
	}
	_ = c.SetWriteDeadline(time.Now().Add(writePatience)) // a closed connection fails in Write
	_, err := c.Write(c.out)
	c.out = c.out[:0]
	c.blocked = err != nil
	return err == nil
}

// Receive reads in the background what the victim sends, and counts it.
func (c *Conn) Receive() {
	c.readers.Go(func() {
		defer close(c.closed)
		in := bufio.NewReaderSize(c, 64<<10)
		if _, err := in.Discard(len(wire.Preface)); err != nil {
			return
		}
		var header [wire.HeaderSize]byte
		for {
			if _, err := io.ReadFull(in, header[:]); err != nil {
				return
			}
			h := wire.ParseHeader(header[:])
			if _, err := in.Discard(int(h.Len)); err != nil {
				return
			}
			c.count(h)
		}
	})
}

// Discard reads in the background what a victim sends that speaks another protocol.
func (c *Conn) Discard() {
	c.readers.Go(func() {
		defer close(c.closed)
		_, _ = io.Copy(io.Discard, c) // it fails when the connection has ended
	})
}

func (c *Conn) count(h wire.Header) {
	switch {
	case h.Type == wire.GoAway:
		c.GoAways.Add(1)
	case h.Type == wire.Reply:
		if h.Flags&wire.NotProcessed != 0 {
			c.NotProcessed.Add(1)
		}
		c.codes[min(h.Arg, 16)].Add(1)
		if h.Flags&wire.More == 0 {
			c.Replies.Add(1)
		}
	case h.Type == wire.Data && h.Flags&wire.More == 0:
		c.Replies.Add(1)
	}
}

// Code returns how many replies with a code have come.
func (c *Conn) Code(code int) int64 { return c.codes[code].Load() }

// Await waits until n final frames have come, the victim has closed the connection, or the patience
// is over. It reports the first.
func (c *Conn) Await(n int64, patience time.Duration) bool {
	for deadline := time.Now().Add(patience); c.Replies.Load() < n; {
		select {
		case <-c.closed:
			return c.Replies.Load() >= n
		case <-time.After(2 * time.Millisecond):
			if time.Now().After(deadline) {
				return false
			}
		}
	}
	return true
}

// Closed waits until the victim has closed the connection. It reports whether it did.
func (c *Conn) Closed(patience time.Duration) bool {
	select {
	case <-c.closed:
		return true
	case <-time.After(patience):
		return false
	}
}

// Close ends the connection and waits for its reader.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.readers.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ReceiveCredits reads in the background what the victim sends, and calls granted with the first
// credit of each stream until n have come. It returns then, or when the patience is over.
func (c *Conn) ReceiveCredits(granted func(id uint32, bytes int), n int, patience time.Duration) {
	all := make(chan struct{})
	c.readers.Go(func() {
		defer close(c.closed)
		in := bufio.NewReaderSize(c, 64<<10)
		if _, err := in.Discard(len(wire.Preface)); err != nil {
			return
		}
		seen := make(map[uint32]bool)
		var header [wire.HeaderSize]byte
		for {
			if _, err := io.ReadFull(in, header[:]); err != nil {
				return
			}
			h := wire.ParseHeader(header[:])
			payload := make([]byte, h.Len)
			if _, err := io.ReadFull(in, payload); err != nil {
				return
			}
			c.count(h)
			var w wire.Window
			if h.Type != wire.Credit || h.ID == 0 || seen[h.ID] || wire.ParseCredit(payload, &w) != nil {
				continue
			}
			seen[h.ID] = true
			granted(h.ID, int(w.StreamBytes)) //nolint:gosec // a window
			if len(seen) == n {
				close(all)
			}
		}
	})
	select {
	case <-all:
	case <-c.closed:
	case <-time.After(patience):
	}
}

// WriteNow writes a frame without the buffer, for a reader's goroutine.
func (c *Conn) WriteNow(b []byte) {
	_ = c.SetWriteDeadline(time.Now().Add(writePatience))
	_, _ = c.Write(b) // the victim may refuse it
}
