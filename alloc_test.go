// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gencode"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// A call allocates, on both sides together, the server's Call, which is the handler's context as
// well, and what the messages are made of. The tests below count every object of the process: the
// client, the server and what both of them do in the background.

// A tagged is a message with the methods that gencode generates.
type tagged struct {
	Number uint64
	Text   string
}

var errShort = errors.New("tagged: too few bytes")

func (m *tagged) Size() uint64 { return 8 + uint64(len(m.Text)) }

func (m *tagged) Marshal(buf []byte) ([]byte, error) {
	binary.LittleEndian.PutUint64(buf, m.Number)
	return buf[:8+copy(buf[8:], m.Text)], nil
}

func (m *tagged) Unmarshal(buf []byte) (uint64, error) {
	if len(buf) < 8 {
		return 0, errShort
	}
	m.Number, m.Text = binary.LittleEndian.Uint64(buf), string(buf[8:])
	return uint64(len(buf)), nil
}

func TestAllocationsOfRawCalls(t *testing.T) {
	const Echo yodel.Method[[]byte, []byte] = "Alloc.Echo"
	s := newServer(t, nil)
	Echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	in := []byte("a request of some bytes, and the reply too")
	measureAllocations(t, s, &allocations{
		codec: raw.Codec, method: string(Echo), args: &in,
		newReply: func() any { return new([]byte) }, // grows in the first call, and has room in the others
		correct:  func(reply any) bool { return string(*reply.(*[]byte)) == string(in) },
		expected: 1.0/8 + // the handler's context, allocated in groups
			1 + // the argument: new([]byte), because the handler may keep it
			1, // the bytes that it holds, for the memory they came in is used again
		// The handler's reply is its argument, and the client's has the room.
	})
}

// A handler that asks for its call may keep it, so the state of the call is not used again.
func TestAllocationsOfCallsWhoseHandlersAskForThem(t *testing.T) {
	const Echo yodel.Method[[]byte, []byte] = "Alloc.Echo"
	s := newServer(t, nil)
	Echo.Handle(s, func(ctx context.Context, in *[]byte) (*[]byte, error) {
		if yodel.CallFrom(ctx).Method != string(Echo) {
			return nil, errShort
		}
		return in, nil
	})
	s.MarkInline(string(Echo))
	in := []byte("a request of some bytes, and the reply too")
	measureAllocations(t, s, &allocations{
		codec: raw.Codec, method: string(Echo), args: &in,
		newReply: func() any { return new([]byte) },
		correct:  func(reply any) bool { return string(*reply.(*[]byte)) == string(in) },
		expected: 1 + // the call with its request and the handler's context, in one object
			1 + // the argument
			1, // the bytes that it holds
	})
}

func TestAllocationsOfViewedCalls(t *testing.T) {
	const Echo yodel.Method[raw.View, raw.View] = "Alloc.Echo"
	s := newServer(t, nil)
	Echo.Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) { return in, nil })
	in := []byte("a request of some bytes, and the reply too")
	measureAllocations(t, s, &allocations{
		codec: raw.Codec, method: string(Echo), args: &in,
		newReply: func() any { return new([]byte) },
		correct:  func(reply any) bool { return string(*reply.(*[]byte)) == string(in) },
		expected: 1.0 / 8, // the handler's context, allocated in groups
	})
}

func TestAllocationsOfGeneratedCalls(t *testing.T) {
	const Next yodel.Method[tagged, tagged] = "Alloc.Next"
	s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gencode.Codec}})
	Next.Handle(s, func(_ context.Context, in *tagged) (*tagged, error) {
		return &tagged{Number: in.Number + 1, Text: in.Text}, nil
	})
	in := tagged{Number: 41, Text: "some text"}
	measureAllocations(t, s, &allocations{
		codec: gencode.Codec, method: string(Next), args: &in,
		newReply: func() any { return new(tagged) },
		correct:  func(reply any) bool { return *reply.(*tagged) == tagged{42, in.Text} },
		expected: 1.0/8 + // the handler's context, allocated in groups
			1 + // the argument: new(tagged), because the handler may keep it
			1 + // its Text, a string that Unmarshal makes
			1 + // the reply, which the handler makes
			1, // the reply's Text on the client, a string that Unmarshal makes
	})
}

// A calculator is registered by reflection.
type calculator struct{}

type (
	factors struct{ A, B int }
	product struct{ C int }
)

func (*calculator) Mul(_ context.Context, in *factors, out *product) error {
	out.C = in.A * in.B
	return nil
}

func TestAllocationsOfReflectiveCalls(t *testing.T) {
	s := newServer(t, nil)
	if err := s.RegisterName("Alloc", new(calculator)); err != nil {
		t.Fatal(err)
	}
	measureAllocations(t, s, &allocations{
		codec: yodel.JSON, method: "Alloc.Mul", args: &factors{6, 7},
		newReply: func() any { return new(product) },
		correct:  func(reply any) bool { return *reply.(*product) == product{42} },
		expected: 1.0/8 + // the handler's context, allocated in groups
			1 + // the argument, because the handler may keep it
			1 + // the reply, likewise
			2, // what reflect.Value.Call returns: a slice, and room for the error in it
	})
}

// Allocations is a kind of call and what it may cost.
type allocations struct {
	codec    yodel.Codec
	method   string
	args     any
	newReply func() any
	correct  func(reply any) bool
	expected float64 // objects for each call, on both sides together
}

const (
	allocWarmUp = 2_000
	allocCalls  = 20_000
	allocOpen   = 32 // calls at once, of those that are asynchronous
	// allocSlack is for what is not done for each call: pools that a collection empties, tables,
	// timers.
	allocSlack = 0.05
)

func measureAllocations(t *testing.T, s *yodel.Server, a *allocations) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates, and makes pools forget")
	}
	c := connect(t, s, &yodel.ClientOptions{Codec: a.codec})
	peer := newPeering(t, &yodel.ServerOptions{Codec: a.codec}, nil, s).peer
	for name, calls := range map[string]func(n int){
		"one by one": a.oneByOne(t, c), "asynchronous": a.asynchronous(t, c), "of a peer": a.ofAPeer(t, peer),
	} {
		t.Run(name, func(t *testing.T) {
			a.measure(t, calls)
		})
	}
}

// measure counts what calls allocates, which makes n calls.
func (a *allocations) measure(t *testing.T, calls func(n int)) {
	t.Helper()
	calls(allocWarmUp)
	// What else the process does only adds to a measurement: the least of a few is the closest.
	least := a.expected + 1000
	for attempt := 0; attempt < 5 && least > a.expected+allocSlack; attempt++ {
		least = min(least, float64(mallocs(func() { calls(allocCalls) }))/allocCalls)
	}
	t.Logf("%.3f allocations for each call", least)
	if least > a.expected+allocSlack {
		t.Errorf("a call makes %.3f allocations, want %v", least, a.expected)
	}
	if least < a.expected-allocSlack {
		t.Errorf("a call makes %.3f allocations, fewer than the %v that this test explains", least, a.expected)
	}
}

func mallocs(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// oneByOne returns what makes n calls, each after the reply to the one before.
func (a *allocations) oneByOne(t *testing.T, c *yodel.Client) func(n int) {
	t.Helper()
	ctx, reply := t.Context(), a.newReply()
	return func(n int) {
		for range n {
			if err := c.Call(ctx, a.method, a.args, reply); err != nil || !a.correct(reply) {
				t.Errorf("got %v, %v", reply, err)
				return
			}
		}
	}
}

// ofAPeer is oneByOne for the other direction.
func (a *allocations) ofAPeer(t *testing.T, peer *yodel.Peer) func(n int) {
	t.Helper()
	ctx, call := t.Context(), &yodel.Call{Method: a.method, Args: a.args, Reply: a.newReply()}
	return func(n int) {
		for range n {
			if err := peer.Do(ctx, call); err != nil || !a.correct(call.Reply) {
				t.Errorf("got %v, %v", call.Reply, err)
				return
			}
		}
	}
}

// asynchronous returns what makes n calls with Go, allocOpen of them at once. Calls and callbacks
// are used again.
func (a *allocations) asynchronous(t *testing.T, c *yodel.Client) func(n int) {
	t.Helper()
	type slot struct {
		call yodel.Call
		err  error
		done func(error)
	}
	// A context that can end costs three objects more, with which context.AfterFunc watches it:
	// nobody else waits.
	ctx, free := context.Background(), make(chan *slot, allocOpen)
	for range allocOpen {
		sl := &slot{call: yodel.Call{Method: a.method, Args: a.args, Reply: a.newReply()}}
		sl.done = func(err error) { sl.err = err; free <- sl }
		free <- sl
	}
	begun := make(map[*slot]bool, allocOpen)
	return func(n int) {
		for range n {
			sl := <-free
			if sl.err != nil || begun[sl] && !a.correct(sl.call.Reply) {
				t.Errorf("got %v, %v", sl.call.Reply, sl.err)
				return
			}
			begun[sl] = true
			c.Go(ctx, &sl.call, sl.done)
		}
		ended := make([]*slot, allocOpen) // all of them, so that none counts as the next round's
		for i := range ended {
			ended[i] = <-free
		}
		for _, sl := range ended {
			free <- sl
		}
	}
}

// The memory of a served call is used again for the next one, which finds in it nothing of the call
// before. Without the race detector only: with it, none is.
func TestAllocationsUsedAgainAreClean(t *testing.T) {
	s := newServer(t, nil)
	asks := false
	var seen yodel.Metadata
	handle(t, s, "Look", func(ctx context.Context, _ *Empty) (*Empty, error) {
		if asks { // else the memory would not be used again
			seen = yodel.CallFrom(ctx).Metadata
		}
		return nil, nil
	})
	s.MarkInline("Look")
	c := connect(t, s, nil)
	for range 100 {
		asks, seen = false, nil
		must(t, c.Do(t.Context(), &yodel.Call{Method: "Look", Args: &Empty{}, Metadata: yodel.Metadata{"user": "alice"}}))
		asks = true
		if must(t, c.Call(t.Context(), "Look", &Empty{}, nil)); seen != nil {
			t.Fatalf("a call without metadata has that of the one before: %v", seen)
		}
	}
}
