// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A method's name travels once, with all that the caller knows of it.
func TestAMethodIsAnnouncedOnce(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	m := &mux.Method{Handle: 3, Name: "Arith.DivMod", Codec: "json", Compressor: "gzip", Positional: true, Idempotent: true}
	for i := range 3 {
		if err := c.Start(context.Background(), &mux.Out{Method: m}, completed(func(*mux.Answer, error) {})); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			peer.expectHello()
			_, frame := peer.expect(wire.Method)
			var b wire.Binding
			if err := wire.ParseMethod(frame[wire.HeaderSize:], &b); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s %s %s %d %d", b.Name, b.Codec, b.Compressor, b.Positional, b.Idempotent)
			if want := "Arith.DivMod json gzip 1 1"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		peer.expect(wire.Request)
	}
}

// echoName serves every method, and replies its name.
func echoName(_ *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) {
	name := string(b.Name)
	return &handler{inline: true, serve: func(r *mux.Request) { r.Reply.Body = []byte(name) }}, wire.Info{Known: 1}
}

// When the numbers have run out they are given new meanings, and calls that are on their way keep
// the old ones.
func TestNumbersAreReusedWhenTheyRunOut(t *testing.T) {
	for _, most := range []int{1, 10, 1024, 65536} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			limits := defaultLimits()
			limits.MaxMethods = most
			s := &setup{server: mux.Config{Limits: limits, Bind: echoName}}
			c, srv := s.overTCP(t)
			// so that the limit is known
			if _, _, err := call(context.Background(), c, methodNamed(0, "0"), ""); err != nil {
				t.Fatal(err)
			}
			methods := min(2*most+3, 66_000)
			var wrong, done atomic.Int64
			for round := range 2 {
				for i := range methods {
					if round == 1 && i > 3000 {
						break
					}
					name := fmt.Sprint(i)
					err := c.Start(context.Background(), &mux.Out{Method: methodNamed(i, name)}, completed(func(a *mux.Answer, err error) {
						if err != nil || string(a.Body) != name {
							wrong.Add(1)
						}
						done.Add(1)
					}))
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			wantEmpty(t, "the client", c)
			if wrong.Load() != 0 {
				t.Errorf("%d of %d calls reached another method", wrong.Load(), done.Load())
			}
			wantEmpty(t, "the server", srv)
		})
	}
}

// Numbers that are announced before the peer's limit is known must be accepted, as many as there
// may be.
func TestNumbersBeforeTheSettingsAreAccepted(t *testing.T) {
	limits := defaultLimits()
	limits.MaxMethods = 2
	s := &setup{server: mux.Config{Limits: limits, Bind: echoName}}
	peer, _ := s.facingServer(t)
	frames := [][]byte{hello(nil)}
	for i := range uint16(1024) {
		frames = append(frames, method(i, fmt.Sprint(i)))
	}
	frames = append(frames, request(1023, callID(0, 1), ""))
	peer.write(frames...)
	peer.expectHello()
	for range 1024 {
		peer.expect(wire.MethodInfo)
	}
	if _, _, body := peer.expectReply(callID(0, 1)); body != "1023" {
		t.Errorf("got reply %q", body)
	}
	peer.write(method(1024, "one too many"))
	peer.expectBreach()
}

// What the peer says of a method is not taken for what it says of the one that got its number.
func TestMethodInformationReachesItsMethod(t *testing.T) {
	type learned struct {
		handle     int
		generation uint32
		info       wire.Info
	}
	got := make(chan learned, 10)
	s := &setup{client: mux.Config{Learned: func(_ *mux.Conn, handle int, generation uint32, info wire.Info) {
		got <- learned{handle, generation, info}
	}}}
	peer, c := s.facingClient(t)
	peer.write(hello(&wire.Limits{MaxMethods: 1}))
	var announced []wire.Header
	for i := range 3 {
		ended := startCall(c, context.Background(), &mux.Out{Method: methodNamed(10+i, fmt.Sprint(i))})
		if i == 0 {
			peer.expectHello()
		}
		h, _ := peer.expect(wire.Method)
		announced = append(announced, h)
		r, _ := peer.expect(wire.Request)
		if r.Arg != h.Arg {
			t.Errorf("call %d: number %d was announced and %d used", i, h.Arg, r.Arg)
		}
		peer.write(reply(r.ID, ""))
		within(t, "the call ends", ended)
	}
	if announced[1].Arg != announced[2].Arg {
		t.Fatalf("the number was not reused: %+v", announced)
	}
	stale, current, unknown := announced[1], announced[2], announced[2]
	unknown.ID += 100
	for i, of := range []wire.Header{stale, unknown, current} {
		peer.write(wire.AppendMethodInfo(nil, of.Arg, of.ID, &wire.Info{Known: 1, Idempotent: uint64(i)}))
	}
	if l := within(t, "information comes", got); l != (learned{12, 0, wire.Info{Known: 1, Idempotent: 2}}) {
		t.Errorf("learned %+v", l)
	}
}

// A method with the handle of an earlier one is announced with the same number, and so is the
// earlier one when it is called again. What the peer says reaches the method that it is about.
func TestAHandleGetsAnotherMethod(t *testing.T) {
	type learned struct {
		handle     int
		generation uint32
		idempotent uint64
	}
	got := make(chan learned, 10)
	s := &setup{client: mux.Config{Learned: func(_ *mux.Conn, handle int, generation uint32, info wire.Info) {
		got <- learned{handle, generation, info.Idempotent}
	}}}
	peer, c := s.facingClient(t)
	peer.write(hello(nil))
	first, other, second := methodNamed(1, "first"), methodNamed(0, "other"), methodNamed(1, "second")
	second.Generation = 1
	var announced []wire.Header
	for i, step := range []struct {
		method *mux.Method
		number uint16
		known  bool
	}{
		{method: first}, {method: other, number: 1}, {method: first, known: true}, {method: second}, {method: second, known: true},
		{method: other, number: 1, known: true}, {method: first},
	} {
		ended := startCall(c, context.Background(), &mux.Out{Method: step.method})
		if i == 0 {
			peer.expectHello()
		}
		if !step.known {
			h, frame := peer.expect(wire.Method)
			var b wire.Binding
			if err := wire.ParseMethod(frame[wire.HeaderSize:], &b); err != nil || string(b.Name) != step.method.Name || h.Arg != step.number {
				t.Fatalf("call %d: number %d was announced for %s, %v", i, h.Arg, b.Name, err)
			}
			announced = append(announced, h)
		}
		r, _ := peer.expect(wire.Request)
		if r.Arg != step.number {
			t.Errorf("call %d: number %d was used", i, r.Arg)
		}
		peer.write(reply(r.ID, ""))
		within(t, "the call ends", ended)
		if !step.known {
			for of, h := range announced {
				peer.write(wire.AppendMethodInfo(nil, h.Arg, h.ID, &wire.Info{Known: 1, Idempotent: uint64(of)}))
			}
		}
	}
	for i, want := range []learned{
		{1, 0, 0},            // first
		{1, 0, 0}, {0, 0, 1}, // and other
		{0, 0, 1}, {1, 1, 2}, // other, and second in place of first
		{0, 0, 1}, {1, 0, 3}, // other, and first again
	} {
		if l := within(t, "information comes", got); l != want {
			t.Errorf("%d: learned %+v, want %+v", i, l, want)
		}
	}
}

// A side that serves nothing says so, and the connection goes on.
func TestASideThatServesNothingRefuses(t *testing.T) {
	client, server := tcpPair(t)
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
	cfg := s.config(t, s.client, nil)
	cfg.Bind = nil
	c := mux.New(client, nil, true, cfg)
	t.Cleanup(func() {
		c.Close()
		srv.Close()
	})
	mustEcho(t, c, echo, "first")
	a, err := srv.Call(context.Background(), &mux.Out{Method: other})
	if err != nil {
		t.Fatal(err)
	}
	var f wire.Fields
	if err := wire.ParseFields(a.Fields, &f); err != nil {
		t.Error(err)
	}
	if a.Code != codeUnimplented || a.Flags&wire.NotProcessed == 0 || !strings.Contains(string(f.Message), "serves nothing") {
		t.Errorf("got code %d, flags %#x, %q", a.Code, a.Flags, f.Message)
	}
	a.Release()
	mustEcho(t, c, echo, "the connection goes on")
}

// Both sides call each other on one connection, also from within a handler.
func TestBothSidesCall(t *testing.T) {
	for _, inline := range []bool{true, false} {
		back := func(m *mux.Method) func(r *mux.Request) {
			return func(r *mux.Request) {
				if len(r.Body) == 0 {
					return
				}
				r.Blocking()
				_, reply, err := call(asContext{r}, r.Conn(), m, string(r.Body[1:]))
				if err != nil {
					t.Error(err)
				}
				r.Reply.Body = append([]byte{r.Body[0]}, reply...)
			}
		}
		s := &setup{
			serves:       map[string]*handler{"echo": {inline: inline, serve: back(other)}},
			clientServes: map[string]*handler{"other": {inline: inline, serve: back(echo)}},
		}
		c, srv := s.overTCP(t)
		mustEcho(t, c, echo, "to and fro, several times")
		mustEcho(t, srv, other, "the other way round")
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	}
}

// A connection keeps what its method numbers stand for, so nothing of that may be long.
func TestNamesOfMethodsAreBounded(t *testing.T) {
	most := []byte(strings.Repeat("x", wire.MaxName))
	long := append(most, 'x')
	for part, b := range map[string]wire.Binding{
		"name": {Name: long}, "codec": {Name: most, Codec: long}, "compressor": {Name: most, Compressor: long}, "schema": {Name: most, Schema: long},
	} {
		t.Run(part, func(t *testing.T) {
			peer, _ := (&setup{server: mux.Config{Bind: echoName}}).facingServer(t)
			peer.write(hello(nil), wire.AppendMethod(nil, 0, 1, &wire.Binding{Name: most, Codec: most, Compressor: most, Schema: most}), request(0, wire.NextID(0), ""))
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			if _, _, body := peer.expectReply(wire.NextID(0)); body != string(most) {
				t.Errorf("got %q", body)
			}
			peer.write(wire.AppendMethod(nil, 1, 2, &b))
			if d := peer.expectBreach(); !strings.Contains(string(d.Message), "more than 255 bytes") {
				t.Errorf("got %q", d.Message)
			}
		})
	}
}
