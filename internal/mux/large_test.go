// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// patterned returns bytes of which no two pieces are alike.
func patterned(n, seed int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

func TestMessagesOfAllSizesArriveWhole(t *testing.T) {
	const f = mux.MaxFrame
	sizes := []int{0, 1, f - 300, f - 17, f - 16, f - 15, f - 12, f - 1, f, f + 1, 2 * f, 2*f + 1, 3*f - 40, 1 << 20}
	for _, inline := range []bool{true, false} {
		s := &setup{serves: map[string]*handler{"echo": {inline: inline, serve: answerEcho}}}
		c, srv := s.overTCP(t)
		for _, size := range sizes {
			for _, attached := range []int{-1, 0, 10, size} {
				for _, out := range []mux.Out{
					{}, {Checksum: true}, {Compressed: true}, {Metadata: filled('m', 5000)},
				} {
					out.Method, out.Body = echo, patterned(size, size+1)
					if attached >= 0 {
						out.Attachment = patterned(attached, 2)
					}
					a, err := c.Call(context.Background(), &out)
					if err != nil {
						t.Fatalf("%d bytes with attachment of %d: %v", size, attached, err)
					}
					if a.Code != 0 || !slices.Equal(a.Body, out.Body) || !slices.Equal(a.Attachment, out.Attachment) || (a.Attachment == nil) != (out.Attachment == nil) {
						t.Errorf("%d bytes with attachment of %d: got code %d, %d and %d bytes", size, attached, a.Code, len(a.Body), len(a.Attachment))
					}
					oneFrame := size+attached < f/2
					if got, want := a.Flags&wire.HasChecksum != 0, out.Checksum; oneFrame && got != want {
						t.Errorf("checksum in the reply: %t, in the request: %t", got, want)
					}
					if got, want := a.Flags&wire.Compressed != 0, out.Compressed; got != want {
						t.Errorf("compressed reply: %t, request: %t", got, want)
					}
					a.Release()
				}
			}
		}
		wantEmpty(t, "the client", c)
		wantEmpty(t, "the server", srv)
	}
}

// A one-way request just below and above what one frame holds.
func TestOneWayRequestsOfAllSizesArrive(t *testing.T) {
	var got atomic.Int64
	s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) { got.Add(int64(len(r.Body) + len(r.Attachment))) }}}}
	c, srv := s.overTCP(t)
	want := int64(0)
	out := &mux.Out{Method: echo}
	for size := mux.MaxFrame - 300; size < mux.MaxFrame+10; size++ {
		for _, attachment := range [][]byte{nil, {}, []byte("1234567890")} {
			out.Body, out.Attachment = make([]byte, size), attachment
			if err := c.Notify(context.Background(), out); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			want += int64(size + len(attachment))
		}
	}
	eventually(t, "all have arrived", func() bool { return got.Load() == want })
	code, _, err := callOut(context.Background(), c, out) // the same Out, which Notify has used
	if err != nil || code != 0 {
		t.Errorf("got code %d, error %v", code, err)
	}
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// Small calls get in between the pieces of large ones, both ways.
func TestSmallCallsAreNotDelayedByLargeOnes(t *testing.T) {
	s := &setup{serves: map[string]*handler{
		"echo":  {inline: true, serve: answerEcho},
		"other": {serve: answerEcho},
	}}
	c, srv := s.overTCP(t)
	mustEcho(t, c, echo, "first")
	stop := make(chan struct{})
	var large sync.WaitGroup
	var moved atomic.Int64
	for i := range 3 {
		body := patterned([]int{3, 8, 16}[i]<<20, i)
		large.Go(func() {
			for {
				a, err := c.Call(context.Background(), &mux.Out{Method: other, Body: body})
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.Equal(a.Body, body) {
					t.Errorf("a body of %d bytes came back as another one", len(body))
				}
				a.Release()
				moved.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	eventually(t, "large messages move", func() bool { return c.Counters().BytesIn > 1<<20 })
	bound := 50 * time.Millisecond // a piece or two each way; a message as a whole takes longer than this
	if raceEnabled {
		bound *= 10
	}
	medianBelow(t, bound, func() time.Duration {
		start := time.Now()
		mustEcho(t, c, echo, "small")
		return time.Since(start)
	})
	close(stop)
	large.Wait()
	t.Logf("%d large calls meanwhile", moved.Load())
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// allocated returns how many bytes were allocated while f ran.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// What is announced costs memory only when it has come.
func TestAnAnnouncementCostsLittleMemory(t *testing.T) {
	const announced, sent = 64 << 20, 1 << 10
	s := &setup{serves: map[string]*handler{"echo": {serve: answerEcho}}}
	t.Run("request", func(t *testing.T) {
		peer, srv := s.facingServer(t)
		peer.write(hello(nil), method(0, "echo"))
		peer.expectHello()
		peer.expect(wire.MethodInfo)
		used := allocated(func() {
			peer.write(frameOf(wire.Header{Type: wire.Request, Flags: wire.More, ID: callID(0, 1)}, &wire.Fields{Size: announced}, make([]byte, sent)))
			eventually(t, "the announcement has come", func() bool { return srv.Tables().In == 1 })
		})
		if used > mux.FirstGrant+256<<10 {
			t.Errorf("%d bytes were allocated for %d that had come", used, sent)
		}
		if n := srv.Tables().InBytes; n != announced {
			t.Errorf("the announcement counts as %d bytes of the window, want %d", n, announced)
		}
	})
	t.Run("reply", func(t *testing.T) {
		peer, c := s.facingClient(t)
		ended := startCall(c, context.Background(), &mux.Out{Method: echo})
		peer.expectHello()
		peer.expect(wire.Method)
		h, _ := peer.expect(wire.Request)
		used := allocated(func() {
			peer.write(hello(nil), frameOf(wire.Header{Type: wire.Reply, Flags: wire.More, ID: h.ID}, &wire.Fields{Size: announced}, make([]byte, sent)))
			eventually(t, "the announcement has come", func() bool { return c.Counters().FramesIn == 2 })
		})
		if used > mux.FirstGrant+256<<10 {
			t.Errorf("%d bytes were allocated for %d that had come", used, sent)
		}
		c.Close()
		within(t, "the call ends", ended)
	})
}

// A large message that is broken fails its own call only.
func TestABrokenLargeReplyFailsItsOwnCall(t *testing.T) {
	limits := defaultLimits()
	limits.MaxMessage = 1000
	s := &setup{limits: limits}
	broken := frameOf(wire.Header{Type: wire.Data, Flags: wire.OfReply | wire.HasChecksum}, nil, []byte("789"))
	broken[len(broken)-1] ^= 1
	tests := []struct {
		name   string
		frames func(opening, piece func(flags wire.Flags, size uint64, body string) []byte) [][]byte
		want   string
	}{
		{"longer", func(opening, piece func(wire.Flags, uint64, string) []byte) [][]byte {
			return [][]byte{opening(0, 5, "0123"), piece(wire.More, 0, "45"), piece(0, 0, "6")}
		}, "longer than announced"},
		{"shorter", func(opening, piece func(wire.Flags, uint64, string) []byte) [][]byte {
			return [][]byte{opening(0, 10, "0123"), piece(0, 0, "45")}
		}, "shorter than announced"},
		{"checksum of the opening", func(opening, piece func(wire.Flags, uint64, string) []byte) [][]byte {
			first := opening(wire.HasChecksum, 6, "0123")
			first[len(first)-1] ^= 1
			return [][]byte{first, piece(0, 0, "45")}
		}, "checksum"},
		{"checksum of a piece", func(opening, piece func(wire.Flags, uint64, string) []byte) [][]byte {
			second := piece(wire.HasChecksum|wire.More, 0, "45")
			second[len(second)-1] ^= 1
			return [][]byte{opening(0, 8, "0123"), second, piece(wire.HasChecksum, 0, "67")}
		}, "checksum"},
		{"too large", func(opening, piece func(wire.Flags, uint64, string) []byte) [][]byte {
			return [][]byte{opening(0, 1001, "0123"), piece(wire.More, 0, "45"), piece(0, 0, "67")}
		}, "the reply has 1001 bytes, the limit is 1000"},
		{"fields", func(_, piece func(wire.Flags, uint64, string) []byte) [][]byte {
			return [][]byte{piece(wire.HasFields|wire.More, 1, "\x01\x00\x02"), piece(0, 0, "67")}
		}, "it ends too early"},
	}
	for _, test := range tests {
		for _, async := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				peer, c := s.facingClient(t)
				ended := make(chan error, 1)
				go func() {
					var err error
					if async {
						_, _, err = startAndWait(context.Background(), c, &mux.Out{Method: echo})
					} else {
						_, _, err = call(context.Background(), c, echo, "")
					}
					ended <- err
				}()
				peer.expectHello()
				peer.expect(wire.Method)
				h, _ := peer.expect(wire.Request)
				opening := func(flags wire.Flags, size uint64, body string) []byte {
					return frameOf(wire.Header{Type: wire.Reply, Flags: flags | wire.More, ID: h.ID}, &wire.Fields{Size: size}, []byte(body))
				}
				piece := func(flags wire.Flags, size uint64, body string) []byte {
					of := wire.Header{Type: wire.Data, Flags: flags | wire.OfReply, ID: h.ID}
					if size != 0 {
						of = wire.Header{Type: wire.Reply, Flags: flags, ID: h.ID}
					}
					return frameOf(of, nil, []byte(body))
				}
				peer.write(hello(nil))
				peer.write(test.frames(opening, piece)...)
				err := within(t, "the call ends", ended)
				var is *mux.BrokenError
				if !errors.As(err, &is) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got error %v, want one about %q", err, test.want)
				}
				next := startCall(c, context.Background(), &mux.Out{Method: echo})
				h, _ = peer.expect(wire.Request)
				peer.write(reply(h.ID, "next"))
				if got := within(t, "the next call ends", next); got.reply != "next" || got.err != nil {
					t.Errorf("got %+v", got)
				}
				wantEmpty(t, "the client", c)
			})
		}
	}
}

// A small reply that is broken fails its own call too.
func TestABrokenReplyFailsItsOwnCall(t *testing.T) {
	peer, c := new(setup).facingClient(t)
	first := startCall(c, context.Background(), &mux.Out{Method: echo})
	peer.expectHello()
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	broken := frameOf(wire.Header{Type: wire.Reply, Flags: wire.HasChecksum, ID: h.ID}, nil, []byte("x"))
	broken[wire.HeaderSize] ^= 1
	peer.write(hello(nil), broken)
	got := within(t, "the call ends", first)
	var is *mux.BrokenError
	if !errors.As(got.err, &is) || !errors.Is(got.err, wire.ErrChecksum) {
		t.Errorf("got %+v, want a broken checksum", got)
	}
	second := startCall(c, context.Background(), &mux.Out{Method: echo})
	h, _ = peer.expect(wire.Request)
	peer.write(reply(h.ID, "second"))
	if got := within(t, "the next call ends", second); got.reply != "second" {
		t.Errorf("got %+v", got)
	}
}

// The last piece of a large reply frees the id, which the peer may use at once.
func TestAnIDIsFreeWithTheLastPiece(t *testing.T) {
	s := &setup{serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
		r.Reply.Body = make([]byte, 200<<10)
	}}, "other": {serve: func(r *mux.Request) {
		r.Reply = mux.Outcome{Code: codeUnavailable, Fields: &wire.Fields{Message: []byte("an error has fields")}}
	}}}}
	for range 4 {
		peer, srv := s.facingServer(t)
		peer.write(hello(nil), method(0, "echo"), method(1, "other"))
		peer.expectHello()
		peer.expect(wire.MethodInfo)
		peer.expect(wire.MethodInfo)
		for i := range 2000 {
			id := callID(0, uint32(i)%4095+1)
			number := uint16(0)
			if i%10 != 0 {
				number = 1
			}
			peer.write(request(number, id, ""))
			h, _, err := peer.frame()
			for err == nil && h.Flags&wire.More != 0 {
				h, _, err = peer.frame()
			}
			if err != nil || h.ID != id {
				t.Fatalf("call %d: got %+v, %v; the server: %v", i, h, err, srv.Err())
			}
		}
	}
}
