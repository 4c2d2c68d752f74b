// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// streamMethod is a method of a kind that has a stream.
func streamMethod(name string, kind uint64) *mux.Method {
	return &mux.Method{Handle: 1, Name: name, Codec: "raw", Kind: kind}
}

// echoStream sends each message back.
func echoStream(r *mux.Request) {
	st := r.Stream()
	st.Accept()
	for {
		msg, flags, err := st.Receive(r)
		if errors.Is(err, io.EOF) {
			r.Reply = mux.Outcome{Body: []byte("end")}
			return
		}
		if err == nil {
			err = st.Send(r, flags, msg)
		}
		if err != nil {
			r.Reply = mux.Outcome{Code: codeInternal, Fields: &wire.Fields{Message: []byte(err.Error())}}
			return
		}
	}
}

func open(t *testing.T, c *mux.Conn, method *mux.Method, body []byte) *mux.Stream {
	t.Helper()
	st := mux.NewStream()
	if err := c.Start(t.Context(), &mux.Out{Method: method, Body: body, Stream: st}, st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestAStreamCarriesMessagesBothWays(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {serve: echoStream}}}
	c, srv := s.overTCP(t)
	st := open(t, c, streamMethod("echo", wire.Duplex), nil)
	if err := st.Accepted(t.Context()); err != nil {
		t.Fatal(err)
	}
	sizes := []int{0, 1, 100, 40_000, 65_000, 70_000, 1 << 20, 5 << 20}
	go func() {
		for round := range 3 {
			for i, n := range sizes {
				if err := st.Send(context.Background(), 0, bytes.Repeat([]byte{byte(round*len(sizes) + i)}, n)); err != nil {
					t.Errorf("send %d: %v", n, err)
				}
			}
		}
		st.End()
	}()
	for round := range 3 {
		for i, n := range sizes {
			msg, _, err := st.Receive(t.Context())
			if err != nil {
				t.Fatal(round, n, err)
			}
			if !bytes.Equal(msg, bytes.Repeat([]byte{byte(round*len(sizes) + i)}, n)) {
				t.Fatalf("got %d bytes, want %d", len(msg), n)
			}
		}
	}
	if _, _, err := st.Receive(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
	a, err := st.Wait()
	if err != nil || a.Code != 0 || string(a.Body) != "end" {
		t.Errorf("got %v, %v", a, err)
	}
	wantEmpty(t, "client", c)
	wantEmpty(t, "server", srv)
}

// Who sends what, by the kind of the method.
func TestKindsOfStreams(t *testing.T) {
	tests := []struct {
		name, body                     string
		openerSends, receiverSendsBack bool
	}{
		{"feed", "the one message", false, true},
		{"upload", "", true, false},
		{"duplex", "", true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHolder()
			s := &setup{serves: h.handlers()}
			c, srv := s.overTCP(t)
			st := open(t, c, streamMethod(test.name, kindOf[test.name]), []byte(test.body))
			r := within(t, "the stream is opened", h.opened)
			if string(r.Body) != test.body || r.Stream() == nil {
				t.Errorf("got request %q, stream %v", r.Body, r.Stream())
			}
			back := r.Stream()
			if test.openerSends {
				back.Accept()
				back.Accept() // twice is once
				if err := st.Accepted(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, msg := range []string{"there 1", "", "there 2"} {
					if err := st.Send(t.Context(), 0, []byte(msg)); err != nil {
						t.Fatal(err)
					}
				}
				st.End()
				st.End() // twice is once
				for _, msg := range []string{"there 1", "", "there 2"} {
					wantMessage(t, back, msg)
				}
				wantEOF(t, back)
				if err := st.Send(t.Context(), 0, []byte("late")); !errors.Is(err, mux.ErrSendEnded) {
					t.Errorf("after the end: got %v", err)
				}
			} else {
				back.Accept() // nothing to take
			}
			if test.receiverSendsBack {
				if err := back.Send(t.Context(), wire.Compressed, []byte("back")); err != nil {
					t.Fatal(err)
				}
				msg, flags, err := receive(st)
				if string(msg) != "back" || flags != wire.Compressed || err != nil {
					t.Errorf("got %q, flags %#x, %v", msg, flags, err)
				}
			}
			h.end()
			if a, err := st.Wait(); err != nil || a.Code != 0 || !st.Ended() {
				t.Errorf("got %+v, %v", a, err)
			}
			wantEOF(t, st)
			wantEmpty(t, "the client", c)
			wantEmpty(t, "the server", srv)
		})
	}
}

// A one-way request that has no id can have no stream.
func TestAOneWayRequestOpensNoStream(t *testing.T) {
	opened := make(chan *mux.Stream, 1)
	s := &setup{serves: map[string]*handler{"duplex": {serve: func(r *mux.Request) { opened <- r.Stream() }}}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), methodOf(0, "duplex"), frameOf(wire.Header{Type: wire.Request, Flags: wire.OneWay}, nil, []byte("x")))
	if st := within(t, "the request is served", opened); st != nil {
		t.Errorf("got a stream %v", st)
	}
	wantEmpty(t, "the server", srv)
}

// The frames of messages, as a peer sees them.
func TestMessagesOfAStreamAreDataFrames(t *testing.T) {
	h := newHolder()
	defer h.end()
	const id = 1 << wire.SlotBits
	peer, _, r := openedPeer(t, h, defaultLimits(), "duplex", &wire.Limits{StreamWindow: 8192})
	st := r.Stream()
	st.Accept()
	if sum := peer.expectCredit(id, wire.OfReply); sum != 64<<10 {
		t.Errorf("the first credit is %d", sum)
	}
	send := func(flags wire.Flags, msg string) {
		t.Helper()
		if err := st.Send(t.Context(), flags, []byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	send(wire.Compressed, "small")
	if flags, size, got := peer.expectData(id); flags != wire.OfReply|wire.Compressed || size != 0 || got != "small" {
		t.Errorf("got flags %#x, size %d, %q", flags, size, got)
	}
	large := string(patterned(6000, 1)) // half of the window is 4096
	send(wire.Compressed, large)
	flags, size, got := peer.expectData(id)
	if flags != wire.OfReply|wire.Compressed|wire.HasFields|wire.More || size != 6000 {
		t.Errorf("got flags %#x, size %d", flags, size)
	}
	rest, pieces := peer.expectRest(id, flags)
	for _, flags := range pieces {
		if flags&^wire.More != wire.OfReply|wire.Compressed {
			t.Errorf("a piece has flags %#x", flags)
		}
	}
	got += rest
	if got != large {
		t.Errorf("got %d bytes, want %d", len(got), len(large))
	}
	st.End()
	if flags, _, got := peer.expectData(id); flags != wire.OfReply|wire.End || got != "" {
		t.Errorf("the end has flags %#x and %q", flags, got)
	}

	peer.write(data(id, wire.Compressed|wire.HasAttachment, "\x01there"), sized(id, wire.More|wire.Compressed, 7, "012"), ping(1),
		request(1, callID(1, 1), "between"), data(id, wire.More, "34"), data(id, wire.More, ""), data(id, 0, "56"), data(id, wire.End, ""))
	peer.expect(wire.Pong)
	peer.expectReply(callID(1, 1))
	msg, flags, err := receive(st)
	if string(msg) != "\x01there" || flags != wire.Compressed|wire.HasAttachment || err != nil {
		t.Errorf("got %q, flags %#x, %v", msg, flags, err)
	}
	msg, flags, err = receive(st)
	if string(msg) != "0123456" || flags != wire.Compressed || err != nil {
		t.Errorf("got %q, flags %#x, %v", msg, flags, err)
	}
	wantEOF(t, st)
}

// A stream has checksums both ways if its request had one.
func TestStreamsHaveChecksumsIfTheirRequestsHave(t *testing.T) {
	h := newHolder()
	s := &setup{limits: limitsWith(4096, 1<<20), serves: h.handlers()}
	peer, srv := s.facingServer(t)
	const id = 1 << wire.SlotBits
	peer.write(hello(nil), methodOf(0, "duplex"), frameOf(wire.Header{Type: wire.Request, Flags: wire.HasChecksum, ID: id}, nil, nil))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	st := within(t, "the stream is opened", h.opened).Stream()
	st.Accept()
	peer.expectCredit(id, wire.OfReply)
	if err := st.Send(t.Context(), 0, []byte("checked")); err != nil {
		t.Fatal(err)
	}
	st.End()
	if flags, _, got := peer.expectData(id); flags != wire.OfReply|wire.HasChecksum || got != "checked" {
		t.Errorf("got flags %#x, %q", flags, got)
	}
	if flags, _, _ := peer.expectData(id); flags != wire.OfReply|wire.HasChecksum|wire.End {
		t.Errorf("the end has flags %#x", flags)
	}
	peer.write(data(id, wire.HasChecksum, "checked too"), data(id, 0, "of each frame by itself"))
	wantMessage(t, st, "checked too")
	wantMessage(t, st, "of each frame by itself")
	h.end()
	if hd, _, _ := peer.expectReply(id); hd.Flags&wire.HasChecksum == 0 {
		t.Errorf("the reply has flags %#x", hd.Flags)
	}
	wantEmpty(t, "the server", srv)

	// And all sizes between two of this kind.
	s = &setup{limits: limitsWith(4096, 1<<20), serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, _ := s.overTCP(t)
	both := mux.NewStream()
	if err := c.Start(t.Context(), &mux.Out{Method: streamMethod("duplex", wire.Duplex), Checksum: true, Stream: both}, both); err != nil {
		t.Fatal(err)
	}
	for n := range 5000 {
		if n%7 != 0 && n > 10 && (n < 2000 || n > 2060) && n < 4050 {
			continue
		}
		sent := sending(t.Context(), both, patterned(n, n))
		wantMessage(t, both, string(patterned(n, n)))
		if err := within(t, "it is sent", sent); err != nil {
			t.Fatal(err)
		}
	}
}

// A message that is not right fails its own stream, and no other call.
func TestABrokenMessageFailsItsOwnStream(t *testing.T) {
	limits := limitsWith(0, 1<<20)
	limits.MaxMessage = 1000
	const id = 1 << wire.SlotBits
	wrong := frameOf(wire.Header{Type: wire.Data, Flags: wire.HasChecksum, ID: id}, nil, []byte("wrong"))
	wrong[len(wrong)-1] ^= 1
	tests := []struct {
		name   string
		frames [][]byte
		want   string // "" is for what is too large
	}{
		{"no size", [][]byte{data(id, wire.More, "01"), data(id, 0, "23")}, "a message in pieces does not say its size"},
		{"longer at once", [][]byte{sized(id, wire.More, 2, "012")}, "it is longer than announced"},
		{"longer later", [][]byte{sized(id, wire.More, 5, "012"), data(id, 0, "345")}, "it is longer than announced"},
		{"longer in one frame", [][]byte{sized(id, 0, 2, "012")}, "it is longer than announced"},
		{"longer and empty at last", [][]byte{sized(id, wire.More, 2, "012"), data(id, 0, "")}, "it is longer than announced"},
		{"shorter", [][]byte{sized(id, wire.More, 5, "012"), data(id, 0, "3")}, "it is shorter than announced"},
		{"shorter in one frame", [][]byte{sized(id, 0, 5, "012")}, "it is shorter than announced"},
		{"ended", [][]byte{sized(id, wire.More, 5, "012"), data(id, wire.End, "")}, "it is shorter than announced"},
		{"ended at its start", [][]byte{sized(id, wire.More, 5, ""), data(id, wire.End, "")}, "it is shorter than announced"},
		{"checksum", [][]byte{wrong}, "its checksum does not match"},
		{"checksum of a piece", [][]byte{sized(id, wire.More, 9, "0123"), wrong}, "its checksum does not match"},
		{"no room for a checksum", [][]byte{shortChecksum(id)}, "it ends too early"},
		{"fields", [][]byte{data(id, wire.HasFields, "\x01\x00\x04")}, "it ends too early"},
		{"half a length of fields", [][]byte{data(id, wire.HasFields, "\x01")}, "it ends too early"},
		{"too large", [][]byte{sized(id, wire.More, 1001, "012")}, ""},
		{"too large for anything", [][]byte{sized(id, wire.More, -1, "012")}, ""},
		{"too large in one frame", [][]byte{data(id, 0, string(make([]byte, 1001)))}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHolder()
			peer, srv, r := openedPeer(t, h, limits, "upload", nil)
			st := r.Stream()
			st.Accept()
			peer.expectCredit(id, wire.OfReply)
			peer.write(data(id, 0, "good"))
			peer.write(test.frames...)
			peer.write(data(id, 0, "after it"), data(id, wire.End, ""), request(1, callID(1, 1), "others go on"))
			if _, _, got := peer.expectReply(callID(1, 1)); got != "others go on" {
				t.Errorf("got %q", got)
			}
			wantMessage(t, st, "good") // what came before stands
			if test.want != "" {
				wantBroken(t, st, test.want)
			} else {
				_, _, err := receive(st)
				var large *mux.TooLargeError
				if !errors.As(err, &large) || large.Limit != 1000 {
					t.Errorf("got %v, want a message that is too large", err)
				}
			}
			h.end()
			peer.expectReply(id)
			wantEmpty(t, "the server", srv)
		})
	}
}

// shortChecksum is a frame that has no room for its checksum.
func shortChecksum(id uint32) []byte {
	frame := data(id, 0, "abc")
	frame[5] |= byte(wire.HasChecksum)
	return frame
}

// The client's side takes a broken message in the same way.
func TestABrokenMessageFailsTheOpenersStream(t *testing.T) {
	peer, c, st, id := facingStream(t, defaultLimits(), "feed", nil)
	peer.write(data(id, wire.OfReply, "good"), sized(id, wire.OfReply|wire.More, 5, "012"), reply(id, "a reply in the middle of a message"))
	wantMessage(t, st, "good")
	wantBroken(t, st, "it is shorter than announced")
	if a, err := st.Wait(); err != nil || string(a.Body) != "a reply in the middle of a message" {
		t.Errorf("got %+v, %v", a, err)
	}
	wantEmpty(t, "the client", c)
}
