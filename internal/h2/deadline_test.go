// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A oneCall is a handler of one request, which a test makes from outside.
type oneCall chan *Stream

func (c oneCall) Head(*Stream) Plan { return Plan{} }

func (c oneCall) Serve(s *Stream) {
	c <- s
	<-c // the test has done with it
}

// begun returns the stream of a new request, and what ends its handler.
func (p *peer) begun(c oneCall, flags byte) (s *Stream, end func()) {
	p.send(p.begin(flags, "/"))
	return <-c, func() { c <- nil }
}

// A Read that waits fails at its deadline, and can be made again. A later deadline replaces an
// earlier one.
func TestReadsHaveDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(oneCall)
		p := meet(t, Config{Handler: c})
		p.greet()
		s, end := p.begun(c, 0)
		began := time.Now()
		s.SetReadDeadline(began.Add(time.Second))
		go func() {
			time.Sleep(500 * time.Millisecond)
			s.SetReadDeadline(began.Add(2 * time.Second))
		}()
		var b [1]byte
		for range 2 { // also when the deadline has passed before
			if _, err := s.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		s.SetReadDeadline(time.Time{})
		p.send(raw(dataFrame, flagEndStream, p.id, "x"))
		if n, err := s.Read(b[:]); n != 1 || err != nil || b[0] != 'x' {
			t.Error(n, err)
		}
		end()
		_ = p.over()
	})
}

// A Write that waits fails at its deadline, and resets the stream: a part of the body was sent.
func TestWritesHaveDeadlines(t *testing.T) {
	for _, passed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := make(oneCall)
			p := meet(t, Config{Handler: c})
			p.greet(setting{initialWindowSize, 10})
			s, end := p.begun(c, flagEndStream)
			_ = s.Header(okHeader)
			began, want := time.Now(), time.Second
			if s.SetWriteDeadline(began.Add(want)); passed {
				time.Sleep(want)
			}
			n, err := s.Write(make([]byte, 100))
			if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != want || n > 10 {
				t.Errorf("%d bytes and %v after %v", n, err, time.Since(began))
			}
			if code := p.awaitReset(p.id); code != internalError {
				t.Error(code)
			}
			if _, err := s.Write([]byte("x")); err == nil {
				t.Error("a later Write succeeds")
			}
			end()
			_ = p.over()
		})
	}
}

// A deadline also ends a reply that waits for the client when its handler has returned. Replies of
// other streams go on waiting.
func TestHeldRepliesHaveDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(oneCall)
		var memory counter
		p := meet(t, Config{Handler: c, Reserve: memory.take, Release: memory.give})
		p.greet(setting{initialWindowSize, 0})
		for i := range 2 {
			s, end := p.begun(c, flagEndStream)
			if i == 0 {
				s.SetWriteDeadline(time.Now().Add(time.Second))
			}
			_ = s.Reply(okHeader, []byte("body"), okTrailer)
			end()
		}
		for now := range int64(3) {
			p.conn.Tick((1 + now) * int64(time.Second))
			time.Sleep(time.Second)
		}
		if code := p.awaitReset(1); code != internalError {
			t.Error(code)
		}
		p.send(appendWindow(nil, 3, 4))
		p.check(3, "body")
		_ = p.over()
		if n := memory.n.Load(); n != 0 {
			t.Errorf("%d bytes are reserved after the end", n)
		}
	})
}

// A signal is what OnFailure takes.
type signal chan bool

func (s signal) Cancel() { s <- true }

// OnFailure cancels what a handler has given it once, also if the stream has failed before.
func TestHandlersAreToldOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(oneCall)
		p := meet(t, Config{Handler: c})
		p.greet()
		s, end := p.begun(c, 0)
		told := make(signal, 10)
		s.OnFailure(told)
		p.send(appendReset(nil, p.id, cancel))
		<-told
		late := make(signal, 10)
		s.OnFailure(late)
		end()
		if _ = p.over(); len(late) != 1 || len(told) > 0 {
			t.Error(len(late), len(told))
		}
	})
}

// A client has to send SETTINGS in time.
func TestHandshakesHaveADeadline(t *testing.T) {
	for _, greets := range []bool{false, true} {
		p := meet(t, Config{Handshake: 2 * time.Second})
		if greets {
			p.greet()
			p.awaitPong()
		} else {
			p.send([]byte(preface))
		}
		for now := range int64(3) {
			p.conn.Tick((1 + now) * int64(time.Second))
		}
		if greets {
			p.awaitPong()
			_ = p.over()
		} else if err := <-p.served; err != errNoSettings { // it is this error
			t.Error(err)
		}
	}
}

// A connection says whether this side has begun to end it.
func TestConnectionsSayWhetherTheyDrain(t *testing.T) {
	p := meet(t, Config{})
	p.greet()
	before := p.conn.Drained()
	p.conn.Drain()
	if got := fmt.Sprint(before, p.conn.Drained()); got != "false true" {
		t.Error(got)
	}
	_ = p.over()
}
