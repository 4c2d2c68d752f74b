// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Messages of streams that are larger than a window.

// pieceOf returns a piece of a message that costs n bytes as a frame.
func pieceOf(id uint32, flags wire.Flags, n int) []byte {
	return data(id, flags, string(make([]byte, n-wire.HeaderSize)))
}

// beginning returns the first frame of a message of size bytes, which costs n, and how much of the
// message it has.
func beginning(id uint32, flags wire.Flags, size, n int) (frame []byte, has int) {
	opening := len(sized(id, flags, size, ""))
	return sized(id, flags|wire.More, size, string(make([]byte, n-opening))), n - opening
}

// The pieces of the message that a receiver waits for are granted beyond its window, and those of
// another one are not.
func TestPiecesOfAnAwaitedMessageAreGranted(t *testing.T) {
	const size = 100_000
	h := newHolder()
	peer, srv, r := openedPeer(t, h, limitsWith(4096, 1<<20), "upload", nil)
	st := r.Stream()
	st.Accept()
	peer.expectCredit(firstID, wire.OfReply)
	first, has := beginning(firstID, 0, size, 4096)
	peer.write(first)
	peer.quiet(1) // nobody waits for it
	all := counting(t.Context(), st)
	sent := uint64(4096)
	if sum := peer.expectCredit(firstID, wire.OfReply); sum != sent+4096 {
		t.Errorf("got credit %d, want %d", sum, sent+4096)
	}
	if n := srv.Tables().Reserved; n != 4096+size {
		t.Errorf("%d bytes are reserved for a message of %d", n, size)
	}
	for has < size {
		n := min(4096, size-has+wire.HeaderSize)
		flags := wire.More
		if has+n-wire.HeaderSize == size {
			flags = 0
		}
		peer.write(pieceOf(firstID, flags, n))
		has += n - wire.HeaderSize
		sent += uint64(n)
		if has == size && n <= 2048 {
			break
		}
		if sum := peer.expectCredit(firstID, wire.OfReply); sum != sent+4096 {
			t.Errorf("got credit %d, want %d", sum, sent+4096)
		}
	}
	peer.write(data(firstID, wire.End, ""))
	if n := within(t, "the receiver ends", all); n.messages != 1 || n.bytes != size || n.err != io.EOF {
		t.Errorf("got %+v", n)
	}
	if n := srv.Tables().Reserved; n != 4096 {
		t.Errorf("%d bytes are reserved after the message", n)
	}
	h.end()
	for {
		hd, _, err := peer.frame()
		if err != nil || hd.Type == wire.Reply {
			break
		}
	}
	wantEmpty(t, "the server", srv)
}

// Large messages are taken in one after the other, in the order in which they were waited for, as
// far as there is room.
func TestLargeMessagesWaitForRoom(t *testing.T) {
	const size, streams = 100_000, 5
	h := newHolder()
	s := &setup{limits: limitsWith(4096, 250_000), serves: h.handlers()}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), methodOf(0, "upload"))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	var all []<-chan tally
	windows := streams * 4096
	for i := range uint32(streams) {
		id := callID(i, 1)
		peer.write(request(0, id, ""))
		st := within(t, "the stream is opened", h.opened).Stream()
		st.Accept()
		peer.expectCredit(id, wire.OfReply)
		all = append(all, counting(t.Context(), st))
	}
	var has int
	for i := range uint32(streams) {
		var first []byte
		first, has = beginning(callID(i, 1), 0, size, 4096)
		peer.write(first)
		if i < 2 { // there is room for two
			peer.expectCredit(callID(i, 1), wire.OfReply)
			continue
		}
		eventually(t, "the others wait, in this order", func() bool { return srv.Tables().Reserving == int(i)-1 })
		peer.quiet(uint64(i))
	}
	if n := srv.Tables(); n.Reserved != windows+2*size || n.Reserving != streams-2 {
		t.Errorf("got %+v", n)
	}
	rest := func(i uint32) { // after the credit for it
		sum, sent := 8192, 4096
		for left := size - has; left > 0; {
			n := min(sum-sent, left+wire.HeaderSize)
			left -= n - wire.HeaderSize
			sent += n
			if left == 0 {
				peer.write(pieceOf(callID(i, 1), 0, n), data(callID(i, 1), wire.End, ""))
				return
			}
			peer.write(pieceOf(callID(i, 1), wire.More, n))
			sum = int(peer.expectCredit(callID(i, 1), wire.OfReply))
		}
	}
	for i := range uint32(streams) {
		rest(i)
		if n := within(t, "the message comes", all[i]); n.messages != 1 || n.bytes != size || n.err != io.EOF {
			t.Errorf("stream %d: got %+v", i, n)
		}
		// and it has made room for the next one; its own credit may come before
		for next := false; i+2 < streams && !next; {
			hd, _ := peer.expect(wire.Credit)
			next = hd.ID == callID(i+2, 1)
		}
	}
	if n := srv.Tables(); n.Reserved != windows || n.Reserving != 0 {
		t.Errorf("got %+v", n)
	}
	h.end()
	srv.Close()
	wantEmpty(t, "the server", srv)
}

// One that is larger than all the room there is comes when no other does, whatever windows have
// been given.
func TestAMessageLargerThanTheRoomComesAlone(t *testing.T) {
	limits := limitsWith(32<<10, 128<<10)
	limits.MaxMessage = 4 << 20
	h := newHolder()
	s := &setup{limits: limits, serves: h.handlers()}
	c, srv := s.overTCP(t)
	for range 3 { // they hold half of the room for as long as they are open
		_, r := h.openTo(t, c, "upload")
		r.Stream().Accept()
	}
	eventually(t, "half of it is held", func() bool { return srv.Tables().Reserved == 64<<10 })
	for _, name := range []string{"upload", "duplex"} {
		st, r := h.openTo(t, c, name)
		r.Stream().Accept()
		for _, size := range []int{100_000, 1 << 20, 4 << 20} {
			sent := sending(t.Context(), st, patterned(size, size))
			wantMessage(t, r.Stream(), string(patterned(size, size)))
			if err := within(t, "it is sent", sent); err != nil {
				t.Error(err)
			}
		}
	}
	h.end()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// Many at once, in both directions, with room for few of them: all arrive.
func TestManyLargeMessagesAtOnceArrive(t *testing.T) {
	limits := limitsWith(8192, 600_000)
	limits.MaxMessage = 1 << 20
	s := &setup{limits: limits, serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, srv := s.overTCP(t)
	var wg sync.WaitGroup
	sizes := []int{200_000, 5_000, 1 << 20, 60_000, 4_100, 300_000, 0}
	for i := range 12 {
		st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
		const rounds = 12
		wg.Go(func() {
			for j := range rounds {
				if err := st.Send(context.Background(), 0, patterned(sizes[(i+j)%len(sizes)], i*100+j)); err != nil {
					t.Error(err)
				}
			}
			st.End()
		})
		wg.Go(func() {
			for j := range rounds {
				wantMessageOf(t, st, sizes[(i+j)%len(sizes)], i*100+j)
			}
			if _, _, err := receive(st); err != io.EOF {
				t.Errorf("got %v, want the end", err)
			}
		})
	}
	wg.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A consumer that keeps a message, and one that has gone away while one was coming, hold up no
// other stream.
func TestConsumersDoNotHoldUpEachOther(t *testing.T) {
	const room, size, streams = 300_000, 200_000, 6
	h := newHolder()
	s := &setup{limits: limitsWith(8192, room), serves: h.handlers()}
	c, srv := s.overTCP(t)
	for i := range streams {
		st, r := h.openTo(t, c, "upload")
		back := r.Stream()
		back.Accept()
		before := srv.Tables().Reserved
		sent := sending(t.Context(), st, patterned(size, i))
		if i%2 == 0 {
			wantMessage(t, back, string(patterned(size, i))) // which is kept
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, _, err := back.Receive(ctx)
			ended <- err
		}()
		eventually(t, "it has room", func() bool { return srv.Tables().Reserved >= before+size })
		cancel() // perhaps before it has come whole
		if within(t, "it stops waiting", ended) != nil {
			if err := within(t, "it is sent all the same", sent); err != nil {
				t.Error(err)
			}
		}
	}
	h.end()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// wantMessageOf is wantMessage for patterned ones, on any goroutine.
func wantMessageOf(t *testing.T, st *mux.Stream, size, seed int) {
	t.Helper()
	msg, _, err := receive(st)
	if err != nil || string(msg) != string(patterned(size, seed)) {
		t.Errorf("got %d bytes, %v, want %d", len(msg), err, size)
	}
}

// Messages of several goroutines do not mix, however large they are.
func TestConcurrentMessagesAreNotMixed(t *testing.T) {
	s := &setup{limits: limitsWith(5000, 16<<20), serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, srv := s.overTCP(t)
	st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
	const senders, each = 8, 25
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for j := range each {
				size := []int{10, 3000, 40_000, 200_000}[(i+j)%4]
				msg := append([]byte(fmt.Sprintf("%d %d %d:", i, j, size)), patterned(size, i*each+j)...)
				if err := st.Send(context.Background(), 0, msg); err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := [senders]int{}
	for range senders * each {
		msg, _, err := receive(st)
		if err != nil {
			t.Fatal(err)
		}
		var i, j, size int
		if _, err := fmt.Sscanf(string(msg[:min(len(msg), 20)]), "%d %d %d:", &i, &j, &size); err != nil {
			t.Fatalf("%.20q: %v", msg, err)
		}
		if string(msg) != fmt.Sprintf("%d %d %d:", i, j, size)+string(patterned(size, i*each+j)) {
			t.Errorf("message %d of sender %d is another one", j, i)
		}
		if j != next[i] {
			t.Errorf("message %d of sender %d came before message %d", j, i, next[i])
		}
		next[i]++
	}
	wg.Wait()
	st.End()
	wantEOF(t, st)
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// A sender that gives up in the middle of a message tells its peer, whose stream is broken; nothing
// is kept for it.
func TestASenderGivesUpInTheMiddleOfAMessage(t *testing.T) {
	h := newHolder()
	s := &setup{limits: limitsWith(4096, 200_000), serves: h.handlers()}
	c, srv := s.overTCP(t)
	st, r := h.openTo(t, c, "duplex")
	r.Stream().Accept()
	errGone := errors.New("the caller is gone")
	for _, from := range []struct {
		sender, receiver *mux.Stream
		conn             *mux.Conn // of the receiver
	}{{st, r.Stream(), srv}, {r.Stream(), st, c}} {
		ctx, cancel := context.WithCancelCause(context.Background())
		in := from.conn.Counters().FramesIn
		sent := sending(ctx, from.sender, make([]byte, 500_000))
		// and nobody takes them
		eventually(t, "the first pieces have come", func() bool { return from.conn.Counters().FramesIn > in+1 })
		other := sending(context.Background(), from.sender, []byte("behind it"))
		cancel(errGone)
		if err := within(t, "Send returns", sent); err != errGone {
			t.Errorf("got %v", err)
		}
		if err := within(t, "the Send behind it returns", other); err != errGone {
			t.Errorf("behind it: got %v", err)
		}
		if err := from.sender.Send(t.Context(), 0, []byte("next")); err != errGone {
			t.Errorf("the next one: got %v", err)
		}
		from.sender.End()
		wantBroken(t, from.receiver, "it is shorter than announced")
		wantBroken(t, from.receiver, "it is shorter than announced") // once more
	}
	if there, back := c.Tables().Reserved, srv.Tables().Reserved; there > 100_000 || back > 100_000 {
		t.Errorf("%d and %d bytes are kept, which windows cannot be", there, back)
	}
	h.end()
	if a, err := st.Wait(); err != nil || a.Code != 0 {
		t.Errorf("got %+v, %v", a, err)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// Room that was made for a message which will not come is given back at once, not with the end of
// the stream.
func TestABrokenMessageGivesItsRoomBack(t *testing.T) {
	for how, frame := range map[string][]byte{"ended": data(firstID, wire.End, ""), "shorter": data(firstID, 0, ""), "longer": pieceOf(firstID, 0, 4000)} {
		h := newHolder()
		peer, srv, r := openedPeer(t, h, limitsWith(4096, 1<<20), "upload", nil)
		st := r.Stream()
		st.Accept()
		peer.expectCredit(firstID, wire.OfReply)
		all := counting(t.Context(), st)
		first, _ := beginning(firstID, 0, 5000, 4096)
		peer.write(first)
		peer.expectCredit(firstID, wire.OfReply)
		if n := srv.Tables().Reserved; n != 4096+5000 {
			t.Errorf("%s: %d bytes are reserved", how, n)
		}
		peer.write(frame)
		var broken *mux.BrokenError
		if n := within(t, "the receiver ends", all); !errors.As(n.err, &broken) || n.messages != 0 {
			t.Errorf("%s: got %+v", how, n)
		}
		if n := srv.Tables().Reserved; n != 4096 {
			t.Errorf("%s: %d bytes are still reserved", how, n)
		}
		h.end()
		peer.expectReply(firstID)
		wantEmpty(t, "the server", srv)
	}
}

// The end goes out behind the message that is just being sent.
func TestTheEndWaitsForTheMessageBeforeIt(t *testing.T) {
	peer, c, st, id := facingStream(t, defaultLimits(), "upload", nil)
	peer.write(credit(id, wire.OfReply, 4096))
	large := string(patterned(10_000, 1))
	sent := sending(t.Context(), st, []byte(large))
	flags, _, got := peer.expectData(id)
	behind := sending(t.Context(), st, []byte("behind it"))
	st.End()
	st.End()
	if err := within(t, "the Send behind it returns", behind); !errors.Is(err, mux.ErrSendEnded) {
		t.Errorf("behind it: got %v", err)
	}
	peer.write(credit(id, wire.OfReply, 1<<20))
	rest, _ := peer.expectRest(id, flags)
	got += rest
	if err := within(t, "it is sent", sent); err != nil || got != large {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if flags, _, _ := peer.expectData(id); flags != wire.End {
		t.Errorf("got flags %#x, want the end", flags)
	}
	peer.quiet(2) // one end
	peer.write(reply(id, ""))
	wantEmpty(t, "the client", c)
}

// What is announced costs memory when it has come, and only once there is a reservation for it.
func TestAnAnnouncedMessageOfAStreamCostsLittleMemory(t *testing.T) {
	const announced, window = 64 << 20, 1 << 20
	h := newHolder()
	defer h.end()
	peer, srv, r := openedPeer(t, h, limitsWith(window, 256<<20), "upload", nil)
	st := r.Stream()
	st.Accept()
	peer.expectCredit(firstID, wire.OfReply)
	receives := func() {
		in := srv.Counters().FramesIn
		first, _ := beginning(firstID, 0, announced, 60_000)
		peer.write(first)
		for range 10 {
			peer.write(pieceOf(firstID, wire.More, 60_000))
		}
		eventually(t, "it has come", func() bool { return srv.Counters().FramesIn >= in+11 })
	}
	if used := allocated(receives); used > 8<<20 {
		t.Errorf("%d bytes were allocated for 660,000", used)
	}
	if n := srv.Tables().Reserved; n != window {
		t.Errorf("%d bytes are reserved for what nobody waits for", n)
	}
}

// Who waits for room and does not need it any more leaves the queue, and lets those behind it go
// on.
func TestLeavingTheQueueLetsOthersGoOn(t *testing.T) {
	const window = 4096
	leave := map[string]func(peer *rawPeer, id uint32){
		"cancel": func(peer *rawPeer, id uint32) {
			peer.write(frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: id}, nil, nil))
		},
		"end":       func(peer *rawPeer, id uint32) { peer.write(data(id, wire.End, "")) },
		"broken":    func(peer *rawPeer, id uint32) { peer.write(data(id, 0, "")) },
		"completed": nil, // by what the window holds
	}
	for how, out := range leave {
		t.Run(how, func(t *testing.T) {
			h := newHolder()
			s := &setup{limits: limitsWith(window, 200_000), serves: h.handlers()}
			peer, srv := s.facingServer(t)
			peer.write(hello(nil), methodOf(0, "upload"))
			peer.expectHello()
			peer.expect(wire.MethodInfo)
			announce := []int{150_000, 100_000, 20_000}
			if how == "completed" {
				announce[1] = 3000
				announce[0] = 199_000 - 3*window
			}
			for i := range uint32(3) {
				id := callID(i, 1)
				peer.write(request(0, id, ""))
				st := within(t, "the stream is opened", h.opened).Stream()
				st.Accept()
				peer.expectCredit(id, wire.OfReply)
				_ = counting(t.Context(), st)
			}
			for i, size := range announce {
				cost := window
				if i > 0 {
					cost = 2000
				}
				first, _ := beginning(callID(uint32(i), 1), 0, size, cost)
				peer.write(first)
				if i == 0 {
					peer.expectCredit(callID(0, 1), wire.OfReply)
				}
				eventually(t, "the others wait, in this order", func() bool { return srv.Tables().Reserving == i })
			}
			peer.quiet(1)
			if how == "completed" {
				_, has := beginning(0, 0, announce[1], 2000)
				peer.write(pieceOf(callID(1, 1), 0, announce[1]-has+wire.HeaderSize))
				eventually(t, "it is not in the queue", func() bool { return srv.Tables().Reserving == 1 })
				// It can stand in the queue again, for another message.
				peer.write(frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: callID(0, 1)}, nil, nil))
				next, _ := beginning(callID(1, 1), 0, 50_000, 1000)
				peer.write(next)
				eventually(t, "there is room for the others", func() bool {
					n := srv.Tables()
					return n.Reserving == 0 && n.Reserved >= 50_000+announce[2]
				})
			} else {
				out(peer, callID(1, 1))
				eventually(t, "the last one has room", func() bool {
					n := srv.Tables()
					return n.Reserving == 0 && n.Reserved >= announce[0]+announce[2]
				})
			}
			h.end()
			srv.Close()
			wantEmpty(t, "the server", srv)
		})
	}
}
