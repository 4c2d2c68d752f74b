// SPDX-License-Identifier: Apache-2.0

package protocolfuzz_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// finishPatience is how long the real side may be silent while something is open.
const finishPatience = 20 * time.Second

// A conversation is one connection between the model and a real side. Its methods whose names end
// in Locked need mu.
type conversation struct {
	net.Conn

	seed  uint64
	world *world

	mu        sync.Mutex
	rng       *rand.Rand
	out       []byte
	wake      chan struct{} // there is something in out, or ending has been set
	ending    bool          // the writer ends when out is empty
	finishing bool          // everything that is open is finished as fast as possible
	faults    []string
	history   []string // what was sent and received last, for people

	opened   *opener
	answered *answerer

	second   bool // the real side connects, and sends first
	settings wire.Limits
	greeted  bool
	pings    [][]byte
	goAway   *wire.Drain // from the real side
	goCode   uint16
	breach   bool // the model has broken the protocol
	drained  bool // the model has sent a drain
	frames   int  // from the real side
	readDone chan struct{}
	tasks    sync.WaitGroup
}

var conversations, stepsTaken, framesRead atomic.Int64

func newConversation(seed uint64, rng *rand.Rand, nc net.Conn, w *world) *conversation {
	c := &conversation{
		Conn: nc, seed: seed, world: w, rng: rng, wake: make(chan struct{}, 1), readDone: make(chan struct{}),
	}
	c.opened, c.answered = newOpener(c), newAnswerer(c)
	return c
}

// begin sends the preface and settings, and starts to read and write.
func (c *conversation) begin() {
	if c.second {
		c.readPreface(c)
	}
	c.mu.Lock()
	c.out = wire.AppendSettings([]byte(wire.Preface), c.answered.settings())
	c.mu.Unlock()
	c.tasks.Go(c.write)
	c.tasks.Go(c.read)
	c.signal()
}

func (c *conversation) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// faultLockedf notes what the real side did against the rules.
func (c *conversation) faultLockedf(format string, args ...any) {
	if len(c.faults) < 10 {
		c.faults = append(c.faults, fmt.Sprintf(format, args...)+"\n  after "+strings.Join(c.history, "\n        "))
	}
}

func (c *conversation) noteLocked(direction string, b []byte) {
	h := wire.ParseHeader(b)
	if h.Type == wire.Ping || h.Type == wire.Pong {
		return
	}
	if len(c.history) >= 40 {
		c.history = slices.Delete(c.history, 0, 1)
	}
	c.history = append(c.history, fmt.Sprintf("%s type %d flags %#02x arg %d id %#x, %d bytes", direction, h.Type, h.Flags, h.Arg, h.ID, h.Len))
}

// sendLocked queues a frame.
func (c *conversation) sendLocked(frame []byte) {
	c.noteLocked("model:", frame)
	c.out = append(c.out, frame...)
	c.signal()
}

// messageLocked queues a frame that carries a message, or a piece of one.
func (c *conversation) messageLocked(h wire.Header, f *wire.Fields, body []byte) (size int) {
	if f != nil {
		h.Flags |= wire.HasFields
	}
	b := wire.Begin(nil, &h)
	if f != nil {
		b = wire.AppendFields(b, f)
	}
	b = wire.Finish(append(b, body...), 0)
	c.sendLocked(b)
	return len(b)
}

func (c *conversation) write() {
	for range c.wake {
		for {
			c.mu.Lock()
			b, ending := c.out, c.ending
			if n := 1 + c.rng.IntN(1<<16); len(b) > n { // the stream is cut anywhere
				b = b[:n]
			}
			c.out = c.out[len(b):]
			c.mu.Unlock()
			if len(b) == 0 {
				if ending {
					return
				}
				break
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

func (c *conversation) readPreface(in io.Reader) {
	preface := make([]byte, len(wire.Preface))
	if _, err := io.ReadFull(in, preface); err != nil {
		return // so does the next read
	}
	if string(preface) != wire.Preface {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.faultLockedf("W1: the preface is %x", preface)
	}
}

func (c *conversation) read() {
	defer close(c.readDone)
	in := bufio.NewReaderSize(c, 16<<10)
	if !c.second {
		c.readPreface(in)
	}
	for {
		frame := make([]byte, wire.HeaderSize, 256)
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		h := wire.ParseHeader(frame)
		if h.Len > 65_536 {
			c.mu.Lock()
			c.faultLockedf("W7: a frame of %d bytes", h.Len)
			c.mu.Unlock()
			return
		}
		frame = append(frame, make([]byte, h.Len)...)
		if _, err := io.ReadFull(in, frame[wire.HeaderSize:]); err != nil {
			return
		}
		framesRead.Add(1)
		c.mu.Lock()
		c.noteLocked("real: ", frame)
		c.frames++
		c.frameLocked(h, frame)
		c.mu.Unlock()
	}
}

// frameLocked takes in a frame of the real side.
func (c *conversation) frameLocked(h wire.Header, frame []byte) {
	raw := frame[wire.HeaderSize:]
	if !c.greeted {
		if h.Type != wire.Settings || wire.ParseSettings(raw, &c.settings) != nil {
			c.faultLockedf("W3: the first frame is %v", h)
		}
		c.greeted = true
		c.settings.Metadata, c.settings.Agent = nil, nil // they alias the frame
		c.opened.settingsLocked(c.settings)
		return
	}
	switch h.Type {
	case wire.Ping:
		c.out = wire.AppendFrame(c.out, &wire.Header{Type: wire.Pong}, raw)
		c.signal()
	case wire.Pong:
		if len(c.pings) == 0 || !bytes.Equal(raw, c.pings[0]) {
			c.faultLockedf("W46: a Pong with %x, want %x", raw, c.pings)
			return
		}
		c.answered.confirmedLocked(c.pings[0])
		c.pings = c.pings[1:]
	case wire.GoAway:
		d := new(wire.Drain)
		if err := wire.ParseGoAway(raw, d); err != nil {
			c.faultLockedf("W14: a GoAway that cannot be parsed: %v", err)
		}
		c.goAway, c.goCode = d, h.Arg
		if h.Arg != 0 && !c.breach {
			c.faultLockedf("a refusal with code %d: %s %s", h.Arg, d.Message, d.ErrorID)
		}
	case wire.Credit:
		var w wire.Window
		if err := wire.ParseCredit(raw, &w); err != nil {
			c.faultLockedf("W14: a Credit that cannot be parsed: %v", err)
		}
		switch {
		case h.ID == 0:
			c.opened.limitsLocked(w)
		case h.Flags&wire.OfReply != 0:
			c.opened.creditLocked(h.ID, w.StreamBytes)
		default:
			c.answered.creditLocked(h.ID, w.StreamBytes)
		}
	case wire.Method, wire.Request, wire.Cancel:
		c.answered.frameLocked(h, frame)
	case wire.MethodInfo, wire.Reply:
		c.opened.frameLocked(h, frame)
	case wire.Data:
		if h.Flags&wire.OfReply != 0 {
			c.opened.frameLocked(h, frame)
		} else {
			c.answered.frameLocked(h, frame)
		}
	default:
		c.faultLockedf("W8: a frame of type %d", h.Type)
	}
}

// A part is a message, or a piece of one, as it stands in a frame.
type part struct {
	fields wire.Fields
	body   []byte
	h      wire.Header
}

// partLocked parses a frame that carries a message.
func (c *conversation) partLocked(h wire.Header, frame []byte) (p part, ok bool) {
	payload, err := wire.Payload(frame)
	if err != nil {
		c.faultLockedf("W38: %v", err)
		return p, false
	}
	fields, body, err := wire.SplitFields(h.Flags, payload)
	if err == nil {
		err = wire.ParseFields(fields, &p.fields)
	}
	if err != nil {
		c.faultLockedf("W13: %v", err)
		return p, false
	}
	p.body, p.h = body, h
	return p, true
}

// A collector puts a message together from its pieces.
type collector struct {
	begun bool
	size  int
	flags wire.Flags // of the first piece
	got   []byte
	f     wire.Fields
}

// add returns whether the message is whole, and what is wrong with it.
func (m *collector) add(p part) (whole bool, fault string) {
	if !m.begun {
		*m = collector{begun: true, flags: p.h.Flags, f: p.fields, size: int(p.fields.Size)}
		if p.h.Flags&wire.More != 0 && p.fields.Size == 0 {
			return false, "W35: a message of several frames has no size"
		}
	}
	m.got = append(m.got, p.body...)
	if p.h.Flags&wire.More != 0 {
		if len(m.got) >= m.size {
			return false, "W35: a message goes on beyond its size"
		}
		return false, ""
	}
	if m.size != 0 && len(m.got) != m.size {
		return true, fmt.Sprintf("W35: a message has %d bytes, and %d were announced", len(m.got), m.size)
	}
	m.begun = false
	return true, ""
}

// steps takes n random steps.
func (c *conversation) steps(n int) {
	for range n {
		c.mu.Lock()
		c.stepLocked()
		full := len(c.out) > 1<<20
		pause := c.rng.IntN(8) == 0
		c.mu.Unlock()
		stepsTaken.Add(1)
		if full || pause {
			select {
			case <-time.After(time.Duration(50+n%50) * time.Microsecond):
			case <-c.readDone:
				return
			}
		}
	}
}

func (c *conversation) stepLocked() {
	switch k := c.rng.IntN(100); {
	case k < 55:
		c.opened.stepLocked()
	case k < 90:
		c.answered.stepLocked()
	case k < 97:
		c.pingLocked()
	default: // a frame that is skipped
		c.sendLocked(wire.AppendFrame(nil, &wire.Header{Type: 0x80 + wire.Type(c.rng.IntN(128))}, make([]byte, c.rng.IntN(40))))
	}
}

func (c *conversation) pingLocked() []byte {
	payload := make([]byte, 8)
	for i := range payload {
		payload[i] = byte(c.rng.Uint32())
	}
	c.pings = append(c.pings, payload)
	c.sendLocked(wire.AppendFrame(nil, &wire.Header{Type: wire.Ping}, payload))
	return payload
}

// finish finishes what is open on both sides, and closes the connection.
func (c *conversation) finish() {
	c.mu.Lock()
	c.finishing = true
	c.mu.Unlock()
	for deadline, frames := time.Now().Add(finishPatience), 0; ; {
		c.mu.Lock()
		if c.frames != frames {
			deadline, frames = time.Now().Add(finishPatience), c.frames
		}
		c.opened.finishLocked()
		c.answered.finishLocked()
		idle := len(c.opened.calls)+len(c.answered.calls)+len(c.pings) == 0 && c.world.idle(c)
		if !idle && time.Now().After(deadline) {
			c.faultLockedf("after %v, %d calls of the model and %d of the real side are open, %d pings have no answer\n  %s",
				finishPatience, len(c.opened.calls), len(c.answered.calls), len(c.pings), c.opened.describeLocked())
			idle = true
		}
		c.mu.Unlock()
		if idle {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-c.readDone:
			c.mu.Lock()
			if n := len(c.opened.calls); n > 0 && c.greeted && c.goAway == nil && !c.breach && !c.drained { // W5
				c.faultLockedf("the real side closed the connection with %d calls open", n)
			}
			c.mu.Unlock()
			c.end()
			return
		}
	}
	c.end()
}

// breakRules sends what the real side must answer by closing the connection.
func (c *conversation) breakRules() {
	broken := [][]byte{
		wire.AppendFrame(nil, &wire.Header{Type: wire.Settings}, nil),
		wire.AppendFrame(nil, &wire.Header{Type: 0x70}, nil),
		wire.AppendFrame(nil, &wire.Header{Type: wire.Ping}, []byte("short")),
		wire.AppendFrame(nil, &wire.Header{Type: wire.Request, Arg: 999, ID: wire.NextID(900)}, nil),
		{0xff, 0xff, 0xff, 0xff, byte(wire.Request), 0, 0, 0, 0, 0, 0, 0},
		wire.AppendFrame(nil, &wire.Header{Type: wire.Credit}, []byte{6, 0xff}),
	}
	c.mu.Lock()
	c.breach = true
	c.world.breached.Store(true)
	c.sendLocked(broken[c.rng.IntN(len(broken))])
	c.mu.Unlock()
	select {
	case <-c.readDone:
	case <-time.After(finishPatience):
		c.mu.Lock()
		c.faultLockedf("W11: the connection is open after a breach")
		c.mu.Unlock()
	}
	c.end()
}

// end closes the connection and waits for its goroutines.
func (c *conversation) end() {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	c.signal()
	_ = c.Close() // the real side may have done it
	c.tasks.Wait()
	conversations.Add(1)
}

// pattern is the content of a message, which its number determines.
func pattern(seq uint64, size int) []byte {
	b := make([]byte, size+8)
	x := seq*0x9e3779b97f4a7c15 + 1
	for i := 0; i < size; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	return b[:size]
}

// someSize returns how large a message is: most are small.
func someSize(rng *rand.Rand) int {
	switch k := rng.IntN(40); {
	case k == 0:
		return rng.IntN(180_000)
	case k < 8:
		return rng.IntN(8000)
	}
	return rng.IntN(300)
}
