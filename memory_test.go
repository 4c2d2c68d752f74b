// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"weak"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
	connectrpc "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	thriftrpc "github.com/yodel-rpc/yodel/protocol/thrift"
)

// replying serves an address at which each request is answered with the same error, until the test
// ends.
func replying(t testing.TB, code uint16, fields *wire.Fields) string {
	t.Helper()
	l := listen(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go answerAll(nc, code, fields)
		}
	}()
	return l.Addr().String()
}

// answerAll answers the requests on a connection until it ends.
func answerAll(nc net.Conn, code uint16, fields *wire.Fields) {
	defer nc.Close()
	if _, err := nc.Write(wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})); err != nil {
		return
	}
	if _, err := io.ReadFull(nc, make([]byte, len(wire.Preface))); err != nil {
		return
	}
	header := make([]byte, wire.HeaderSize)
	for {
		if _, err := io.ReadFull(nc, header); err != nil {
			return
		}
		h := wire.ParseHeader(header)
		if _, err := io.CopyN(io.Discard, nc, int64(h.Len)); err != nil {
			return
		}
		if h.Type != wire.Request {
			continue
		}
		b := wire.Begin(nil, &wire.Header{Type: wire.Reply, Flags: wire.HasFields, Arg: code, ID: h.ID})
		if _, err := nc.Write(wire.Finish(wire.AppendFields(b, fields), 0)); err != nil {
			return
		}
	}
}

const forged = "X\n2026 level=INFO \u009b2J\u2028forged \x1b[2J"

// wantClean fails the test unless said is one line that controls nothing.
func wantClean(t testing.TB, what, said string) {
	t.Helper()
	if i := strings.IndexFunc(said, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }); i >= 0 {
		t.Errorf("%s has a control character at %d: %.400q", what, i, said)
	}
}

func TestErrorsOfPeersAreBoundedAndCleanedWhereTheyAreRead(t *testing.T) {
	for name, f := range map[string]*wire.Fields{
		"a long id":       {ErrorID: []byte(strings.Repeat("x", 400)), Message: []byte("no")},
		"a very long id":  {ErrorID: []byte(strings.Repeat("\n", 60000))},
		"a forged id":     {ErrorID: []byte(forged), Message: []byte(forged)},
		"a long message":  {Message: []byte(strings.Repeat("\x9b", 60000))},
		"large details":   {Details: wire.AppendDetail(nil, "t", make([]byte, 60000)), Message: []byte("no")},
		"many details":    {Details: make([]byte, 2000), Message: []byte("no")}, // pairs of nothing
		"broken details":  {Details: []byte{1, 'x', 200}, Message: []byte("no")},
		"nothing at all":  {},
		"a broken string": {ErrorID: []byte("\xff\xfe"), Message: []byte("\xff\xfe")},
	} {
		for _, way := range []string{"Call", "Go", "feed"} {
			t.Run(name+" "+way, func(t *testing.T) {
				c := newClient(t, nil, replying(t, 13, f))
				e := wantCode(t, callIn(t, c, way), yodel.Internal)
				if len(e.Error()) > 300 || len(e.ID) > 64 || len(e.Message) > 5000 || len(e.Details) > 64 {
					t.Errorf("got an error of %d bytes with an id of %d, a message of %d and details of %d", len(e.Error()), len(e.ID), len(e.Message), len(e.Details))
				}
				wantClean(t, "the error", e.Error())
				wantClean(t, "the id", e.ID)
				wantClean(t, "the message", e.Message)
				wantClean(t, "the record", strings.ReplaceAll(fmt.Sprintf("%+v", e), "\n", ""))
			})
		}
	}
}

// callIn makes a call of "M" in one of three ways.
func callIn(t testing.TB, c *yodel.Client, way string) error {
	t.Helper()
	switch way {
	case "Call":
		return c.Call(t.Context(), "M", &Empty{}, nil)
	case "Go":
		ended := make(chan error, 1)
		c.Go(t.Context(), &yodel.Call{Method: "M", Args: &Empty{}}, func(err error) { ended <- err })
		return receive(t, ended, "the call has ended")
	}
	for _, err := range yodel.Feed[Empty, Empty]("M").Call(t.Context(), c, &Empty{}) {
		return err
	}
	return nil
}

// wantCode returns the Error that err is, which has code.
func wantCode(t testing.TB, err error, code yodel.Code) *yodel.Error {
	t.Helper()
	var e *yodel.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %v", err, code)
	}
	return e
}

func TestAServerThatRefusesAConnectionCannotBreakTheError(t *testing.T) {
	b := wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})
	b = wire.AppendGoAway(b, 14, &wire.Drain{Message: []byte(strings.Repeat(forged, 1000)), ErrorID: []byte(strings.Repeat("\n", 400))})
	c := newClient(t, nil, speak(t, true, string(b)))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e := wantCode(t, c.Call(ctx, "M", &Empty{}, nil), yodel.Unavailable)
	wantClean(t, "the error", e.Error())
	wantClean(t, "the id", e.ID)
	if len(e.Error()) > 300 || len(e.Message) > 2000 {
		t.Errorf("the error has %d bytes, its message %d", len(e.Error()), len(e.Message))
	}
}

// A client that is called by its server answers as it likes.
func TestAServerThatCallsAClientCleansItsErrors(t *testing.T) {
	s := newServer(t, nil)
	nc, err := net.Dial("tcp", serve(t, s))
	must(t, err)
	go answerAll(nc, 13, &wire.Fields{ErrorID: []byte(strings.Repeat("x", 400)), Message: []byte(forged)})
	t.Cleanup(func() { nc.Close() })
	var peers []*yodel.Peer
	until(t, "the server knows the client", func() bool { peers = s.Peers(); return len(peers) == 1 })
	e := wantCode(t, peers[0].Do(t.Context(), &yodel.Call{Method: "M", Args: &Empty{}}), yodel.Internal)
	wantClean(t, "the error", e.Error())
	if len(e.Error()) > 300 || len(e.ID) > 64 {
		t.Errorf("the error has %d bytes, its id %d", len(e.Error()), len(e.ID))
	}
}

func TestNamesOfStrangersDoNotForgeLinesOfRecords(t *testing.T) {
	r := &introspect.CallReport{
		Method: "T." + forged, Side: "server", Peer: forged, Kind: forged, Code: "x" + forged, ID: forged, Message: forged,
		Attempts: []introspect.Attempt{{Addr: forged, Code: forged, ID: forged}}, Notes: []introspect.Note{{By: forged, What: forged}},
	}
	lines := strings.Split(r.String(), "\n")
	if len(lines) != 4 {
		t.Errorf("the record has %d lines, want 4: %q", len(lines), lines)
	}
	r.Side = "client"
	r.Resolver, r.Picker = &introspect.Resolver{Err: forged}, forged
	r.Candidates = []introspect.Candidate{{Addr: forged, Zone: forged, Verdict: forged, NotReady: []string{forged}}}
	for _, line := range append(lines, strings.Split(r.String(), "\n")...) {
		wantClean(t, "the record", line)
		if strings.HasPrefix(line, "2026") || strings.HasPrefix(line, "forged") {
			t.Errorf("a forged line: %q", line)
		}
	}
}

func TestBytesBehindTheLastValueAreRefused(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	two := []byte{2, 2, '7', 2, '2'}
	var quotient, remainder int
	reply := yodel.Values{&quotient, &remainder}
	must(t, c.Call(t.Context(), "Arith.DivMod", &yodel.Encoded{Body: two, Several: true}, reply))
	err := c.Call(t.Context(), "Arith.DivMod", &yodel.Encoded{Body: append(two, "left over"...), Several: true}, reply)
	if e := wantError(t, err, yodel.InvalidArgument, "YDL2101"); !strings.Contains(e.Message, "9 bytes follow the last value") {
		t.Errorf("got %v", e)
	}
}

func FuzzErrorTexts(f *testing.F) {
	f.Add(uint8(13), forged, strings.Repeat("x", 400), "S.M", []byte{1})
	f.Add(uint8(255), strings.Repeat("ä", 300), "YDL1003", "", []byte(nil))
	f.Fuzz(func(t *testing.T, code uint8, message, id, method string, details []byte) {
		e := &yodel.Error{Code: yodel.Code(code), Message: message, ID: id, Details: []yodel.Detail{{Type: id, Value: details}}}
		e.Report = &introspect.CallReport{Method: method, Code: e.Code.String(), ID: id, Message: message, Attempts: []introspect.Attempt{{Addr: method, Message: message}}}
		line := e.Error()
		wantClean(t, "the error", line)
		if len(line) > 300 {
			t.Errorf("it has %d bytes: %q", len(line), line)
		}
		for _, format := range []string{"%v", "%+v", "%q", "%s", "%x"} {
			if strings.Contains(fmt.Sprintf(format, e), "PANIC") && !strings.Contains(message+id+method, "PANIC") {
				t.Errorf("%s panics", format)
			}
		}
		for said := range strings.SplitSeq(e.Report.String(), "\n") {
			wantClean(t, "the record", said)
		}
		_ = e.LogValue()
	})
}

// heapPeak measures the largest live heap until stop is called, which returns by how much it
// exceeded the beginning.
func heapPeak() (stop func() int64) {
	live := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) // far less
	}
	runtime.GC()
	before, peak := live(), int64(0)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				peak = max(peak, live())
			case <-done:
				return
			}
		}
	}()
	return func() int64 {
		close(done)
		<-ended
		return max(peak, live()) - before
	}
}

// A few kilobytes of requests whose replies are not read do not make the server hold their replies.
func TestUnreadRepliesAreBounded(t *testing.T) {
	const requests, size = 1000, 1 << 20
	var begun atomic.Int64
	s := newServer(t, &yodel.ServerOptions{MaxMemory: 64 << 20})
	handle(t, s, "Big", func(*[]byte) (*[]byte, error) {
		begun.Add(1)
		b := make([]byte, size)
		return &b, nil
	})
	addr := serve(t, s)
	stop := heapPeak()
	p := newStranger(t, addr, &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Big"), Codec: []byte("raw")}))
	read := func(replies int) {
		for n := 0; n < replies; {
			if h, _ := p.frame(); (h.Type == wire.Reply || h.Type == wire.Data) && h.Flags&wire.More == 0 {
				n++
			}
		}
	}
	p.send(requestFrame(0, 0, nil, ""))
	read(1) // from now on the server knows how large the replies are
	for i := range uint32(requests - 1) {
		p.send(requestFrame(0, i+1, nil, ""))
	}
	until(t, "nothing moves", func() bool {
		was := begun.Load()
		<-time.After(100 * time.Millisecond)
		return was > 1 && begun.Load() == was
	})
	if _, err := Mul.Call(t.Context(), newClient(t, nil, addr), &Args{2, 3}); err != nil {
		t.Errorf("another client: %v", err)
	}
	peak := stop()
	t.Logf("%d of %d handlers were begun, the heap grew by %d MiB", begun.Load(), requests, peak>>20)
	if peak > 160<<20 {
		t.Errorf("the heap grew by %d MiB, with a limit of 64 MiB and as much garbage", peak>>20)
	}
	read(requests - 1) // all are answered once they are read
}

// Messages that decompress to a multiple of what was sent are within the memory of their
// connection.
func TestDecompressedRequestsAreBounded(t *testing.T) {
	const size = 4 << 20
	requests := fewer(100, 5)
	bomb, err := flate.Compressor.Append(nil, make([]byte, size))
	must(t, err)
	release := make(chan struct{})
	var begun atomic.Int64
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}, MaxMemory: 32 << 20, Limits: yodel.Limits{MaxDecompressed: size}})
	handle(t, s, "Hold", func(ctx context.Context, _ *[]byte) (*[]byte, error) {
		begun.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return new([]byte), nil
	})
	addr := serve(t, s)
	stop := heapPeak()
	p := newStranger(t, addr, &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Hold"), Codec: []byte("raw"), Compressor: []byte("flate")}))
	for i := range uint32(requests) {
		h := wire.Header{Type: wire.Request, Flags: wire.Compressed, ID: wire.NextID(i)}
		p.send(wire.Finish(append(wire.Begin(nil, &h), bomb...), 0))
	}
	for range requests - 4 { // 16 MiB hold four
		if e := p.reply(); e.ID != "YDL3007" || !e.NotProcessed {
			t.Fatalf("got %v", e)
		}
	}
	until(t, "some are executed", func() bool { return begun.Load() > 0 })
	if _, err := Mul.Call(t.Context(), newClient(t, nil, addr), &Args{2, 3}); err != nil {
		t.Errorf("another client: %v", err)
	}
	close(release)
	peak := stop()
	t.Logf("%d of %d were executed, the heap grew by %d MiB", begun.Load(), requests, peak>>20)
	if peak > 128<<20 {
		t.Errorf("the heap grew by %d MiB", peak>>20)
	}
}

// liveHeap returns how many bytes remain after garbage collections. The memory of large messages is
// kept until the second one.
func liveHeap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // far less
}

// wantHeap waits until the heap has grown by at most so many bytes since before.
func wantHeap(t testing.TB, before, most int64) {
	t.Helper()
	grown := int64(0)
	for end := time.Now().Add(patience / 4); ; { // long before the test's connections end
		if grown = liveHeap() - before; grown <= most {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d KiB remain in memory, want at most %d KiB", grown>>10, most>>10)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// A lingerer is a client that shows signs of life as long as the test runs, and never completes a
// request.
type lingerer struct {
	*stranger
	mu   sync.Mutex // held during a write
	sign []byte
}

func newLingerer(t *testing.T, addr string) *lingerer {
	t.Helper()
	l := &lingerer{sign: wire.Finish(append(wire.Begin(nil, &wire.Header{Type: wire.Ping}), "8 bytes."...), 0)}
	l.stranger = newStranger(t, addr, &wire.Limits{}, methodFrame(0, &wire.Binding{Name: []byte("Arith.Mul"), Codec: []byte("json")}))
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-t.Context().Done():
				return
			case <-tick.C:
				l.mu.Lock()
				_, _ = l.nc.Write(l.sign) // the server's reply is what the test waits for
				l.mu.Unlock()
			}
		}
	}()
	return l
}

// unfinished sends a request of size bytes without its end. Within says that what comes ends within
// a frame, of which the signs of life are then a part.
func (l *lingerer) unfinished(id uint32, size int, within bool) {
	const piece = 60_000
	h := wire.Header{Type: wire.Request, Flags: wire.HasFields | wire.More, ID: id}
	b := wire.Finish(wire.AppendFields(wire.Begin(nil, &h), &wire.Fields{Size: uint64(size)}), 0)
	for left := size - piece; left >= piece; left -= piece {
		b = wire.AppendFrame(b, &wire.Header{Type: wire.Data, Flags: wire.More, ID: id}, make([]byte, piece))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if within {
		b, l.sign = b[:len(b)-piece/2], make([]byte, len(l.sign))
	}
	l.send(b)
}

// A server that gives up a request which did not come whole also frees its memory, although the
// connection lives on.
func TestAbandonedRequestsAreFreed(t *testing.T) {
	const size = 4 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(99)) // then the runtime has no reserve of 8 MiB, which counts as heap
	for _, conns := range []int{1, 8} {
		for name, requests := range map[string]uint32{"between two frames": 3, "within a frame": 1} {
			t.Run(fmt.Sprintf("%s, %d connections", name, conns), func(t *testing.T) {
				s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 200 * time.Millisecond}})
				addr := serve(t, s)
				before := liveHeap()
				for range 10 { // until the memory of the test before is free
					<-time.After(20 * time.Millisecond)
					before = min(before, liveHeap())
				}
				var peers []*lingerer
				for range conns {
					peers = append(peers, newLingerer(t, addr))
				}
				for slot := range requests {
					for _, p := range peers {
						p.unfinished(wire.NextID(slot), size, name == "within a frame")
					}
					for _, p := range peers {
						if e := p.reply(); e.ID != "YDL3008" || !e.NotProcessed {
							t.Fatalf("request %d: got %v", slot+1, e)
						}
					}
					wantHeap(t, before, int64(conns)*300_000)
				}
			})
		}
	}
}

// A text is a message that may be large.
type text struct{ Text string }

// An idle connection must not keep the messages of calls that have ended.
func TestEndedCallsKeepNoMessages(t *testing.T) {
	var requests, replies [4]weak.Pointer[text]
	var n atomic.Int32
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}})
	method := yodel.Method[text, text]("Text.Repeat")
	method.Handle(s, func(_ context.Context, in *text) (*text, error) {
		out := &text{in.Text}
		i := n.Add(1) - 1
		requests[i], replies[i] = weak.Make(in), weak.Make(out)
		return out, nil
	})
	s.MarkConcurrent(string(method)) // so that it has a goroutine of its own
	c := connect(t, s, nil)
	for i := range requests {
		call := &yodel.Call{}
		if i%2 == 1 {
			call.Compressor = flate.Compressor
		}
		_, err := method.Do(t.Context(), c, call, &text{strings.Repeat("much ", 1000)})
		must(t, err)
	}
	until(t, "nothing is kept", func() bool {
		runtime.GC()
		for i := range requests {
			if requests[i].Value() != nil || replies[i].Value() != nil {
				return false
			}
		}
		return true
	})
}

// A largeText is a message of every protocol.
type largeText struct {
	Text string `json:"text" thrift:"1"`
}

// JavaClassName implements an interface of hessian2.
func (largeText) JavaClassName() string { return "test.Text" }

// A stalling is a proxy that passes the first bytes of a server's replies on each connection, and
// then nothing until it is released.
type stalling struct {
	net.Listener
	passes  int64
	stalled *atomic.Int64 // counts the connections that it has stalled
	release chan struct{}
}

// newStalling returns a proxy to addr.
func newStalling(t testing.TB, addr string, passes int64, stalled *atomic.Int64, release chan struct{}) *stalling {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &stalling{Listener: l, passes: passes, stalled: stalled, release: release}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.pass(near, addr) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return p
}

func (p *stalling) pass(near net.Conn, addr string) {
	defer near.Close()
	far, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer far.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, near) // ends with either connection
		far.Close()
	}()
	if _, err := io.CopyN(near, far, p.passes); err == nil {
		p.stalled.Add(1)
		select {
		case <-p.release:
			_, _ = io.Copy(near, far) // as above
		case <-done:
		}
	}
	near.Close()
	<-done
}

// What servers of other protocols make a client hold is within ClientOptions.MaxMemory, as it is
// for servers of yodel: replies that do not come whole take no memory beyond it, and fail their own
// calls only.
func TestRepliesThroughLinksAreCounted(t *testing.T) {
	const endpoints, size, limit = 12, 256 << 10, 6 * 256 << 10
	wires := map[string]struct {
		wire     yodel.Wire
		protocol yodel.Protocol
		codec    yodel.Codec
	}{
		"grpc":    {grpc.Wire, http.New(nil), yodel.JSON},
		"connect": {connectrpc.Wire(nil), http.New(nil), yodel.JSON},
		"rpcx":    {rpcx.Wire(yodel.JSON), rpcx.Protocol, yodel.JSON},
		"dubbo":   {dubbo.Wire(hessian2.Codec, nil), dubbo.Protocol, hessian2.Codec},
		"thrift":  {thriftrpc.Wire(thrift.Codec, &thriftrpc.WireOptions{Service: "Test"}), thriftrpc.New(&thriftrpc.Options{Service: "Test"}), thrift.Codec},
		"netrpc":  {netrpc.Wire(gob.Codec), netrpc.Protocol, gob.Codec},
		"jsonrpc": {jsonrpc.Wire(yodel.JSON), jsonrpc.Protocol, yodel.JSON},
	}
	for name, test := range wires {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, &yodel.ServerOptions{Protocols: []yodel.Protocol{test.protocol}, Codecs: []yodel.Codec{test.codec}})
			large := largeText{strings.Repeat("x", size)}
			handle(t, s, "Test.Large", func(*largeText) (*largeText, error) { return &large, nil })
			handle(t, s, "Test.Small", func(in *largeText) (*largeText, error) { return in, nil })
			addr := serve(t, s)
			release := make(chan struct{})
			var stalled atomic.Int64
			var addrs []string
			for range endpoints {
				addrs = append(addrs, test.wire.Name()+"://"+newStalling(t, addr, size-25_000, &stalled, release).Addr().String())
			}
			c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{test.wire}, Codec: test.codec, MaxMemory: limit}, addrs...)
			until(t, "all endpoints are connected", func() bool { // then the calls go to all of them
				must(t, c.Call(t.Context(), "Test.Small", &largeText{"a"}, new(largeText)))
				return !slices.ContainsFunc(c.Endpoints(), func(ep *yodel.Endpoint) bool { return !ep.Connected() })
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ends := make(chan error, endpoints)
			for range endpoints {
				go func() {
					var reply largeText
					err := c.Call(ctx, "Test.Large", &largeText{"a"}, &reply)
					if err == nil && len(reply.Text) != size {
						err = errors.New("the reply is not whole")
					}
					ends <- err
				}()
			}
			refused, least := 0, endpoints-limit/size
			if name == "jsonrpc" { // the number of the call may come last, so that the reply must come first
				until(t, "all replies have come in part", func() bool { return stalled.Load() == endpoints })
				least = 0
			}
			for refused < least { // the others hold their part of a reply
				err := <-ends
				var e *yodel.Error
				if !errors.As(err, &e) || e.ID != "YDL3007" || e.Code != yodel.ResourceExhausted || e.NotProcessed {
					t.Fatalf("got %v, want YDL3007", err)
				}
				if refused++; refused == 1 {
					t.Logf("the first error: %v", err)
				}
			}
			close(release)
			for range endpoints - refused {
				var e *yodel.Error
				if err := <-ends; errors.As(err, &e) && e.ID == "YDL3007" {
					refused++
				} else if err != nil {
					t.Errorf("a call that has memory: %v", err)
				}
			}
			// Replies whose sizes come last take memory bit by bit: all may fail.
			if refused == 0 || refused == endpoints && name != "jsonrpc" {
				t.Errorf("%d of %d calls were refused", refused, endpoints)
			}
			// everything was given back
			for range 3 {
				var reply largeText
				if err := c.Call(t.Context(), "Test.Large", &largeText{"a"}, &reply); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			}
		})
	}
}
