// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/codec/strictjson"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
)

// A stranger is a client that sends whatever frames a test wants.
type stranger struct {
	t  testing.TB
	nc net.Conn
	r  *bufio.Reader
}

// newStranger connects to addr and sends settings and frames.
func newStranger(t testing.TB, addr string, l *wire.Limits, frames ...[]byte) *stranger {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { nc.Close() })
	must(t, nc.SetDeadline(time.Now().Add(patience)))
	s := &stranger{t, nc, bufio.NewReader(nc)}
	s.send(wire.AppendSettings([]byte(wire.Preface), l))
	s.send(frames...)
	_, err = io.ReadFull(s.r, make([]byte, len(wire.Preface)))
	must(t, err)
	return s
}

func (s *stranger) send(frames ...[]byte) {
	s.t.Helper()
	for _, b := range frames {
		if _, err := s.nc.Write(b); err != nil {
			s.t.Fatal(err)
		}
	}
}

// next reads up to the next frame of a type, and returns its header and its payload.
func (s *stranger) next(of wire.Type) (wire.Header, []byte) {
	s.t.Helper()
	for {
		if h, payload := s.frame(); h.Type == of {
			return h, payload
		}
	}
}

// frame reads the next frame.
func (s *stranger) frame() (wire.Header, []byte) {
	s.t.Helper()
	head := make([]byte, wire.HeaderSize)
	_, err := io.ReadFull(s.r, head)
	must(s.t, err)
	h := wire.ParseHeader(head)
	payload := make([]byte, h.Len)
	_, err = io.ReadFull(s.r, payload)
	must(s.t, err)
	return h, payload
}

// reply reads the next reply.
func (s *stranger) reply() *yodel.Error {
	s.t.Helper()
	h, payload := s.next(wire.Reply)
	block, _, err := wire.SplitFields(h.Flags, payload)
	must(s.t, err)
	var f wire.Fields
	must(s.t, wire.ParseFields(block, &f))
	return &yodel.Error{Code: yodel.Code(h.Arg), ID: string(f.ErrorID), Message: string(f.Message), NotProcessed: h.Flags&wire.NotProcessed != 0}
}

// drain reads the notice that the connection ends.
func (s *stranger) drain() (code yodel.Code, d wire.Drain) {
	s.t.Helper()
	h, payload := s.next(wire.GoAway)
	must(s.t, wire.ParseGoAway(payload, &d))
	return yodel.Code(h.Arg), d
}

// requestFrame makes a request of a method number, with fields if there are any.
func requestFrame(number uint16, slot uint32, f *wire.Fields, body string) []byte {
	h := wire.Header{Type: wire.Request, Arg: number, ID: wire.NextID(slot)}
	if f != nil {
		h.Flags |= wire.HasFields
	}
	b := wire.Begin(nil, &h)
	if f != nil {
		b = wire.AppendFields(b, f)
	}
	return wire.Finish(append(b, body...), 0)
}

func methodFrame(number uint16, b *wire.Binding) []byte {
	return wire.AppendMethod(nil, number, uint32(number)+1, b)
}

// What a server says about a codec that it lacks is not much longer than the codec's name.
func TestRefusalsOfUnknownCodecsAreShort(t *testing.T) {
	name := []byte(strings.Repeat("\x00", wire.MaxName))
	s := newStranger(t, serve(t, newServer(t, nil)), &wire.Limits{},
		methodFrame(0, &wire.Binding{Name: name, Codec: name}), requestFrame(0, 0, nil, ""))
	if e := s.reply(); e.ID != "YDL2003" || !e.NotProcessed || len(e.Message) > 2000 {
		t.Errorf("got %v, %d bytes", e, len(e.Message))
	}
}

// A client does not send a name that would end its connection, and a server does not register one.
func TestLongNamesFailWhereTheyAreUsed(t *testing.T) {
	long := strings.Repeat("x", wire.MaxName+1)
	s := newServer(t, nil)
	if err := s.Handle(long, func() error { return nil }); err == nil || !strings.Contains(err.Error(), "the limit is 255") {
		t.Errorf("Handle: got %v", err)
	}
	c := connect(t, s, nil)
	if e := wantError(t, c.Call(t.Context(), long, &Args{}, &Reply{}), yodel.Unimplemented, "YDL2001"); !e.NotProcessed {
		t.Errorf("the call may have been executed: %v", e)
	}
	if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
		t.Error(err)
	}
}

// pairs returns encoded metadata with n pairs.
func pairs(n int) (encoded []byte, md yodel.Metadata) {
	md = make(yodel.Metadata)
	for i := range n {
		key := fmt.Sprint(i)
		md[key] = "v"
		encoded = wire.AppendPair(encoded, key, "v")
	}
	return encoded, md
}

// Metadata that takes few bytes on the wire can take much memory: the pairs are counted before any
// is kept.
func TestPairsOfMetadataAreBounded(t *testing.T) {
	const limit = 128
	few, _ := pairs(limit)
	many, manyPairs := pairs(limit + 1)
	connected := make(chan int, 10)
	s := newServer(t, quiet(yodel.ServerOptions{Connect: func(_ context.Context, p *yodel.Peer) error {
		connected <- len(p.Metadata)
		return nil
	}}))
	handle(t, s, "Count", func(ctx context.Context, _ *Empty) (*int, error) {
		n := len(yodel.CallFrom(ctx).Metadata)
		return &n, nil
	})
	handle(t, s, "Trail", func(ctx context.Context, n *int) (*int, error) {
		_, yodel.CallFrom(ctx).Trailer = pairs(*n)
		return n, nil
	})
	addr := serve(t, s)

	t.Run("of a connection", func(t *testing.T) {
		for _, l := range []*wire.Limits{{Metadata: many}, {Metadata: wire.AppendPair(nil, "k", strings.Repeat("x", 16<<10))}} {
			if code, d := newStranger(t, addr, l).drain(); code != yodel.ResourceExhausted || string(d.ErrorID) != "YDL2203" {
				t.Errorf("got code %v, %s, %q", code, d.ErrorID, d.Message)
			}
		}
		if len(connected) > 0 {
			t.Error("the Connect hook was asked about a connection with too much metadata")
		}
		newStranger(t, addr, &wire.Limits{Metadata: few})
		if n := receive(t, connected, "the Connect hook"); n != limit {
			t.Errorf("the Connect hook saw %d pairs", n)
		}
	})
	t.Run("of a request", func(t *testing.T) {
		count := methodFrame(0, &wire.Binding{Name: []byte("Count"), Codec: []byte("json")})
		p := newStranger(t, addr, &wire.Limits{}, count, requestFrame(0, 0, &wire.Fields{Metadata: many}, "{}"))
		if e := p.reply(); e.ID != "YDL2203" || !e.NotProcessed || !strings.Contains(e.Message, "more than 128 pairs") {
			t.Errorf("got %v", e)
		}
		p.send(requestFrame(0, 1, &wire.Fields{Metadata: few}, "{}"))
		if e := p.reply(); e.Code != 0 {
			t.Errorf("%d pairs: got %v", limit, e)
		}
	})
	t.Run("on the way out", func(t *testing.T) {
		c := newClient(t, nil, addr)
		err := c.Do(t.Context(), &yodel.Call{Method: "Count", Args: &Empty{}, Reply: new(int), Metadata: manyPairs})
		if e := wantError(t, err, yodel.ResourceExhausted, "YDL2203"); !e.NotProcessed {
			t.Errorf("the call may have been executed: %v", e)
		}
		n := limit + 1
		call := &yodel.Call{Method: "Trail", Args: &n, Reply: new(int)}
		must(t, c.Do(t.Context(), call))
		if left := s.Stats().LeftOut; len(call.Trailer) != limit || left != 1 {
			t.Errorf("the trailer has %d pairs, and %d were left out", len(call.Trailer), left)
		}
	})
	t.Run("of a reply", func(t *testing.T) {
		c := newClient(t, &yodel.ClientOptions{Limits: yodel.Limits{MaxPairs: 10}}, addr)
		n := 11
		call := &yodel.Call{Method: "Trail", Args: &n, Reply: new(int)}
		if e := wantError(t, c.Do(t.Context(), call), yodel.ResourceExhausted, "YDL2203"); e.NotProcessed || !strings.Contains(e.Message, "on this client") {
			t.Errorf("got %v", e)
		}
		if len(call.Trailer) > 0 {
			t.Errorf("the trailer has %d pairs", len(call.Trailer))
		}
	})
}

// What a call without a token costs does not depend on how many pairs its sender has made up.
func BenchmarkRefusalWithoutToken(b *testing.B) {
	for _, n := range []int{0, 128, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newServer(b, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(func(context.Context, string, string) (context.Context, error) {
				return nil, nil // the context stays as it is
			})}})
			md, _ := pairs(n)
			p := newStranger(b, serve(b, s), &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Arith.Mul"), Codec: []byte("json")}))
			must(b, p.nc.SetDeadline(time.Time{}))
			b.ReportAllocs()
			slot := uint32(0)
			for b.Loop() {
				p.send(requestFrame(0, slot%1000, &wire.Fields{Metadata: md}, "{}"))
				if e := p.reply(); !e.NotProcessed {
					b.Fatal(e)
				}
				slot++
			}
		})
	}
}

// The default of MaxDecompressed depends on the size of the compressed message.
func TestDefaultOfMaxDecompressed(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name   string
		size   int // of the message, which is compressed to packed bytes
		packed int
		limit  int // Limits.MaxDecompressed
		text   string
	}{
		{"a small one that compresses well", 64 << 10, 60, 0, ""},
		{"100 times", 200_000, 2000, 0, ""},
		{"more than 100 times", 200_001, 2000, 0, "has 2000 bytes, and more than 200000 after decompression (fake): that is the default of Limits.MaxDecompressed for its size"},
		{"4 MiB", 4 * mib, 400_000, 0, ""},
		{"more than 4 MiB", 4*mib + 1, 400_000, 0, "has more than 4194304 bytes after decompression (fake): that is Limits.MaxDecompressed"},
		{"a raised limit", 16 * mib, 100, 16 * mib, ""},
		{"more than a raised limit", 16*mib + 1, 100, 16 * mib, "has more than 16777216 bytes after decompression (fake): that is Limits.MaxDecompressed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake := fakeCompressor{test.size, test.packed}
			s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{fake}, Limits: yodel.Limits{MaxDecompressed: test.limit}})
			handle(t, s, "Size", func(_ context.Context, in *[]byte) (*[]byte, error) { return new([]byte(fmt.Sprint(len(*in)))), nil })
			sender := &yodel.ClientOptions{Codec: raw.Codec, Compressor: fake, Limits: yodel.Limits{MaxDecompressed: 1 << 30}}
			got := new(yodel.Encoded)
			err := connect(t, s, sender).Call(t.Context(), "Size", new(make([]byte, test.size)), got)
			if e, ok := errors.AsType[*yodel.Error](err); test.text == "" && err != nil ||
				test.text != "" && (!ok || e.ID != "YDL2204" || !e.NotProcessed || !strings.Contains(e.Message, test.text)) {
				t.Errorf("got %v, want %q", err, test.text)
			}
			careful := &yodel.ClientOptions{Codec: raw.Codec, Compressor: fake, Limits: yodel.Limits{MaxDecompressed: test.limit}}
			if err := connect(t, s, careful).Call(t.Context(), "Size", new(make([]byte, test.size)), got); test.size <= 16*mib && err != nil {
				t.Errorf("a sender with the limits of the receiver: %v", err)
			}
		})
	}
}

// A fakeCompressor turns any message of size bytes into packed bytes, and the other way round.
type fakeCompressor struct{ size, packed int }

func (fakeCompressor) Name() string { return "fake" }

func (c fakeCompressor) Append(dst, src []byte) ([]byte, error) {
	if len(src) != c.size {
		return append(dst, src...), nil
	}
	return append(dst, make([]byte, c.packed)...), nil
}

func (c fakeCompressor) Decompress(dst, _ []byte, limit int) ([]byte, error) {
	if c.size > limit {
		return nil, compress.ErrTooLarge
	}
	return append(dst, make([]byte, c.size)...), nil
}

// A client that calls methods with invented names, as a gateway does for strangers, does not become
// slower, and its memory is bounded. A method that it calls late costs what an early one costs, and
// is counted by its name.
func TestInventedNames(t *testing.T) {
	for _, names := range []int{20_000, 200_000} {
		t.Run(fmt.Sprint(names), func(t *testing.T) {
			if raceEnabled {
				if names /= 2; names > 10_000 {
					t.Skip("the race detector makes it slow")
				}
			}
			s := newServer(t, nil)
			for _, name := range []string{"Early", "Late"} {
				handle(t, s, name, func(in *Args) (*Args, error) { return in, nil })
			}
			c := connect(t, s, &yodel.ClientOptions{
				CountCalls: true, Server: yodel.NewServer(&yodel.ServerOptions{Diagnostics: true}),
			})
			early := costOf(t, c, "Early")
			first, last, grown := callUnknown(t, c, names)
			late := costOf(t, c, "Late")
			t.Logf("%v for a name at the beginning, %v at the end; grown by %d KiB in the second half; an early call costs %v, a late one %v",
				first, last, grown>>10, early, late)
			if last > 3*first && !raceEnabled { // the race detector of a busy machine is no judge of time
				t.Errorf("names become slower: %v at the beginning, %v at the end", first, last)
			}
			if grown > 1<<20 {
				t.Errorf("the memory has grown by %d KiB", grown>>10)
			}
			if late.took > 3*early.took || !raceEnabled && late.allocs > early.allocs+0.5 {
				t.Errorf("a late call costs %v, an early one %v", late, early)
			}
			if m := countedMethod(t, c.Stats().Methods, "Late"); m.Calls != costCalls {
				t.Errorf("%d calls of the late method were counted, of %d", m.Calls, costCalls)
			}
		})
	}
}

// callUnknown calls methods that the server does not have. It returns how long one takes in the
// first tenth of the calls and in the last one, in the best of several slices of each, and by how
// many bytes the memory grows in their second half.
func callUnknown(t *testing.T, c *yodel.Client, names int) (first, last time.Duration, grown int64) {
	t.Helper()
	const slices, tenth = 100, 10
	half := uint64(0)
	for i := range slices {
		if i == slices/2 {
			half = settledHeap(t)
		}
		began := time.Now()
		var open sync.WaitGroup
		for n := range names / slices {
			open.Add(1)
			c.Go(t.Context(), &yodel.Call{Method: fmt.Sprintf("Invented.M%d_%d", i, n)}, func(err error) {
				if !errors.Is(err, yodel.Unimplemented) {
					t.Error(err)
				}
				open.Done()
			})
		}
		open.Wait()
		each := time.Since(began) / time.Duration(names/slices)
		if i < tenth && (i == 0 || each < first) {
			first = each
		}
		if i >= slices-tenth && (i == slices-tenth || each < last) {
			last = each
		}
	}
	return first, last, int64(settledHeap(t)) - int64(half)
}

// settledHeap returns how many bytes are in use when the process is no longer busy: then the second
// collection drops the reserve for messages (docs/decisions/0028).
func settledHeap(t *testing.T) uint64 {
	t.Helper()
	least, times := heap(), 0
	until(t, "the collections are over", func() bool {
		least = min(least, heap())
		times++
		return times == 5
	})
	return least
}

type cost struct {
	took   time.Duration
	allocs float64
}

const costCalls = 10 * 100

// costOf returns what a call of a method costs, in the best of several rounds.
func costOf(t *testing.T, c *yodel.Client, method string) (least cost) {
	t.Helper()
	in, out := &Args{A: 2, B: 3}, new(Args)
	for i := range costCalls / 100 {
		began := time.Now()
		allocs := float64(mallocs(func() {
			for range 100 {
				must(t, c.Call(t.Context(), method, in, out))
			}
		})) / 100
		if took := time.Since(began) / 100; i == 0 {
			least = cost{took, allocs}
		} else {
			least = cost{min(least.took, took), min(least.allocs, allocs)}
		}
	}
	return least
}

// Calls of several goroutines, whose methods have to make room for each other, reach the right
// method. Calls that are in flight meanwhile go on, and so do streams.
func TestNamesMakeRoomForOthers(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if strings.HasPrefix(call.Method, "Invented.") { // no such method
				return call.Answer(&yodel.Encoded{Body: strconv.AppendQuote(nil, call.Method)})
			}
			return next(ctx, call)
		}
	}}})
	began, release := make(chan struct{}), make(chan struct{})
	handle(t, s, "Hold", func(in *string) (*string, error) {
		close(began)
		<-release
		return in, nil
	})
	const Talk yodel.Duplex[string, string] = "Talk"
	Talk.Handle(s, func(_ context.Context, recv yodel.Recv[string], send yodel.Send[string]) error {
		for in, err := range recv {
			if err != nil || send(in) != nil {
				return err
			}
		}
		return nil
	})
	c := connect(t, s, nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		var out string
		if err := c.Call(t.Context(), "Hold", new("held"), &out); err != nil || out != "held" {
			t.Errorf("the call in flight got %q, %v", out, err)
		}
	})
	<-began
	must(t, Talk.Call(t.Context(), c, func(recv yodel.Recv[string], send yodel.Send[string]) error {
		callInvented(t, c, 4, 1200)
		close(release)
		must(t, send(new("still here")))
		out, err := recv.Next()
		if must(t, err); *out != "still here" {
			t.Errorf("the stream got %q", *out)
		}
		return nil
	}))
}

// callInvented makes calls with different names on several goroutines, and calls between them whose
// name is always the same.
func callInvented(t *testing.T, c *yodel.Client, goroutines, names int) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range names {
				name, out := fmt.Sprintf("Invented.M%d_%d", g, i), ""
				if err := c.Call(t.Context(), name, nil, &out); err != nil || out != name {
					t.Errorf("%s: got %q, %v", name, out, err)
				}
				if i%10 != 0 {
					continue
				}
				if reply, err := Mul.Call(t.Context(), c, &Args{A: g, B: i}); err != nil || reply.C != g*i {
					t.Errorf("%d*%d: got %v, %v", g, i, reply, err)
				}
			}
		})
	}
	wg.Wait()
}

// A singleWire makes links that carry one call at a time.
type singleWire struct {
	began   chan struct{}
	release chan struct{}
	refuse  atomic.Bool // no further connections
}

func (*singleWire) Name() string { return "single" }

func (w *singleWire) Connect(_ context.Context, nc net.Conn, _ *yodel.Endpoint) (yodel.Link, error) {
	if w.refuse.Load() {
		return nil, errors.New("no more connections")
	}
	return &singleLink{wire: w, conn: nc, turn: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

type singleLink struct {
	wire *singleWire
	conn net.Conn
	turn chan struct{}
	done chan struct{}
	once sync.Once
}

func (l *singleLink) Do(context.Context, *yodel.Call) error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.wire.began <- struct{}{}
	<-l.wire.release
	return nil
}

func (l *singleLink) Full() bool { return len(l.turn) > 0 }

func (l *singleLink) Closing() <-chan struct{} { return l.done }

func (l *singleLink) Done() <-chan struct{} { return l.done }

func (l *singleLink) Err() error { return net.ErrClosed }

func (l *singleLink) Close(bool) {
	l.once.Do(func() {
		_ = l.conn.Close() // nobody reads it
		close(l.done)
	})
}

// A call that would wait on a full link gets a connection of its own, up to ConnsPerEndpoint. If
// that connection cannot be made, the call waits.
func TestFullLinks(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, test := range []struct {
		conns  int
		refuse bool
		want   int // calls at the same time
	}{{1, false, 1}, {2, false, 2}, {3, false, 3}, {3, true, 1}} {
		w := &singleWire{began: make(chan struct{}, 3), release: make(chan struct{})}
		c := yodel.NewClient(discovery.Static("single://"+listener.Addr().String()), &yodel.ClientOptions{Wires: []yodel.Wire{w}, ConnsPerEndpoint: test.conns})
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				if err := c.Call(t.Context(), "x", new(1), nil); err != nil {
					t.Errorf("%+v, call %d: %v", test, i, err)
				}
			})
			if i < test.want {
				<-w.began
			}
			w.refuse.Store(test.refuse)
		}
		select {
		case <-w.began:
			t.Errorf("%+v: more calls run at the same time", test)
		case <-time.After(20 * time.Millisecond): // a correct client passes in any case
		}
		close(w.release)
		all.Wait()
		c.Close()
	}
}

// A socketWire changes the settings of sockets.
type socketWire struct {
	singleWire
	sockets chan net.Conn
}

func (w *socketWire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	socket, ok := nc.(interface{ NetConn() net.Conn })
	if !ok {
		return nil, errors.New("the connection hides its socket")
	}
	w.sockets <- socket.NetConn()
	return w.singleWire.Connect(ctx, nc, ep)
}

// A Wire reaches the socket of its connection, for example to set its keep-alive.
func TestAWireReachesItsSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	w := &socketWire{singleWire{began: make(chan struct{}, 1), release: make(chan struct{})}, make(chan net.Conn, 1)}
	close(w.release)
	c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{w}}, "single://"+l.Addr().String())
	must(t, c.Call(t.Context(), "Test.Echo", nil, nil))
	tcp, ok := (<-w.sockets).(*net.TCPConn)
	if !ok {
		t.Fatal("it is no *net.TCPConn")
	}
	must(t, tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Minute}))
}

// A family is what a program has in memory: its children know their parent.
type family struct {
	Name     string
	Parent   *family
	Children []*family
}

func cyclicTree() *family {
	root := &family{Name: "root"}
	root.Children = []*family{{Name: "child", Parent: root}}
	return root
}

func deepTree() *family {
	root := &family{}
	for range 1_000_000 {
		root = &family{Children: []*family{root}}
	}
	return root
}

// A value that contains itself, or is very deep, fails its call: in each codec, over each wire, in
// both directions. The connection and the process go on.
func TestCyclicAndDeepValuesFailTheirCall(t *testing.T) {
	t.Parallel()
	deep := deepTree()
	codecs := map[string]yodel.Codec{"json": yodel.JSON, "gob": gob.Codec, "strictjson": strictjson.Codec}
	for name, bad := range map[string]func() *family{"cyclic": cyclicTree, "deep": func() *family { return deep }} {
		for codecName, codec := range codecs {
			t.Run(name+"/"+codecName, func(t *testing.T) {
				t.Parallel()
				s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{codec}})
				handleTrees(t, s, bad)
				c := yodel.NewClient(discovery.Static(serve(t, s)), &yodel.ClientOptions{Codec: codec})
				defer c.Close()
				tryTrees(t, c, bad, true)
			})
		}
	}
	wires := map[string]struct {
		codec    yodel.Codec
		protocol yodel.Protocol
		wire     yodel.Wire
	}{
		"netrpc":  {gob.Codec, netrpc.Protocol, netrpc.Wire(gob.Codec)},
		"jsonrpc": {yodel.JSON, jsonrpc.Protocol, jsonrpc.Wire(yodel.JSON)},
	}
	for name, w := range wires {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{w.codec}, Protocols: []yodel.Protocol{w.protocol}})
			handleTrees(t, s, cyclicTree)
			c := yodel.NewClient(discovery.Static(name+"://"+serve(t, s)), &yodel.ClientOptions{Codec: w.codec, Wires: []yodel.Wire{w.wire}})
			defer c.Close()
			tryTrees(t, c, cyclicTree, false)
		})
	}
}

func handleTrees(t *testing.T, s *yodel.Server, bad func() *family) {
	t.Helper()
	handle(t, s, "Tree.Get", func(context.Context, *family) (*family, error) { return bad(), nil })
	handle(t, s, "Tree.Echo", func(_ context.Context, in *family) (*family, error) { return in, nil })
	handle(t, s, "Tree.Late", func(ctx context.Context, _ *family) (*family, error) {
		yodel.CallFrom(ctx).Later()(bad(), nil)
		return nil, nil
	})
	handle(t, s, "Tree.Encode", func(ctx context.Context, _ *family) (*family, error) {
		call := yodel.CallFrom(ctx)
		call.Reply = bad()
		_, err := call.Encode()
		return &family{}, err
	})
	yodel.Feed[family, family]("Tree.Feed").Handle(s, func(_ context.Context, _ *family, send yodel.Send[family]) error { return send(bad()) })
	yodel.Upload[family, family]("Tree.Upload").Handle(s, func(_ context.Context, recv yodel.Recv[family]) (*family, error) {
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
		}
		return &family{}, nil
	})
}

func tryTrees(t *testing.T, c *yodel.Client, bad func() *family, native bool) {
	t.Helper()
	call := func(name string, in *family) error { return c.Call(timely(t), name, in, new(family)) }
	tries := map[string]func() error{
		"a request": func() error { return call("Tree.Echo", bad()) },
		"a reply":   func() error { return call("Tree.Get", &family{}) },
		"Call.Encode on the server": func() error {
			return call("Tree.Encode", &family{})
		},
	}
	if native {
		tries["a late reply"] = func() error { return call("Tree.Late", &family{}) }
		tries["an asynchronous request"] = func() error {
			return asyncCall(t, c, &yodel.Call{Method: "Tree.Echo", Args: bad(), Reply: new(family)}, func() {})
		}
		tries["a notification"] = func() error { return c.Notify(timely(t), "Tree.Echo", bad()) }
		tries["a message of a feed"] = func() error {
			_, err := yodel.Feed[family, family]("Tree.Feed").Call(timely(t), c, &family{}).Next()
			return err
		}
		tries["a message of an upload"] = func() error {
			_, err := yodel.Upload[family, family]("Tree.Upload").Call(timely(t), c, func(send yodel.Send[family]) error { return send(bad()) })
			return err
		}
	}
	for name, try := range tries {
		err := try()
		if err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "nested more than 1000 levels") {
			t.Errorf("%s: got %v", name, err)
		}
		if err := call("Tree.Echo", &family{Name: "good", Children: []*family{{}}}); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}
