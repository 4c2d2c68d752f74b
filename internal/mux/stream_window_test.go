// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Windows of streams: who may send how much, and what waits.

const firstID = 1 << wire.SlotBits // of the first call of a connection

// An opener sends nothing before the receiver has taken the call. A refusal has cost nothing.
func TestAnOpenerWaitsForTheFirstCredit(t *testing.T) {
	peer, c, st, id := facingStream(t, defaultLimits(), "upload", nil)
	sent := sending(t.Context(), st, []byte("first"))
	accepted := make(chan error, 1)
	go func() { accepted <- st.Accepted(context.Background()) }()
	peer.quiet(2)
	peer.write(credit(id, wire.OfReply, 4096))
	if err := within(t, "the stream is accepted", accepted); err != nil {
		t.Fatal(err)
	}
	if flags, _, got := peer.expectData(id); got != "first" || flags&wire.Waited != 0 {
		t.Errorf("got %q, flags %#x", got, flags)
	}
	if err := within(t, "it is sent", sent); err != nil {
		t.Error(err)
	}

	refused := open(t, c, streamMethod("upload", wire.Upload), nil)
	h, _ := peer.expect(wire.Request)
	sent = sending(t.Context(), refused, []byte("never"))
	peer.write(frameOf(wire.Header{Type: wire.Reply, Flags: wire.NotProcessed, Arg: codeUnavailable, ID: h.ID}, nil, nil))
	if err := within(t, "Send returns", sent); err != io.EOF {
		t.Errorf("Send: got %v", err)
	}
	if err := refused.Accepted(t.Context()); err != io.EOF {
		t.Errorf("Accepted: got %v", err)
	}
	if a, err := refused.Wait(); err != nil || a.Code != codeUnavailable || a.Flags&wire.NotProcessed == 0 {
		t.Errorf("got %+v, %v", a, err)
	}
	peer.quiet(3)
}

// What comes without credit, or beyond it, is a breach; what is within it to the byte is not.
func TestMoreThanTheCreditIsABreach(t *testing.T) {
	fill := func(n int) string { return string(make([]byte, n-wire.HeaderSize)) }
	tests := []struct {
		name, method string
		accept       bool
		frames       [][]byte
		breach       bool
	}{
		{"before the first credit", "upload", false, [][]byte{data(firstID, 0, "")}, true},
		{"on a feed", "feed", true, [][]byte{data(firstID, 0, "")}, true},
		{"all of it", "upload", true, [][]byte{data(firstID, 0, fill(4000)), data(firstID, 0, fill(96))}, false},
		{"a header too much", "upload", true, [][]byte{data(firstID, 0, fill(4000)), data(firstID, 0, fill(96)), data(firstID, 0, "")}, true},
		{"a byte too much", "duplex", true, [][]byte{data(firstID, 0, fill(4097))}, true},
		{"in pieces", "upload", true, [][]byte{sized(firstID, wire.More, 9000, fill(4000)), data(firstID, wire.More, fill(97))}, true},
		{"ends cost nothing", "upload", true, [][]byte{data(firstID, 0, fill(4096)), data(firstID, wire.End, ""), data(firstID, wire.End, "")}, false},
		{"after the end", "upload", true, [][]byte{data(firstID, wire.End, ""), data(firstID, 0, fill(4096))}, false},
		{"too much after the end", "upload", true, [][]byte{data(firstID, wire.End, ""), data(firstID, 0, fill(4097))}, true},
		{"an end before the first credit", "upload", false, [][]byte{data(firstID, wire.End, "")}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := newHolder()
			peer, srv, r := openedPeer(t, h, limitsWith(4096, 1<<20), test.method, nil)
			if test.accept {
				r.Stream().Accept()
				if test.method != "feed" {
					peer.expectCredit(firstID, wire.OfReply)
				}
			}
			peer.write(test.frames...)
			if !test.breach {
				peer.quiet(1)
				h.end()
				peer.expectReply(firstID)
				wantEmpty(t, "the server", srv)
				return
			}
			if d := peer.expectBreach(); !strings.Contains(string(d.Message), "more on a stream than its window holds") {
				t.Errorf("got %q", d.Message)
			}
			within(t, "the handler's context ends", r.Done())
			wantEmpty(t, "the server", srv)
		})
	}
}

// A receiver whose credit is exceeded on the opener's side ends the connection too.
func TestMoreThanTheOpenersWindowIsABreach(t *testing.T) {
	peer, c, st, id := facingStream(t, limitsWith(4096, 1<<20), "feed", nil)
	peer.write(data(id, wire.OfReply, string(make([]byte, 4096-2*wire.HeaderSize))), data(id, wire.OfReply, ""), data(id, wire.OfReply, ""))
	peer.expectBreach()
	var breach *mux.ProtocolError
	if err := wantEnd(t, c); !errors.As(err, &breach) {
		t.Errorf("the connection ended with %v", err)
	}
	if _, err := st.Wait(); !errors.As(err, &breach) {
		t.Errorf("the stream ended with %v", err)
	}
	wantEmpty(t, "the client", c)
}

// Sending stops at the credit, goes on with more of it, and is not impressed by less.
func TestASenderKeepsToTheCredit(t *testing.T) {
	peer, _, st, id := facingStream(t, defaultLimits(), "upload", nil)
	const size = 1000 // with its header, and room for a checksum
	msg := make([]byte, size-wire.HeaderSize-wire.ChecksumSize)
	const cost = size - wire.ChecksumSize
	ctx := t.Context()
	go func() {
		for st.Send(ctx, 0, msg) == nil {
			continue
		}
	}()
	expect := func(n int, waited bool) {
		t.Helper()
		for i := range n {
			flags, _, got := peer.expectData(id)
			if len(got) != len(msg) || flags&wire.Waited != 0 != (waited && i == 0) {
				t.Errorf("got %d bytes, flags %#x", len(got), flags)
			}
		}
		peer.quiet(1)
	}
	peer.write(credit(id, wire.OfReply, 4096))
	expect(4, false)
	peer.write(credit(id, wire.OfReply, 4*cost+size-1))
	peer.quiet(2)
	peer.write(credit(id, wire.OfReply, 100), credit(id, wire.OfReply, 0))
	peer.quiet(3)
	// of other streams
	peer.write(credit(id, 0, 1<<20), credit(id+1, wire.OfReply, 1<<20), credit(callID(0, 2), wire.OfReply, 1<<20))
	peer.quiet(4)
	peer.write(credit(id, wire.OfReply, 4*cost+size))
	expect(1, true)
	peer.write(credit(id, wire.OfReply, 10*cost+size), credit(id, wire.OfReply, 9*cost+size))
	expect(6, true)
}

// The receiver of a call may send as much at once as the opener's settings say: at least 4096
// bytes, by default 64 KiB.
func TestTheReceiverMaySendAtOnce(t *testing.T) {
	for _, test := range []struct {
		setting uint64
		window  int
	}{{0, 64 << 10}, {1, 4096}, {4095, 4096}, {5000, 5000}, {100_000, 100_000}, {1 << 30, 4 << 20}} {
		h := newHolder()
		peer, srv, r := openedPeer(t, h, defaultLimits(), "feed", &wire.Limits{StreamWindow: test.setting})
		msg := make([]byte, 1000-wire.HeaderSize)
		want := (test.window - wire.ChecksumSize) / 1000
		go func() {
			for r.Stream().Send(r, 0, msg) == nil {
				continue
			}
		}()
		for range want {
			peer.expectData(firstID)
		}
		peer.quiet(1)
		peer.write(frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: firstID}, nil, nil))
		peer.expectReply(firstID)
		wantEmpty(t, "the server", srv)
	}
}

// Half of the window is what a sender may always wait for: a smaller message goes in one frame, a
// larger one in pieces of that.
func TestMessagesLargerThanHalfOfAWindowGoInPieces(t *testing.T) {
	for _, test := range []struct{ first, largest int }{
		{1, 2048}, {4096, 2048}, {10_000, 5000}, {64 << 10, 32 << 10}, {1 << 20, wire.HeaderSize + mux.MaxFrame - 16}, {1 << 30, wire.HeaderSize + mux.MaxFrame - 16},
	} {
		peer, _, st, id := facingStream(t, defaultLimits(), "upload", nil)
		peer.write(credit(id, wire.OfReply, test.first), credit(id, wire.OfReply, max(test.first, 1<<20)))
		fits := test.largest - wire.HeaderSize - wire.ChecksumSize
		sent := sending(t.Context(), st, patterned(fits, 1))
		if flags, size, got := peer.expectData(id); flags&(wire.More|wire.HasFields) != 0 || size != 0 || len(got) != fits {
			t.Errorf("credit %d: %d bytes: got %d, flags %#x", test.first, fits, len(got), flags)
		}
		within(t, "it is sent", sent)
		large := string(patterned(3*fits, 2))
		sent = sending(t.Context(), st, []byte(large))
		flags, size, got := peer.expectData(id)
		if flags&(wire.More|wire.HasFields) != wire.More|wire.HasFields || size != uint64(len(large)) {
			t.Errorf("credit %d: flags %#x, size %d", test.first, flags, size)
		}
		rest, pieces := peer.expectRest(id, flags)
		if least := len(large) / fits; len(got) > fits || len(pieces) < least {
			t.Errorf("credit %d: the first piece has %d bytes, and %d follow", test.first, len(got), len(pieces))
		}
		got += rest
		if got != large {
			t.Errorf("credit %d: got %d bytes, want %d", test.first, len(got), len(large))
		}
		if err := within(t, "it is sent", sent); err != nil {
			t.Error(err)
		}
	}
}

// A receiver grants again when half of its window is consumed, and not before.
func TestAReceiverGrantsWhenHalfIsConsumed(t *testing.T) {
	h := newHolder()
	defer h.end()
	peer, _, r := openedPeer(t, h, limitsWith(8192, 1<<20), "upload", nil)
	st := r.Stream()
	st.Accept()
	if sum := peer.expectCredit(firstID, wire.OfReply); sum != 8192 {
		t.Errorf("the first credit is %d", sum)
	}
	msg := string(make([]byte, 1024-wire.HeaderSize))
	for range 8 {
		peer.write(data(firstID, 0, msg))
	}
	peer.quiet(1)
	for range 4 {
		wantMessage(t, st, msg)
	}
	peer.quiet(2)
	wantMessage(t, st, msg) // asking for it says that the one before is done with; half is passed
	if sum := peer.expectCredit(firstID, wire.OfReply); sum != 8192+5*1024 {
		t.Errorf("got credit %d", sum)
	}
	for range 3 {
		wantMessage(t, st, msg)
	}
	peer.quiet(3)
	if err := waitInVain(st); err != nil {
		t.Fatal(err)
	}
	peer.quiet(4) // 8192+5*1024-8*1024 are left, which is more than half
	peer.write(data(firstID, 0, msg))
	wantMessage(t, st, msg)
	if err := waitInVain(st); err != nil {
		t.Fatal(err)
	}
	if sum := peer.expectCredit(firstID, wire.OfReply); sum != 9*1024+8192 {
		t.Errorf("got credit %d", sum)
	}
}

// waitInVain makes a receiver wait for a while.
func waitInVain(st *mux.Stream) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	msg, _, err := st.Receive(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("got %.40q, %w", msg, err)
	}
	return nil
}

// A sender that keeps to the rules can always go on when what it sent is consumed, whatever the
// sizes.
func TestWindowsNeverBlockForEver(t *testing.T) {
	for _, window := range []int{1, 5000, 0, 300_000} {
		s := &setup{limits: limitsWith(window, 1<<20), serves: map[string]*handler{"duplex": {serve: echoStream}}}
		c, srv := s.overTCP(t)
		st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
		sizes := []int{2047, 2048, 2049, 2030, 2031, 2032, 2033, 0, 1, 4095, 4096, 4097, 32_768, 32_740, 65_536, 150_000, 400_000}
		go func() {
			for i := range 200 {
				if err := st.Send(context.Background(), 0, patterned(sizes[i%len(sizes)], i)); err != nil {
					t.Error(err)
				}
			}
			st.End()
		}()
		for i := range 200 {
			wantMessage(t, st, string(patterned(sizes[i%len(sizes)], i)))
		}
		wantEOF(t, st)
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	}
}

// A sender that waits, for whatever it is, is woken at once by whatever ends the wait.
func TestASenderThatWaitsIsWoken(t *testing.T) {
	errGone, errAny := errors.New("the caller is gone"), errors.New("any")
	tests := []struct {
		name string
		end  func(c *mux.Conn, st *mux.Stream, cancel context.CancelCauseFunc, peer *rawPeer)
		send error // of Send, nil for any
		wait error // of Wait
	}{
		{"context of the wait", func(_ *mux.Conn, _ *mux.Stream, cancel context.CancelCauseFunc, _ *rawPeer) { cancel(errGone) }, errGone, nil},
		{"cancel", func(_ *mux.Conn, st *mux.Stream, _ context.CancelCauseFunc, _ *rawPeer) { st.Cancel(errGone) }, io.EOF, errGone},
		{"deadline", func(*mux.Conn, *mux.Stream, context.CancelCauseFunc, *rawPeer) { time.Sleep(time.Minute) }, io.EOF, mux.ErrDeadline},
		{"close", func(c *mux.Conn, _ *mux.Stream, _ context.CancelCauseFunc, _ *rawPeer) { c.Abort() }, nil, mux.ErrClosed},
		{"reply", func(_ *mux.Conn, _ *mux.Stream, _ context.CancelCauseFunc, peer *rawPeer) {
			peer.write(reply(firstID, "early"))
		}, io.EOF, nil},
		{"the peer's end", func(_ *mux.Conn, _ *mux.Stream, _ context.CancelCauseFunc, peer *rawPeer) { peer.nc.Close() }, nil, errAny},
	}
	for _, test := range tests {
		for _, what := range []string{"first credit", "credit", "in a large message", "output", "another sender"} {
			t.Run(test.name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client, server := memoryPair(map[bool]int{true: 1000}[what == "output"])
					s := &setup{}
					c := mux.New(client, nil, true, s.config(t, mux.Config{}, nil))
					defer c.Close()
					peer := newRawPeer(t, server)
					peer.write(hello(nil))
					synctest.Wait()
					st := mux.NewStream()
					out := &mux.Out{Method: streamMethod("upload", wire.Upload), Stream: st, Deadline: time.Now().Add(30 * time.Second)}
					if err := c.Start(t.Context(), out, st); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					var msg []byte
					switch what {
					case "credit", "another sender":
						peer.write(credit(firstID, wire.OfReply, 10))
					case "in a large message":
						peer.write(credit(firstID, wire.OfReply, 4096))
						msg = make([]byte, 100_000)
					case "output":
						peer.write(credit(firstID, wire.OfReply, 1<<30))
						msg = make([]byte, 10<<20)
					}
					synctest.Wait()
					ctx, cancel := context.WithCancelCause(context.Background())
					sends := []<-chan error{sending(ctx, st, msg)}
					if what == "another sender" {
						sends = append(sends, sending(ctx, st, msg))
					}
					synctest.Wait()
					select {
					case err := <-sends[0]:
						t.Fatalf("it did not wait: %v", err)
					default:
					}
					test.end(c, st, cancel, peer)
					synctest.Wait() // no time passes from here on
					for _, sent := range sends {
						select {
						case err := <-sent:
							if err == nil || test.send != nil && err != test.send {
								t.Errorf("Send: got %v, want %v", err, test.send)
							}
						default:
							t.Error("it still waits")
						}
					}
					if test.name == "context of the wait" {
						c.Abort()
						cancel(nil)
						return
					}
					_, err := st.Wait()
					if (err == nil) != (test.wait == nil) || test.wait != errAny && !errors.Is(err, test.wait) {
						t.Errorf("Wait: got %v, want %v", err, test.wait)
					}
					cancel(nil)
				})
			})
		}
	}
}

// The same on the side of a handler, whose context is that of its waits.
func TestAHandlerThatWaitsIsWoken(t *testing.T) {
	ends := map[string]struct {
		end  func(peer *rawPeer)
		want error
	}{
		"cancel": {func(peer *rawPeer) {
			peer.write(frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: firstID}, nil, nil))
		}, context.Canceled},
		"deadline": {func(*rawPeer) { time.Sleep(time.Minute) }, context.DeadlineExceeded},
		"close":    {func(peer *rawPeer) { peer.nc.Close() }, context.Canceled},
	}
	waits := map[string]func(r *mux.Request) error{
		"receive": func(r *mux.Request) error {
			_, _, err := r.Stream().Receive(r)
			return err
		},
		"send": func(r *mux.Request) error {
			return r.Stream().Send(r, 0, make([]byte, 1<<20))
		},
	}
	for how, end := range ends {
		for what, wait := range waits {
			t.Run(how+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					got := make(chan error, 1)
					s := &setup{serves: map[string]*handler{"duplex": {serve: func(r *mux.Request) {
						r.Stream().Accept()
						if err := wait(r); err == nil || r.Err() != end.want {
							t.Errorf("got %v, the context's is %v, want %v", err, r.Err(), end.want)
						}
						got <- nil
					}}}}
					client, server := memoryPair(0)
					srv := mux.New(server, nil, false, s.config(t, mux.Config{}, s.serves))
					defer srv.Close()
					peer := newRawPeer(t, client)
					peer.write(hello(nil), methodOf(0, "duplex"), frameOf(wire.Header{Type: wire.Request, ID: firstID}, &wire.Fields{Timeout: 30_000_000}, nil))
					synctest.Wait()
					select {
					case <-got:
						t.Fatal("it did not wait")
					default:
					}
					end.end(peer)
					synctest.Wait()
					select {
					case <-got:
					default:
						t.Error("it still waits")
					}
					synctest.Wait()
					wantEmpty(t, "the server", srv)
				})
			})
		}
	}
}

// A sender that had to wait says so, and the window of a receiver that waits too doubles: up to 4
// MiB, and up to half of what the streams of the connection may hold.
func TestTheWindowGrowsForAReceiverThatWaits(t *testing.T) {
	for _, test := range []struct{ maxOpenBytes, largest int }{{1 << 30, 4 << 20}, {8 << 20, 4 << 20}, {8<<20 - 1, 2 << 20}, {64 << 10, 32 << 10}, {12 << 10, 4096}} {
		h := newHolder()
		peer, srv, r := openedPeer(t, h, limitsWith(4096, test.maxOpenBytes), "upload", nil)
		st := r.Stream()
		st.Accept()
		peer.expectCredit(firstID, wire.OfReply)
		sent := 2048
		peer.write(data(firstID, wire.Waited, string(make([]byte, sent-wire.HeaderSize))))
		peer.quiet(1)
		if n := srv.Tables().Reserved; n != 4096 {
			t.Errorf("nobody waits, and %d bytes are reserved", n)
		}
		all := counting(t.Context(), st)
		for window := 4096; ; window *= 2 {
			if sum := peer.expectCredit(firstID, wire.OfReply); sum != uint64(sent+window) { // and now it waits
				t.Errorf("got credit %d, want %d", sum, sent+window)
			}
			if n := srv.Tables().Reserved; n != window {
				t.Errorf("a window of %d bytes has %d reserved", window, n)
			}
			peer.write(data(firstID, wire.Waited, ""))
			sent += wire.HeaderSize
			if window == test.largest {
				break
			}
		}
		peer.quiet(2)
		peer.write(data(firstID, wire.End, ""))
		if n := within(t, "the receiver ends", all); n.err != io.EOF {
			t.Errorf("got %+v", n)
		}
		h.end()
		peer.expectReply(firstID)
		wantEmpty(t, "the server", srv)
	}
}

// Where the streams of a connection hold half of what they may, further ones have small windows,
// and still go on.
func TestTheWindowsOfManyStreamsAreBounded(t *testing.T) {
	const bound, window = 1 << 20, 64 << 10
	h := newHolder()
	s := &setup{server: mux.Config{Limits: limitsWith(window, bound)}, serves: h.handlers()}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), methodOf(0, "upload"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	for i := range uint32(20) {
		id := callID(i, 1)
		peer.write(request(0, id, ""))
		within(t, "the stream is opened", h.opened).Stream().Accept()
		want := window
		if i >= bound/2/window {
			want = 4096
		}
		if sum := peer.expectCredit(id, wire.OfReply); sum != uint64(want) {
			t.Errorf("stream %d has a window of %d bytes, want %d", i, sum, want)
		}
	}
	if n := srv.Tables(); n.Reserved != bound/2 || n.InBytes != 0 || n.InOpen != 20 {
		t.Errorf("got %+v", n)
	}
	peer.write(request(0, callID(20, 1), string(make([]byte, 50_000)))) // requests are counted by themselves
	within(t, "the stream is opened", h.opened)
	h.end()
	for range 21 {
		if hd, _ := peer.expect(wire.Reply); hd.Arg != 0 {
			t.Errorf("got %+v", hd)
		}
	}
	wantEmpty(t, "the server", srv)
}

// What windows hold in all is bounded while many streams are as fast as they can be.
func TestTheGrowthOfWindowsIsBounded(t *testing.T) {
	const bound = 1 << 20
	s := &setup{limits: limitsWith(0, bound), serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, srv := s.overTCP(t)
	stop, watched := make(chan struct{}), make(chan struct{})
	peak := 0
	go func() {
		defer close(watched)
		for {
			peak = max(peak, srv.Tables().Reserved, c.Tables().Reserved)
			select {
			case <-stop:
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	var wg sync.WaitGroup
	for range 30 {
		st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
		all := counting(t.Context(), st)
		wg.Go(func() {
			for range 1000 {
				if err := st.Send(context.Background(), 0, make([]byte, 1500)); err != nil {
					t.Error(err)
				}
			}
			st.End()
			if n := <-all; n.messages != 1000 || n.bytes != 1_500_000 || n.err != io.EOF {
				t.Errorf("got %+v", n)
			}
		})
	}
	wg.Wait()
	close(stop)
	<-watched
	if peak > bound/2 || peak < 64<<10 {
		t.Errorf("windows held %d bytes, the bound is %d", peak, bound/2)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A stream may be open for ever. It counts as one of the open requests, but with no bytes, unless
// its request takes several frames.
func TestAStreamCountsWithItsRequest(t *testing.T) {
	const large = 70_000
	peer, c := (&setup{}).facingClient(t)
	peer.write(hello(&wire.Limits{MaxOpen: 3, MaxOpenBytes: large, StreamWindow: 1 << 20}), ping(1))
	peer.expectHello()
	peer.expect(wire.Pong)
	feed := streamMethod("feed", wire.Feed)
	open(t, c, feed, bytes.Repeat([]byte("x"), 60_000))
	peer.expect(wire.Method)
	peer.expect(wire.Request)
	if n := c.Tables(); n.Open != 1 || n.OpenBytes != 0 {
		t.Errorf("one frame: got %+v", n)
	}
	open(t, c, feed, bytes.Repeat([]byte("x"), large))
	for h, _ := peer.expect(wire.Request); h.Flags&wire.More != 0; {
		h, _ = peer.expect(wire.Data)
	}
	if n := c.Tables(); n.Open != 2 || n.OpenBytes != large {
		t.Errorf("several frames: got %+v", n)
	}
	none := &mux.Out{Method: feed, Body: bytes.Repeat([]byte("x"), large), NoWait: true, Stream: mux.NewStream()}
	if err := c.Start(t.Context(), none, none.Stream); !errors.Is(err, mux.ErrWindow) {
		t.Errorf("more bytes than the window: got %v", err)
	}
	empty := open(t, c, feed, nil)
	h, _ := peer.expect(wire.Request)
	none = &mux.Out{Method: feed, NoWait: true, Stream: mux.NewStream()}
	if err := c.Start(t.Context(), none, none.Stream); !errors.Is(err, mux.ErrWindow) {
		t.Errorf("more streams than the window: got %v", err)
	}
	peer.write(reply(h.ID, ""))
	wantEOF(t, empty)
	c.Close()
	wantEmpty(t, "the client", c)
}

// A peer that sends and never reads must know what it will be granted; it costs bounded memory all
// the same.
func TestCreditForAPeerThatDoesNotReadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := limitsWith(4096, 1<<20)
		limits.MaxUnsent, limits.KeepAlive = 4096, 0
		s := &setup{limits: limits, serves: map[string]*handler{"upload": {serve: func(r *mux.Request) {
			r.Stream().Accept()
			<-counting(r, r.Stream())
		}}}}
		client, server := memoryPair(3000)
		srv := mux.New(server, nil, false, s.config(t, mux.Config{}, s.serves))
		defer srv.Close()
		written := make(chan int)
		go func() {
			n := 0
			_, err := client.Write(append(append(hello(nil), methodOf(0, "upload")...), request(0, firstID, "")...))
			for err == nil && n < 20<<20 {
				synctest.Wait() // all is consumed, and granted again
				_, err = client.Write(data(firstID, 0, string(make([]byte, 2048))))
				n += 2048
			}
			written <- n
		}()
		time.Sleep(time.Hour)
		if n := srv.Tables().Unsent; n > 3*limits.MaxUnsent {
			t.Errorf("%d bytes wait to be written", n)
		}
		client.Close()
		if n := <-written; n >= 20<<20 {
			t.Errorf("%d bytes were read of a peer that does not read", n)
		}
		<-srv.Ended()
		synctest.Wait()
		wantEmpty(t, "the server", srv)
	})
}
