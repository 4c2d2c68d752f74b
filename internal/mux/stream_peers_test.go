// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// What the tests of streams share.

// kindOf is the kind that a method of this name has in these tests.
var kindOf = map[string]uint64{"feed": wire.Feed, "upload": wire.Upload, "duplex": wire.Duplex}

// A holder serves streams by handing them to the test, which is the handler until it calls end.
type holder struct {
	opened chan *mux.Request
	ended  chan struct{}
}

func newHolder() *holder {
	return &holder{opened: make(chan *mux.Request, 100), ended: make(chan struct{})}
}

func (h *holder) end() { close(h.ended) }

func (h *holder) handlers() map[string]*handler {
	held := &handler{serve: func(r *mux.Request) {
		h.opened <- r
		select {
		case <-h.ended:
		case <-r.Done():
		}
	}}
	return map[string]*handler{"feed": held, "upload": held, "duplex": held, "echo": {inline: true, serve: answerEcho}}
}

// openTo opens a stream from one side of a real connection to the test as its handler.
func (h *holder) openTo(t *testing.T, c *mux.Conn, name string) (*mux.Stream, *mux.Request) {
	t.Helper()
	st := open(t, c, streamMethod(name, kindOf[name]), nil)
	return st, within(t, "the stream is opened", h.opened)
}

// limitsWith returns the default limits with a window and a bound of what streams may hold.
func limitsWith(window, maxOpenBytes int) mux.Limits {
	l := defaultLimits()
	l.StreamWindow, l.MaxOpenBytes = window, maxOpenBytes
	return l
}

// openedPeer is a raw client that has opened a stream to a holder, with its first credit read if
// the kind has one.
func openedPeer(t *testing.T, h *holder, limits mux.Limits, name string, settings *wire.Limits) (*rawPeer, *mux.Conn, *mux.Request) {
	t.Helper()
	s := &setup{limits: limits, serves: h.handlers()}
	peer, srv := s.facingServer(t)
	peer.write(hello(settings), methodOf(0, name), method(1, "echo"), request(0, callID(0, 1), ""))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	peer.expect(wire.MethodInfo)
	r := within(t, "the stream is opened", h.opened)
	return peer, srv, r
}

// facingStream is a raw server to which a stream has been opened.
func facingStream(t *testing.T, limits mux.Limits, name string, settings *wire.Limits) (*rawPeer, *mux.Conn, *mux.Stream, uint32) {
	t.Helper()
	peer, c := (&setup{limits: limits}).facingClient(t)
	peer.write(hello(settings), ping(1))
	peer.expectHello()
	peer.expect(wire.Pong)
	st := open(t, c, streamMethod(name, kindOf[name]), nil)
	peer.expect(wire.Method)
	h, _ := peer.expect(wire.Request)
	return peer, c, st, h.ID
}

func methodOf(number uint16, name string) []byte {
	return wire.AppendMethod(nil, number, uint32(number)+1, &wire.Binding{Name: []byte(name), Codec: []byte("raw"), Kind: kindOf[name]})
}

func data(id uint32, flags wire.Flags, body string) []byte {
	return frameOf(wire.Header{Type: wire.Data, Flags: flags, ID: id}, nil, []byte(body))
}

// sized is the first frame of a message in pieces.
func sized(id uint32, flags wire.Flags, size int, piece string) []byte {
	return frameOf(wire.Header{Type: wire.Data, Flags: flags, ID: id}, &wire.Fields{Size: uint64(size)}, []byte(piece))
}

func credit(id uint32, flags wire.Flags, sum int) []byte {
	return wire.AppendCredit(nil, flags, id, &wire.Window{StreamBytes: uint64(sum)})
}

// expectCredit reads credit and returns its sum.
func (p *rawPeer) expectCredit(id uint32, flags wire.Flags) uint64 {
	p.t.Helper()
	h, frame := p.expect(wire.Credit)
	var w wire.Window
	if err := wire.ParseCredit(frame[wire.HeaderSize:], &w); err != nil || h.ID != id || h.Flags != flags || w.MaxOpen+w.MaxOpenBytes != 0 {
		p.t.Errorf("got %+v %+v, %v, want credit for %#x with flags %#x", h, w, err, id, flags)
	}
	return w.StreamBytes
}

// expectData reads a frame of a stream and returns its flags, the size that it announces, and what
// it carries.
func (p *rawPeer) expectData(id uint32) (flags wire.Flags, size uint64, piece string) {
	p.t.Helper()
	h, frame := p.expect(wire.Data)
	payload, err := wire.Payload(frame)
	if err != nil || h.ID != id {
		p.t.Fatalf("got %+v, %v, want a frame of %#x", h, err, id)
	}
	fields, msg, err := wire.SplitFields(h.Flags, payload)
	var f wire.Fields
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return h.Flags, f.Size, string(msg)
}

// expectRest reads the pieces of a message whose first frame has been read, and returns them and
// their flags.
func (p *rawPeer) expectRest(id uint32, flags wire.Flags) (rest string, all []wire.Flags) {
	p.t.Helper()
	var b strings.Builder
	for flags&wire.More != 0 {
		var size uint64
		var piece string
		flags, size, piece = p.expectData(id)
		if size != 0 {
			p.t.Errorf("a piece says size %d", size)
		}
		b.WriteString(piece)
		all = append(all, flags)
	}
	return b.String(), all
}

// quiet fails the test if the peer has been sent anything but the answer to a ping.
func (p *rawPeer) quiet(n uint64) {
	p.t.Helper()
	p.write(ping(n))
	p.expect(wire.Pong)
}

// wantMessage receives a message.
func wantMessage(t testing.TB, st *mux.Stream, want string) {
	t.Helper()
	msg, _, err := receive(st)
	if err != nil || string(msg) != want {
		t.Fatalf("got %d bytes %.40q, %v, want %d bytes %.40q", len(msg), msg, err, len(want), want)
	}
}

// receive is Receive with patience.
func receive(st *mux.Stream) ([]byte, wire.Flags, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return st.Receive(ctx)
}

// wantBroken receives the reason why a stream's messages end in the middle.
func wantBroken(t testing.TB, st *mux.Stream, cause string) {
	t.Helper()
	_, _, err := receive(st)
	var broken *mux.BrokenError
	if !errors.As(err, &broken) || broken.Cause.Error() != cause {
		t.Errorf("got %v, want a broken message: %s", err, cause)
	}
}

func wantEOF(t testing.TB, st *mux.Stream) {
	t.Helper()
	if msg, _, err := receive(st); err != io.EOF {
		t.Errorf("got %.40q, %v, want the end", msg, err)
	}
}

// sending sends on a goroutine of its own.
func sending(ctx context.Context, st *mux.Stream, msg []byte) <-chan error {
	sent := make(chan error, 1)
	go func() { sent <- st.Send(ctx, 0, msg) }()
	return sent
}

// A tally is what came on a stream, and why no more did.
type tally struct {
	messages, bytes int
	err             error
}

// counting receives all messages on a goroutine of its own.
func counting(ctx context.Context, st *mux.Stream) <-chan tally {
	all := make(chan tally, 1)
	go func() {
		var n tally
		for {
			msg, _, err := st.Receive(ctx)
			if err != nil {
				n.err = err
				all <- n
				return
			}
			n.messages++
			n.bytes += len(msg)
		}
	}()
	return all
}
