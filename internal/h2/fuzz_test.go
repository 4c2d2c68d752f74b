// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/hpack"
)

// A model is what a client may expect of its streams. Its handlers reply when a request is whole,
// so the state of the server's side follows from what was sent.
type model struct {
	states   map[uint32]state // of the streams that have begun, as the client has made them
	bodies   map[uint32]string
	refusals map[uint32]bool // streams that the server has to reset
	early    map[uint32]bool // streams with a large reply that does not wait for the body
	closes   bool            // a handler closes the connection
	last     uint32
}

// A step of the fuzzer is two bytes: what to send, and on which stream.
func (m *model) step(kind, arg byte, e *hpack.Encoder) (frames []byte) {
	ids := []uint32{1, 3, 5, 7, 9, 11, 13, 15}
	id := ids[arg%8]
	st, begun := m.states[id]
	live := begun && (st == open || st == requestDone) && !m.refusals[id]
	switch kind %= 12; kind {
	case 0, 1, 9, 10, 11: // a new stream, whole or not
		id = m.last + 2
		if m.last == 0 {
			id = 1
		}
		m.last = id
		path := []string{"/inline", "/whole", "/stream"}[arg%3]
		switch kind {
		case 9, 10:
			path, m.early[id] = "/early/held", true
		case 11:
			path, m.closes = "/inline/close", true
		}
		var block []byte
		for _, f := range []Field{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path, Form: Repeated}} {
			block = appendField(block, e, &f)
		}
		m.states[id] = idle.on(beginsOpen)
		flags := byte(0)
		if kind%2 == 1 {
			m.states[id], flags = idle.on(beginsWhole), flagEndStream
		}
		if cut := int(arg) % (len(block) + 1); arg&0x80 != 0 && cut > 0 && cut < len(block) {
			return append(raw(headersFrame, flags, id, string(block[:cut])), raw(continuationFrame, flagEndHeaders, id, string(block[cut:]))...)
		}
		return raw(headersFrame, flags|flagEndHeaders, id, string(block))
	case 2, 3: // DATA
		if !begun {
			return nil
		}
		flags, body := byte(0), strings.Repeat(string('a'+arg%26), int(arg))
		if kind == 3 {
			flags = flagEndStream
		}
		switch {
		case live && st == open:
			m.bodies[id] += body
			if flags == flagEndStream {
				m.states[id] = st.on(requestEnds)
			}
		case live:
			return nil // whether the reply has ended the stream is a question of time
		}
		if arg%4 == 0 {
			return raw(dataFrame, flags|flagPadded, id, "\x03"+body+"\x00\x00\x00")
		}
		return raw(dataFrame, flags, id, body)
	case 4: // RST_STREAM
		if !begun {
			return nil
		}
		m.states[id] = st.on(isReset)
		return appendReset(nil, id, cancel)
	case 5:
		if arg%2 == 0 || !begun {
			return appendWindow(nil, 0, 1+int(arg))
		}
		return appendWindow(nil, id, 1+int(arg))
	case 6:
		return appendPing(nil, 0, [8]byte{arg, 1})
	case 7:
		return appendSettings(nil, setting{initialWindowSize, 60_000 + uint32(arg)}, setting{headerTableSize, uint32(arg) << 4})
	default:
		if arg%2 == 0 || !begun || st != open || m.early[id] {
			return raw(0x42+frameType(arg%16), arg, uint32(arg), "unknown")
		}
		m.states[id], m.refusals[id] = st.on(isReset), true
		return appendWindow(nil, id, 0)
	}
}

// Connections in any order of frames end no stream that the client has not ended, and reply to
// every request that has become whole. A handler may close the connection amid them.
func FuzzConnections(f *testing.F) {
	f.Add([]byte{0, 0, 2, 16, 3, 0, 1, 1, 0, 2, 2, 33, 3, 17}, uint8(0))
	f.Add([]byte{0, 0, 0, 1, 0, 2, 4, 0, 2, 8, 3, 9, 5, 3, 7, 0, 1, 0, 8, 2, 3, 2}, uint8(7))
	f.Add([]byte{0, 130, 1, 129, 3, 0, 6, 1, 7, 255, 0, 131, 8, 3, 3, 3, 3, 2}, uint8(1))
	f.Add([]byte{9, 0, 0, 1, 2, 16, 3, 0, 10, 3, 5, 1, 7, 9, 9, 2, 4, 2, 3, 1}, uint8(0))
	f.Add([]byte{9, 0, 0, 1, 11, 0, 2, 1, 3, 1, 1, 2, 0, 0}, uint8(0))
	f.Add([]byte{0, 0, 11, 0, 0, 1, 2, 1, 1, 2, 11, 0}, uint8(100))
	f.Add([]byte{0, 0, 0, 1, 11, 0, 0, 1, 2, 1, 1, 2, 11, 0}, uint8(0))
	f.Fuzz(func(t *testing.T, script []byte, piece uint8) {
		if len(script) > 200 {
			return
		}
		m := &model{states: map[uint32]state{}, bodies: map[uint32]string{}, refusals: map[uint32]bool{}, early: map[uint32]bool{}}
		var e hpack.Encoder
		sent := append([]byte(preface), appendSettings(nil)...)
		for ; len(script) >= 2; script = script[2:] {
			sent = append(sent, m.step(script[0], script[1], &e)...)
		}
		whole := []uint32{}
		for id, st := range m.states {
			if st == requestDone && !m.early[id] {
				whole = append(whole, id)
			}
		}
		var reserved counter
		p := meet(t, Config{Handler: &echo{}, MaxStreams: 1000, Reserve: reserved.take, Release: reserved.give})
		size := 1 + int(piece)
		if piece == 0 {
			size = len(sent)
		}
		for part := range slices.Chunk(sent, size) {
			if _, err := p.nc.Write(part); err != nil && !m.closes {
				t.Fatal(err)
			}
		}
		if m.closes {
			<-p.served
			p.isEmpty(&reserved)
			return
		}
		p.send(appendWindow(nil, 0, 1<<26))
		for id := range m.early {
			if p.send(appendWindow(nil, id, 2*heldBody)); m.states[id] == closed {
				continue
			}
			if body, fields := p.reply(id); len(body) != heldBody || fmt.Sprint(fields) != okFields {
				t.Errorf("stream %d: %d bytes and %v, want %d bytes", id, len(body), fields, heldBody)
			}
		}
		for _, id := range whole {
			if body, fields := p.reply(id); body != m.bodies[id] || fmt.Sprint(fields) != okFields {
				t.Errorf("stream %d: %d bytes and %v, want %d bytes", id, len(body), fields, len(m.bodies[id]))
			}
		}
		p.awaitPong() // the connection lives
		for id := range m.refusals {
			if code := p.awaitReset(id); code != protocolError && code != streamClosed {
				t.Errorf("stream %d is reset with the code %d", id, code)
			}
		}
		_ = p.over()
		p.isEmpty(&reserved)
	})
}

// isEmpty checks that nothing is left of a connection that has ended.
func (p *peer) isEmpty(reserved *counter) {
	p.t.Helper()
	if n, open, active := reserved.n.Load(), p.conn.open.Load(), p.conn.active.Load(); n != 0 || open != 0 || active != 0 {
		p.t.Errorf("%d bytes are reserved, %d requests and %d streams open after the end", n, open, active)
	}
}

// Bytes of any kind neither stop the server nor make it keep anything.
func FuzzBytes(f *testing.F) {
	f.Add(slices.Concat(appendSettings(nil), raw(headersFrame, flagEndHeaders|flagEndStream, 1, "\x82\x84\x86"), raw(dataFrame, 0, 1, "x"), appendReset(nil, 1, cancel)))
	f.Add(slices.Concat(appendSettings(nil, setting{initialWindowSize, 0}), raw(headersFrame, flagEndHeaders, 1, "\x83\x86\x04\x07/inline"), raw(dataFrame, flagEndStream, 1, "x"), appendWindow(nil, 1, 5)))
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := net.Pipe()
		var reserved counter
		c := New(there, Config{Handler: &echo{}, Reserve: reserved.take, Release: reserved.give})
		served := make(chan error)
		go c.Serve([]byte(preface), func(err error) { served <- err })
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_, _ = here.Write(sent)
		here.Close()
		<-served
		if n, open, active := reserved.n.Load(), c.open.Load(), c.active.Load(); n != 0 || open != 0 || active != 0 {
			t.Errorf("%d bytes are reserved, %d requests and %d streams open after the end", n, open, active)
		}
	})
}

// A closing handler ends the connection before it replies.
type closing struct{ echo }

func (h *closing) Serve(s *Stream) {
	s.c.Close()
	h.echo.Serve(s)
}

// A reply that the client has no window for leaves nothing if the connection has ended meanwhile.
func TestAReplyAfterTheEndLeavesNothing(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	var reserved counter
	c := New(there, Config{Handler: &closing{}, Reserve: reserved.take, Release: reserved.give})
	served := make(chan error)
	go c.Serve([]byte(preface), func(err error) { served <- err })
	go func() { _, _ = io.Copy(io.Discard, here) }()
	_, _ = here.Write(slices.Concat(appendSettings(nil, setting{initialWindowSize, 0}),
		raw(headersFrame, flagEndHeaders, 1, "\x83\x86\x04\x07/inline"), raw(dataFrame, flagEndStream, 1, "x")))
	<-served
	if n, open, active := reserved.n.Load(), c.open.Load(), c.active.Load(); n != 0 || open != 0 || active != 0 {
		t.Errorf("%d bytes are reserved, %d requests and %d streams open after the end", n, open, active)
	}
}

// A connection does not depend on where its bytes are cut.
func TestInputIsSplitAtEveryByte(t *testing.T) {
	var e hpack.Encoder
	p := &peer{t: t, encoder: e}
	sent := slices.Concat([]byte(preface), appendSettings(nil),
		p.begin(0, "/inline"), raw(dataFrame, flagPadded|flagEndStream, 1, "\x01one\x00"),
		p.begin(0, "/whole"), appendPing(nil, 0, [8]byte{}), raw(dataFrame, 0, 3, "tw"), raw(dataFrame, flagEndStream, 3, "o"),
		p.begin(0, "/stream"), raw(dataFrame, 0, 5, "three"), raw(headersFrame, flagEndStream, 5, ""), raw(continuationFrame, flagEndHeaders, 5, ""))
	check := func(t *testing.T, p *peer) {
		p.check(1, "one")
		p.check(3, "two")
		p.check(5, "three")
		if err := p.over(); err != nil {
			t.Error(err)
		}
	}
	for cut := range sent {
		p := meetTCP(t, Config{})
		p.send(sent[:cut])
		p.send(sent[cut:])
		check(t, p)
	}
	p = meet(t, Config{})
	for i := range sent {
		p.send(sent[i : i+1])
	}
	check(t, p)
}
