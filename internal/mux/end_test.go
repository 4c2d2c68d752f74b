// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Whatever a peer does instead of answering, each call that is open gets exactly one outcome.
func TestEachCallHasOneOutcomeHoweverTheConnectionEnds(t *testing.T) {
	breach := func(what string) func(error) bool {
		return func(err error) bool {
			var is *mux.ProtocolError
			return errors.As(err, &is) && strings.Contains(is.What, what)
		}
	}
	failed := func(op mux.Op) func(error) bool {
		return func(err error) bool {
			var is *mux.IOError
			return errors.As(err, &is) && is.Op == op
		}
	}
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	preface := func(err error) bool {
		var is *mux.PrefaceError
		return errors.As(err, &is) && strings.Contains(err.Error(), "HTTP/1.1")
	}
	type ending struct {
		name string
		say  []byte
		then string // what the peer does then
		want func(error) bool
	}
	settings := hello(nil)[len(wire.Preface):]
	tests := []ending{
		{"close at once", nil, "close", failed(mux.EndOfStream)},
		{"close after half a preface", []byte(wire.Preface[:4]), "close", failed(mux.EndOfStream)},
		{"close after the settings", hello(nil), "close", failed(mux.EndOfStream)},
		{"close in a header", append(hello(nil), 1, 0, 0), "close", failed(mux.EndOfStream)},
		{"close in a frame", append(hello(nil), reply(callID(0, 1), "long")[:wire.HeaderSize+2]...), "close", failed(mux.EndOfStream)},
		{"reset", hello(nil), "reset", func(err error) bool {
			// The system says so once, to whoever asks first. When that is a write, a read at the
			// same moment finds the end of the stream.
			return failed(mux.Read)(err) || failed(mux.Write)(err) || failed(mux.EndOfStream)(err)
		}},
		{"another protocol", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "", preface},
		{"garbage", append(hello(nil), "garbage of some length"...), "", breach("a frame of")},
		{"no settings", append([]byte(wire.Preface), ping(1)...), "", breach("not Settings")},
		{"a reply before the settings", append([]byte(wire.Preface), reply(callID(0, 1), "")...), "", breach("not Settings")},
		{"settings twice", append(hello(nil), settings...), "", breach("twice")},
		{"broken settings", append([]byte(wire.Preface), frameOf(wire.Header{Type: wire.Settings}, nil, []byte{2})...), "", breach("broken settings")},
		{"an oversized frame", append(hello(nil), 1, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0), "", breach("65537 bytes")},
		{"an unknown frame", append(hello(nil), frameOf(wire.Header{Type: 0x7f}, nil, nil)...), "", breach("unknown type 127")},
		{"broken method information", append(hello(nil), frameOf(wire.Header{Type: wire.MethodInfo}, nil, []byte{16})...), "", breach("method information")},
		{"broken credit", append(hello(nil), frameOf(wire.Header{Type: wire.Credit}, nil, []byte{6})...), "", breach("broken credit")},
		{"a refusal", append(hello(nil), wire.AppendGoAway(nil, 7, &wire.Drain{Message: []byte("go away"), ErrorID: []byte("X1")})...), "", func(err error) bool {
			var is *mux.Refusal
			return errors.As(err, &is) && is.Code == 7 && is.ID == "X1" && is.Error() == "go away"
		}},
		{"a broken refusal", append(hello(nil), frameOf(wire.Header{Type: wire.GoAway, Arg: 7}, nil, []byte{2})...), "", breach("drain notice")},
		{"a drain, and the end", append(hello(nil), wire.AppendGoAway(nil, 0, &wire.Drain{Count: 99})...), "close", is(mux.ErrDrained)},
		{"closing on this side", hello(nil), "own close", is(mux.ErrClosed)},
		{"aborting on this side", hello(nil), "own abort", is(mux.ErrClosed)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ends := make(chan error, 10)
			peer, c := (&setup{client: mux.Config{Ended: func(_ *mux.Conn, err error) { ends <- err }}}).facingClient(t)
			const calls = 6
			var outcomes atomic.Int64
			told := make(chan error, 2*calls)
			for i := range calls {
				out := &mux.Out{Method: echo, Body: make([]byte, []int{0, 100, 200_000}[i%3])}
				if i%2 == 0 {
					go func() {
						_, _, err := callOut(context.Background(), c, out)
						outcomes.Add(1)
						told <- err
					}()
				} else if err := c.Start(context.Background(), out, completed(func(_ *mux.Answer, err error) {
					outcomes.Add(1)
					told <- err
				})); err != nil {
					t.Fatal(err)
				}
			}
			peer.expectHello()
			peer.expect(wire.Method)
			peer.expect(wire.Request) // at least
			drained := make(chan struct{})
			go func() { // so that what the client still has to say does not become a reset
				defer close(drained)
				for {
					if _, _, err := peer.frame(); err != nil {
						return
					}
				}
			}()
			peer.write(test.say)
			switch test.then {
			case "close":
				_ = peer.nc.(*net.TCPConn).CloseWrite()
			case "reset":
				eventually(t, "the settings have been read", func() bool { return c.Counters().FramesIn > 0 })
				_ = peer.nc.(*net.TCPConn).SetLinger(0)
				peer.nc.Close()
			case "own close":
				c.Close()
				c.Close()
			case "own abort":
				c.Abort()
			}
			for range calls {
				if err := within(t, "each call is told", told); !test.want(err) {
					t.Errorf("a call ended with %v", err)
				}
			}
			if err := wantEnd(t, c); !test.want(err) {
				t.Errorf("the connection ended with %v", err)
			}
			if err := within(t, "the owner is told", ends); !test.want(err) {
				t.Errorf("the owner was told %v", err)
			}
			if _, _, err := call(context.Background(), c, echo, ""); !test.want(err) || !notProcessed(err) {
				t.Errorf("a call afterwards: got %v, not processed: %t", err, notProcessed(err))
			}
			if err := c.Notify(context.Background(), &mux.Out{Method: echo}); !notProcessed(err) {
				t.Errorf("a one-way call afterwards: got %v", err)
			}
			wantEmpty(t, "the client", c)
			if load, _ := c.Load(); c.Usable() || load != 0 {
				t.Errorf("afterwards: usable %t, load %d", c.Usable(), load)
			}
			within(t, "the connection below is closed", drained)
			if n := outcomes.Load(); n != calls {
				t.Errorf("%d calls had %d outcomes", calls, n)
			}
			if len(ends) != 0 {
				t.Error("the owner was told twice")
			}
		})
	}
}

// Replies that came before a breach count.
func TestRepliesBeforeABreachAreDelivered(t *testing.T) {
	for _, breach := range [][]byte{
		{1, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0},                         // an oversized frame
		frameOf(wire.Header{Type: 100}, nil, nil),                    // an unknown one
		wire.AppendGoAway(nil, codeInternal, &wire.Drain{Count: 10}), // the peer's own end
	} {
		peer, c := new(setup).facingClient(t)
		first := startCall(c, context.Background(), &mux.Out{Method: echo})
		peer.expectHello()
		peer.expect(wire.Method)
		h1, _ := peer.expect(wire.Request)
		second := startCall(c, context.Background(), &mux.Out{Method: echo})
		h2, _ := peer.expect(wire.Request)
		peer.write(hello(nil), reply(h1.ID, "first"), reply(h2.ID, "second"), breach)
		for i, end := range []<-chan calling{first, second} {
			if got := within(t, "the call ends", end); got.err != nil || got.reply != []string{"first", "second"}[i] {
				t.Errorf("call %d: got %+v", i, got)
			}
		}
		if err := wantEnd(t, c); err == nil {
			t.Error("the connection ended without a reason")
		}
	}
}

// The replies of handlers that ran before a breach are sent before the notice.
func TestRequestsBeforeABreachAreAnswered(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}}}
	peer, _ := s.facingServer(t)
	peer.write(hello(nil), method(0, "echo"), request(0, callID(0, 1), "before"), frameOf(wire.Header{Type: 100}, nil, nil))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	if _, _, body := peer.expectReply(callID(0, 1)); body != "before" {
		t.Errorf("got %q", body)
	}
	if d := peer.expectBreach(); d.Count != 1 || !strings.Contains(string(d.Message), "unknown type 100") || string(d.ErrorID) != "YDL1106" {
		t.Errorf("got notice %+v %q %q", d, d.Message, d.ErrorID)
	}
}

// An id of a request that is being executed must not be used again.
func TestAnIDThatIsOpenIsABreach(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	var executed atomic.Int64
	s := &setup{serves: map[string]*handler{"other": {serve: func(r *mux.Request) {
		executed.Add(1)
		select {
		case <-release:
		case <-r.Done():
		}
	}}}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "other"), request(0, callID(5, 1), ""), request(0, callID(5, 2), ""))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	if d := peer.expectBreach(); !strings.Contains(string(d.Message), "which is open") {
		t.Errorf("got %q", d.Message)
	}
	wantEmpty(t, "the server", srv)
	if n := executed.Load(); n > 1 {
		t.Errorf("%d requests were executed", n)
	}
}

// A side may refuse a peer when it has seen its settings, before any of its requests is served.
func TestARefusedPeerIsToldWhy(t *testing.T) {
	var executed atomic.Int64
	s := &setup{
		server: mux.Config{Hello: func(_ *mux.Conn, peer *wire.Limits) *mux.Refusal {
			return &mux.Refusal{Code: 16, ID: "YDL3101", Message: "who are you, " + string(peer.Agent) + "?"}
		}},
		client: mux.Config{Agent: "nobody"},
		serves: map[string]*handler{"echo": {inline: true, serve: func(r *mux.Request) { executed.Add(1); answerEcho(r) }}},
	}
	for range 50 {
		c, srv := s.overTCP(t)
		ended := startCall(c, context.Background(), &mux.Out{Method: echo})
		got := within(t, "the call ends", ended)
		var refusal *mux.Refusal
		if !errors.As(got.err, &refusal) || *refusal != (mux.Refusal{Code: 16, ID: "YDL3101", Message: "who are you, nobody?"}) || !notProcessed(got.err) {
			t.Fatalf("got %v, not processed: %t", got.err, notProcessed(got.err))
		}
		if err := wantEnd(t, srv); !errors.As(err, &refusal) {
			t.Errorf("the server ended with %v", err)
		}
	}
	if n := executed.Load(); n != 0 {
		t.Errorf("%d requests of a refused peer were executed", n)
	}
}

// The metadata of a connection and the limits reach the peer.
func TestSettingsReachThePeer(t *testing.T) {
	got := make(chan wire.Limits, 2)
	hear := func(_ *mux.Conn, l *wire.Limits) *mux.Refusal {
		heard := *l
		heard.Metadata, heard.Agent = append([]byte(nil), l.Metadata...), append([]byte(nil), l.Agent...)
		heard.Incarnation, heard.Services = append([]byte(nil), l.Incarnation...), append([]byte(nil), l.Services...)
		heard.KeyScope, heard.Caller = append([]byte(nil), l.KeyScope...), append([]byte(nil), l.Caller...)
		got <- heard
		return nil
	}
	limits := mux.Limits{MaxMessage: 1, MaxOpen: 2, MaxOpenBytes: 3, MaxMethods: 4, MaxUnsent: 5000, Handshake: time.Minute}
	s := &setup{
		limits: limits,
		client: mux.Config{Limits: limits, Metadata: wire.AppendPair(nil, "zone", "eu"), Agent: "client", Caller: []byte("shop"), Hello: hear},
		server: mux.Config{
			Limits: limits, Agent: "server", Hello: hear, Incarnation: []byte("run"),
			Keys:     func(*mux.Conn) (string, time.Duration) { return "here", time.Minute },
			Services: func() []byte { return wire.AppendService(wire.AppendService(nil, "A"), "B") },
		},
	}
	c, srv := s.overTCP(t)
	if c.NetConn() == nil || srv.NetConn() == nil {
		t.Error("a connection without a connection below")
	}
	seen := map[string]wire.Limits{}
	for range 2 {
		l := within(t, "the settings come", got)
		seen[string(l.Agent)] = l
	}
	for _, agent := range []string{"client", "server"} {
		l := seen[agent]
		if l.MaxFrame != mux.MaxFrame || l.MaxMessage != 1 || l.MaxOpen != 2 || l.MaxOpenBytes != 3 || l.MaxMethods != 4 {
			t.Errorf("%s: got %+v", agent, l)
		}
	}
	if l := seen["server"]; string(l.Incarnation) != "run" || string(l.Services) != "\x01A\x01B" || string(l.KeyScope) != "here" || l.KeyKeep != 60_000_000 {
		t.Errorf("the server said of itself %q, %q, %q, %d", l.Incarnation, l.Services, l.KeyScope, l.KeyKeep)
	}
	if l := seen["client"]; len(l.Incarnation)+len(l.Services)+len(l.KeyScope) > 0 {
		t.Errorf("a client that serves nothing said of itself %q, %q, %q", l.Incarnation, l.Services, l.KeyScope)
	}
	if caller := string(seen["client"].Caller); caller != "shop" {
		t.Errorf("the client calls as %q, want shop", caller)
	}
	if md := string(seen["client"].Metadata); md != "\x04zone\x02eu" {
		t.Errorf("got metadata %q", md)
	}
}
