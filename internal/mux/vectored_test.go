// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// piecesOf cuts a message into the frames of a request. Checksums keep them from being read to
// their place.
func piecesOf(id uint32, body []byte, checksum wire.Flags, random *rand.Rand) (frames [][]byte) {
	size := uint64(len(body))
	h := wire.Header{Type: wire.Request, Flags: wire.More | checksum, ID: id}
	fields := &wire.Fields{Size: size}
	each := 1 + random.IntN(mux.MaxFrame-100)
	alike := random.IntN(2) == 0 // as most senders make them, which the reader counts on
	for len(body) > 0 {
		n := min(len(body), each)
		if !alike {
			n = min(len(body), 1+random.IntN(mux.MaxFrame-100))
		}
		if n == len(body) && fields == nil {
			h.Flags &^= wire.More
		}
		if n == len(body) && fields != nil {
			n--
		}
		frames = append(frames, frameOf(h, fields, body[:n]))
		h, fields, body = wire.Header{Type: wire.Data, Flags: wire.More | checksum, ID: id}, nil, body[n:]
	}
	return frames
}

// Large requests arrive whole however their pieces are cut by the stream, and whatever comes
// between these: small requests, others' pieces, those of a request that was canceled or is longer
// than it said.
func TestPiecesArriveHoweverTheyAreCut(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {inline: true, serve: answerEcho}, "sum": {serve: func(r *mux.Request) {
		if answerEcho(r); r.Reply.Code == 0 {
			r.Reply.Body = sumOf(r.Body)
		}
	}}}}
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 1))
		peer, srv := s.facingServer(t)
		peer.write(hello(nil), method(0, "sum"), method(1, "echo"))
		peer.expectHello()
		want := map[uint32]string{}
		var flows [][][]byte
		for i := range uint32(6) {
			body := patterned(200<<10+random.IntN(500<<10), int(i))
			id := callID(i, 1)
			want[id] = string(sumOf(body))
			flow := piecesOf(id, body, wire.HasChecksum*wire.Flags(i/5), random)
			switch i {
			case 0:
				want[id] = "canceled"
				flow = slices.Insert(flow, len(flow)/2, frameOf(wire.Header{Type: wire.Cancel, Arg: codeCanceled, ID: id}, nil, nil))
			case 1:
				want[id] = "broken"
				flow = slices.Insert(flow, len(flow)/2, flow[len(flow)/2])
			}
			flows = append(flows, flow)
		}
		for i := range uint32(20) {
			id := callID(100+i, 1)
			want[id] = "small"
			flows = append(flows, [][]byte{request(1, id, "small")})
		}
		go func() {
			for stream := mixed(flows, random); len(stream) > 0; {
				n := min(len(stream), 1+random.IntN(100<<10))
				peer.write(stream[:n])
				stream = stream[n:]
			}
		}()
		for len(want) > 0 {
			h, frame, err := peer.frame()
			if err != nil {
				t.Fatalf("seed %d: %v; the server: %v", seed, err, srv.Err())
			}
			if h.Type != wire.Reply {
				continue
			}
			payload, err := wire.Payload(frame)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got := messageOf(h, append(make([]byte, wire.HeaderSize), payload...))
			switch h.Arg {
			case codeCanceled:
				got = "canceled"
			case codeDataLoss:
				got = "broken"
			}
			if got != want[h.ID] || err != nil {
				t.Errorf("seed %d, request %#x: got %q, want %q", seed, h.ID, got, want[h.ID])
			}
			delete(want, h.ID)
		}
		wantEmpty(t, "the server", srv)
	}
}

func sumOf(body []byte) []byte {
	a, b := uint32(1), uint32(0)
	for _, x := range body {
		a += uint32(x)
		b += a
	}
	return []byte{byte(a), byte(a >> 8), byte(a >> 16), byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)}
}

// mixed puts flows of frames into one, each of them in its order.
func mixed(flows [][][]byte, random *rand.Rand) (stream []byte) {
	for len(flows) > 0 {
		i := random.IntN(len(flows))
		stream = append(stream, flows[i][0]...)
		if flows[i] = flows[i][1:]; len(flows[i]) == 0 {
			flows = slices.Delete(flows, i, i+1)
		}
	}
	return stream
}

// When a call has returned, nothing of it is sent any more from its caller's memory, however full
// the socket is.
func TestTheCallersMemoryIsItsOwnAgain(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	first := startCall(c, context.Background(), &mux.Out{Method: echo})
	peer.expectHello()
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	peer.write(hello(nil), reply(h.ID, ""))
	within(t, "the call ends", first)

	body := bytes.Repeat([]byte("good"), 12<<20/4)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond) // the peer does not read meanwhile
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		a, err := c.Call(ctx, &mux.Out{Method: echo, Body: body})
		if err == nil {
			a.Release()
		}
		clear(body)
		ended <- err
	}()
	if err := within(t, "the call ends", ended); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	got := 0
	for {
		h, frame, err := peer.frame()
		if err != nil {
			t.Fatalf("after %d bytes: %v; the client: %v", got, err, c.Err())
		}
		if h.Type == wire.Cancel {
			break
		}
		_, message, err := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(message, 0) >= 0 {
			t.Fatalf("after %d bytes: what was sent is not what the caller gave", got)
		}
		got += len(message)
	}
	if got == 0 || got >= len(body) {
		t.Errorf("%d bytes were sent of %d", got, len(body))
	}
}

// What a handler or a caller keeps is not used for other messages, and what they do not keep is.
func TestMemoryOfLargeMessages(t *testing.T) {
	const size = 1 << 20
	var kept struct {
		sync.Mutex
		bodies map[byte][]byte
	}
	kept.bodies = make(map[byte][]byte)
	keep := func(body []byte) {
		kept.Lock()
		defer kept.Unlock()
		kept.bodies[byte(len(kept.bodies))] = body
	}
	s := &setup{serves: map[string]*handler{"echo": {serve: answerEcho}, "other": {serve: func(r *mux.Request) {
		if r.Body[0]%3 == 0 && r.Keep() {
			keep(r.Body)
		}
		r.Reply.Body = r.Body
	}}}}
	c, _ := s.overTCP(t)
	once := func(i int) {
		body := bytes.Repeat([]byte{byte(i)}, size)
		if i == 0 {
			body = make([]byte, size)
		}
		a, err := c.Call(context.Background(), &mux.Out{Method: other, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Body, body) {
			t.Errorf("call %d: another body came back", i)
		}
		if i%5 == 0 && a.Keep() {
			keep(a.Body)
		}
		a.Release()
	}
	for i := range 30 {
		once(i)
	}
	if n := len(kept.bodies); n != 16 {
		t.Errorf("%d bodies were kept, want 16", n)
	}
	for _, body := range kept.bodies {
		if len(body) != size || bytes.Count(body, body[:1]) != size {
			t.Errorf("what was kept of %d has changed", body[0])
		}
	}
	if raceEnabled { // a sync.Pool forgets on purpose then
		return
	}
	out := &mux.Out{Method: other, Body: bytes.Repeat([]byte{1}, size)}
	const calls = 50
	used := allocated(func() {
		for range calls {
			a, err := c.Call(context.Background(), out)
			if err != nil {
				t.Fatal(err)
			}
			a.Release()
		}
	})
	if used > calls*size/2 {
		t.Errorf("%d calls allocated %d bytes", calls, used)
	}
}

// The end of the connection in the middle of a piece ends it like anywhere else.
func TestTheEndInTheMiddleOfAPiece(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {serve: answerEcho}}}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), method(0, "echo"))
	peer.expectHello()
	id := callID(0, 1)
	frames := piecesOf(id, patterned(300<<10, 1), 0, rand.New(rand.NewPCG(1, 1)))
	peer.write(frames[0], frames[1][:len(frames[1])/2])
	eventually(t, "the request has begun to come", func() bool { return srv.Tables().In == 1 })
	peer.nc.Close()
	if op, ok := wantEnd(t, srv).(*mux.IOError); !ok || errors.Is(op, io.ErrUnexpectedEOF) {
		t.Errorf("the connection ended with %v", srv.Err())
	}
	wantEmpty(t, "the server", srv)
}
