// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// What a handler or a callback on the reading goroutine may do that keeps it from reading.
func blockers(release <-chan struct{}) map[string]func(r *mux.Request) {
	echoed := func(r *mux.Request) {
		r.Scratch = append(r.Scratch, r.Body...)
		r.Reply.Body = r.Scratch
	}
	return map[string]func(r *mux.Request){
		"sleeps":         func(r *mux.Request) { <-release; echoed(r) },
		"asks for Done":  func(r *mux.Request) { r.Done(); <-release; echoed(r) },
		"derives":        func(r *mux.Request) { waitDerived(r, release); echoed(r) },
		"says so":        func(r *mux.Request) { r.Blocking(); <-release; echoed(r) },
		"ends goroutine": func(*mux.Request) { runtime.Goexit() },
	}
}

// waitDerived waits with a context that is derived from the request's.
func waitDerived(r *mux.Request, release <-chan struct{}) {
	ctx, cancel := context.WithCancel(asContext{r})
	defer cancel()
	select {
	case <-release:
	case <-ctx.Done():
	}
}

// asContext is what the root package makes of a request.
type asContext struct{ *mux.Request }

// bothProcs runs a test with one processor and with two: with one nothing runs beside a handler by
// itself.
func bothProcs(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("GOMAXPROCS %d", n), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
			test(t)
		})
	}
}

// delayBound is how long a short call may be held up by one that blocks.
const delayBound = 10 * time.Millisecond

// medianBelow measures a few times, and allows a machine that does other work two more tries.
func medianBelow(t *testing.T, bound time.Duration, measure func() time.Duration) {
	t.Helper()
	var median time.Duration
	for range 3 {
		var took []time.Duration
		for range 7 {
			took = append(took, measure())
		}
		slices.Sort(took)
		if median = took[len(took)/2]; median <= bound {
			return
		}
	}
	t.Errorf("a short call took %v (median), want %v at most", median, bound)
}

func TestShortCallsPassAHandlerThatBlocks(t *testing.T) {
	for name := range blockers(nil) {
		t.Run(name, func(t *testing.T) {
			bothProcs(t, func(t *testing.T) { testBlockingHandler(t, name) })
		})
	}
}

func testBlockingHandler(t *testing.T, name string) {
	t.Attr("rerun", "never")
	release := make(chan struct{}, 100)
	block := blockers(release)[name]
	began := make(chan struct{}, 1)
	var executed, late atomic.Int64
	s := &setup{serves: map[string]*handler{
		"echo": {inline: true, serve: func(r *mux.Request) { executed.Add(1); answerEcho(r) }},
		"other": {
			inline: true,
			serve:  func(r *mux.Request) { executed.Add(1); began <- struct{}{}; block(r) },
			done: func(_ *mux.Request, handedOver bool) {
				if handedOver {
					late.Add(1)
				}
			},
		},
	}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first") // the handshake
	calls := int64(1)
	medianBelow(t, delayBound, func() time.Duration {
		type outcome struct {
			code  uint16
			reply string
			err   error
		}
		slow := make(chan outcome, 1)
		go func() {
			code, reply, err := call(context.Background(), c, other, "slow")
			slow <- outcome{code, reply, err}
		}()
		within(t, "the blocking handler runs", began)
		start := time.Now()
		mustEcho(t, c, echo, "short")
		took := time.Since(start)
		mustEcho(t, c, echo, "short too") // by the new reader
		release <- struct{}{}
		got := within(t, "the late call is answered", slow)
		want := outcome{reply: "slow"}
		if name == "ends goroutine" {
			<-release
			want = outcome{code: codeInternal}
		}
		if got != want {
			t.Errorf("the late call: got %+v, want %+v", got, want)
		}
		calls += 3
		return took
	})
	eventually(t, "each late call is known to be late", func() bool { return late.Load() == (calls-1)/3 })
	if n := executed.Load(); n != calls {
		t.Errorf("%d calls were executed %d times", calls, n)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// What a callback may do on the reading goroutine.
func TestShortCallsPassACallbackThatBlocks(t *testing.T) {
	for _, name := range []string{"sleeps", "calls", "ends goroutine"} {
		t.Run(name, func(t *testing.T) {
			bothProcs(t, func(t *testing.T) { testBlockingCallback(t, name) })
		})
	}
}

func testBlockingCallback(t *testing.T, name string) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	medianBelow(t, delayBound, func() time.Duration {
		release, began, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		err := c.Start(context.Background(), &mux.Out{Method: echo, Body: []byte("callback")}, completed(func(a *mux.Answer, err error) {
			defer close(ended)
			close(began)
			if err != nil || string(a.Body) != "callback" {
				t.Errorf("callback: got %+v, %v", a, err)
			}
			switch name {
			case "sleeps":
				<-release
			case "calls":
				mustEcho(t, c, echo, "from the callback")
				<-release
			case "ends goroutine":
				runtime.Goexit()
			}
			if string(a.Body) != "callback" {
				t.Errorf("the answer changed to %q while the callback had it", a.Body)
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the callback runs", began)
		start := time.Now()
		mustEcho(t, c, echo, "short")
		took := time.Since(start)
		close(release)
		within(t, "the callback ends", ended)
		return took
	})
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A callback that blocks stands before a frame that the reader had already taken from its buffer.
func TestAFrameBehindABlockingCallbackIsNotLost(t *testing.T) {
	t.Attr("rerun", "never")
	s := &setup{clientServes: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	peer, c := s.facingClient(t)
	release := make(chan struct{})
	began := make(chan struct{})
	err := c.Start(context.Background(), &mux.Out{Method: echo}, completed(func(*mux.Answer, error) {
		close(began)
		<-release
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer close(release)
	peer.expectHello()
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	peer.write(hello(nil), method(0, "echo"), reply(h.ID, "x"), request(0, callID(0, 1), "behind the reply"), ping(7))
	within(t, "the callback runs", began)
	got := map[wire.Type]string{}
	for range 3 {
		h, frame, err := peer.frame()
		if err != nil {
			t.Fatalf("got only %q: %v", got, err)
		}
		got[h.Type] = messageOf(h, frame)
	}
	if got[wire.Reply] != "behind the reply" || got[wire.Pong] != "\a\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("got %q", got)
	}
}

// Replies that were read before a callback blocked reach their callers whatever happens then.
func TestRepliesBehindABlockingCallbackAreNotLost(t *testing.T) {
	t.Attr("rerun", "never")
	s := &setup{
		limits:       mux.Limits{MaxMessage: 1 << 20, MaxOpen: 100, MaxOpenBytes: 16 << 20, MaxMethods: 10, MaxUnsent: 1000},
		clientServes: map[string]*handler{"echo": {inline: true, serve: answerEcho}},
	}
	client, server := memoryPair(4 << 10)
	c := mux.New(client, nil, true, s.config(t, s.client, s.clientServes))
	defer c.Close()
	peer := newRawPeer(t, server)
	release, began := make(chan struct{}), make(chan struct{})
	defer close(release)
	err := c.Start(context.Background(), &mux.Out{Method: echo}, completed(func(*mux.Answer, error) {
		close(began)
		<-release
	}))
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, _, err := call(context.Background(), c, echo, "second")
		answered <- err
	}()
	peer.expectHello()
	peer.expect(wire.Method)
	first, _ := peer.expect(wire.Request)
	second, _ := peer.expect(wire.Request)
	// From here on the peer does not read, and more is to be sent than it has room for.
	for range 2 {
		go func() { _, _, _ = call(context.Background(), c, echo, string(make([]byte, 60<<10))) }()
	}
	eventually(t, "output waits", func() bool { return c.Tables().Unsent > 50_000 })
	peer.write(hello(nil), method(0, "echo"), request(0, callID(0, 1), "x"), reply(first.ID, ""), reply(second.ID, ""))
	within(t, "the callback runs", began)
	peer.nc.Close()
	within(t, "the second call ends", answered)
}

func TestACallMadeByAHandlerWithItsOwnContext(t *testing.T) {
	answered := make(chan error, 1)
	s := &setup{
		serves: map[string]*handler{"echo": {inline: true, serve: func(r *mux.Request) {
			err := r.Conn().Start(asContext{r}, &mux.Out{Method: other, Body: r.Body}, completed(func(_ *mux.Answer, err error) { answered <- err }))
			if err != nil {
				answered <- err
			}
			select {
			case err := <-answered:
				answered <- err
			case <-r.Done():
			}
			answerEcho(r)
		}}},
		clientServes: map[string]*handler{"other": {inline: true, serve: answerEcho}},
	}
	c, _ := s.overTCP(t)
	mustEcho(t, c, echo, "there and back")
	if err := within(t, "the call back ends", answered); err != nil {
		t.Error(err)
	}
}

// A reply that does not fit in one frame is sent piece by piece, while the reader goes on and
// reuses its memory.
func TestALargeReplyOfAShortHandlerIsNotOverwritten(t *testing.T) {
	type owned struct {
		mux.Request
		fields wire.Fields
	}
	s := &setup{serves: map[string]*handler{
		"echo": {inline: true, serve: answerEcho},
		"other": {inline: true, serve: func(r *mux.Request) {
			o := new(owned)
			r.Scratch = append(append(r.Scratch, r.Body...), r.Body...)
			o.fields.Metadata = r.Scratch[:1000]
			r.Reply = mux.Outcome{Body: r.Scratch, Attachment: r.Attachment, Fields: &o.fields}
		}},
	}}
	c, srv := s.overTCP(t)
	for round := range 50 {
		fill := byte('a' + round%26)
		body, attachment := filled(fill, 30_000), filled(fill+1, 30_000)
		got := make(chan struct{})
		err := c.Start(context.Background(), &mux.Out{Method: other, Body: body, Attachment: attachment}, completed(func(a *mux.Answer, err error) {
			defer close(got)
			if err != nil {
				t.Error(err)
				return
			}
			var f wire.Fields
			if err := wire.ParseFields(a.Fields, &f); err != nil {
				t.Error(err)
			}
			if string(a.Body) != string(body)+string(body) || string(a.Attachment) != string(attachment) || string(f.Metadata) != string(body[:1000]) {
				t.Errorf("round %d: the reply is not what was sent: %.10q… %.10q… %.10q…", round, a.Body, a.Attachment, f.Metadata)
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			mustEcho(t, c, echo, string(filled('!', 50_000)))
		}
		within(t, "the large reply comes", got)
	}
	wantEmpty(t, "the server", srv)
}

func filled(with byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = with
	}
	return b
}

// The end of a connection reaches everybody, whatever one callback does.
func TestACallbackThatBlocksDoesNotHoldUpTheEnd(t *testing.T) {
	for _, how := range []string{"end", "deadline"} {
		t.Run(how, func(t *testing.T) {
			peer, c := new(setup).facingClient(t)
			release := make(chan struct{})
			defer close(release)
			out := mux.Out{Method: echo}
			if how == "deadline" {
				out.Deadline = time.Now().Add(50 * time.Millisecond)
			}
			told := make(chan error, 10)
			for range 5 {
				o := out
				err := c.Start(context.Background(), &o, completed(func(_ *mux.Answer, err error) {
					told <- err
					<-release
				}))
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					o := out
					_, _, err := callOut(context.Background(), c, &o)
					told <- err
				}()
			}
			peer.expectHello()
			peer.write(hello(nil))
			peer.expect(wire.Method)
			for range 10 {
				peer.expect(wire.Request)
			}
			if how == "end" {
				peer.nc.Close()
			}
			for range 10 {
				if err := within(t, "each call is told", told); err == nil {
					t.Error("a call without a reply succeeded")
				}
			}
		})
	}
}

// What a handler that was held up leaves behind does not disturb the readers after it.
func TestManyHandersBlockInARow(t *testing.T) {
	const calls = 30
	release := make(chan struct{})
	var executed atomic.Int64
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: func(r *mux.Request) {
		executed.Add(1)
		<-release
		answerEcho(r)
	}}}}
	c, srv := s.overTCP(t)
	answered := make(chan error, calls)
	for i := range calls {
		body := fmt.Sprint(i)
		err := c.Start(context.Background(), &mux.Out{Method: echo, Body: []byte(body)}, completed(func(a *mux.Answer, err error) {
			if err == nil && string(a.Body) != body {
				err = fmt.Errorf("got %q, want %q", a.Body, body)
			}
			answered <- err
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all handlers run at once", func() bool { return executed.Load() == calls })
	close(release)
	for range calls {
		if err := within(t, "each is answered", answered); err != nil {
			t.Error(err)
		}
	}
	wantEmpty(t, "the server", srv)
}

// Many handlers that block may stand in one buffer: what follows each of them is handed over, not
// copied.
func TestHandingOverCopiesNothing(t *testing.T) {
	const handlers = 1000
	release := make(chan struct{})
	var running atomic.Int64
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: func(r *mux.Request) {
		r.Blocking()
		running.Add(1)
		<-release
		answerEcho(r)
	}}}}
	client, server := memoryPair(0)
	srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
	t.Cleanup(srv.Close)
	peer := newRawPeer(t, client)
	body := string(filled('x', 100))
	flood := func(generation uint32) {
		var all [][]byte
		for i := range uint32(handlers) {
			all = append(all, request(0, callID(i, generation), body))
		}
		peer.write(all...)
	}
	peer.write(hello(nil), method(0, "echo"))
	used := allocated(func() {
		flood(1)
		eventually(t, "all handlers run", func() bool { return running.Load() == handlers })
	})
	if each := used / handlers; each > 10_000 {
		t.Errorf("each handler that blocks costs %d bytes", each)
	}
	close(release)
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	for range handlers {
		h, frame := peer.expect(wire.Reply)
		if got := messageOf(h, frame); got != body {
			t.Errorf("got reply %+v %.20q", h, got)
		}
	}
	wantEmpty(t, "the server", srv)
}
