// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gencode"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// The methods of a server that mirrors messages of a type.
func mirrors[T any](s *yodel.Server) (yodel.Feed[T, T], yodel.Upload[T, T], yodel.Duplex[T, T]) {
	const (
		thrice yodel.Feed[T, T]   = "Mirror.Thrice"
		last   yodel.Upload[T, T] = "Mirror.Last"
		mirror yodel.Duplex[T, T] = "Mirror.Mirror"
	)
	thrice.Handle(s, func(_ context.Context, in *T, send yodel.Send[T]) error {
		return errors.Join(send(in), send(in), send(in))
	})
	last.Handle(s, func(_ context.Context, recv yodel.Recv[T]) (*T, error) {
		var last *T
		for msg, err := range recv {
			if err != nil {
				return nil, err
			}
			last = msg
		}
		return last, nil
	})
	mirror.Handle(s, func(_ context.Context, recv yodel.Recv[T], send yodel.Send[T]) error {
		for msg, err := range recv {
			if err != nil {
				return err
			}
			if err := send(msg); err != nil {
				return err
			}
		}
		return nil
	})
	return thrice, last, mirror
}

// mirrored sends messages through all kinds of streams, and wants them back as they were.
func mirrored[T any](t *testing.T, s *yodel.Server, o *yodel.ClientOptions, same func(a, b *T) bool, messages ...T) {
	t.Helper()
	thrice, last, mirror := mirrors[T](s)
	c := connect(t, s, o)
	for i := range messages {
		n := 0
		for msg, err := range thrice.Call(t.Context(), c, &messages[i]) {
			if err != nil || !same(msg, &messages[i]) {
				t.Fatalf("feed: message %d, %v", i, err)
			}
			n++
		}
		if n != 3 {
			t.Errorf("feed: got %d messages, want 3", n)
		}
	}
	got, err := last.Call(t.Context(), c, func(send yodel.Send[T]) error {
		for i := range messages {
			if err := send(&messages[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || !same(got, &messages[len(messages)-1]) {
		t.Errorf("upload: %v", err)
	}
	err = mirror.Call(t.Context(), c, func(recv yodel.Recv[T], send yodel.Send[T]) error {
		sent := make(chan error, 1)
		go func() {
			var err error
			for i := range messages {
				err = errors.Join(err, send(&messages[i]))
			}
			sent <- errors.Join(err, send.End())
		}()
		n := 0
		for msg, err := range recv {
			if err != nil || !same(msg, &messages[n]) {
				t.Errorf("duplex: message %d, %v", n, err)
			}
			n++
		}
		if n != len(messages) {
			t.Errorf("duplex: got %d messages, want %d", n, len(messages))
		}
		return <-sent
	})
	if err != nil {
		t.Errorf("duplex: %v", err)
	}
}

func TestStreamsCarryAllCodecsAndCompressors(t *testing.T) {
	texts := []string{"", "short", strings.Repeat("all work and no play ", 100), strings.Repeat("no play and all work ", 5000)}
	var tags []tagged
	for i, text := range texts {
		tags = append(tags, tagged{uint64(i), text})
	}
	for name, compressor := range map[string]compress.Compressor{"plain": nil, "flate": flate.Compressor, "gzip": gzip.Compressor} {
		of := sizes
		if compressor != nil { // it is slow
			of = []int{1, 2000, 100 << 10}
		}
		var chunks [][]byte
		for _, n := range of {
			chunks = append(chunks, randomBytes(n), bytes.Repeat([]byte{7}, n))
		}
		for _, checksum := range []bool{false, true} {
			if name == "gzip" && checksum { // flate has both
				continue
			}
			if name == "plain" && !checksum && raceEnabled { // the step without the race detector has both
				continue
			}
			t.Run(fmt.Sprintf("%s/%t", name, checksum), func(t *testing.T) {
				server := func() *yodel.Server {
					return yodel.NewServer(&yodel.ServerOptions{
						Codecs: []yodel.Codec{gob.Codec, gencode.Codec}, Compressors: []compress.Compressor{flate.Compressor, gzip.Compressor},
					})
				}
				options := func(codec yodel.Codec) *yodel.ClientOptions {
					return &yodel.ClientOptions{Codec: codec, Compressor: compressor, Checksum: checksum}
				}
				sameText := func(a, b *string) bool { return *a == *b }
				mirrored(t, server(), options(nil), sameText, texts...)
				mirrored(t, server(), options(gob.Codec), sameText, texts...)
				mirrored(t, server(), options(raw.Codec), func(a, b *[]byte) bool { return bytes.Equal(*a, *b) }, chunks...)
				mirrored(t, server(), options(gencode.Codec), func(a, b *tagged) bool { return *a == *b }, tags...)
			})
		}
	}
}

func TestMessagesOfStreamsAreCompressed(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}})
	_, _, mirror := mirrors[string](s)
	var in, out atomic.Int64
	c := connect(t, s, &yodel.ClientOptions{Compressor: flate.Compressor, Transport: counted(&in, &out)})
	text := strings.Repeat("all work and no play ", 3000) // 63 KB; more would not be compressed by default
	must(t, mirror.Call(t.Context(), c, func(recv yodel.Recv[string], send yodel.Send[string]) error {
		must(t, send(&text))
		got, err := recv.Next()
		if err != nil || *got != text {
			t.Errorf("got %d bytes, %v", len(*got), err)
		}
		return nil
	}))
	if in.Load() > 20_000 || out.Load() > 20_000 {
		t.Errorf("%d bytes came and %d went for a message of %d bytes each way", in.Load(), out.Load(), len(text))
	}
}

// Messages beyond a limit end their stream with an error that says so, in either direction, also
// those that fit in one frame.
func TestLimitsHoldForMessagesOfStreams(t *testing.T) {
	large := strings.Repeat("x", 5000)
	limit := yodel.Limits{MaxMessage: 1000}
	bomb := yodel.Limits{MaxDecompressed: 1000}
	for name, test := range map[string]struct {
		server, client yodel.Limits
		compressed     bool
		id             string
		up             bool // the upload fails, else the feed
		text           string
	}{
		"the sender, up":          {client: limit, up: true, id: "YDL2201", text: "a message of the stream has 5002 bytes, this side's limit is 1000"},
		"the sender, down":        {server: limit, id: "YDL2201", text: "a message of the stream has 5002 bytes, this side's limit is 1000"},
		"the receiver, up":        {server: limit, up: true, id: "YDL2202", text: "has 5002 bytes, this side's limit is 1000"},
		"the receiver, down":      {client: limit, id: "YDL2202", text: "has 5002 bytes, this side's limit is 1000"},
		"decompressed, up":        {server: bomb, up: true, compressed: true, id: "YDL2204", text: "more than 1000 bytes after decompression (flate)"},
		"decompressed, down":      {client: bomb, compressed: true, id: "YDL2204", text: "more than 1000 bytes after decompression (flate)"},
		"in several frames, up":   {server: yodel.Limits{MaxMessage: 100_000}, up: true, id: "YDL2202", text: "has 200002 bytes, this side's limit is 100000"},
		"in several frames, down": {client: yodel.Limits{MaxMessage: 100_000}, id: "YDL2202", text: "has 200002 bytes, this side's limit is 100000"},
	} {
		t.Run(name, func(t *testing.T) {
			text := large
			if strings.Contains(name, "frames") {
				text = strings.Repeat("x", 200_000)
			}
			s := yodel.NewServer(&yodel.ServerOptions{Limits: test.server, Compressors: []compress.Compressor{flate.Compressor}})
			const feed yodel.Feed[int, string] = "Feed"
			feed.Handle(s, func(_ context.Context, in *int, send yodel.Send[string]) error {
				short := "short"
				if err := send(&short); err != nil {
					return err
				}
				return send(&text)
			})
			_, last, mirror := mirrors[string](s)
			o := &yodel.ClientOptions{Limits: test.client}
			if test.compressed {
				o.Compressor = flate.Compressor
			}
			c := connect(t, s, o)
			err := error(nil)
			if test.up {
				_, err = last.Call(t.Context(), c, func(send yodel.Send[string]) error {
					for { // also behind it: the sender must not be left waiting
						if err := send(&text); err != nil {
							return err
						}
					}
				})
			} else {
				n := 0
				for _, err = range feed.Call(t.Context(), c, new(int)) {
					n++
				}
				if n != 2 {
					t.Errorf("the error came with round %d, want the second", n)
				}
			}
			if e := wantError(t, err, yodel.ResourceExhausted, test.id); !strings.Contains(e.Message, test.text) {
				t.Errorf("got %v, want that it says %q", e, test.text)
			}
			must(t, mirror.Call(t.Context(), c, func(recv yodel.Recv[string], send yodel.Send[string]) error {
				short := "short"
				return errors.Join(send(&short), func() error { _, err := recv.Next(); return err }())
			}))
		})
	}
}

// What a caller does not read any more is dropped, and a message that is too large among it is no
// silent hang.
func TestWhatTheFunctionDoesNotReadIsDropped(t *testing.T) {
	s := yodel.NewServer(diagnosed(nil))
	const flood yodel.Duplex[int, string] = "Flood"
	flood.Handle(s, func(_ context.Context, _ yodel.Recv[int], send yodel.Send[string]) error {
		for i := range 100 {
			text := strings.Repeat("x", i*1000)
			if err := send(&text); err != nil {
				return err
			}
		}
		return nil
	})
	addr := serve(t, s)
	c := newClient(t, nil, addr)
	must(t, flood.Call(t.Context(), c, func(yodel.Recv[string], yodel.Send[int]) error { return nil }))
	c = newClient(t, &yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 50_000}}, addr)
	err := flood.Call(t.Context(), c, func(yodel.Recv[string], yodel.Send[int]) error { return nil })
	wantError(t, err, yodel.ResourceExhausted, "YDL2202")
	until(t, "nothing is left of it", func() bool { return inflight(t, c, string(flood)) == 0 })
}

// A message that the codec does not take, or that does not fit, fails with the name of the codec.
func TestMessagesThatDoNotFit(t *testing.T) {
	s := yodel.NewServer(diagnosed(nil))
	const (
		texts   yodel.Duplex[string, string] = "Mix"
		numbers yodel.Duplex[int, int]       = "Mix"
		chans   yodel.Duplex[chan int, int]  = "Mix"
	)
	seen := make(chan error, 10)
	texts.Handle(s, func(_ context.Context, recv yodel.Recv[string], send yodel.Send[string]) error {
		for text, err := range recv {
			if err != nil {
				seen <- err
				return err
			}
			if err := send(text); err != nil {
				return err
			}
		}
		return nil
	})
	c := connect(t, s, nil)
	err := numbers.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		must(t, send(new(int)))
		_, err := recv.Next()
		return err
	})
	wantError(t, receive(t, seen, "the handler is told"), yodel.InvalidArgument, "YDL2101")
	wantError(t, err, yodel.InvalidArgument, "YDL2101")
	err = chans.Call(t.Context(), c, func(_ yodel.Recv[int], send yodel.Send[chan int]) error {
		return send(new(chan int))
	})
	wantError(t, err, yodel.InvalidArgument, "YDL2103")
	const wrong yodel.Duplex[string, int] = "Mix"
	text := "text"
	err = wrong.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[string]) error {
		must(t, send(&text))
		_, err := recv.Next()
		wantError(t, err, yodel.Internal, "YDL2102")
		return err
	})
	wantError(t, err, yodel.Internal, "YDL2102")
	if e, ok := errors.AsType[*yodel.Error](err); ok && !strings.Contains(e.Message, "does not fit *int") {
		t.Errorf("got %v", e)
	}
}

// As many streams as MaxOpen allows are open at once. More wait, or fail at once with NoWait.
func TestStreamsWaitForTheirPlace(t *testing.T) {
	const most = 8
	s := newEndless(nil)
	addr := serve(t, s.Server)
	for _, noWait := range []bool{false, true} {
		c := newClient(t, &yodel.ClientOptions{NoWait: noWait, Limits: yodel.Limits{MaxOpen: most}}, addr)
		must(t, c.Ready(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range most {
			wg.Go(func() { _ = opened(ctx, c)["duplex"](&yodel.Call{}) })
		}
		for range most {
			receive(t, s.begun, "a stream opens")
		}
		late, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := opened(late, c)["upload"](&yodel.Call{})
		stop()
		if noWait {
			wantError(t, err, yodel.ResourceExhausted, "YDL1008")
		} else if e := wantError(t, err, yodel.DeadlineExceeded, "YDL1005"); !e.NotProcessed {
			t.Errorf("got %v, want that it was not executed", e)
		}
		cancel()
		wg.Wait()
	}
	if len(s.begun) != 0 {
		t.Errorf("%d streams too many were opened", len(s.begun))
	}
}

// An upload waits while much of it is unwritten. That alone does not make calls with NoWait fail:
// the connection has not reached its limits.
func TestAnUploadLeavesRoomForCallsThatDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, s := mem.New(), newEndless(&yodel.ServerOptions{Limits: yodel.Limits{StreamWindow: 1 << 20}})
		handle(t, s.Server, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
			s.begun <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		l, err := network.Listen("a")
		must(t, err)
		serveOn(t, s.Server, l)
		stalled, resumed := new(atomic.Bool), make(chan struct{})
		c := yodel.NewClient(discovery.Static("a"), &yodel.ClientOptions{NoWait: true, Transport: hookTransport{Transport: network, dialed: func(nc net.Conn) (net.Conn, error) {
			return stallingConn{nc, stalled, resumed}, nil
		}}})
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 10)
		go func() {
			_, err := sum.Call(ctx, c, func(send yodel.Send[int]) error {
				stalled.Store(true)
				return forever(send)
			})
			results <- err
		}()
		<-s.begun
		synctest.Wait() // the upload waits until more of it is written
		calls := opened(ctx, c)
		calls["unary"] = func(call *yodel.Call) error { return c.Do(ctx, call) }
		calls["asynchronous"] = func(call *yodel.Call) error {
			done := make(chan error, 1)
			c.Go(ctx, call, func(err error) { done <- err })
			return <-done
		}
		for _, call := range calls {
			go func() { results <- call(&yodel.Call{Method: "Wait", Args: &Empty{}}) }()
		}
		synctest.Wait()
		if len(results) > 0 {
			t.Errorf("a call beside an upload failed: %+v", <-results)
		}
		close(resumed)
		synctest.Wait()
		if len(s.begun) != len(calls) {
			t.Errorf("%d of %d calls were executed", len(s.begun), len(calls))
		}
		cancel()
	})
}

// A stallingConn holds its writes back from when stalled is set until resumed is closed.
type stallingConn struct {
	net.Conn
	stalled *atomic.Bool
	resumed chan struct{}
}

func (c stallingConn) Write(b []byte) (int, error) {
	if c.stalled.Load() {
		<-c.resumed
	}
	return c.Conn.Write(b)
}

// inflight returns how many calls of a method the server is executing.
func inflight(t *testing.T, c *yodel.Client, method string) int64 {
	t.Helper()
	return statsOf(t, c, method).Inflight
}

func TestStreamsAreCounted(t *testing.T) {
	s := yodel.NewServer(diagnosed(nil))
	streams(s)
	c := connect(t, s, nil)
	five := 5
	for _, err := range count.Call(t.Context(), c, &five) {
		must(t, err)
	}
	must(t, echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for range five {
			must(t, send(&five))
		}
		_, err := recv.Next()
		must(t, err)
		if n := inflight(t, c, string(echo2)); n != 1 {
			t.Errorf("%d streams are open, want 1", n)
		}
		if ep := c.Endpoints()[0]; ep.Inflight() != 1 {
			t.Errorf("the endpoint works on %d calls, want 1", ep.Inflight())
		}
		return nil
	}))
	_, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error { return errors.Join(send(&five), io.ErrClosedPipe) })
	if err == nil {
		t.Error("the function's error is lost")
	}
	for method, want := range map[string]introspect.MethodStats{
		string(count): {Calls: 1, Sent: 5}, string(echo2): {Calls: 1, Sent: 5, Received: 5}, string(sum): {Calls: 1},
	} {
		until(t, method+" has ended", func() bool { return inflight(t, c, method) == 0 })
		got := statsOf(t, c, method)
		if method == string(sum) {
			got.Received = 0 // of a canceled stream it may be any number
			if got.Errors["canceled"] != 1 {
				t.Errorf("%s: got errors %v, want one that was canceled", method, got.Errors)
			}
		}
		if got.Calls != want.Calls || got.Sent != want.Sent || got.Received != want.Received || got.Inflight != 0 || got.Latency != nil || got.Took != 0 {
			t.Errorf("%s: got %+v, want %+v and no latency: how long a stream is open says nothing", method, got, want)
		}
	}
}

// A hundred goroutines send on one stream in each direction. Each message arrives once, and those
// of one goroutine in their order.
func TestManyGoroutinesSendOnOneStream(t *testing.T) {
	const senders, each = 100, 100
	type message struct{ From, Nth int }
	const chat yodel.Duplex[message, message] = "Chat"
	send := func(send yodel.Send[message]) error {
		var wg sync.WaitGroup
		var failed atomic.Pointer[error]
		for from := range senders {
			wg.Go(func() {
				for nth := range each {
					if err := send(&message{from, nth}); err != nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		wg.Wait()
		if err := failed.Load(); err != nil {
			return *err
		}
		return send.End()
	}
	check := func(recv yodel.Recv[message]) error {
		next, total := [senders]int{}, 0
		for msg, err := range recv {
			if err != nil {
				return err
			}
			if next[msg.From] != msg.Nth {
				return fmt.Errorf("got message %d of %d, want %d", msg.Nth, msg.From, next[msg.From])
			}
			next[msg.From]++
			total++
		}
		if total != senders*each {
			return fmt.Errorf("got %d messages, want %d", total, senders*each)
		}
		return nil
	}
	both := func(recv yodel.Recv[message], to yodel.Send[message]) error {
		sent := make(chan error, 1)
		go func() { sent <- send(to) }()
		return errors.Join(check(recv), <-sent)
	}
	s := yodel.NewServer(diagnosed(nil))
	chat.Handle(s, func(_ context.Context, recv yodel.Recv[message], send yodel.Send[message]) error {
		return both(recv, send)
	})
	must(t, chat.Call(t.Context(), connect(t, s, nil), both))
}

// Shutdown tells handlers that have no end of their own, lets streams finish, and ends those that
// do not by its context. The client is told what happened.
func TestShutdownAndStreams(t *testing.T) {
	t.Run("draining", func(t *testing.T) {
		s := yodel.NewServer(diagnosed(nil))
		count.Handle(s, func(ctx context.Context, in *int, send yodel.Send[int]) error {
			draining := yodel.CallFrom(ctx).Draining()
			for i := 0; ; i++ {
				select {
				case <-draining:
					*in = -1
					return send(in) // a last word
				default:
				}
				if err := send(&i); err != nil {
					return err
				}
			}
		})
		c := connect(t, s, nil)
		down, last := make(chan error, 1), 0
		for i, err := range count.Call(t.Context(), c, new(int)) {
			must(t, err)
			if last = *i; *i == 100 {
				go func() { down <- s.Shutdown(context.Background()) }()
			}
		}
		if last != -1 {
			t.Errorf("the last message was %d, want the handler's last word", last)
		}
		must(t, receive(t, down, "Shutdown returns"))
	})
	t.Run("cut off", func(t *testing.T) {
		for kind := range opened(t.Context(), nil) {
			s := newEndless(nil)
			c := connect(t, s.Server, nil)
			outcome := make(chan error, 1)
			go func() { outcome <- opened(context.Background(), c)[kind](&yodel.Call{}) }()
			receive(t, s.begun, "the handler runs")
			enough := errors.New("enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
			began := time.Now()
			err := s.Shutdown(ctx)
			cancel()
			if took := time.Since(began); took > time.Second || !errors.Is(err, enough) {
				t.Errorf("%s: Shutdown returned %v after %v", kind, err, took)
			}
			e := wantError(t, receive(t, outcome, "the stream is cut off"), yodel.Unavailable, "YDL1104")
			if e.NotProcessed || !strings.Contains(e.Message, "cut it off when it shut down") {
				t.Errorf("%s: got %v", kind, e)
			}
			receive(t, s.ended, "the handler's context ends")
		}
	})
	if (&yodel.Call{}).Draining() != nil {
		t.Error("a call of a client says when it drains")
	}
}
