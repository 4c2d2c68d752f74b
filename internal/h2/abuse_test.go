// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A client that breaks the protocol of the connection gets GOAWAY.
func TestFaultsOfTheConnection(t *testing.T) {
	long := Field{Name: "long", Value: strings.Repeat("x", 3*maxFrame)}
	for _, c := range []struct {
		name string
		code errorCode
		send func(p *peer)
	}{
		{"another preface", protocolError, func(p *peer) { p.send([]byte("PRI * HTTP/3")) }},
		{"PING before SETTINGS", protocolError, func(p *peer) { p.send([]byte(preface), appendPing(nil, 0, [8]byte{})) }},
		{"an ACK before SETTINGS", protocolError, func(p *peer) { p.send([]byte(preface), appendSettingsAck(nil)) }},
		{"DATA of an idle stream", protocolError, func(p *peer) { p.greet(); p.send(raw(dataFrame, 0, 1, "x")) }},
		{"RST_STREAM of an idle stream", protocolError, func(p *peer) { p.greet(); p.send(appendReset(nil, 1, cancel)) }},
		{"WINDOW_UPDATE of an idle stream", protocolError, func(p *peer) { p.greet(); p.send(appendWindow(nil, 1, 1)) }},
		{"WINDOW_UPDATE by 0", protocolError, func(p *peer) { p.greet(); p.send(appendWindow(nil, 0, 0)) }},
		{"a window that is too large", flowControlError, func(p *peer) { p.greet(); p.send(appendWindow(nil, 0, mostWindow)) }},
		{"an initial window that is too large", flowControlError, func(p *peer) { p.greet(setting{initialWindowSize, 1 << 31}) }},
		{"SETTINGS that make a window too large", flowControlError, func(p *peer) {
			p.greet(setting{initialWindowSize, 0})
			p.send(p.begin(0, "/stream"), appendWindow(nil, p.id, mostWindow), appendSettings(nil, setting{initialWindowSize, 1}))
		}},
		{"ENABLE_PUSH of 2", protocolError, func(p *peer) { p.greet(setting{enablePush, 2}) }},
		{"MAX_FRAME_SIZE of 1", protocolError, func(p *peer) { p.greet(setting{maxFrameSize, 1}) }},
		{"an even stream", protocolError, func(p *peer) { p.greet(); p.send(raw(headersFrame, flagEndHeaders, 2, "")) }},
		{"a frame that is too long", frameSizeError, func(p *peer) { p.greet(); p.send(appendHeader(nil, dataFrame, 0, 1, maxFrame+1)) }},
		{"a malformed block", compressionError, func(p *peer) { p.greet(); p.send(raw(headersFrame, flagEndHeaders, 1, "\xff\xff\xff\xff\xff\xff")) }},
		{"a stream that was left out", protocolError, func(p *peer) {
			p.greet()
			p.id = 4
			p.send(p.begin(flagEndStream, "/inline"), raw(headersFrame, flagEndHeaders|flagEndStream, 3, ""))
		}},
		{"HEADERS of a stream that has ended", streamClosed, func(p *peer) {
			p.greet()
			p.send(p.begin(flagEndStream, "/inline"))
			p.check(1, "")
			p.send(raw(headersFrame, flagEndHeaders|flagEndStream, 1, ""))
		}},
		{"a block that is interrupted", protocolError, func(p *peer) {
			p.greet()
			p.send(raw(headersFrame, 0, 1, ""), appendPing(nil, 0, [8]byte{}))
		}},
		{"CONTINUATION alone", protocolError, func(p *peer) { p.greet(); p.send(raw(continuationFrame, flagEndHeaders, 1, "")) }},
		{"more DATA than the window of the connection", flowControlError, func(p *peer) {
			p.greet()
			p.send(p.begin(0, "/done"), p.begin(0, "/done"), p.begin(0, "/done"), p.begin(0, "/done"), p.begin(0, "/done"))
			for i := range 17 {
				p.send(raw(dataFrame, 0, uint32(1+2*(i/4)), strings.Repeat("x", maxFrame)))
			}
		}},

		{"an empty CONTINUATION", enhanceYourCalm, func(p *peer) { p.greet(); p.send(raw(headersFrame, 0, 1, ""), raw(continuationFrame, 0, 1, "")) }},
		{"17 CONTINUATION frames", enhanceYourCalm, func(p *peer) {
			p.greet()
			p.send(raw(headersFrame, 0, 1, ""))
			for range 17 {
				p.send(raw(continuationFrame, 0, 1, "\x82"))
			}
		}},
		{"a block that is too long", enhanceYourCalm, func(p *peer) {
			p.greet()
			block := string(p.head("/", long, long))
			p.send(raw(headersFrame, 0, 1, block[:maxFrame]))
			for at := maxFrame; at < 5*maxFrame; at += maxFrame {
				p.send(raw(continuationFrame, 0, 1, block[at:at+maxFrame]))
			}
		}},
		{"rapid reset", enhanceYourCalm, func(p *peer) {
			p.greet()
			p.send(appendSettingsAck(nil))
			untilClosed(p, func() []byte { return append(p.begin(0, "/stream"), appendReset(nil, p.id, cancel)...) })
		}},
		{"frames that make this side reset", enhanceYourCalm, func(p *peer) {
			p.greet()
			p.send(appendSettingsAck(nil))
			untilClosed(p, func() []byte { return append(p.begin(0, "/stream"), appendWindow(nil, p.id, 0)...) })
		}},
		{"requests beyond the limit", enhanceYourCalm, func(p *peer) {
			p.greet()
			p.send(appendSettingsAck(nil))
			for range 8 + freeResets + 1 {
				p.send(p.begin(0, "/done"))
			}
		}},
		{"a flood of empty DATA", enhanceYourCalm, func(p *peer) {
			p.greet()
			p.send(p.begin(0, "/stream"))
			flood(p, raw(dataFrame, 0, 1, ""))
		}},
		{"a flood of SETTINGS", enhanceYourCalm, func(p *peer) { p.greet(); flood(p, appendSettings(nil, setting{initialWindowSize, 1})) }},
		{"a flood of PRIORITY", enhanceYourCalm, func(p *peer) { p.greet(); flood(p, raw(priorityFrame, 0, 1, "\x00\x00\x00\x00\x01")) }},
		{"a flood of unknown frames", enhanceYourCalm, func(p *peer) { p.greet(); flood(p, raw(0x42, 0, 0, "")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &echo{begun: make(chan *Stream, 1000)}
			p := meet(t, Config{Handler: e, MaxStreams: 8, ConnWindow: 1 << 18})
			c.send(p)
			_, code := p.awaitGoAway()
			if code != c.code {
				t.Errorf("GOAWAY has the code %d, want %d", code, c.code)
			}
			isFault(t, p.over(), c.code)
			if n, active := p.conn.open.Load(), p.conn.active.Load(); n != 0 || active != 0 {
				t.Errorf("%d requests and %d streams are open", n, active)
			}
		})
	}
}

// untilClosed sends requests until the server has ended the connection. Some may be refused,
// because handlers of earlier ones still run.
func untilClosed(p *peer, request func() []byte) {
	for range freeResets / 5 {
		var batch []byte
		for range 500 {
			batch = append(batch, request()...)
		}
		if _, err := p.nc.Write(batch); err != nil {
			return
		}
	}
}

// flood sends a frame more often than it may be sent.
func flood(p *peer, frame []byte) {
	for range 11 {
		if _, err := p.nc.Write([]byte(strings.Repeat(string(frame), 1000))); err != nil {
			return // the server has closed
		}
	}
}

// A client that breaks the protocol of a stream gets RST_STREAM, and goes on.
func TestFaultsOfStreams(t *testing.T) {
	for _, c := range []struct {
		name string
		code errorCode
		send func(p *peer)
	}{
		{"WINDOW_UPDATE by 0", protocolError, func(p *peer) { p.send(p.begin(0, "/stream"), appendWindow(nil, p.id, 0)) }},
		{"a window that is too large", flowControlError, func(p *peer) { p.send(p.begin(0, "/stream"), appendWindow(nil, p.id, mostWindow)) }},
		{"more DATA than the window", flowControlError, func(p *peer) {
			p.send(p.begin(0, "/done"))
			for range 5 {
				p.send(raw(dataFrame, 0, p.id, strings.Repeat("x", maxFrame)))
			}
		}},
		{"DATA behind the end", streamClosed, func(p *peer) { p.send(p.begin(flagEndStream, "/done"), raw(dataFrame, 0, p.id, "x")) }},
		{"DATA behind RST_STREAM", streamClosed, func(p *peer) {
			p.send(p.begin(0, "/wait"), appendReset(nil, p.id, cancel), raw(dataFrame, 0, p.id, "x"))
		}},
		{"HEADERS behind the end", streamClosed, func(p *peer) {
			p.send(p.begin(flagEndStream, "/done"), raw(headersFrame, flagEndStream|flagEndHeaders, p.id, ""))
		}},
		{"a trailer without END_STREAM", protocolError, func(p *peer) {
			p.send(p.begin(0, "/done"), raw(headersFrame, flagEndHeaders, p.id, ""))
		}},
		{"a trailer with a pseudo-field", protocolError, func(p *peer) {
			p.send(p.begin(0, "/done"), raw(headersFrame, flagEndHeaders|flagEndStream, p.id, "\x82"))
		}},
		{"a name in upper case", protocolError, func(p *peer) { p.send(p.begin(0, "/inline", Field{Name: "A", Value: "b"})) }},
		{"a line break", protocolError, func(p *peer) { p.send(p.begin(0, "/inline", Field{Name: "a", Value: "b\r\nc"})) }},
		{"a field of HTTP/1", protocolError, func(p *peer) { p.send(p.begin(0, "/inline", Field{Name: "connection", Value: "close"})) }},
		{"te", protocolError, func(p *peer) { p.send(p.begin(0, "/inline", Field{Name: "te", Value: "gzip"})) }},
		{"space behind a value", protocolError, func(p *peer) { p.send(p.begin(0, "/inline", Field{Name: "a", Value: "b "})) }},
		{"a tab before a value", protocolError, func(p *peer) { p.send(p.begin(0, "/inline", Field{Name: "a", Value: "\tb"})) }},
		{"a path without a slash", protocolError, func(p *peer) { p.send(p.begin(0, "inline")) }},
		{"a star as the path of POST", protocolError, func(p *peer) { p.send(p.begin(0, "*")) }},
		{"no path", protocolError, func(p *peer) { p.send(p.begin(0, "")) }},
		{"a pseudo-field behind a field", protocolError, func(p *peer) { p.send(p.begin(0, "/", Field{Name: "a", Value: "b"}, Field{Name: ":path", Value: "/"})) }},
		{"an unknown pseudo-field", protocolError, func(p *peer) { p.send(p.begin(0, "/", Field{Name: ":a", Value: "b"})) }},
		{"a pseudo-field twice", protocolError, func(p *peer) { p.send(p.begin(0, "/", Field{Name: ":path", Value: "/"})) }},
		{"a longer content-length", protocolError, func(p *peer) {
			p.send(p.begin(0, "/inline", Field{Name: "content-length", Value: "2"}), raw(dataFrame, flagEndStream, p.id, "x"))
		}},
		{"a shorter content-length", protocolError, func(p *peer) {
			p.send(p.begin(0, "/stream", Field{Name: "content-length", Value: "1"}), raw(dataFrame, 0, p.id, "xy"))
		}},
		{"a content-length without a body", protocolError, func(p *peer) {
			p.send(p.begin(flagEndStream, "/inline", Field{Name: "content-length", Value: "1"}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &echo{begun: make(chan *Stream, 1000), leave: make(chan struct{})}
			defer close(e.leave)
			p := meet(t, Config{Handler: e})
			p.greet()
			c.send(p)
			if code := p.awaitReset(p.id); code != c.code {
				t.Errorf("RST_STREAM has the code %d, want %d", code, c.code)
			}
			p.send(p.begin(0, "/inline"), raw(dataFrame, flagEndStream, p.id, "next"))
			p.check(p.id, "next")
		})
	}
}

// Requests that end well permit resets, and old requests may be reset freely.
func TestHonestResets(t *testing.T) {
	e := &echo{begun: make(chan *Stream, 1000)}
	p := meet(t, Config{Handler: e})
	p.greet()
	for range 300 {
		p.send(p.begin(flagEndStream, "/inline"), p.begin(0, "/done"), appendReset(nil, p.id, cancel))
	}
	for range 3 {
		for range 90 {
			p.send(p.begin(0, "/done"))
			<-e.begun
		}
		now := int64(p.conn.ticks.Load()+1) * int64(time.Second)
		p.conn.Tick(now)
		p.conn.Tick(now + int64(time.Second))
		for i := range uint32(90) {
			p.send(appendReset(nil, p.id-2*i, cancel))
		}
	}
	p.awaitPong()
	if err := p.over(); err != nil {
		t.Error(err)
	}
}

// A client that sends PING and WINDOW_UPDATE for each message of a long reply is no flood. One
// that lets single bytes through is.
func TestRepliesPermitFrames(t *testing.T) {
	for _, window := range []uint32{10, 1} {
		p := meet(t, Config{})
		p.greet(setting{initialWindowSize, window})
		p.send(p.begin(flagEndStream, "/feed"))
		data, stop := 0, noError
		for stop == noError && data < mostControls*2/5 {
			f := p.awaitFrame("DATA", func(f frame) bool { return f.kind == dataFrame || f.kind == goAwayFrame })
			if f.kind == goAwayFrame {
				stop = errorCode(f.payload[7])
				break
			}
			data++
			_, _ = p.nc.Write(slices.Concat(appendPing(nil, 0, [8]byte{}), appendWindow(nil, 0, len(f.payload)), appendWindow(nil, 1, len(f.payload))))
		}
		if want := []errorCode{noError, enhanceYourCalm}[window%10%2]; stop != want {
			t.Errorf("window of %d: after %d frames the code is %d, want %d", window, data, stop, want)
		}
		_ = p.over()
	}
}

// A client that reads nothing makes this side stop reading, with bounded output.
func TestAClientThatDoesNotReadIsNotRead(t *testing.T) {
	here, there := pipeOf(t)
	conn := New(there, Config{Handler: &echo{}, MaxUnsent: 64 << 10})
	served := make(chan error, 1)
	go conn.Serve([]byte(preface), func(err error) { served <- err })
	ping := strings.Repeat(string(appendPing(nil, 0, [8]byte{})), 1000)
	_, _ = here.Write(appendSettings(nil))
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		for range 9 { // fewer than a flood
			if _, err := here.Write([]byte(ping)); err != nil {
				return
			}
		}
	}()
	conn.mu.Lock()
	for len(conn.send.out) < conn.cfg.MaxUnsent { // until the reader waits for room
		conn.mu.Unlock()
		conn.mu.Lock()
	}
	conn.mu.Unlock()
	select {
	case <-stuck:
		t.Error("the server reads on")
	default:
	}
	conn.mu.Lock()
	if n := len(conn.send.out); n > 2*conn.cfg.MaxUnsent {
		t.Errorf("%d bytes wait for the client", n)
	}
	conn.mu.Unlock()
	here.Close()
	<-stuck
	<-served
}

// Bodies and replies take no more memory than Reserve allows.
func TestMemoryIsCounted(t *testing.T) {
	memory := counter{limit: 100 << 10}
	p := meet(t, Config{Reserve: memory.take, Release: memory.give})
	p.greet(setting{initialWindowSize, 0})
	for i := range 200 {
		p.send(p.begin(0, []string{"/whole", "/inline"}[i%2]), raw(dataFrame, 0, p.id, strings.Repeat("x", 2000)))
	}
	p.awaitPong()
	refused := 0
	for _, f := range p.seen() {
		if f.kind == resetFrame {
			refused++
		}
	}
	if refused == 0 || memory.most.Load() > memory.limit {
		t.Errorf("%d requests were refused, and %d bytes reserved", refused, memory.most.Load())
	}
	_ = p.over()
	if n := memory.n.Load(); n != 0 {
		t.Errorf("%d bytes are reserved after the end", n)
	}
}

// A silent client gets a PING, and is gone when it does not acknowledge it. An idle connection is
// drained.
func TestTicks(t *testing.T) {
	second := int64(time.Second)
	waiting := make(oneCall)
	p := meet(t, Config{Handler: waiting, KeepAlive: 10 * time.Second, IdleTimeout: time.Minute})
	p.greet()
	_, end := p.begun(waiting, flagEndStream)
	p.awaitPong()
	now := second
	for range 11 {
		p.conn.Tick(now)
		now += second
	}
	alive := func(f frame) bool { return f.kind == pingFrame && string(f.payload[:5]) == "alive" }
	f := p.awaitFrame("PING", alive)
	p.send(appendPing(nil, flagAck, [8]byte(f.payload)))
	p.awaitPong()
	for range 11 {
		p.conn.Tick(now)
		now += second
	}
	p.awaitFrame("a second PING", alive)
	for range 10 {
		p.conn.Tick(now)
		now += second
	}
	end()
	if err := <-p.served; err != errSilent { // it is this error
		t.Error(err)
	}

	p = meet(t, Config{IdleTimeout: time.Minute})
	p.greet()
	p.awaitPong()
	for range 61 {
		p.conn.Tick(now)
		now += second
	}
	for i, want := range []uint32{0xffff, 0} {
		if i > 0 {
			p.conn.Tick(now)
		}
		if last, code := p.awaitGoAway(); last != want || code != noError {
			t.Error(last, code)
		}
	}
	if err := p.over(); err != nil { // a pipe cannot be shut, so the client closes it
		t.Error(err)
	}
}

// A stream that nothing knows any more costs nothing, and its DATA is given back.
func TestDataOfStreamsThatHaveEnded(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	p.send(p.begin(flagEndStream, "/inline"))
	p.check(1, "")
	for range 100 {
		p.send(raw(dataFrame, 0, 1, strings.Repeat("x", maxFrame)))
	}
	for range 100 {
		if code := p.awaitReset(1); code != streamClosed {
			t.Fatal(code)
		}
	}
	p.awaitPong()
	n := 0
	for _, f := range p.seen() {
		if f.kind == windowFrame && f.stream == 0 {
			n++
		}
	}
	if n < 5 {
		t.Error(fmt.Sprint(n, " times a part of the window was given back"))
	}
}
