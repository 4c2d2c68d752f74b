// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
)

// over runs a test over a pipe, a socket and TLS.
func over(t *testing.T, test func(t *testing.T, meet func(*testing.T, Config) *peer)) {
	t.Run("pipe", func(t *testing.T) { test(t, meet) })
	t.Run("socket", func(t *testing.T) { test(t, meetTCP) })
	t.Run("TLS", func(t *testing.T) { test(t, meetTLS) })
}

// Requests in one write get replies, in every way in which a handler can run.
func TestRequestsAreServed(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		p := meet(t, Config{})
		p.greet()
		for _, path := range []string{"/inline", "/whole", "/stream"} {
			var all [][]byte
			first := p.id
			for range 20 {
				all = append(all, p.begin(0, path), raw(dataFrame, flagEndStream, p.id, "body"))
			}
			p.send(all...)
			for id := first + 1; id <= p.id; id++ {
				if id%2 == 1 {
					p.check(id, "body")
				}
			}
			p.send(p.begin(flagEndStream, path))
			p.check(p.id, "")
			// interleaved, and in pieces with padding
			a := p.begin(0, path)
			idA := p.id
			b := p.begin(0, path)
			p.send(a, b, raw(dataFrame, 0, idA, "on"), raw(dataFrame, flagPadded, p.id, "\x02tw\x00\x00"), raw(dataFrame, flagEndStream, p.id, "o"), raw(dataFrame, flagEndStream, idA, "e"))
			p.check(idA, "one")
			p.check(p.id, "two")
		}
		if err := p.over(); err != nil {
			t.Error(err)
		}
	})
}

// A body and a reply may be larger than all windows.
func TestLargeBodies(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		for _, path := range []string{"/inline", "/whole", "/stream"} {
			p := meet(t, Config{ConnWindow: 1 << 16, StreamWindow: 1 << 15})
			p.greet()
			p.send(p.begin(0, path))
			body := strings.Repeat("0123456789", 120_000) // more than Plan.Whole, too
			id := p.id
			go p.sendBody(id, body, 1<<15, 1<<16)
			got, fields := p.largeReply(id)
			if got != body || fmt.Sprint(fields) != okFields {
				t.Errorf("%s: %d bytes and %v", path, len(got), fields)
			}
			if err := p.over(); err != nil {
				t.Error(err)
			}
		}
	})
}

// sendBody sends a body as the windows permit.
func (p *peer) sendBody(id uint32, body string, stream, conn int) {
	for len(body) > 0 {
		n := min(stream, conn, 1<<14, len(body))
		if n == 0 {
			f := p.awaitFrame("WINDOW_UPDATE", func(f frame) bool { return f.kind == windowFrame })
			by := int(f.payload[1])<<16 | int(f.payload[2])<<8 | int(f.payload[3])
			if f.stream == id {
				stream += by
			} else {
				conn += by
			}
			continue
		}
		flags := byte(0)
		if n == len(body) {
			flags = flagEndStream
		}
		p.send(raw(dataFrame, flags, id, body[:n]))
		stream, conn, body = stream-n, conn-n, body[n:]
	}
}

// largeReply is reply with WINDOW_UPDATE for what was read.
func (p *peer) largeReply(id uint32) (body string, fields []string) {
	var all bytes.Buffer
	for {
		f := p.awaitFrame("a reply", func(f frame) bool { return f.kind == headersFrame || f.kind == dataFrame || f.kind == resetFrame })
		switch f.kind {
		case resetFrame:
			return "", append(fields, "reset")
		case dataFrame:
			all.Write(f.payload)
			if !f.has(flagEndStream) {
				p.send(appendWindow(nil, 0, len(f.payload)), appendWindow(nil, id, len(f.payload)))
			}
		default:
			fields = append(fields, strings.Fields(string(f.payload))...)
		}
		if f.has(flagEndStream) {
			return all.String(), fields
		}
	}
}

// Trailers arrive behind the body.
func TestTrailers(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	p.send(p.begin(0, "/stream"), raw(dataFrame, 0, p.id, "body"))
	var block []byte
	block = appendField(block, &p.encoder, &Field{Name: "checksum", Value: "7"})
	p.send(raw(headersFrame, flagEndStream|flagEndHeaders, p.id, string(block)))
	if body, fields := p.reply(p.id); body != "body" || fmt.Sprint(fields) != "[:status=200 content-type=application/grpc grpc-status=0 checksum=7]" {
		t.Errorf("%q with %v", body, fields)
	}
	p.send(p.begin(0, "/inline"), raw(headersFrame, flagEndStream|flagEndHeaders, p.id, string(appendField(nil, &p.encoder, &Field{Name: "a", Value: "b"}))))
	p.check(p.id, "")
}

// A header block may come in pieces, and its decoded form has a limit.
func TestHeaderBlocks(t *testing.T) {
	p := meet(t, Config{MaxHeaderList: 1000})
	p.greet()
	p.id++
	block := string(p.head("/inline"))
	p.send(raw(headersFrame, flagEndStream, p.id, block[:1]), raw(continuationFrame, 0, p.id, block[1:2]), raw(continuationFrame, flagEndHeaders, p.id, block[2:]))
	p.check(p.id, "")
	p.send(p.begin(0, "/inline", Field{Name: "long", Value: strings.Repeat("x", 1000), Form: Repeated}))
	if _, fields := p.reply(p.id); fmt.Sprint(fields) != "[:status=431]" {
		t.Error(fields)
	}
	if code := p.awaitReset(p.id); code != noError {
		t.Error(code)
	}
	p.send(raw(dataFrame, flagEndStream, p.id, "it was on its way"))
	// The table has kept what was refused.
	p.send(p.begin(flagEndStream, "/inline"))
	p.check(p.id, "")
	if len(p.seen()) > 3 { // SETTINGS, WINDOW_UPDATE, ACK
		t.Error(p.seen())
	}
}

// A reply before the end of the request makes the client stop.
func TestEarlyReplies(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	p.send(p.begin(0, "/early"))
	p.check(p.id, "")
	if code := p.awaitReset(p.id); code != noError {
		t.Error(code)
	}
	for range 100 { // more than the window of the connection
		p.send(raw(dataFrame, 0, p.id, strings.Repeat("x", maxFrame)))
	}
	p.awaitFrame("WINDOW_UPDATE", func(f frame) bool { return f.kind == windowFrame && f.stream == 0 })
	for _, path := range []string{"/none", "/inline/none"} {
		p.send(p.begin(flagEndStream, path))
		if code := p.awaitReset(p.id); code != internalError {
			t.Error(code)
		}
	}
}

// HEADERS behind the end of both sides end the connection, also while the handler that has replied
// runs on (RFC 9113, section 5.1).
func TestHeadersOfAStreamThatHasEnded(t *testing.T) {
	release := make(chan struct{})
	p := meet(t, Config{Handler: funcs{serve: func(s *Stream) {
		_ = s.Reply(okHeader, nil, okTrailer)
		<-release
	}}})
	defer close(release)
	p.greet()
	p.send(p.begin(flagEndStream, "/"))
	p.check(p.id, "")
	p.send(raw(headersFrame, flagEndStream|flagEndHeaders, p.id, string(p.head("/"))))
	if _, code := p.awaitGoAway(); code != streamClosed {
		t.Errorf("the code is %d", code)
	}
}

// A handler that blocks the reader loses the reading. The client can reset its stream.
func TestABlockedHandlerLosesTheReading(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		e := &echo{begun: make(chan *Stream, 10), leave: make(chan struct{})}
		p := meet(t, Config{Handler: e})
		p.greet()
		p.send(p.begin(0, "/inline/wait"), raw(dataFrame, flagEndStream, p.id, "slow"), p.begin(0, "/inline"), raw(dataFrame, flagEndStream, p.id, "fast"))
		<-e.begun
		p.check(3, "fast")
		close(e.leave)
		p.check(1, "slow")
		p.send(p.begin(0, "/inline/done"), raw(dataFrame, flagEndStream, p.id, "gone"))
		s := <-e.begun
		p.send(appendReset(nil, p.id, cancel), p.begin(0, "/inline"), raw(dataFrame, flagEndStream, p.id, "next"))
		p.check(p.id, "next")
		<-s.Done()
		p.send(p.begin(0, "/inline/done"), raw(dataFrame, flagEndStream, p.id, "gone"))
		<-e.begun
		_ = p.over()
		if n := p.conn.open.Load(); n != 0 {
			t.Errorf("%d requests are open", n)
		}
	})
}

// A handler that ends its goroutine ends neither the connection nor the reading.
func TestHandlersThatEndTheirGoroutine(t *testing.T) {
	e := &echo{begun: make(chan *Stream, 1), leave: make(chan struct{})}
	p := meet(t, Config{Handler: e})
	p.greet()
	p.send(p.begin(flagEndStream, "/inline/wait"))
	<-e.begun // the goroutine of Serve runs it, and another one will read
	for range 3 {
		for _, path := range []string{"/inline/exit", "/whole/exit"} {
			p.send(p.begin(flagEndStream, path))
			if code := p.awaitReset(p.id); code != internalError {
				t.Error(code)
			}
		}
	}
	close(e.leave)
	p.check(1, "")
	if err := p.over(); err != nil {
		t.Error(err)
	}
}

// Handlers of streams that were reset may be a quarter of MaxStreams and one more. Requests beyond
// it are refused, and cost a client that keeps to MaxStreams nothing.
func TestResetHandlersCount(t *testing.T) {
	e := &echo{begun: make(chan *Stream, 10), leave: make(chan struct{})}
	p := meet(t, Config{Handler: e, MaxStreams: 2})
	p.greet()
	p.send(appendSettingsAck(nil))
	for range 3 {
		p.send(p.begin(0, "/wait"))
		<-e.begun
		p.send(appendReset(nil, p.id, cancel))
	}
	for range freeResets + 100 {
		p.send(p.begin(flagEndStream, "/inline"))
		if code := p.awaitReset(p.id); code != refusedStream {
			t.Fatal(code)
		}
	}
	close(e.leave)
	for { // until the handlers have returned
		p.send(p.begin(flagEndStream, "/inline"))
		_, fields := p.reply(p.id)
		if fmt.Sprint(fields) == okFields {
			return
		}
		if fmt.Sprint(fields) != "[reset 7]" {
			t.Fatal(fields)
		}
	}
}

// Replies wait for the client's windows, one behind the other, and SETTINGS change all windows.
func TestRepliesWaitForWindows(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		var reserved counter
		p := meet(t, Config{Reserve: reserved.take, Release: reserved.give})
		p.greet(setting{initialWindowSize, 0})
		body := strings.Repeat("0123456789", 3000)
		for _, path := range []string{"/inline", "/whole", "/stream"} {
			p.send(p.begin(0, path), raw(dataFrame, 0, p.id, body[:maxFrame]), raw(dataFrame, flagEndStream, p.id, body[maxFrame:]))
		}
		p.awaitPong()
		for _, f := range p.seen() {
			if f.kind == dataFrame {
				t.Error("DATA without a window")
			}
		}
		p.send(appendSettings(nil, setting{initialWindowSize, 10_000}))
		p.send(appendWindow(nil, 1, 20_000))
		p.check(1, body)
		p.send(appendSettings(nil, setting{initialWindowSize, 5_000}), appendSettings(nil, setting{initialWindowSize, 30_000}))
		p.send(appendWindow(nil, 0, 1<<20))
		p.check(3, body)
		p.check(5, body)
		_ = p.over()
		if n := reserved.n.Load(); n != 0 {
			t.Errorf("%d bytes are reserved after the end", n)
		}
	})
}

// A server that drains accepts what comes before the client knows, and refuses later requests.
func TestDrain(t *testing.T) {
	over(t, func(t *testing.T, meet func(*testing.T, Config) *peer) {
		e := &echo{begun: make(chan *Stream, 10), leave: make(chan struct{})}
		p := meet(t, Config{Handler: e})
		p.greet()
		p.send(p.begin(flagEndStream, "/wait"))
		<-e.begun
		p.conn.Drain()
		if last, code := p.awaitGoAway(); last != 0xffff || code != noError {
			t.Error(last, code)
		}
		ping := p.awaitFrame("PING", func(f frame) bool { return f.kind == pingFrame })
		p.send(p.begin(flagEndStream, "/inline"))
		p.check(3, "")
		p.send(appendPing(nil, flagAck, [8]byte(ping.payload)), p.begin(flagEndStream, "/inline"))
		if last, code := p.awaitGoAway(); last != 3 || code != noError {
			t.Error(last, code)
		}
		if code := p.awaitReset(5); code != refusedStream {
			t.Error(code)
		}
		close(e.leave)
		p.check(1, "")
		if _, ok := p.nc.(*tls.Conn); !ok && p.nc.LocalAddr().Network() == "pipe" {
			p.nc.Close() // the server cannot shut a pipe
		}
		p.mu.Lock()
		for p.err == nil {
			p.more.Wait()
		}
		p.mu.Unlock()
		if err := p.over(); err != nil {
			t.Error(err)
		}
	})
}
