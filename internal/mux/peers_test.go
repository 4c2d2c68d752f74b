// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/inline"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The two sides of the tests' connections: package mux on both, or package mux on one and a peer on
// the other that is written out frame by frame.

// A handler is a method of a side that serves.
type handler struct {
	inline bool
	serve  func(r *mux.Request)
	done   func(r *mux.Request, handedOver bool)
	begun  func() // called when a request has been counted, and not accepted yet; may be nil

	expects atomic.Int64
}

func (h *handler) Inline() (inline, timed bool) { return h.inline, true }
func (h *handler) Expects() int                 { return int(h.expects.Load()) }
func (h *handler) New(*mux.Request) *mux.Request {
	if h.begun != nil {
		h.begun()
	}
	r := new(struct {
		mux.Request
		mux.Context
	})
	r.Request.Context = &r.Context
	return &r.Request
}

func (h *handler) Serve(r *mux.Request) { h.serve(r) }

func (h *handler) Reply(r *mux.Request) { r.Reply.Body = []byte("late") }
func (h *handler) Done(r *mux.Request, _ time.Duration, handedOver bool) {
	if h.done != nil {
		h.done(r, handedOver)
	}
}

// answerEcho replies what it was given. What cannot be read, and what came too late, it refuses.
func answerEcho(r *mux.Request) {
	if r.Broken != nil {
		r.Reply = mux.Outcome{Code: codeDataLoss, NotProcessed: true}
		return
	}
	if r.Expired() {
		r.Reply = mux.Outcome{Code: codeDeadline, NotProcessed: true}
		return
	}
	r.Scratch = append(r.Scratch, r.Body...)
	r.Reply.Body, r.Reply.Attachment, r.Reply.Compressed = r.Scratch, r.Attachment, r.Compressed
}

const (
	codeCanceled     = 1
	codeDeadline     = 4
	codeExhausted    = 8
	codeUnimplented  = 12
	codeInternal     = 13
	codeUnavailable  = 14
	codeDataLoss     = 15
	patience         = 20 * time.Second // until a condition that must come counts as missed
	memoryConnBuffer = 1 << 30          // as good as unbounded
)

// A setup is what both sides of a connection are made from. Zero limits are replaced by
// defaultLimits.
type setup struct {
	client, server mux.Config
	limits         mux.Limits          // of both, where they have none of their own
	serves         map[string]*handler // the server's methods
	clientServes   map[string]*handler
	buffer         int // of memory connections: how much is written without being read
}

func defaultLimits() mux.Limits {
	return mux.Limits{
		MaxMessage: 64 << 20, MaxOpen: 16384, MaxOpenBytes: 256 << 20, MaxMethods: 1024, MaxUnsent: 1 << 20,
		KeepAlive: 15 * time.Second, Handshake: 10 * time.Second, Polling: 50 * time.Microsecond,
	}
}

// config completes one side's configuration.
func (s *setup) config(t testing.TB, of mux.Config, serves map[string]*handler) *mux.Config {
	t.Helper()
	if of.Limits == (mux.Limits{}) {
		of.Limits = s.limits
	}
	if of.Limits == (mux.Limits{}) {
		of.Limits = defaultLimits()
	}
	if of.Bind == nil {
		of.Bind = s.bind(serves)
	}
	if of.Pool == nil {
		of.Pool = mux.NewPool()
	}
	of.Watch = inline.NewWatch()
	t.Cleanup(of.Pool.Close)
	return &of
}

// bind finds the methods that are served.
func (*setup) bind(serves map[string]*handler) func(*mux.Conn, *wire.Binding) (mux.Target, wire.Info) {
	return func(_ *mux.Conn, b *wire.Binding) (mux.Target, wire.Info) {
		if h := serves[string(b.Name)]; h != nil {
			return h, wire.Info{Known: 1, Kind: b.Kind}
		}
		return &handler{serve: func(r *mux.Request) {
			r.Reply = mux.Outcome{Code: codeUnimplented, NotProcessed: true}
		}}, wire.Info{}
	}
}

// over makes both sides of a connection.
func (s *setup) over(t testing.TB, client, server net.Conn) (c, srv *mux.Conn) {
	t.Helper()
	srv = mux.New(server, nil, false, s.config(t, s.server, s.serves))
	c = mux.New(client, nil, true, s.config(t, s.client, s.clientServes))
	t.Cleanup(func() {
		c.Close()
		srv.Close()
	})
	return c, srv
}

// overTCP connects them over the loopback.
func (s *setup) overTCP(t testing.TB) (client, server *mux.Conn) {
	t.Helper()
	c, srv := tcpPair(t)
	return s.over(t, c, srv)
}

// inMemory connects them by a connection that is not a socket.
func (s *setup) inMemory(t testing.TB) (client, server *mux.Conn) {
	t.Helper()
	c, srv := memoryPair(s.buffer)
	return s.over(t, c, srv)
}

// tcpPair returns the two ends of a connection over the loopback.
func tcpPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// A memoryConn is one end of a connection that is no socket. It works in fake time.
type memoryConn struct {
	in, out *stream
}

// A stream is one direction of it.
type stream struct {
	mu      sync.Mutex
	changed *sync.Cond
	buf     []byte
	limit   int   // of buf
	err     error // of writes, and of reads when buf is empty
	refuse  error // of writes: they fail after having been carried out
}

func newStream(limit int) *stream {
	s := &stream{limit: limit}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// memoryPair returns the two ends of a connection on which buffer bytes can be written without
// being read; 0 is without bound.
func memoryPair(buffer int) (a, b *memoryConn) {
	if buffer == 0 {
		buffer = memoryConnBuffer
	}
	there, back := newStream(buffer), newStream(buffer)
	return &memoryConn{back, there}, &memoryConn{there, back}
}

func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.changed.Broadcast()
}

func (s *stream) write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(p) {
		for len(s.buf) >= s.limit && s.err == nil {
			s.changed.Wait()
		}
		if s.err != nil {
			return n, s.err
		}
		k := min(len(p)-n, s.limit-len(s.buf))
		s.buf = append(s.buf, p[n:n+k]...)
		n += k
		s.changed.Broadcast()
	}
	if s.refuse != nil {
		return 0, s.refuse
	}
	return n, nil
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buf) == 0 && s.err == nil {
		s.changed.Wait()
	}
	if len(s.buf) == 0 {
		return 0, s.err
	}
	n := copy(p, s.buf)
	s.buf = append(s.buf[:0], s.buf[n:]...)
	s.changed.Broadcast()
	return n, nil
}

// buffered returns how many bytes have been written and not read.
func (s *stream) buffered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.buf)
}

// peerView returns the other end of c.
func (c *memoryConn) peerView() *memoryConn { return &memoryConn{c.out, c.in} }

func (c *memoryConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *memoryConn) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *memoryConn) Close() error {
	c.out.end(io.EOF)
	c.in.end(net.ErrClosed)
	return nil
}
func (c *memoryConn) LocalAddr() net.Addr              { return memoryAddr{} }
func (c *memoryConn) RemoteAddr() net.Addr             { return memoryAddr{} }
func (c *memoryConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *memoryConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *memoryConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory" }

// A rawPeer speaks the protocol frame by frame.
type rawPeer struct {
	t  testing.TB
	nc net.Conn
	r  *bufio.Reader
}

func newRawPeer(t testing.TB, nc net.Conn) *rawPeer {
	t.Helper()
	_ = nc.SetDeadline(time.Now().Add(patience)) // memory connections have none
	t.Cleanup(func() { nc.Close() })
	return &rawPeer{t, nc, bufio.NewReader(nc)}
}

// facing returns package mux as a server and a raw peer as its client.
func (s *setup) facingServer(t testing.TB) (*rawPeer, *mux.Conn) {
	t.Helper()
	client, server := tcpPair(t)
	srv := mux.New(server, nil, false, s.config(t, s.server, s.serves))
	t.Cleanup(srv.Close)
	return newRawPeer(t, client), srv
}

func (s *setup) facingClient(t testing.TB) (*rawPeer, *mux.Conn) {
	t.Helper()
	client, server := tcpPair(t)
	c := mux.New(client, nil, true, s.config(t, s.client, s.clientServes))
	t.Cleanup(c.Close)
	return newRawPeer(t, server), c
}

// write writes all of it at once.
func (p *rawPeer) write(frames ...[]byte) {
	p.t.Helper()
	var all []byte
	for _, frame := range frames {
		all = append(all, frame...)
	}
	if _, err := p.nc.Write(all); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// frame reads the next frame.
func (p *rawPeer) frame() (wire.Header, []byte, error) { return readFrame(p.r) }

func readFrame(r io.Reader) (wire.Header, []byte, error) {
	var header [wire.HeaderSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return wire.Header{}, nil, err
	}
	h := wire.ParseHeader(header[:])
	frame := append(header[:], make([]byte, h.Len)...)
	_, err := io.ReadFull(r, frame[wire.HeaderSize:])
	return h, frame, err
}

// expect reads frames up to one of this type; others must not come in between.
func (p *rawPeer) expect(of wire.Type) (wire.Header, []byte) {
	p.t.Helper()
	h, frame, err := p.frame()
	if err != nil {
		p.t.Fatalf("waiting for a frame of type %d: %v", of, err)
	}
	if h.Type != of {
		p.t.Fatalf("got a frame of type %d, want %d: %+v %q", h.Type, of, h, frame[wire.HeaderSize:])
	}
	return h, frame
}

// expectHello reads the preface and the settings.
func (p *rawPeer) expectHello() wire.Limits {
	p.t.Helper()
	preface := make([]byte, len(wire.Preface))
	if _, err := io.ReadFull(p.r, preface); err != nil || string(preface) != wire.Preface {
		p.t.Fatalf("got preface %q, %v", preface, err)
	}
	_, frame := p.expect(wire.Settings)
	var l wire.Limits
	if err := wire.ParseSettings(frame[wire.HeaderSize:], &l); err != nil {
		p.t.Fatal(err)
	}
	return l
}

// expectReply reads a reply to call id.
func (p *rawPeer) expectReply(id uint32) (h wire.Header, f wire.Fields, body string) {
	p.t.Helper()
	h, frame := p.expect(wire.Reply)
	if h.ID != id {
		p.t.Fatalf("got a reply to %#x, want one to %#x", h.ID, id)
	}
	payload, err := wire.Payload(frame)
	if err != nil {
		p.t.Fatal(err)
	}
	fields, message, err := wire.SplitFields(h.Flags, payload)
	if err == nil {
		err = wire.ParseFields(fields, &f)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return h, f, string(message)
}

// expectEnd reads the notice that the connection ends because of this peer, and the end.
func (p *rawPeer) expectBreach() wire.Drain {
	p.t.Helper()
	h, frame := p.expect(wire.GoAway)
	var d wire.Drain
	if err := wire.ParseGoAway(frame[wire.HeaderSize:], &d); err != nil || h.Arg != codeInternal {
		p.t.Errorf("got GoAway with code %d, %+v, %v, want code %d", h.Arg, d, err, codeInternal)
	}
	if _, _, err := p.frame(); err == nil {
		p.t.Errorf("a frame came after a GoAway with a code")
	}
	return d
}

// Frames for raw peers.

func hello(l *wire.Limits) []byte {
	if l == nil {
		l = &wire.Limits{}
	}
	return wire.AppendSettings([]byte(wire.Preface), l)
}

func method(number uint16, name string) []byte {
	return wire.AppendMethod(nil, number, uint32(number)+1, &wire.Binding{Name: []byte(name), Codec: []byte("raw")})
}

func frameOf(h wire.Header, f *wire.Fields, message []byte) []byte {
	if f != nil {
		h.Flags |= wire.HasFields
	}
	b := wire.Begin(nil, &h)
	if f != nil {
		b = wire.AppendFields(b, f)
	}
	return wire.Finish(append(b, message...), 0)
}

func request(number uint16, id uint32, body string) []byte {
	return frameOf(wire.Header{Type: wire.Request, Arg: number, ID: id}, nil, []byte(body))
}

func reply(id uint32, body string) []byte {
	return frameOf(wire.Header{Type: wire.Reply, ID: id}, nil, []byte(body))
}

func ping(n uint64) []byte {
	return frameOf(wire.Header{Type: wire.Ping}, nil, binary.LittleEndian.AppendUint64(nil, n))
}

// callID is the id of generation n of a slot.
func callID(slot, generation uint32) uint32 { return generation<<wire.SlotBits | slot }

// Callers.

// methodNamed returns a method for calling. Its handle must be its own among those of a connection.
func methodNamed(handle int, name string) *mux.Method {
	return &mux.Method{Handle: handle, Name: name, Codec: "raw"}
}

var (
	echo  = methodNamed(0, "echo")
	other = methodNamed(1, "other")
	third = methodNamed(2, "third")
)

// call makes a call and returns a copy of the reply.
func call(ctx context.Context, c *mux.Conn, m *mux.Method, body string) (code uint16, reply string, err error) {
	return callOut(ctx, c, &mux.Out{Method: m, Body: []byte(body)})
}

func callOut(ctx context.Context, c *mux.Conn, out *mux.Out) (code uint16, reply string, err error) {
	a, err := c.Call(ctx, out)
	if err != nil {
		return 0, "", err
	}
	defer a.Release()
	return a.Code, string(a.Body), nil
}

// mustEcho fails the test unless a call is answered with what it said. messageOf returns what a
// frame carries beside its fields: a reply that took long has some that say so.
func messageOf(h wire.Header, frame []byte) string {
	_, message, err := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
	if err != nil {
		return err.Error()
	}
	return string(message)
}

func mustEcho(t testing.TB, c *mux.Conn, m *mux.Method, body string) {
	t.Helper()
	code, got, err := call(context.Background(), c, m, body)
	if err != nil || code != 0 || got != body {
		t.Errorf("%s(%.40q): got code %d, %.40q, error %v", m.Name, body, code, got, err)
	}
}

// completed is a function as a Completer.
type completed func(a *mux.Answer, err error)

func (f completed) Complete(a *mux.Answer, err error) { f(a, err) }

// notProcessed reports whether err says that the call was certainly not executed.
func notProcessed(err error) bool {
	var e *mux.CallError
	return errors.As(err, &e) && e.NotProcessed
}

// eventually waits for a condition that nothing announces.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !condition(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("it did not come to this: %s", what)
		}
	}
}

// within waits for a channel.
func within[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case v = <-ch:
	case <-late.C:
		t.Fatalf("it did not come to this: %s", what)
	}
	return v
}

// wantEmpty waits until nothing of any call is left in the tables of a connection.
func wantEmpty(t testing.TB, name string, c *mux.Conn) {
	t.Helper()
	eventually(t, name+" has empty tables", func() bool {
		s := c.Tables()
		s.Slots, s.Unsent = 0, 0
		return s == mux.Tables{}
	})
}

// wantEnd waits for the end of a connection and returns the reason.
func wantEnd(t testing.TB, c *mux.Conn) error {
	t.Helper()
	within(t, "the connection ends", c.Ended())
	return c.Err()
}

// blocked is a server method that answers when nobody waits any more.
func blocked() *handler {
	return &handler{serve: func(r *mux.Request) {
		<-r.Done()
		answerEcho(r)
	}}
}

// untilOffered makes calls until the reading of the connection is left to its callers.
func untilOffered(t testing.TB, c *mux.Conn) {
	t.Helper()
	if !c.HasSocket() {
		t.Skip("callers do not read on this system")
	}
	eventually(t, "the reading is offered", func() bool {
		mustEcho(t, c, echo, "alone")
		offered, _ := c.Self()
		return offered
	})
}
