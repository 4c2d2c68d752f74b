// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// loneLimits has callers sleep at once when they read, or look first.
func loneLimits(polling bool) mux.Limits {
	limits := defaultLimits()
	if !polling {
		limits.Polling = 0
	}
	return limits
}

// eachPolling runs a test with polling and without.
func eachPolling(t *testing.T, test func(t *testing.T, limits mux.Limits)) {
	t.Helper()
	for _, polling := range []bool{false, true} {
		t.Run(fmt.Sprint("polling ", polling), func(t *testing.T) { test(t, loneLimits(polling)) })
	}
}

// A goroutine reads again when no call comes, so that what the peer says of its own accord is
// heard.
func TestAnOfferedConnectionIsWatchedWhenNoCallComes(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
		c, srv := s.overTCP(t)
		for range 3 {
			untilOffered(t, c)
			if _, err := srv.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "a goroutine reads", func() bool { offered, _ := c.Self(); return !offered })
		before := c.Counters()
		srv.Drain()
		eventually(t, "the drain is heard", func() bool { return !c.Usable() })
		if reads := c.Counters().Reads - before.Reads; reads > 2 {
			t.Errorf("%d reads while nothing came but the drain", reads)
		}
		if n := mux.Polling(); n != 0 {
			t.Errorf("%d readers poll on idle connections", n)
		}
	})
}

// A caller that reads its own reply learns when that came, not when the reply before it did.
func TestASingleCallersAnswerSaysWhenItCame(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
		c, _ := s.overTCP(t)
		untilOffered(t, c)
		for range 100 {
			began := monotime.Now()
			a, err := c.Call(context.Background(), &mux.Out{Method: echo})
			if err != nil {
				t.Fatal(err)
			}
			if ended := monotime.Now(); a.At < began || a.At > ended {
				t.Fatalf("the answer says that it came %v after the call began, which took %v", a.At-began, ended-began)
			}
			a.Release()
		}
	})
}

// A call beginning after the peer has gone must be known not to have been sent, although nobody may
// have been reading. Where this test is slower than the timer of the offer, a reader may have been
// started that has not seen the end yet, and the call is not judged.
func TestACallOnAnOfferedConnectionThatHasEndedIsNotSent(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
		judged := 0
		for tries := 0; judged < 20 && tries < 2000; tries++ {
			c, srv := s.overTCP(t)
			untilOffered(t, c)
			began := time.Now()
			mustEcho(t, c, echo, "the last")
			offered, _ := c.Self()
			before := time.Now()
			srv.Abort()
			for time.Since(before) < time.Millisecond {
				runtime.Gosched()
			}
			_, _, err := call(context.Background(), c, echo, "too late")
			switch {
			case notProcessed(err):
				judged++
			case offered && time.Since(began) < mux.SelfReadTime:
				t.Fatalf("a call on a connection that had ended: %v", err)
			}
			c.Close()
		}
		if judged < 20 {
			t.Fatalf("%d of the calls could be judged, want 20", judged)
		}
	})
}

// asleepIn starts a call that is not answered, in a caller that sleeps while it reads for itself.
func asleepIn(ctx context.Context, t *testing.T, c *mux.Conn, out *mux.Out) <-chan error {
	t.Helper()
	untilOffered(t, c)
	ended := make(chan error, 1)
	go func() {
		_, _, err := callOut(ctx, c, out)
		ended <- err
	}()
	eventually(t, "the caller sleeps, or was too late to read for itself", func() bool {
		offered, asleep := c.Self()
		return asleep || !offered && c.Tables().Open == 1 || len(ended) == 1
	})
	return ended
}

func TestTheDeadlineOfACallerThatReads(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		for range 5 {
			release := make(chan struct{})
			s := &setup{limits: limits, serves: map[string]*handler{
				"echo":  {inline: true, serve: answerEcho},
				"other": {serve: func(*mux.Request) { <-release }},
			}}
			c, srv := s.overTCP(t)
			start := time.Now()
			ended := asleepIn(context.Background(), t, c, &mux.Out{Method: other, Deadline: time.Now().Add(100 * time.Millisecond)})
			if err := within(t, "the deadline passes", ended); !errors.Is(err, mux.ErrDeadline) {
				t.Errorf("the call ended with %v", err)
			}
			if took := time.Since(start); took < 100*time.Millisecond {
				t.Errorf("it ended after %v", took)
			}
			mustEcho(t, c, echo, "afterwards")
			close(release)
			wantEmpty(t, "client", c)
			wantEmpty(t, "server", srv)
			untilOffered(t, c)
		}
	})
}

func TestACallerThatReadsEndsWithTheConnection(t *testing.T) {
	ends := map[string]func(c, srv *mux.Conn){
		"closed":           func(c, _ *mux.Conn) { c.Close() },
		"aborted":          func(c, _ *mux.Conn) { c.Abort() },
		"closed by peer":   func(_, srv *mux.Conn) { srv.Close() },
		"aborted by peer":  func(_, srv *mux.Conn) { srv.Abort() },
		"drained by peer":  func(_, srv *mux.Conn) { srv.Drain(); srv.CancelRequests() },
		"socket is closed": func(c, _ *mux.Conn) { c.NetConn().Close() },
	}
	for name, end := range ends {
		eachPolling(t, func(t *testing.T, limits mux.Limits) {
			s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "other": blocked()}}
			c, srv := s.overTCP(t)
			ended := asleepIn(context.Background(), t, c, &mux.Out{Method: other})
			eventually(t, "the request is served", func() bool { return srv.Tables().InOpen == 1 })
			start := time.Now()
			end(c, srv)
			err := within(t, name, ended)
			if want := name == "drained by peer"; (err == nil) != want {
				t.Errorf("%s: the call ended with %v", name, err)
			}
			wantEnd(t, c)
			c.Close()
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
		})
	}
}

// Messages that were sent before a connection is closed in good order arrive, although a caller
// sleeps in a read of it.
func TestClosingDestroysNothingWhenACallerReads(t *testing.T) {
	heard := make(chan string, 10)
	s := &setup{limits: loneLimits(false), serves: map[string]*handler{
		"echo": {inline: true, serve: answerEcho}, "other": blocked(),
		"third": {inline: true, serve: func(r *mux.Request) { heard <- string(r.Body) }},
	}}
	c, _ := s.overTCP(t)
	ended := asleepIn(context.Background(), t, c, &mux.Out{Method: other})
	for i := range 10 {
		if err := c.Notify(t.Context(), &mux.Out{Method: third, Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if err := within(t, "the call ends", ended); !errors.Is(err, mux.ErrClosed) {
		t.Errorf("the call ended with %v", err)
	}
	for i := range 10 {
		if got := within(t, "a message arrives", heard); got != fmt.Sprint(i) {
			t.Errorf("got %q, want %d", got, i)
		}
	}
}

// What the peer asks while a caller reads is served by another goroutine: the caller may hold what
// the handler needs.
func TestACallerThatReadsServesNobody(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		var held sync.Mutex
		var srv *mux.Conn
		asked := make(chan error, 1)
		s := &setup{
			limits: limits,
			serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "other": {serve: func(r *mux.Request) {
				done := make(chan error, 1)
				go func() {
					_, _, err := call(context.Background(), srv, echo, "back")
					done <- err
				}()
				eventually(t, "the call back is open", func() bool { return srv.Tables().Open == 1 })
				asked <- nil
				answerEcho(r)
				r.Reply.Body = append([]byte(nil), r.Reply.Body...)
				go func() { asked <- <-done }()
			}}},
			clientServes: map[string]*handler{"echo": {inline: true, serve: func(r *mux.Request) {
				held.Lock()
				defer held.Unlock()
				answerEcho(r)
			}}},
		}
		var c *mux.Conn
		c, srv = s.overTCP(t)
		for range 5 {
			untilOffered(t, c)
			held.Lock()
			mustEcho(t, c, other, "ask me back")
			held.Unlock()
			for range 2 {
				if err := within(t, "the call back is answered", asked); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Replies of any size, in any pieces, and with anything between them, come to a caller that reads.
func TestWhatACallerReads(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		p, c := (&setup{limits: limits}).facingClient(t)
		p.expectHello()
		p.write(hello(nil), ping(1))
		body := string(filled('x', 30_000))
		go func() {
			for i := 0; ; {
				h, _, err := p.frame()
				if err != nil {
					return
				}
				if h.Type != wire.Request {
					continue
				}
				answer := reply(h.ID, body[:1+i*i%len(body)])
				i++
				cut := rand.N(len(answer))
				switch {
				case i < 31: // so that the reading is offered
				case i%5 == 0:
					answer = append(ping(7), answer...)
				case i%5 == 1:
					answer = append(answer, ping(7)...)
				case i%5 == 2:
					answer = append(reply(h.ID+1<<wire.SlotBits, "of no call"), answer...)
				}
				for _, part := range [][]byte{answer[:cut], answer[cut:]} {
					if _, err := p.nc.Write(part); err != nil {
						return
					}
				}
			}
		}()
		for i := range 300 {
			_, got, err := call(context.Background(), c, echo, "?")
			if want := body[:1+i*i%len(body)]; err != nil || got != want {
				t.Fatalf("call %d: got %d bytes, %v, want %d", i, len(got), err, len(want))
			}
		}
		c.Close()
	})
}

// Lone callers, several ones, callbacks, deadlines and cancellations follow each other at random.
func TestSingleCallersAmongOthers(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		s := &setup{limits: limits, serves: map[string]*handler{
			"echo": {inline: true, serve: answerEcho}, "other": {serve: answerEcho},
			"third": {serve: func(r *mux.Request) { <-r.Done() }},
		}, clientServes: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
		c, srv := s.overTCP(t)
		for round := range 40 {
			var wg sync.WaitGroup
			for range 1 + rand.N(3)*rand.N(2) {
				wg.Go(func() {
					for range 50 {
						mustEcho(t, c, []*mux.Method{echo, other}[rand.N(2)], "some text")
					}
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			switch round % 6 {
			case 0:
				wg.Go(func() { mustEcho(t, srv, echo, "backwards") })
			case 1:
				wg.Go(func() {
					_, _, err := callOut(context.Background(), c, &mux.Out{Method: third, Deadline: time.Now().Add(rand.N(5 * time.Millisecond))})
					if err != nil && !errors.Is(err, mux.ErrDeadline) { // the server's context ends then too
						t.Errorf("instead of the deadline: %v", err)
					}
				})
			case 2:
				wg.Go(func() {
					if _, _, err := call(ctx, c, third, ""); !errors.Is(err, context.Canceled) {
						t.Errorf("instead of being canceled: %v", err)
					}
				})
			case 3:
				wg.Add(1)
				if err := c.Start(ctx, &mux.Out{Method: echo}, completed(func(_ *mux.Answer, err error) {
					defer wg.Done()
					if err != nil {
						t.Error(err)
					}
				})); err != nil {
					t.Fatal(err)
				}
			case 4:
				if _, err := c.Ping(ctx); err != nil {
					t.Error(err)
				}
			}
			if round%6 == 2 {
				cancel()
			}
			wg.Wait()
			cancel()
		}
		wantEmpty(t, "client", c)
		wantEmpty(t, "server", srv)
	})
}

// A lone caller whose context may end is told of that at once also while it could be reading.
func TestASingleCallerIsCanceled(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "other": blocked()}}
		c, _ := s.overTCP(t)
		for range 5 {
			untilOffered(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			if _, _, err := call(ctx, c, other, ""); !errors.Is(err, context.Canceled) {
				t.Errorf("the call ended with %v", err)
			}
		}
	})
}

// One that somebody halts needs no channel for that, and so reads for itself.
func TestACallerThatReadsIsHalted(t *testing.T) {
	eachPolling(t, func(t *testing.T, limits mux.Limits) {
		s := &setup{limits: limits, serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "other": blocked()}}
		c, srv := s.overTCP(t)
		slept := 0
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := asleepIn(&halting{Context: ctx}, t, c, &mux.Out{Method: other})
			if _, asleep := c.Self(); asleep {
				slept++
			}
			cancel()
			if err := within(t, "the call ends", ended); !errors.Is(err, context.Canceled) {
				t.Errorf("the call ended with %v", err)
			}
		}
		t.Logf("%d of 5 slept while they read", slept)
		mustEcho(t, c, echo, "afterwards")
		wantEmpty(t, "client", c)
		wantEmpty(t, "server", srv)
	})
}
