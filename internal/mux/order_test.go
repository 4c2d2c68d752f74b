// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

const (
	codeNotFound = 5
	idSkipped    = "YDL3005"
)

// ordered is a request with a key and an epoch.
func ordered(number uint16, id uint32, key string, epoch uint64, body string) []byte {
	h := wire.Header{Type: wire.Request, Arg: number, ID: id}
	if id == 0 {
		h.Flags = wire.OneWay
	}
	return frameOf(h, &wire.Fields{Key: []byte(key), Epoch: epoch}, []byte(body))
}

func cancelOf(id uint32, code uint16) []byte {
	return frameOf(wire.Header{Type: wire.Cancel, Arg: code, ID: id}, nil, nil)
}

// A record is what handlers have begun with, in order.
type record struct {
	mu    sync.Mutex
	begun []string
}

func (r *record) add(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = append(r.begun, what)
}

// String returns it, for tests to compare.
func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.begun, " ")
}

// A gate is a method that notes what it was called with and waits for a word that lets it through:
// how it ends.
type gate struct {
	record
	words chan string
}

func newGate() *gate { return &gate{words: make(chan string)} }

// say lets the one that waits at the gate through.
func (g *gate) say(t *testing.T, word string) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case g.words <- word:
	case <-late.C:
		t.Fatalf("nobody waits at the gate; until now came: %s", g)
	}
}

func (g *gate) serve(r *mux.Request) {
	body := string(r.Body)
	if r.Err() != nil { // as every server: what nobody wants is not begun
		r.Reply = mux.Outcome{Code: codeCanceled, NotProcessed: true}
		return
	}
	g.add(body)
	switch <-g.words {
	case "refuse":
		r.Reply = mux.Outcome{Code: codeNotFound, NotProcessed: true}
	case "fail":
		r.Reply = mux.Outcome{Code: codeNotFound}
	default:
		answerEcho(r)
	}
}

// facingGate returns a server with a method 0 that is a gate and a method 1 that answers at once,
// and its peer.
func facingGate(t *testing.T, limits mux.Limits) (*rawPeer, *mux.Conn, *gate) {
	t.Helper()
	g := newGate()
	s := &setup{
		server: mux.Config{Limits: limits},
		serves: map[string]*handler{"gate": {inline: true, serve: g.serve}, "echo": {inline: true, serve: answerEcho}},
	}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "gate"), method(1, "echo"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	peer.expect(wire.MethodInfo)
	return peer, srv, g
}

func (p *rawPeer) expectSkipped(id uint32) {
	p.t.Helper()
	h, f, _ := p.expectReply(id)
	if h.Arg != codeUnavailable || h.Flags&wire.NotProcessed == 0 || string(f.ErrorID) != idSkipped {
		p.t.Errorf("%#x: got %+v, error id %q, want a refusal because of an earlier one", id, h, f.ErrorID)
	}
}

func (p *rawPeer) expectCode(id uint32, code uint16) {
	p.t.Helper()
	if h, f, _ := p.expectReply(id); h.Arg != code {
		p.t.Errorf("%#x: got code %d, %q, want %d", id, h.Arg, f.Message, code)
	}
}

// Requests of one key are executed one after the other, whether their method is short or not, while
// those of other keys and without a key go on beside them.
func TestOrderedRequestsAreExecutedInTurn(t *testing.T) {
	t.Attr("rerun", "never")
	const keys, each = 8, 300
	var running [keys]atomic.Int32
	var next [keys]int
	all := make(chan struct{})
	var waiting atomic.Int32
	serve := func(r *mux.Request) {
		var key, n int
		if _, err := fmt.Sscanf(string(r.Body), "%d %d", &key, &n); err != nil {
			t.Error(err)
		}
		if running[key].Add(1) != 1 {
			t.Errorf("two of key %d are executed at once", key)
		}
		if next[key] != n {
			t.Errorf("key %d: number %d is executed, want %d", key, n, next[key])
		}
		next[key] = n + 1
		if n == 0 { // the first of each key waits for the first of all: keys go on beside each other
			if waiting.Add(1) == keys {
				close(all)
			}
			<-all
		}
		if rand.IntN(20) == 0 {
			<-time.After(time.Duration(rand.IntN(1000)) * time.Microsecond) // a handler that takes some time
		}
		answerEcho(r)
		if rand.IntN(50) == 0 {
			r.Reply.Body = make([]byte, 200<<10)
		}
		running[key].Add(-1)
	}
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: serve}, "other": {serve: serve}, "third": {inline: true, serve: answerEcho}}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, third, "first")
	var ended sync.WaitGroup
	ended.Add(keys * each)
	for n := range each {
		for key := range keys {
			out := &mux.Out{Method: []*mux.Method{echo, other}[n%2], Body: fmt.Appendf(nil, "%d %d", key, n)}
			out.Fields.Key, out.Fields.Epoch = fmt.Append(nil, key), 1
			if n%10 == 9 {
				out.Attachment = make([]byte, 200<<10)
			}
			if err := c.Start(context.Background(), out, completed(func(a *mux.Answer, err error) {
				if err != nil || a.Code != 0 {
					t.Errorf("key %d number %d: %v", key, n, err)
				}
				// a callback that loses the reading is overtaken by others: their order is the
				// business of the owner
				ended.Done()
			})); err != nil {
				t.Fatal(err)
			}
		}
		mustEcho(t, c, third, "beside them")
	}
	ended.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A request that comes in pieces has its turn when the last piece has come: until then it holds
// nobody up.
func TestLargeOrderedRequestsHaveTheirTurnWhenTheyAreWhole(t *testing.T) {
	t.Attr("rerun", "never")
	peer, srv, g := facingGate(t, mux.Limits{})
	open := func(id uint32, key string) []byte {
		return frameOf(wire.Header{Type: wire.Request, Flags: wire.More, ID: id}, &wire.Fields{Size: 10, Key: []byte(key), Epoch: 1}, []byte("large"))
	}
	rest := func(id uint32, text string) []byte {
		return frameOf(wire.Header{Type: wire.Data, ID: id}, nil, []byte(text))
	}
	large, small, broken, behind := callID(0, 1), callID(1, 1), callID(2, 1), callID(3, 1)
	peer.write(open(large, "k"), ordered(0, small, "k", 1, "small"))
	g.say(t, "go")
	peer.expectCode(small, 0)
	peer.write(rest(large, " one."), ordered(0, small+1<<wire.SlotBits, "k", 1, "last"))
	g.say(t, "go")
	peer.expectCode(large, 0)
	g.say(t, "go")
	peer.expectCode(small+1<<wire.SlotBits, 0)
	if got := g.String(); got != "small large one. last" {
		t.Errorf("executed: %s", got)
	}
	// The pieces of one that is refused before it has come whole are dropped, and it is not
	// executed in the end.
	peer.write(open(broken, "k"), ordered(0, behind, "k", 1, "refused"))
	g.say(t, "refuse")
	peer.expectCode(behind, codeNotFound)
	peer.write(rest(broken, " two."))
	peer.expectSkipped(broken)
	peer.write(open(broken+1<<wire.SlotBits, "k"), rest(broken+1<<wire.SlotBits, " six."))
	peer.expectSkipped(broken + 1<<wire.SlotBits)
	wantEmpty(t, "the server", srv)
}

// The next one begins when the last piece of the reply before has been queued.
func TestTheNextBeginsBehindALargeReply(t *testing.T) {
	limits := defaultLimits()
	var begun atomic.Int32
	size := 4 << 20
	s := &setup{server: mux.Config{Limits: limits}, serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
		if begun.Add(1) == 1 {
			r.Reply.Body = make([]byte, size)
		}
	}}}}
	client, server := memoryPair(64 << 10)
	srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
	t.Cleanup(srv.Close)
	peer := newRawPeer(t, client)
	peer.write(hello(nil), method(0, "echo"), ordered(0, callID(0, 1), "", 1, ""), ordered(0, callID(1, 1), "", 1, ""))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	for got := 0; got < size; {
		h, frame, err := peer.frame()
		if err != nil || h.ID != callID(0, 1) {
			t.Fatalf("got %+v, %v", h, err)
		}
		if size-got > 1<<20 && begun.Load() != 1 { // more than can be on its way
			t.Fatal("the second began before the reply to the first was queued")
		}
		got += len(frame) - wire.HeaderSize
		if h.Type == wire.Reply {
			fields, _, _ := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
			got -= len(fields) + 2
		}
	}
	peer.expectCode(callID(1, 1), 0)
}

// A refusal, whoever refuses, breaks the key: what waits and what comes behind it is refused, until
// a new epoch.
func TestARefusalBreaksItsKey(t *testing.T) {
	limits := defaultLimits()
	limits.MaxOpen, limits.MaxOpenBytes, limits.MaxMessage = 8, 1000, 200
	t.Run("by the handler", func(t *testing.T) {
		peer, srv, g := facingGate(t, limits)
		peer.write(ordered(0, callID(0, 1), "k", 5, "a"), ordered(0, callID(1, 1), "k", 5, "b"), ordered(1, callID(2, 1), "k", 5, "c"),
			ordered(0, callID(3, 1), "other", 5, "x"))
		g.say(t, "refuse")
		g.say(t, "refuse") // both keys, in whichever order
		replies := map[uint32]uint16{}
		for range 4 {
			h, _ := peer.expect(wire.Reply)
			replies[h.ID] = h.Arg
			if h.Flags&wire.NotProcessed == 0 {
				t.Errorf("got %+v, want a refusal", h)
			}
		}
		if replies[callID(1, 1)] != codeUnavailable || replies[callID(2, 1)] != codeUnavailable || replies[callID(3, 1)] != codeNotFound {
			t.Errorf("got codes %v", replies)
		}
		peer.write(ordered(1, callID(0, 2), "k", 5, "d"))
		peer.expectSkipped(callID(0, 2))
		peer.write(ordered(1, callID(0, 3), "k", 4, "e"))
		peer.expectSkipped(callID(0, 3))
		peer.write(ordered(1, callID(0, 4), "k", 6, "f")) // the next epoch
		peer.expectCode(callID(0, 4), 0)
		peer.write(ordered(1, callID(0, 5), "k", 6, "g"))
		peer.expectCode(callID(0, 5), 0)
		peer.write(ordered(1, callID(0, 6), "third", 5, "h")) // another key was never broken
		peer.expectCode(callID(0, 6), 0)
		wantEmpty(t, "the server", srv)
	})
	t.Run("not by a failure", func(t *testing.T) {
		peer, _, g := facingGate(t, limits)
		peer.write(ordered(0, callID(0, 1), "k", 5, "a"), ordered(1, callID(1, 1), "k", 5, "b"))
		g.say(t, "fail")
		peer.expectCode(callID(0, 1), codeNotFound)
		peer.expectCode(callID(1, 1), 0)
	})
	t.Run("by a limit", func(t *testing.T) {
		peer, _, g := facingGate(t, limits)
		peer.write(ordered(0, callID(0, 1), "k", 5, "a"), ordered(0, callID(1, 1), "k", 5, strings.Repeat("x", 201)), ordered(1, callID(2, 1), "k", 5, "c"))
		peer.expectCode(callID(1, 1), codeExhausted)
		peer.expectSkipped(callID(2, 1))
		g.say(t, "go") // what came before is not concerned
		peer.expectCode(callID(0, 1), 0)
		peer.write(ordered(1, callID(3, 1), "k", 6, "d"))
		peer.expectCode(callID(3, 1), 0)
	})
	t.Run("by a drain", func(t *testing.T) {
		peer, srv, g := facingGate(t, limits)
		peer.write(ordered(0, callID(0, 1), "k", 5, "a"), ordered(1, callID(1, 1), "k", 5, "b"))
		eventually(t, "both have come", func() bool { return srv.Tables().InOpen == 2 })
		srv.Drain()
		peer.expect(wire.GoAway)
		peer.write(ordered(1, callID(2, 1), "k", 5, "c"), ordered(1, callID(3, 1), "k", 5, "d"))
		h, f, _ := peer.expectReply(callID(2, 1))
		if h.Arg != codeUnavailable || string(f.ErrorID) != "YDL3004" {
			t.Errorf("got %+v %q", h, f.ErrorID)
		}
		peer.expectSkipped(callID(3, 1))
		g.say(t, "go") // what was accepted is executed
		peer.expectCode(callID(0, 1), 0)
		peer.expectCode(callID(1, 1), 0)
	})
	t.Run("one-way too", func(t *testing.T) {
		peer, srv, g := facingGate(t, limits)
		peer.write(ordered(0, callID(0, 1), "k", 5, "a"), ordered(0, 0, "k", 5, "b"))
		eventually(t, "both have come", func() bool { return srv.Tables().InOpen == 2 })
		g.say(t, "refuse")
		peer.expectCode(callID(0, 1), codeNotFound)
		peer.write(ordered(0, 0, "k", 5, "c"), ordered(1, callID(0, 2), "k", 6, "d"))
		peer.expectCode(callID(0, 2), 0)
		if got := g.String(); got != "a" {
			t.Errorf("executed: %s", got)
		}
		wantEmpty(t, "the server", srv)
	})
}

// A request that is canceled while it waits is answered at once, is never executed, and those
// behind it are.
func TestAWaitingRequestIsCanceledAtOnce(t *testing.T) {
	peer, srv, g := facingGate(t, mux.Limits{})
	for i, body := range []string{"a", "b", "c", "d"} {
		peer.write(ordered(0, callID(uint32(i), 1), "k", 1, body))
	}
	peer.write(cancelOf(callID(1, 1), codeDeadline), cancelOf(callID(3, 1), 0))
	for _, id := range []uint32{callID(1, 1), callID(3, 1)} {
		h, _, _ := peer.expectReply(id)
		if want := map[uint32]uint16{callID(1, 1): codeDeadline, callID(3, 1): codeCanceled}[id]; h.Arg != want || h.Flags&wire.NotProcessed == 0 {
			t.Errorf("got %+v, want code %d, not processed", h, want)
		}
	}
	eventually(t, "the first one has begun", func() bool { return g.String() == "a" })
	peer.write(cancelOf(callID(0, 1), codeCanceled), ordered(0, callID(1, 2), "k", 1, "e"))
	eventually(t, "the request behind the cancellation has come", func() bool { return srv.Tables().InOpen == 3 })
	g.say(t, "refuse") // as a handler does that had not really begun
	peer.expectCode(callID(0, 1), codeNotFound)
	g.say(t, "go")
	peer.expectCode(callID(2, 1), 0)
	g.say(t, "go")
	peer.expectCode(callID(1, 2), 0)
	if got := g.String(); got != "a c e" {
		t.Errorf("executed: %s", got)
	}
	wantEmpty(t, "the server", srv)
}

// A request whose time passes while it waits is not executed, and does not break its key.
func TestAnOrderedRequestThatIsLateBreaksNothing(t *testing.T) {
	g := newGate()
	s := &setup{serves: map[string]*handler{"gate": {serve: g.serve}, "echo": {serve: answerEcho}}}
	peer, srv := s.facingServer(t)
	late := frameOf(wire.Header{Type: wire.Request, Arg: 1, ID: callID(1, 1)}, &wire.Fields{Key: []byte("k"), Epoch: 1, Timeout: 1}, nil)
	peer.write(hello(nil), method(0, "gate"), method(1, "echo"), ordered(0, callID(0, 1), "k", 1, "a"), late, ordered(1, callID(2, 1), "k", 1, "c"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	peer.expect(wire.MethodInfo)
	eventually(t, "all have come", func() bool { return srv.Tables().InOpen == 3 })
	g.say(t, "go")
	peer.expectCode(callID(0, 1), 0)
	peer.expectCode(callID(1, 1), codeDeadline)
	peer.expectCode(callID(2, 1), 0)
}

// Broken keys take bounded memory: beyond that all keys are broken together, and go on in new
// epochs.
func TestBrokenKeysAreBounded(t *testing.T) {
	for _, test := range []struct {
		name string
		keys int
		key  string
	}{{"many", mux.MaxBroken, "key"}, {"long", 20, strings.Repeat("long ", 640)}} {
		t.Run(test.name, func(t *testing.T) {
			s := &setup{serves: map[string]*handler{
				"refuse": {serve: func(r *mux.Request) { r.Reply = mux.Outcome{Code: codeNotFound, NotProcessed: true} }},
				"echo":   {serve: answerEcho},
			}}
			peer, srv := s.facingServer(t)
			peer.write(hello(nil), method(0, "refuse"), method(1, "echo"))
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			peer.expect(wire.MethodInfo)
			id := callID(0, 1)
			for i := range test.keys {
				peer.write(ordered(0, id, fmt.Sprint(test.key, i), uint64(i+1), ""))
				peer.expectCode(id, codeNotFound)
				id = wire.NextID(id)
			}
			if keys, floor := srv.Broken(); keys != test.keys || floor != 0 {
				t.Fatalf("%d keys are remembered, and all up to %d", keys, floor)
			}
			peer.write(ordered(1, id, "healthy", 9000, "")) // the highest that was seen
			peer.expectCode(id, 0)
			id = wire.NextID(id)
			peer.write(ordered(0, id, test.key+"one more", 5000, ""))
			peer.expectCode(id, codeNotFound)
			id = wire.NextID(id)
			if keys, floor := srv.Broken(); keys != 0 || floor != 9000 {
				t.Errorf("%d keys are remembered, and all up to %d", keys, floor)
			}
			for _, key := range []string{test.key + "one more", test.key + "3", "healthy"} {
				peer.write(ordered(1, id, key, 9000, ""))
				peer.expectSkipped(id)
				id = wire.NextID(id)
				peer.write(ordered(1, id, key, 9001, ""))
				peer.expectCode(id, 0)
				id = wire.NextID(id)
			}
			wantEmpty(t, "the server", srv)
		})
	}
}

// A key that is mended leaves nothing.
func TestANewEpochMendsItsKey(t *testing.T) {
	peer, srv, g := facingGate(t, mux.Limits{})
	id := callID(0, 1)
	for epoch := uint64(1); epoch < 3*mux.MaxBroken; epoch++ {
		peer.write(ordered(0, id, "k", epoch, ""))
		g.say(t, "refuse")
		peer.expectCode(id, codeNotFound)
		id = wire.NextID(id)
	}
	if keys, floor := srv.Broken(); keys != 1 || floor != 0 {
		t.Errorf("%d keys are broken, and all up to %d", keys, floor)
	}
	peer.write(ordered(1, id, "k", 1<<40, ""))
	peer.expectCode(id, 0)
	if keys, floor := srv.Broken(); keys != 0 || floor != 0 {
		t.Errorf("%d keys are broken, and all up to %d", keys, floor)
	}
}

// One-way requests have their turn too. With an id they get a final frame, and without an answer
// both kinds survive the connection and a drain.
func TestOrderedOneWayRequestsHaveTheirTurn(t *testing.T) {
	t.Attr("rerun", "never")
	withID := func(id uint32, body string) []byte {
		return frameOf(wire.Header{Type: wire.Request, ID: id, Flags: wire.OneWay}, &wire.Fields{Key: []byte("k"), Epoch: 1}, []byte(body))
	}
	t.Run("between others", func(t *testing.T) {
		peer, srv, g := facingGate(t, mux.Limits{})
		peer.write(ordered(0, callID(0, 1), "k", 1, "a"), ordered(0, 0, "k", 1, "b"), withID(callID(1, 1), "c"), ordered(0, callID(2, 1), "k", 1, "d"))
		g.say(t, "go")
		peer.expectCode(callID(0, 1), 0)
		g.say(t, "go")
		g.say(t, "go")
		peer.expectCode(callID(1, 1), 0)
		g.say(t, "go")
		peer.expectCode(callID(2, 1), 0)
		if got := g.String(); got != "a b c d" {
			t.Errorf("executed: %s", got)
		}
		wantEmpty(t, "the server", srv)
	})
	t.Run("the connection ends", func(t *testing.T) {
		peer, srv, g := facingGate(t, mux.Limits{})
		peer.write(ordered(0, 0, "k", 1, "a"), ordered(0, callID(0, 1), "k", 1, "b"), ordered(0, 0, "k", 1, "c"), withID(callID(1, 1), "d"))
		eventually(t, "all have come", func() bool { return srv.Tables().InOpen == 4 })
		peer.nc.Close()
		wantEnd(t, srv)
		for range 3 {
			g.say(t, "go")
		}
		wantEmpty(t, "the server", srv)
		if got := g.String(); got != "a c d" {
			t.Errorf("executed: %s", got)
		}
	})
	t.Run("during a drain", func(t *testing.T) {
		peer, srv, g := facingGate(t, mux.Limits{})
		peer.write(ordered(0, callID(0, 1), "k", 1, "a"))
		eventually(t, "it has come", func() bool { return srv.Tables().InOpen == 1 })
		srv.Drain()
		peer.expect(wire.GoAway)
		peer.write(ordered(0, 0, "k", 1, "b"), withID(callID(1, 1), "c"))
		for range 3 {
			g.say(t, "go")
		}
		peer.expectCode(callID(0, 1), 0)
		peer.expectCode(callID(1, 1), 0)
		wantEmpty(t, "the server", srv)
		if got := g.String(); got != "a b c" {
			t.Errorf("executed: %s", got)
		}
	})
}

// Waiting requests end with their connection: none is executed, nothing is left.
func TestWaitingRequestsEndWithTheirConnection(t *testing.T) {
	peer, srv, g := facingGate(t, mux.Limits{})
	for i := range 100 {
		peer.write(ordered(0, callID(uint32(i), 1), "k", 1, fmt.Sprint(i)))
	}
	eventually(t, "all have come and the first is at the gate", func() bool { return srv.Tables().InOpen == 100 && g.String() == "0" })
	peer.nc.Close()
	wantEnd(t, srv)
	g.say(t, "go")
	wantEmpty(t, "the server", srv)
	if got := g.String(); got != "0" {
		t.Errorf("executed: %s", got)
	}
}

// A follower is a caller that wants to know the true end too.
type follower struct {
	ended, over chan error
	reply       chan string
}

func newFollower() *follower {
	return &follower{make(chan error, 2), make(chan error, 2), make(chan string, 2)}
}

func (f *follower) Complete(a *mux.Answer, err error) {
	if err == nil {
		f.reply <- string(a.Body)
	}
	f.ended <- err
}

func (f *follower) Abandoned() mux.Completer {
	return completed(func(_ *mux.Answer, err error) { f.over <- err })
}

// Who has given up a call is told of its true end all the same, if it wants: the final frame, or
// the connection's end.
func TestAFollowerIsToldOfTheTrueEnd(t *testing.T) {
	errGone := errors.New("gone")
	for _, way := range []string{"context", "deadline"} {
		for _, end := range []string{"reply", "large reply", "half a large reply", "connection"} {
			t.Run(way+", "+end, func(t *testing.T) {
				peer, c := new(setup).facingClient(t)
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				f := newFollower()
				out := &mux.Out{Method: echo, Body: []byte("x")}
				want := errGone
				if way == "deadline" {
					out.Deadline, want = time.Now().Add(50*time.Millisecond), mux.ErrDeadline
				}
				peer.write(hello(nil))
				if err := c.Start(ctx, out, f); err != nil {
					t.Fatal(err)
				}
				peer.expectHello()
				peer.expect(wire.Method)
				h, _ := peer.expect(wire.Request)
				opening := frameOf(wire.Header{Type: wire.Reply, Flags: wire.More, ID: h.ID}, &wire.Fields{Size: 8}, []byte("half"))
				rest := frameOf(wire.Header{Type: wire.Data, Flags: wire.OfReply, ID: h.ID}, nil, []byte("half"))
				if end == "half a large reply" {
					peer.write(opening, ping(1))
					peer.expect(wire.Pong)
				}
				if way == "context" {
					cancel(errGone)
				}
				if err := within(t, "the call ends", f.ended); !errors.Is(err, want) {
					t.Errorf("it ended with %v, want %v", err, want)
				}
				peer.expect(wire.Cancel)
				if c.Tables().Taken != 1 {
					t.Error("the slot is free")
				}
				switch end {
				case "reply":
					peer.write(reply(h.ID, "too late"))
				case "large reply":
					peer.write(opening, rest)
				case "half a large reply":
					peer.write(rest)
				default:
					peer.nc.Close()
				}
				err := within(t, "the follower is told", f.over)
				var lost *mux.CallError
				if got := errors.As(err, &lost); got != (end == "connection") || got && lost.NotProcessed {
					t.Errorf("it was told %v", err)
				}
				wantEmpty(t, "the client", c)
				if len(f.ended)+len(f.over)+len(f.reply) != 0 {
					t.Error("it was told twice")
				}
			})
		}
	}
}

// A call that is answered in time is told once.
func TestAFollowerOfAnAnsweredCall(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	c, _ := s.overTCP(t)
	ctx, cancel := context.WithCancel(context.Background())
	f := newFollower()
	if err := c.Start(ctx, &mux.Out{Method: echo, Body: []byte("x")}, f); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the call ends", f.ended); err != nil {
		t.Error(err)
	}
	cancel()
	mustEcho(t, c, echo, "afterwards")
	if len(f.over) != 0 {
		t.Error("it was told twice")
	}
}

// A one-way request that is followed has an id and a final frame, and is not canceled by its
// caller's time or context.
func TestAFollowedOneWayRequestIsToldItsEnd(t *testing.T) {
	for _, size := range []int{10, 200 << 10} {
		g := newGate()
		s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
			g.add(fmt.Sprint(len(r.Body), r.OneWay))
			<-g.words
		}}}}
		c, srv := s.overTCP(t)
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error, 1)
		out := &mux.Out{Method: echo, Body: make([]byte, size), Deadline: time.Now().Add(time.Hour)}
		if err := c.Follow(ctx, out, completed(func(_ *mux.Answer, err error) { over <- err })); err != nil {
			t.Fatal(err)
		}
		cancel()
		g.say(t, "go")
		if err := within(t, "it is told", over); err != nil {
			t.Error(err)
		}
		if got := g.String(); got != fmt.Sprint(size, true) {
			t.Errorf("executed: %s", got)
		}
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	}
}

// Random requests, cancellations, refusals and one-way requests, against the rules: what is
// executed of a key is in order and one at a time, nothing is executed behind a refusal in its
// epoch, everything with an id is answered once, and in the order of the key what was executed.
func TestOrderHoldsWhateverComes(t *testing.T) {
	t.Attr("rerun", "never")
	rounds := 30
	if raceEnabled {
		rounds = 10
	}
	for seed := range rounds {
		randomOrder(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A keyRecord is what one key of randomOrder has seen.
type keyRecord struct {
	running bool
	last    int    // the newest number that was executed
	refused uint64 // the newest epoch in which one was refused by the handler
}

func randomOrder(t *testing.T, seed uint64) {
	t.Helper()
	const keys, requests = 5, 2000
	var mu sync.Mutex
	seen := [keys]keyRecord{}
	serve := func(r *mux.Request) {
		var key, n int
		var epoch uint64
		var canceled bool // a refusal of what its caller gives up does not break the key, if it knows of that in time
		if _, err := fmt.Sscanf(string(r.Body), "%d %d %d %t", &key, &n, &epoch, &canceled); err != nil {
			t.Error(err)
		}
		if r.Err() != nil {
			r.Reply = mux.Outcome{Code: codeCanceled, NotProcessed: true}
			return
		}
		h := rand.New(rand.NewPCG(seed, uint64(n)))
		mu.Lock()
		k := &seen[key]
		if k.running || n <= k.last || epoch <= k.refused {
			t.Errorf("key %d: %d of epoch %d is executed after %d; running %t, refused %d", key, n, epoch, k.last, k.running, k.refused)
		}
		k.running, k.last = true, n
		mu.Unlock()
		if h.IntN(10) == 0 {
			<-time.After(time.Duration(h.IntN(200)) * time.Microsecond) // a handler that takes some time
		}
		mu.Lock()
		defer mu.Unlock()
		k.running = false
		if h.IntN(40) == 0 && !r.OneWay && !canceled {
			k.refused = epoch
			r.Reply = mux.Outcome{Code: codeNotFound, NotProcessed: true}
			return
		}
		answerEcho(r)
	}
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: serve}}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "echo"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)

	type sent struct {
		key, n   int
		canceled bool
	}
	open := make(map[uint32]sent)
	answered := make(map[int]int) // by key, the newest that was answered
	epochs := [keys]uint64{}
	next := uint64(1)
	free := []uint32{}
	for slot := range uint32(64) {
		free = append(free, callID(slot, 1))
	}
	random := rand.New(rand.NewPCG(seed, 1<<40))
	receive := func() {
		h, _ := peer.expect(wire.Reply)
		o, ok := open[h.ID]
		if !ok {
			t.Fatalf("a reply to %#x, which is not open", h.ID)
		}
		delete(open, h.ID)
		free = append(free, wire.NextID(h.ID))
		switch {
		case o.canceled:
		case h.Flags&wire.NotProcessed != 0: // which need not wait for its turn
			epochs[o.key] = 0 // the next is of a new epoch, when all have come back
		case o.n < answered[o.key]:
			t.Errorf("key %d: %d was answered after %d", o.key, o.n, answered[o.key])
		default:
			answered[o.key] = o.n
		}
	}
	for n := 1; n <= requests; n++ {
		key := random.IntN(keys)
		for len(free) == 0 || random.IntN(3) == 0 && len(open) > 0 {
			receive()
		}
		if epochs[key] == 0 {
			for anyOpen(open, func(o sent) bool { return o.key == key }) {
				receive()
			}
			epochs[key] = next
			next++
		}
		id := free[0]
		o := sent{key: key, n: n, canceled: random.IntN(10) == 0}
		body := fmt.Sprintf("%d %d %d %t", key, n, epochs[key], o.canceled)
		if random.IntN(10) == 0 {
			peer.write(ordered(0, 0, fmt.Sprint(key), epochs[key], body))
			continue
		}
		free = free[1:]
		peer.write(ordered(0, id, fmt.Sprint(key), epochs[key], body))
		if o.canceled {
			peer.write(cancelOf(id, codeCanceled))
		}
		open[id] = o
	}
	for len(open) > 0 {
		receive()
	}
	wantEmpty(t, "the server", srv)
}

func anyOpen[T any](open map[uint32]T, is func(T) bool) bool {
	for _, o := range open {
		if is(o) {
			return true
		}
	}
	return false
}

// The work for a refusal does not grow with the number of requests that wait behind it. Requests of
// one key in rising epochs, all of which are refused, take about as long as requests that are
// refused without a key.
func TestTheWorkForAnOrderedRefusalIsConstant(t *testing.T) {
	const requests, rounds = 16_000, 3
	refuseAll := func(send func(i int) []byte) time.Duration {
		begin := make(chan struct{})
		s := &setup{serves: map[string]*handler{"refuse": {serve: func(r *mux.Request) {
			<-begin
			r.Reply = mux.Outcome{Code: codeUnavailable, NotProcessed: true}
		}}}}
		peer, srv := s.facingServer(t)
		peer.write(hello(nil), method(0, "refuse"))
		peer.expectHello()
		peer.expect(wire.MethodInfo)
		for i := range requests {
			peer.write(send(i))
		}
		eventually(t, "all requests wait", func() bool { return srv.Tables().InOpen == requests })
		began := time.Now()
		close(begin)
		for range requests {
			peer.expect(wire.Reply)
		}
		return time.Since(began)
	}
	best, control := time.Hour, time.Hour
	for range rounds {
		best = min(best, refuseAll(func(i int) []byte { return ordered(0, callID(uint32(i), 1), "key", uint64(i+1), "") }))
		control = min(control, refuseAll(func(i int) []byte { return request(0, callID(uint32(i), 1), "") }))
	}
	t.Logf("%d refusals: %v with one key, %v without", requests, best, control)
	if best > 3*control {
		t.Errorf("%d refusals took %v with one key, want at most 3 times the %v that they take without", requests, best, control)
	}
}
