// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Whatever a peer says on streams, legal or not: the side keeps to its peer's credit, answers each
// request once at most, keeps nothing and little memory, and the connection either works afterwards
// or has ended because of a breach.

// streamLimits are small, so that short scripts reach them.
func streamLimits() mux.Limits {
	l := fuzzLimits()
	l.MaxMessage, l.MaxOpenBytes, l.StreamWindow = 20_000, 30_000, 4096
	return l
}

// streamFrames makes frames of a script, four bytes for each: what, of which call, and two to vary
// it. Towards is OfReply if they are for the opener of the streams.
func streamFrames(script []byte, towards wire.Flags) (frames [][]byte) {
	for ; len(script) >= 4; script = script[4:] {
		what, slot, a, b := script[0]%16, uint32(script[1]%4), script[2], int(script[3])
		id := callID(slot, 1+uint32(script[1]>>6)%2)
		flags := towards
		if a&0x10 != 0 {
			flags |= wire.HasChecksum
		}
		if a&0x20 != 0 {
			flags |= wire.Waited
		}
		frames = append(frames, streamFrame(what, id, flags, a, b))
	}
	return frames
}

func streamFrame(what byte, id uint32, flags wire.Flags, a byte, b int) []byte {
	piece := string(make([]byte, b*8))
	switch what {
	case 0, 1:
		if flags&wire.OfReply != 0 { // towards the opener the call ends
			return frameOf(wire.Header{Type: wire.Reply, ID: id, Arg: uint16(a % 3), Flags: flags & wire.HasChecksum}, nil, []byte(piece))
		}
		return frameOf(wire.Header{Type: wire.Request, ID: id, Arg: uint16(a % 5), Flags: flags & wire.HasChecksum}, nil, []byte{byte(b)})
	case 2: // in pieces, which are Data too
		h := wire.Header{Type: wire.Request, ID: id, Arg: uint16(a % 5), Flags: wire.More}
		if flags&wire.OfReply != 0 {
			h.Type, h.Arg = wire.Reply, 0
		}
		return frameOf(h, &wire.Fields{Size: uint64(b)}, nil)
	case 3, 4, 5:
		return data(id, flags|wire.Flags(a)&wire.Compressed, piece)
	case 6:
		return sized(id, flags|wire.More, b*100, piece[:min(len(piece), int(a))])
	case 7:
		return data(id, flags|wire.More, piece)
	case 8: // the rest of a message that 6 has begun with the same bytes
		return data(id, flags, string(make([]byte, max(b*100-min(b*8, int(a)), 0))))
	case 9:
		return sized(id, flags, b, piece)
	case 10:
		return data(id, flags|wire.End, "")
	case 11:
		return credit(id, flags&wire.OfReply, int(a)<<8+b)
	case 12:
		return frameOf(wire.Header{Type: wire.Cancel, ID: id, Arg: uint16(a % 5)}, nil, nil)
	case 13: // of the other direction
		return data(id, flags^wire.OfReply, piece)
	case 14:
		broken := data(id, flags|wire.HasChecksum, piece)
		broken[len(broken)-1] ^= a | 1
		return broken
	}
	if a == 0 {
		return wire.AppendGoAway(nil, 0, &wire.Drain{Count: uint64(b)})
	}
	return ping(uint64(b))
}

// fuzzStreams are the methods that the scripts call.
func fuzzStreams() map[string]*handler {
	methods := conversationHandlers()
	methods["feed"] = &handler{serve: func(r *mux.Request) {
		if len(r.Body) == 0 || r.Stream() == nil {
			return
		}
		for n := int(r.Body[0]); n > 0; n -= 7 {
			if r.Stream().Send(r, 0, make([]byte, n*n)) != nil {
				return
			}
		}
	}}
	methods["third"] = &handler{serve: func(r *mux.Request) { // takes the call, and then only waits
		if r.Stream() != nil {
			r.Stream().Accept()
		}
		<-r.Done()
	}}
	return methods
}

// stepwise says frames one by one, so that a side has done with each before the next, and closes.
// It reports what came back.
func stepwise(t *testing.T, c *mux.Conn, peer *memoryConn, frames [][]byte) (back []byte) {
	t.Helper()
	for _, frame := range frames {
		if _, err := peer.Write(frame); err != nil {
			break
		}
		synctest.Wait()
	}
	alive := c.Err() == nil
	n := uint64(1)<<40 + uint64(len(frames))
	_, _ = peer.Write(ping(n))
	synctest.Wait()
	back = make([]byte, peer.in.buffered())
	_, _ = io.ReadFull(peer, back)
	if pong := ping(n)[wire.HeaderSize:]; alive && c.Err() == nil && !slices.Equal(back[max(0, len(back)-len(pong)):], pong) {
		t.Error("the connection is there and does not answer")
	}
	time.Sleep(2 * time.Second)
	peer.Close()
	<-c.Ended()
	var breach *mux.ProtocolError
	var end *mux.IOError
	var refusal *mux.Refusal
	if err := c.Err(); !errors.As(err, &breach) && !errors.As(err, &end) && !errors.As(err, &refusal) && !errors.Is(err, mux.ErrDrained) && !errors.Is(err, mux.ErrClosed) {
		t.Errorf("the connection ended with %v", err)
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	return back
}

// keptTo checks what a side sent of streams against what it was allowed.
func keptTo(t *testing.T, back []byte, frames [][]byte, own wire.Flags, first int) {
	t.Helper()
	may, opened, finals := map[uint32]int{}, map[uint32]int{}, map[uint32]int{}
	for _, frame := range frames {
		h := wire.ParseHeader(frame)
		var w wire.Window
		if h.Type == wire.Credit && wire.ParseCredit(frame[wire.HeaderSize:], &w) == nil {
			may[h.ID] = max(may[h.ID], int(w.StreamBytes))
		}
		if h.Type == wire.Request {
			opened[h.ID]++
		}
	}
	sent := map[uint32]int{}
	back = bytes.TrimPrefix(back, []byte(wire.Preface))
	for len(back) >= wire.HeaderSize {
		h := wire.ParseHeader(back)
		n := wire.HeaderSize + int(h.Len)
		switch {
		case h.Type == wire.Data && h.Flags&wire.End == 0:
			sent[h.ID] += n
			if h.Flags&wire.OfReply != own {
				t.Errorf("a frame of the wrong direction: %+v", h)
			}
		case h.Type == wire.Reply && h.Flags&wire.More == 0:
			if finals[h.ID]++; finals[h.ID] > opened[h.ID] {
				t.Errorf("a reply too many: %+v", h)
			}
		}
		back = back[n:]
	}
	for id, n := range sent {
		uses := opened[id]
		if own == 0 { // this side opened it, once
			uses = 1
		}
		if most := max(may[id], first) * uses; n > most {
			t.Errorf("%d bytes were sent on %#x, %d were allowed", n, id, most)
		}
	}
}

func addStreamScripts(f *testing.F) {
	f.Helper()
	// generation
	const second = 0x40
	// a feed, with credit
	f.Add([]byte{0, 0, 0, 100, 11, 0, 0x80, 0, 11, 0, 0xff, 0})
	// an upload
	f.Add([]byte{0, 0, 1, 0, 3, 0, 0, 100, 4, 0, 8, 0, 10, 0, 0, 0})
	// a duplex
	f.Add([]byte{0, 0, 2, 0, 3, 0, 0x10, 100, 5, 0, 0x20, 255, 5, 0, 0x20, 255, 10, 0, 0, 0})
	// a large message
	f.Add([]byte{0, 0, 1, 0, 6, 0, 100, 50, 8, 0, 100, 50, 10, 0, 0, 0})
	// one beyond the window, canceled
	f.Add([]byte{0, 0, 2, 0, 6, 0, 255, 150, 7, 0, 0, 255, 7, 0, 0, 255, 7, 0, 0, 255, 7, 0, 0, 255, 12, 0, 1, 0})
	// two that wait for room
	f.Add([]byte{0, 0, 1, 0, 0, 1, 1, 0, 6, 0, 255, 190, 6, 1, 255, 190, 7, 0, 0, 250, 7, 1, 0, 250, 12, 0, 1, 0, 7, 1, 0})
	// more than a window
	f.Add([]byte{0, 0, 3, 0, 3, 0, 0, 255, 3, 0, 0, 255, 3, 0, 0, 255})
	// ends in the middle
	f.Add([]byte{0, 0, 2, 0, 6, 0, 20, 50, 10, 0, 0, 0, 0, second, 2, 0, 14, second, 1, 9, 3, 0, 0, 1})
	// a request in pieces, a drain
	f.Add([]byte{2, 0, 0, 9, 3, 0, 0, 1, 3, 0, 0, 1, 15, 0, 0, 1, 0, 1, 1, 0, 13, 0, 0, 5})
	f.Add([]byte{11, 0, 0x20, 0, 3, 0, 0, 10, 11, 1, 0xf0, 0, 11, 2, 0xff, 255, 3, 2, 0, 40, 0, 2, 0, 3, 2, 1, 0, 0, 3, 1, 0, 0})
}

func FuzzServeStreams(f *testing.F) {
	addStreamScripts(f)
	f.Fuzz(func(t *testing.T, script []byte) { serveStreams(t, script[:min(len(script), 400)]) })
}

func serveStreams(t *testing.T, script []byte) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hello := slices.Concat(hello(&wire.Limits{StreamWindow: 4096}), methodOf(0, "feed"), methodOf(1, "upload"), methodOf(2, "duplex"),
			wire.AppendMethod(nil, 3, 4, &wire.Binding{Name: []byte("third"), Kind: wire.Upload}), method(4, "echo"))
		frames := append([][]byte{hello}, streamFrames(script, 0)...)
		said := 0
		for _, frame := range frames {
			said += len(frame)
		}
		used := allocated(func() {
			s := &setup{limits: streamLimits(), serves: fuzzStreams()}
			own, peer := memoryPair(0)
			srv := mux.New(own, nil, false, s.config(t, s.server, s.serves))
			back := stepwise(t, srv, peer, frames)
			keptTo(t, back, frames, wire.OfReply, 4096)
			n := srv.Tables()
			n.Unsent, n.Slots = 0, 0
			if n != (mux.Tables{}) {
				t.Errorf("something is left: %+v", n)
			}
		})
		if bound := memoryBound(said); used > bound {
			t.Errorf("%d bytes of input made it allocate %d, the bound is %d", said, used, bound)
		}
	})
}

func FuzzClientStreams(f *testing.F) {
	addStreamScripts(f)
	f.Fuzz(func(t *testing.T, script []byte) { callStreams(t, script[:min(len(script), 400)]) })
}

func callStreams(t *testing.T, script []byte) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		frames := append([][]byte{hello(nil)}, streamFrames(script, wire.OfReply)...)
		said := 0
		for _, frame := range frames {
			said += len(frame)
		}
		used := allocated(func() {
			s := &setup{limits: streamLimits()}
			own, peer := memoryPair(0)
			c := mux.New(own, nil, true, s.config(t, s.client, nil))
			ended := make(chan struct{}, 8)
			for i, kind := range []string{"feed", "upload", "duplex", "duplex"} {
				useStream(t, c, i, kind, ended)
				synctest.Wait() // so that ids have an order
			}
			back := stepwise(t, c, peer, frames)
			keptTo(t, back, frames, 0, 0)
			for range cap(ended) {
				<-ended
			}
			n := c.Tables()
			n.Unsent, n.Slots = 0, 0
			if n != (mux.Tables{}) {
				t.Errorf("something is left: %+v", n)
			}
		})
		if bound := memoryBound(said); used > bound {
			t.Errorf("%d bytes of input made it allocate %d, the bound is %d", said, used, bound)
		}
	})
}

// useStream opens a stream and uses it both ways, as far as its kind lets it, until it ends. It
// says twice that it has ended.
func useStream(t *testing.T, c *mux.Conn, i int, kind string, ended chan<- struct{}) {
	t.Helper()
	st := mux.NewStream()
	out := &mux.Out{Method: &mux.Method{Handle: i, Name: kind, Codec: "raw", Kind: kindOf[kind]}, Stream: st}
	if err := c.Start(context.Background(), out, st); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer func() { ended <- struct{}{} }()
		for _, size := range []int{0, 100, 3000, 50_000, 10} {
			if kind == "feed" || st.Send(context.Background(), 0, make([]byte, size)) != nil {
				return
			}
		}
		if i == 3 {
			st.End()
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		for {
			if _, _, err := st.Receive(context.Background()); err != nil {
				break
			}
		}
		if a, err := st.Wait(); (a == nil) == (err == nil) {
			t.Errorf("got %+v, %v", a, err)
		}
	}()
}
