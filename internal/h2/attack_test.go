// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// funcs is a Handler of two functions.
type funcs struct {
	head  func(*Stream) Plan // by default the zero Plan
	serve func(*Stream)
}

func (h funcs) Head(s *Stream) Plan {
	if h.head == nil {
		return Plan{}
	}
	return h.head(s)
}

func (h funcs) Serve(s *Stream) { h.serve(s) }

// post is the block of POST http://a/ that uses no table.
const post = "\x83\x86\x84\x01\x01a"

// bare serves a pipe, and reads and drops what the server sends.
func bare(h Handler) (here net.Conn, conn *Conn, served chan error) {
	here, there := net.Pipe()
	conn, served = New(there, Config{Handler: h}), make(chan error, 1)
	go conn.Serve(nil, func(err error) { served <- err })
	go func() { _, _ = io.Copy(io.Discard, here) }()
	_, _ = here.Write(append([]byte(preface), appendSettings(nil)...))
	return here, conn, served
}

// until waits for a condition of the connection.
func (p *peer) until(is func(c *Conn) bool) {
	for {
		p.conn.mu.Lock()
		ok := is(p.conn)
		p.conn.mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}

// untilReturned waits until no handler runs.
func (p *peer) untilReturned() {
	p.until(func(c *Conn) bool {
		for s := range c.streams.all {
			if s.handling {
				return false
			}
		}
		return true
	})
}

func isHeaders(f frame) bool { return f.kind == headersFrame }

// DATA of a stream that has ended is counted as a frame that carries nothing.
func TestDataOfStreamsThatHaveEndedIsCounted(t *testing.T) {
	for name, frames := range map[string][]byte{
		"empty":          raw(dataFrame, 0, 1, ""),
		"earns nothing":  append(raw(dataFrame, 0, 1, "x"), raw(windowFrame, 0, 0, "\x00\x00\x00\x01")...),
		"empty and PING": append(raw(dataFrame, 0, 1, ""), appendPing(nil, 0, [8]byte{})...),
	} {
		t.Run(name, func(t *testing.T) {
			p := meet(t, Config{})
			p.greet()
			p.send(p.begin(flagEndStream, "/inline"))
			p.check(1, "")
			flood(p, frames)
			if _, code := p.awaitGoAway(); code != enhanceYourCalm {
				t.Errorf("GOAWAY has the code %d", code)
			}
		})
	}
}

// A request whose reply waits for the client runs once, and its body is dropped.
func TestARequestIsServedOnce(t *testing.T) {
	for _, plan := range []Plan{{}, {Whole: 1}, {Whole: 1, Inline: true}} {
		var served atomic.Int32
		p := meet(t, Config{Handler: funcs{func(*Stream) Plan { return plan }, func(s *Stream) {
			served.Add(1)
			_ = s.Reply(okHeader, []byte("body"), okTrailer)
		}}})
		p.greet(setting{initialWindowSize, 0})
		p.send(p.begin(0, "/x"), raw(dataFrame, 0, p.id, "more than one"))
		p.awaitFrame("HEADERS", isHeaders)
		p.untilReturned()
		for range 20 { // more than the window of the stream
			p.send(raw(dataFrame, 0, p.id, strings.Repeat("x", maxFrame)))
			p.awaitPong()
		}
		p.send(raw(dataFrame, flagEndStream, p.id, "x"), appendWindow(nil, p.id, 100))
		if body, _ := p.reply(p.id); body != "body" {
			t.Errorf("the body is %q", body)
		}
		_ = p.over()
		if n := served.Load(); n != 1 {
			t.Errorf("Serve was called %d times", n)
		}
	}
}

// An inline handler that waits after the end of the connection is told, whether it has replied or
// not.
func TestInlineHandlersSeeTheEnd(t *testing.T) {
	for _, reply := range []bool{false, true} {
		for _, first := range []bool{false, true} { // the connection ends before Done
			var conn atomic.Pointer[Conn]
			here, c, served := bare(funcs{
				func(*Stream) Plan { return Plan{Whole: 1, Inline: true} },
				func(s *Stream) {
					if reply {
						_ = s.Reply(okHeader, nil, okTrailer)
					}
					if first {
						conn.Load().Close()
					}
					done := s.Done()
					conn.Load().Close()
					<-done
				},
			})
			conn.Store(c)
			_, _ = here.Write(raw(headersFrame, flagEndHeaders|flagEndStream, 1, post))
			<-served
			if n := c.open.Load(); n != 0 {
				t.Errorf("%d requests are open", n)
			}
		}
	}
}

// The rest of a batch begins no requests after the end of the connection.
func TestNoRequestBeginsAfterTheEnd(t *testing.T) {
	var conn atomic.Pointer[Conn]
	var served3 atomic.Bool
	here, c, served := bare(funcs{
		func(s *Stream) Plan {
			if s.ID() == 5 { // the connection ends between the look at unread and begin
				conn.Load().Close()
			}
			return Plan{Whole: 1, Inline: s.ID() == 1}
		},
		func(s *Stream) {
			if s.ID() > 1 {
				served3.Store(true)
			}
			_ = s.Reply(okHeader, nil, okTrailer)
		},
	})
	conn.Store(c)
	_, _ = here.Write(append(raw(headersFrame, flagEndHeaders|flagEndStream, 1, post), raw(headersFrame, flagEndHeaders|flagEndStream, 5, post)...))
	<-served
	if n := c.open.Load(); n != 0 || served3.Load() {
		t.Errorf("%d requests are open, served %t", n, served3.Load())
	}

	here, c, served = bare(funcs{
		func(s *Stream) Plan { return Plan{Whole: int(3-s.ID()) / 2, Inline: s.ID() == 1} },
		func(s *Stream) {
			if s.ID() == 1 { // stands for a Close, or a failed write, by another goroutine
				conn.Load().Close()
				_ = s.Reply(okHeader, nil, okTrailer)
				return
			}
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{s})
		},
	})
	conn.Store(c)
	_, _ = here.Write(append(raw(headersFrame, flagEndHeaders|flagEndStream, 1, post), raw(headersFrame, flagEndHeaders, 3, post)...))
	<-served
	if n := c.open.Load(); n != 0 {
		t.Errorf("%d requests are open", n)
	}
}

// Interrupt does not stop a reply that is complete and waits for the client.
func TestInterruptLeavesCompleteReplies(t *testing.T) {
	p := meet(t, Config{Handler: funcs{serve: func(s *Stream) {
		_ = s.Reply(okHeader, []byte("body"), okTrailer)
		s.Interrupt(errors.New("the deadline has passed"))
	}}})
	p.greet(setting{initialWindowSize, 0})
	p.send(p.begin(flagEndStream, "/x"))
	p.awaitFrame("HEADERS", isHeaders)
	p.untilReturned()
	p.send(appendWindow(nil, 1, 1000))
	if body, _ := p.reply(1); body != "body" {
		t.Errorf("the body is %q", body)
	}
	if n := p.conn.open.Load(); n != 0 {
		t.Errorf("%d requests are open", n)
	}
}

// The beginning of a body does not count as all of it when the client has reset the stream, or the
// connection has ended, or the reply has.
func TestABeginningIsNotWhole(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"RST_STREAM": func(p *peer) { p.send(appendReset(nil, 1, cancel)) },
		"the end":    func(p *peer) { p.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			begun, got := make(chan bool), make(chan string, 1)
			p := meet(t, Config{Handler: funcs{serve: func(s *Stream) {
				begun <- true
				<-s.Done()
				if s.Whole() || s.Body() != nil {
					got <- "whole: " + string(s.Body())
				} else {
					got <- ""
				}
			}}})
			p.greet()
			p.send(p.begin(0, "/x"), raw(dataFrame, 0, p.id, "delete from t"))
			<-begun
			p.awaitPong()
			end(p)
			if s := <-got; s != "" {
				t.Error(s)
			}
		})
	}
	got := make(chan error, 1)
	p := meet(t, Config{Handler: funcs{serve: func(s *Stream) {
		_ = s.Reply(okHeader, nil, okTrailer)
		_, err := s.Read(make([]byte, 1))
		got <- err
	}}})
	p.greet()
	p.send(p.begin(0, "/x"))
	if err := <-got; !errors.Is(err, errReplied) {
		t.Errorf("after an early reply, Read returns %v", err)
	}
}

// A stream that was reset leaves the queue of those that wait to send.
func TestResetStreamsLeaveTheQueue(t *testing.T) {
	p := meet(t, Config{Handler: funcs{serve: func(s *Stream) {
		_ = s.Reply(okHeader, make([]byte, 70000), okTrailer)
	}}})
	p.greet(setting{initialWindowSize, 1 << 20})
	for i := range 90 {
		p.send(p.begin(flagEndStream, "/x"))
		id := p.id
		p.awaitFrame("HEADERS", func(f frame) bool { return f.kind == headersFrame && f.stream == id })
		if i%3 < 2 { // the middle and the end of the queue
			p.send(appendReset(nil, id, cancel))
		}
	}
	p.awaitPong()
	p.untilReturned()
	p.conn.mu.Lock()
	n, back := 0, 0
	for s := p.conn.send.head; s != nil; s = s.next {
		n++
	}
	for s := p.conn.send.tail; s != nil; s = s.prev {
		back++
	}
	listed, stalled := p.conn.streams.n, p.conn.send.stalled
	p.conn.mu.Unlock()
	if n > listed || n != back || n > stalled || n == 0 {
		t.Errorf("the queue holds %d streams, %d backwards, %d are open, %d stalled", n, back, listed, stalled)
	}
	p.send(appendWindow(nil, 0, 1<<30))
	for id := uint32(5); id <= p.id; id += 6 {
		n := 0
		for n < 70000 {
			n += len(p.awaitFrame("DATA", func(f frame) bool { return f.kind == dataFrame && f.stream == id }).payload)
		}
	}
}

// A client that keeps to MaxStreams is not refused because a handler returns after its reply.
func TestAHandlerMayReturnLate(t *testing.T) {
	leave := make(chan struct{})
	p := meet(t, Config{MaxStreams: 1, Handler: funcs{serve: func(s *Stream) {
		_ = s.Reply(okHeader, nil, okTrailer)
		<-leave
	}}})
	p.greet()
	p.send(appendSettingsAck(nil))
	for range 2 {
		p.send(p.begin(flagEndStream, "/x"))
		p.check(p.id, "")
	}
	close(leave)
}

// A client may reset all requests that it sends to a slow server, as its deadlines are short.
func TestShortDeadlinesDoNotEndTheConnection(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	p.send(appendSettingsAck(nil))
	for tick := range int64(4) {
		for range resetsPerTick + resetsPerTick/2 {
			p.send(p.begin(0, "/stream"), appendReset(nil, p.id, cancel))
		}
		p.awaitPong()
		p.conn.Tick(1 + tick)
	}
	for { // until the handlers have returned
		p.send(p.begin(flagEndStream, "/inline"))
		if _, fields := p.reply(p.id); len(fields) > 1 {
			return
		}
	}
}

// New replies do not pass a reply that waits in the queue. The loop does what writeRest does.
func TestRepliesDoNotPassTheQueue(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	c := New(there, Config{Handler: &echo{}, MaxUnsent: 64 << 10})
	c.send.credit, c.send.initial, c.send.flushing = 1<<30, 1<<30, true
	c.active.Store(401)
	queued := &Stream{c: c, id: 1, state: requestDone}
	_ = queued.Reply(okHeader, make([]byte, 100<<10), okTrailer)
	for i := range uint32(100) {
		c.mu.Lock()
		c.send.resumeLocked()
		_ = c.send.takeLocked()
		c.mu.Unlock()
		for j := range uint32(4) { // four replies come during the write
			s := &Stream{c: c, id: 3 + 8*i + 2*j, state: requestDone}
			_ = s.Reply(okHeader, make([]byte, 10<<10), okTrailer)
		}
	}
	if n := len(queued.pending); n > 0 {
		t.Errorf("after 100 writes %d bytes of the first reply wait", n)
	}
}

// The last stream of a GOAWAY is not above that of an earlier one.
func TestGoAwaysDoNotGrow(t *testing.T) {
	e := &echo{begun: make(chan *Stream, 1)}
	p := meet(t, Config{Handler: e})
	p.greet()
	p.send(p.begin(0, "/done"))
	<-e.begun
	p.conn.Drain()
	p.send(appendPing(nil, flagAck, drainPing))
	p.awaitGoAway()
	first, _ := p.awaitGoAway()
	p.send(p.begin(flagEndStream, "/inline"), appendWindow(nil, 0, 0))
	if second, _ := p.awaitGoAway(); second != first {
		t.Errorf("GOAWAY says %d after %d", second, first)
	}
}

// The rest of a request whose header is malformed does not end the connection.
func TestTheRestOfAMalformedRequest(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	p.send(p.begin(0, "/inline", Field{Name: "A", Value: "b"}), raw(dataFrame, 0, p.id, "x"), raw(headersFrame, flagEndHeaders|flagEndStream, p.id, ""))
	p.send(p.begin(flagEndStream, "/inline"))
	p.check(p.id, "")
}

// SETTINGS are the first frame, even if the connection is drained before Serve.
func TestSettingsAreFirst(t *testing.T) {
	here, there := net.Pipe()
	conn, served := New(there, Config{Handler: &echo{}}), make(chan error, 1)
	conn.Drain()
	go conn.Serve(nil, func(err error) { served <- err })
	header := make([]byte, frameHeader)
	_, _ = io.ReadFull(here, header)
	if frameType(header[3]) != settingsFrame {
		t.Errorf("the first frame has the type %d", header[3])
	}
	here.Close()
	conn.Close()
	<-served
}

// Reserve counts the fields of requests and trailers.
func TestFieldsAreCounted(t *testing.T) {
	const fields = 1979
	memory := counter{limit: 1 << 20}
	p := meetTCP(t, Config{Reserve: memory.take, Release: memory.give, Handler: funcs{
		func(*Stream) Plan { return Plan{Whole: 1} }, // waits for the body
		func(s *Stream) { <-s.Done() },
	}})
	p.greet()
	p.awaitPong()
	for i := range uint32(20) {
		block := post + strings.Repeat("\xbe", fields)
		if i == 0 {
			block = post + "\x40\x01a\x00"
		}
		p.send(raw(headersFrame, flagEndHeaders, 1+2*i, block))
	}
	p.awaitPong()
	p.conn.mu.Lock()
	listed := p.conn.streams.n
	p.conn.mu.Unlock()
	if used := listed * fields * 56; listed == 20 || listed == 0 || int64(used) > memory.limit {
		t.Errorf("%d requests with %d KiB of fields are open", listed, used>>10)
	}
	before := memory.n.Load()
	p.send(raw(headersFrame, flagEndHeaders|flagEndStream, 1, strings.Repeat("\xbe", 100)))
	p.awaitPong()
	if n := memory.n.Load() - before; n < 100*56 {
		t.Errorf("a trailer counts %d bytes", n)
	}
	p.send(raw(headersFrame, flagEndHeaders|flagEndStream, 3, strings.Repeat("\xbe", fields)))
	if code := p.awaitReset(3); code != enhanceYourCalm {
		t.Error(code)
	}
	_ = p.over()
	if n := memory.n.Load(); n != 0 {
		t.Errorf("%d bytes are reserved after the end", n)
	}
}

// A stream that was reset gives its share of the connection's window back, before its handler
// returns.
func TestResetStreamsGiveTheWindowBack(t *testing.T) {
	for _, whole := range []byte{0, flagEndStream} {
		var memory counter
		e := &echo{begun: make(chan *Stream, 1), leave: make(chan struct{})}
		p := meet(t, Config{Handler: e, ConnWindow: 1 << 16, StreamWindow: 1 << 16, Reserve: memory.take, Release: memory.give})
		p.greet()
		p.send(p.begin(0, "/wait"))
		s := <-e.begun
		for _, flags := range []byte{0, 0, whole} {
			p.send(raw(dataFrame, flags, p.id, strings.Repeat("x", maxFrame)))
		}
		p.send(appendReset(nil, p.id, cancel))
		p.awaitPong()
		back := 0
		for _, f := range p.seen() {
			if f.kind == windowFrame && f.stream == 0 {
				back++
			}
		}
		if back < 2 { // one opens the window at the beginning
			t.Error("nothing was given back of 48 KiB on a stream that was reset")
		}
		if s.Whole() && len(s.Body()) != 3*maxFrame {
			t.Errorf("a whole body has %d bytes after RST_STREAM", len(s.Body()))
		}
		close(e.leave)
		_ = p.over()
		if n := memory.n.Load(); n != 0 {
			t.Errorf("%d bytes are reserved after the end", n)
		}
	}
}

// A client that does not read the replies that wait for it is gone, although it acknowledges PINGs.
func TestAClientMustReadHeldReplies(t *testing.T) {
	second := int64(time.Second)
	p := meet(t, Config{KeepAlive: 2 * time.Second})
	p.greet(setting{initialWindowSize, 0})
	p.send(p.begin(0, "/whole"), raw(dataFrame, flagEndStream, p.id, "body"))
	p.awaitFrame("HEADERS", isHeaders)
	for now := second; now < 5*second; now += second {
		if now == 2*second {
			p.send(appendWindow(nil, p.id, 1)) // DATA goes out
		}
		p.awaitPong()
		p.conn.Tick(now)
	}
	p.awaitPong()
	p.conn.Tick(5 * second)
	p.awaitPong()
	p.conn.Tick(6 * second)
	if err := <-p.served; err != errSilent { // it is this error
		t.Error(err)
	}
}

// A request whose whole body does not arrive in BodyTimeout is reset. One whose handler reads it is
// not.
func TestBodiesThatAreLate(t *testing.T) {
	var memory counter
	p := meet(t, Config{BodyTimeout: 3 * time.Second, Reserve: memory.take, Release: memory.give})
	p.greet()
	p.send(p.begin(0, "/whole"), p.begin(0, "/inline"), p.begin(0, "/stream"))
	p.awaitPong()
	for i := range int64(4) {
		p.conn.Tick((1 + i) * int64(time.Second))
	}
	for id := uint32(1); id < 5; id += 2 {
		if code := p.awaitReset(id); code != cancel {
			t.Errorf("stream %d: %d", id, code)
		}
	}
	p.send(raw(dataFrame, flagEndStream, 5, "body"))
	p.check(5, "body")
	_ = p.over()
	p.isEmpty(&memory)
}

// A Stream that was retained is not used for another request.
func TestRetainedStreams(t *testing.T) {
	var first atomic.Pointer[Stream]
	p := meet(t, Config{Handler: funcs{
		func(*Stream) Plan { return Plan{Inline: true} },
		func(s *Stream) {
			if first.CompareAndSwap(nil, s) {
				s.Retain()
			} else { // the timer of the first request fires
				first.Load().Interrupt(errors.New("the deadline has passed"))
				first.Load().Reset(uint32(cancel))
			}
			if s.Err() == nil {
				_ = s.Reply(okHeader, nil, okTrailer)
			}
		},
	}})
	p.greet()
	for range 2 {
		p.send(p.begin(flagEndStream, "/x"))
		p.check(p.id, "")
	}
}

// While the reader waits until a client reads its replies, the client does not count as silent.
func TestAReaderThatWaitsIsNotASilentClient(t *testing.T) {
	here, there := pipeOf(t)
	conn := New(there, Config{Handler: &echo{}, MaxUnsent: 32 << 10, KeepAlive: 2 * time.Second})
	served := make(chan error, 1)
	go conn.Serve([]byte(preface), func(err error) { served <- err })
	p := &peer{t: t, nc: here, conn: conn}
	_, _ = here.Write(appendSettings(nil))
	stuck := make(chan struct{})
	go func() {
		defer close(stuck)
		_, _ = here.Write([]byte(strings.Repeat(string(appendPing(nil, 0, [8]byte{})), 5000)))
	}()
	p.until(func(c *Conn) bool { return c.send.waiting })
	for i := range int64(10) {
		p.until(func(c *Conn) bool { c.send.written++; return true }) // as if it read slowly
		conn.Tick((1 + i) * int64(time.Second))
	}
	p.until(func(c *Conn) bool {
		if c.life.over {
			t.Error("the connection has ended")
		}
		return true
	})
	here.Close()
	<-stuck
	<-served
}

// HEADERS with the priority of RFC 7540 may depend on its own stream.
func TestPrioritiesAreIgnored(t *testing.T) {
	p := meet(t, Config{Handler: funcs{serve: func(s *Stream) { _ = s.Reply(okHeader, nil, okTrailer) }}})
	p.greet()
	p.send(raw(headersFrame, flagPriority|flagEndHeaders|flagEndStream, 1, "\x80\x00\x00\x01\x10"+post))
	p.check(1, "")
}

// Reserve counts the buffer that a blocked inline handler keeps, until the handler returns.
func TestBlockedInlineHandlersAreCounted(t *testing.T) {
	var memory counter
	e := &echo{begun: make(chan *Stream), leave: make(chan struct{})}
	p := meet(t, Config{Handler: e, Reserve: memory.take, Release: memory.give})
	p.greet()
	for range 3 {
		p.send(p.begin(flagEndStream, "/inline/wait"))
		(<-e.begun).HandOver()
	}
	p.awaitPong()
	if n := memory.n.Load(); n < 3*inSize {
		t.Errorf("%d bytes are reserved for 3 handlers", n)
	}
	close(e.leave)
	_ = p.over()
	p.isEmpty(&memory)
}

// A reply that waits for its client is counted with its request, and keeps nothing that belongs to
// the handler.
func TestHeldRepliesKeepNoRequest(t *testing.T) {
	var memory counter
	freed := make(chan bool, 1)
	p := meet(t, Config{Reserve: memory.take, Release: memory.give, Handler: funcs{
		func(*Stream) Plan { return Plan{Whole: 1 << 10, Inline: true} },
		func(s *Stream) {
			user := &canceling{body: make([]byte, 1<<20)}
			runtime.AddCleanup(user, func(freed chan bool) { freed <- true }, freed)
			s.User = user
			s.OnFailure(user)
			_ = s.Reply(okHeader, make([]byte, heldBody), okTrailer)
		},
	}})
	p.greet()
	p.send(p.begin(flagEndStream, "/", Field{Name: "long", Value: strings.Repeat("x", 10000)}))
	p.awaitPong()
	if n := memory.n.Load(); n < 2*10000 {
		t.Errorf("%d bytes are reserved for a reply and its request", n)
	}
	for len(freed) == 0 {
		runtime.GC()
		runtime.Gosched()
	}
	_ = p.over()
	if n := memory.n.Load(); n != 0 {
		t.Errorf("%d bytes are reserved after the end", n)
	}
}

// canceling is what a handler gives to OnFailure.
type canceling struct{ body []byte }

func (*canceling) Cancel() {}

// Nothing with a status from 100 to 199 follows the header of a reply.
func TestInformBehindTheHeader(t *testing.T) {
	early := []Field{{Name: ":status", Value: "100"}}
	p := meet(t, Config{Handler: funcs{serve: func(s *Stream) {
		if err := s.Inform(early); err != nil {
			t.Error(err)
		}
		_ = s.Header(okHeader)
		if s.Inform(early) == nil || s.Header(okHeader) == nil {
			t.Error("a second header is accepted")
		}
		_ = s.End(okTrailer)
	}}})
	p.greet()
	p.send(p.begin(flagEndStream, "/"))
	if _, fields := p.reply(p.id); strings.Join(fields, " ") != ":status=100 :status=200 content-type=application/grpc grpc-status=0" {
		t.Error(fields)
	}
}

// A body that was dropped unread does not end as one that was read.
func TestDroppedBodiesAreNotWhole(t *testing.T) {
	streams := make(chan *Stream, 1)
	p := meet(t, Config{Handler: funcs{
		func(*Stream) Plan { return Plan{Whole: 10} },
		func(s *Stream) {
			_ = s.Reply(okHeader, []byte("reply"), okTrailer)
			streams <- s
		},
	}})
	p.greet()
	p.send(p.begin(0, "/"), raw(dataFrame, flagEndStream, p.id, "body"))
	p.check(p.id, "reply")
	s := <-streams
	p.untilReturned()
	if n, err := s.Read(make([]byte, 10)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("Read returns %d, %v", n, err)
	}
}

// Fields and methods with bytes that HTTP does not allow are malformed.
func TestBytesOfFields(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	for _, f := range []Field{{Name: "a", Value: "\x01"}, {Name: "a", Value: "b\x7f"}, {Name: "a", Value: "b\x1bc"}} {
		p.send(p.begin(flagEndStream, "/inline", f))
		if code := p.awaitReset(p.id); code != protocolError {
			t.Errorf("%q: %d", f.Value, code)
		}
	}
	for _, method := range []string{"GET POST", "G\tT", "P(ST"} {
		p.id += 2
		var block []byte
		for _, f := range []Field{{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/inline"}} {
			block = appendField(block, &p.encoder, &f)
		}
		p.send(raw(headersFrame, flagEndHeaders|flagEndStream, p.id, string(block)))
		if code := p.awaitReset(p.id); code != protocolError {
			t.Errorf("%q: %d", method, code)
		}
	}
	p.send(p.begin(flagEndStream, "/inline", Field{Name: "a", Value: "b\tc\x80"}))
	p.check(p.id, "")
}

// fullOnly is a connection that cannot close one half.
type fullOnly struct{ net.Conn }

// A drain loses no reply on a connection that cannot close one half, while its client still sends:
// the connection is closed by the client, or later than lingerTime.
func TestDrainsLinger(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, Config{}, here, fullOnly{there})
	p.greet()
	p.awaitPong()
	p.conn.Drain()
	p.send(appendPing(nil, flagAck, drainPing), p.begin(flagEndStream, "/inline"))
	p.awaitGoAway()
	p.awaitGoAway()
	p.awaitReset(p.id)
	p.until(func(c *Conn) bool { return c.life.stage == shut })
	p.send(p.begin(flagEndStream, "/inline")) // it is read
	p.conn.Tick(int64(time.Second))
	select {
	case err := <-p.served:
		t.Fatalf("the connection does not linger: %v", err)
	default:
	}
	p.conn.Tick(int64(time.Second + lingerTime))
	if err := <-p.served; err != nil {
		t.Error(err)
	}
}
