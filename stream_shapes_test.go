// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A Counter has streams of all kinds, to be found by reflection, and methods that look like
// streams.
type Counter struct{}

func (Counter) Count(_ context.Context, in *int, send yodel.Send[int]) error {
	for i := range *in {
		if err := send(&i); err != nil {
			return err
		}
	}
	return nil
}

func (Counter) Sum(_ context.Context, recv yodel.Recv[int]) (*int, error) {
	total := 0
	for n, err := range recv {
		if err != nil {
			return nil, err
		}
		total += *n
	}
	return &total, nil
}

func (Counter) Nothing(context.Context, yodel.Recv[int]) (*int, error) { return nil, nil }

func (Counter) Echo(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
	for n, err := range recv {
		if err != nil {
			return err
		}
		if err := send(n); err != nil {
			return err
		}
	}
	return nil
}

func (Counter) NoContext(*int, yodel.Send[int]) error { return nil }

func (Counter) NoError(context.Context, yodel.Recv[int]) *int { return nil }

func (Counter) NoRequest(context.Context, yodel.Send[int]) error { return nil }

func (Counter) ByValue(context.Context, int, yodel.Send[int]) error { return nil }

func (Counter) Backwards(context.Context, yodel.Send[int], yodel.Recv[int]) error { return nil }

func (Counter) TwoSends(context.Context, yodel.Send[int], yodel.Send[int]) error { return nil }

func (Counter) FeedWithReply(context.Context, *int, yodel.Send[int]) (*int, error) { return nil, nil }

func (Counter) ReplyByValue(context.Context, yodel.Recv[int]) (int, error) { return 0, nil }

func (Counter) NoReply(context.Context, yodel.Recv[int]) error { return nil }

func (Counter) ThreeStreams(context.Context, *int, yodel.Recv[int], yodel.Send[int]) error {
	return nil
}

func (Counter) PointerToStream(context.Context, *yodel.Recv[int]) (*int, error) { return nil, nil }

func (Counter) UploadWithRequest(context.Context, *int, yodel.Recv[int]) (*int, error) {
	return nil, nil
}

func (Counter) TwoRequests(_ context.Context, _, _ *int, _ yodel.Send[int]) error { return nil }

func (Counter) DuplexWithReply(context.Context, yodel.Recv[int], yodel.Send[int]) (*int, error) {
	return nil, nil
}

func TestStreamsAreFoundByReflection(t *testing.T) {
	wrong := []string{
		"NoContext", "NoError", "NoRequest", "ByValue", "Backwards", "TwoSends", "FeedWithReply", "ReplyByValue", "NoReply",
		"ThreeStreams", "PointerToStream", "UploadWithRequest", "TwoRequests", "DuplexWithReply",
	}
	leftOut := make([]string, 0, len(wrong))
	for _, name := range wrong {
		leftOut = append(leftOut, "-"+name)
	}
	s := yodel.NewServer(nil)
	must(t, s.Register(Counter{}, leftOut...))
	c := connect(t, s, nil)
	three, want := 3, 0
	for i, err := range yodel.Feed[int, int]("Counter.Count").Call(t.Context(), c, &three) {
		if err != nil || *i != want {
			t.Fatalf("got %v, %v, want %d", i, err, want)
		}
		want++
	}
	if want != 3 {
		t.Errorf("the feed had %d messages, want 3", want)
	}
	numbers := func(send yodel.Send[int]) error {
		for i := range 5 {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	}
	if total, err := yodel.Upload[int, int]("Counter.Sum").Call(t.Context(), c, numbers); err != nil || *total != 10 {
		t.Errorf("the upload: got %v, %v, want 10", total, err)
	}
	_, err := yodel.Upload[int, int]("Counter.Nothing").Call(t.Context(), c, numbers)
	wantError(t, err, yodel.Internal, "YDL5003")
	err = yodel.Duplex[int, int]("Counter.Echo").Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 3 {
			if err := send(&i); err != nil {
				return err
			}
			if n, err := recv.Next(); err != nil || *n != i {
				t.Errorf("got %v, %v, want %d", n, err, i)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("the duplex: %v", err)
	}
	info, err := inspect.Info.Call(t.Context(), c, &Empty{})
	must(t, err)
	kinds := map[string]string{}
	for _, m := range info.Methods {
		kinds[m.Name] = m.Kind
	}
	for name, kind := range map[string]string{
		"Counter.Count": "feed", "Counter.Sum": "upload", "Counter.Nothing": "upload", "Counter.Echo": "duplex", "yodel.Info": "",
	} {
		if got, ok := kinds[name]; !ok || got != kind {
			t.Errorf("%s is described as %q, want %q", name, got, kind)
		}
	}
	for _, name := range wrong {
		e := wantError(t, yodel.NewServer(nil).Register(Counter{}, name), yodel.InvalidArgument, "YDL4001")
		if !strings.Contains(e.Message, name) || !strings.Contains(e.Message, "it takes a stream, but is none of") {
			t.Errorf("%s was refused with %q, want the shapes of streams", name, e.Message)
		}
		if _, found := kinds["Counter."+name]; found {
			t.Errorf("%s was registered", name)
		}
	}
	s = yodel.NewServer(nil)
	wantError(t, s.Register(Counter{}, "Backwards"), yodel.InvalidArgument, "YDL4001")
	wantError(t, s.Handle("Backwards", Counter{}.Backwards), yodel.InvalidArgument, "YDL4001")
}

// A method is called as the kind that it is, and the error says which kind that is. The caller's
// function never runs.
func TestMethodsOfAnotherKindAreRefused(t *testing.T) {
	s := newServer(t, nil)
	must(t, s.Register(Counter{}, "Count", "Sum", "Echo"))
	c := connect(t, s, nil)
	never := func(what string) func(yodel.Send[int]) error {
		return func(yodel.Send[int]) error { t.Error("the function of", what, "ran"); return nil }
	}
	calls := map[string]func(method string) error{
		"unary": func(method string) error { return c.Call(t.Context(), method, new(int), nil) },
		"feed": func(method string) error {
			_, err := yodel.Feed[int, int](method).Call(t.Context(), c, new(int)).Next()
			return err
		},
		"upload": func(method string) error {
			_, err := yodel.Upload[int, int](method).Call(t.Context(), c, never("an upload"))
			return err
		},
		"duplex": func(method string) error {
			return yodel.Duplex[int, int](method).Call(t.Context(), c, func(_ yodel.Recv[int], send yodel.Send[int]) error {
				return never("a duplex")(send)
			})
		},
	}
	methods := map[string]string{"unary": "Arith.Mul", "feed": "Counter.Count", "upload": "Counter.Sum", "duplex": "Counter.Echo"}
	for is, method := range methods {
		for as, call := range calls {
			if is == as {
				continue
			}
			e := wantError(t, call(method), yodel.InvalidArgument, "YDL2006")
			if want := regexp.MustCompile("the method is an? " + is + " .*; the call is for an? " + as); !e.NotProcessed || !want.MatchString(e.Message) {
				t.Errorf("%s called as %s: %v, not processed %t", is, as, e, e.NotProcessed)
			}
		}
	}
	// A one-way call of a feed has nobody to send to: it is not executed, and nobody is told.
	must(t, c.Notify(t.Context(), "Counter.Count", new(int)))
	// A method that does not exist does not run the function either.
	_, err := yodel.Upload[int, int]("Counter.Sums").Call(t.Context(), c, never("an unknown upload"))
	wantError(t, err, yodel.Unimplemented, "YDL2002")
}

// A Do of a stream carries what a Do of any call does.
func TestStreamsCarryMetadataAndTrailers(t *testing.T) {
	s := yodel.NewServer(nil)
	meet := func(ctx context.Context) error {
		call := yodel.CallFrom(ctx)
		call.Trailer = yodel.Metadata{"got": call.Metadata["k"] + string(call.Attachment)}
		call.ReplyAttachment = []byte("more")
		if call.Metadata["fail"] != "" {
			return yodel.Errorf(yodel.Aborted, "with a trailer")
		}
		return nil
	}
	count.Handle(s, func(ctx context.Context, in *int, send yodel.Send[int]) error {
		return errors.Join(send(in), meet(ctx))
	})
	sum.Handle(s, func(ctx context.Context, _ yodel.Recv[int]) (*int, error) { return nil, meet(ctx) })
	echo2.Handle(s, func(ctx context.Context, _ yodel.Recv[int], _ yodel.Send[int]) error { return meet(ctx) })
	c := connect(t, s, nil)
	for _, fail := range []string{"", "yes"} {
		for name, do := range map[string]func(call *yodel.Call) error{
			"feed": func(call *yodel.Call) error {
				for _, err := range count.Do(t.Context(), c, call, new(int)) {
					if err != nil {
						return err
					}
				}
				return nil
			},
			"upload": func(call *yodel.Call) error {
				_, err := sum.Do(t.Context(), c, call, func(yodel.Send[int]) error { return nil })
				return err
			},
			"duplex": func(call *yodel.Call) error {
				return echo2.Do(t.Context(), c, call, func(yodel.Recv[int], yodel.Send[int]) error { return nil })
			},
		} {
			call := &yodel.Call{Metadata: yodel.Metadata{"k": "v", "fail": fail}, Attachment: []byte("a")}
			for range 2 { // a Call may be used again
				if err := do(call); (yodel.CodeOf(err) == yodel.Aborted) != (fail != "") {
					t.Errorf("%s: %v", name, err)
				}
				if call.Trailer["got"] != "va" || string(call.ReplyAttachment) != "more" {
					t.Errorf("%s: got trailer %v, attachment %q", name, call.Trailer, call.ReplyAttachment)
				}
			}
			if err := c.Do(t.Context(), &yodel.Call{Method: "yodel.Ping"}); err != nil {
				t.Error(err)
			}
		}
	}
}

// Leaving a loop over what a Recv brings does not end the stream on the server's side, nor in a
// Duplex: the next one goes on behind it.
func TestAReceiverGoesOnWhereALoopWasLeft(t *testing.T) {
	s := yodel.NewServer(nil)
	pairs := func(recv yodel.Recv[int]) (loops, total int, err error) {
		for {
			n := 0
			for v, err := range recv {
				if err != nil {
					return loops, total, err
				}
				total += *v
				if n++; n == 2 {
					break
				}
			}
			if n == 0 {
				_, err := recv.Next()
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return loops, total, err
			}
			loops++
		}
	}
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		loops, total, err := pairs(recv)
		if loops != 5 {
			t.Errorf("the server took %d loops, want 5", loops)
		}
		return &total, err
	})
	echo2.Handle(s, Counter{}.Echo)
	c := connect(t, s, nil)
	total, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
		for i := range 10 {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || *total != 45 {
		t.Errorf("got %v, %v, want 45", total, err)
	}
	err = echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 10 {
			if err := send(&i); err != nil {
				return err
			}
		}
		must(t, send.End())
		must(t, send.End()) // ending twice does no harm
		wantError(t, send(new(int)), yodel.FailedPrecondition, "YDL2007")
		if loops, total, err := pairs(recv); err != nil || loops != 5 || total != 45 {
			t.Errorf("the client got %d in %d loops, %v", total, loops, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Either side may end its sending and go on receiving.
func TestStreamsAreHalfClosed(t *testing.T) {
	s := yodel.NewServer(nil)
	echo2.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		first, err := recv.Next()
		if err != nil {
			return err
		}
		if err := errors.Join(send(first), send.End()); err != nil { // nothing more will be said
			return err
		}
		total := 0
		for n, err := range recv {
			if err != nil {
				return err
			}
			total += *n
		}
		if total != 10 {
			return yodel.Errorf(yodel.Internal, "got %d", total)
		}
		return nil
	})
	c := connect(t, s, nil)
	err := echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		seven := 7
		must(t, send(&seven))
		if n, err := recv.Next(); err != nil || *n != 7 {
			t.Errorf("got %v, %v", n, err)
		}
		if _, err := recv.Next(); err != io.EOF {
			t.Errorf("got %v, want io.EOF: the server has ended its sending", err)
		}
		for i := range 5 {
			if err := send(&i); err != nil {
				t.Errorf("after the server has ended its sending: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestStreamsEndAtAnyPoint ends 10,000 streams of all kinds at random points, in all ways that
// there are: by canceling, by a deadline, by the function, by the handler, by a loop that is left,
// regularly, and by losing the connection. Afterwards nothing is left of them: no goroutine, no
// call at the endpoint or the server, and as many streams as at first can be opened at once, with
// messages in both directions: so no slot and no credit is lost.
func TestStreamsEndAtAnyPoint(t *testing.T) {
	const callers, most = 32, 48
	total := int64(fewer(10_000, 5))
	yodeltest.NoLeaks(t)
	const window = 4096
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Limits: yodel.Limits{StreamWindow: window}})
	tortured(s)
	addr := serve(t, s)
	p := newProxy(t, addr)
	limits := yodel.Limits{MaxOpen: most, MaxMemory: most * 4 * window, StreamWindow: window}
	direct := newClient(t, &yodel.ClientOptions{Limits: limits}, addr)
	through := newClient(t, &yodel.ClientOptions{Limits: limits}, p.addr())
	must(t, oneTorture(t.Context(), direct, rand.New(rand.NewPCG(1, 1)), wayRegular))
	before := heap()
	var streams, lost atomic.Int64
	var ways [wayCount]atomic.Int64
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(caller), 1))
			for {
				n := streams.Add(1)
				if n > total {
					return
				}
				c := direct
				if n%8 == 0 {
					c = through
				}
				way := r.IntN(wayCount)
				ways[way].Add(1)
				err := oneTorture(t.Context(), c, r, way)
				switch code := yodel.CodeOf(err); {
				case c == through && code == yodel.Unavailable:
					lost.Add(1)
				case !allowed(way, code):
					t.Errorf("a stream that ends by way %d: %v", way, err)
				}
				if n%500 == 0 {
					p.cut()
				}
			}
		})
	}
	wg.Wait()
	for way := range ways {
		if ways[way].Load() == 0 {
			t.Errorf("no stream ended by way %d", way)
		}
	}
	t.Logf("%d streams, %d of them with their connection", total, lost.Load())
	for _, method := range []string{string(count), string(sum), string(echo2)} {
		until(t, method+" is not being executed", func() bool { return statsOf(t, direct, method).Inflight == 0 })
	}
	until(t, "the client is connected again", func() bool { return through.Endpoints()[0].Ready() })
	for _, c := range []*yodel.Client{direct, through} {
		until(t, "no call is open", func() bool { return c.Endpoints()[0].Inflight() == 0 })
		wantRoomFor(t, c, most)
	}
	// Buffers that are kept for the next streams may be there, but not those of thousands. The
	// reserve of a busy process (docs/decisions/0028) goes with the collections that heap makes.
	until(t, "no memory of the streams is left", func() bool { return int64(heap())-int64(before) <= 8<<20 })
}

// heap returns how many bytes are in use after a collection.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools hold is dropped by the second one
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The ways in which streams of the test end.
const (
	wayRegular = iota
	wayCancel
	wayDeadline
	wayFunction
	wayHandler
	wayLeave
	wayCount
)

// allowed reports whether a stream that was to end in a way may have ended with a code: another end
// may have come first.
func allowed(way int, code yodel.Code) bool {
	if code == 0 { // it was quicker
		return way != wayFunction
	}
	return code == map[int]yodel.Code{
		wayCancel: yodel.Canceled, wayDeadline: yodel.DeadlineExceeded, wayFunction: yodel.DataLoss, wayHandler: yodel.Aborted, wayRegular: 99, wayLeave: 99,
	}[way]
}

// tortured registers methods whose first message says after how many they fail; a negative number
// is never.
func tortured(s *yodel.Server) {
	aborted := yodel.Errorf(yodel.Aborted, "as told")
	count.Handle(s, func(_ context.Context, in *int, send yodel.Send[int]) error {
		for i := range 100 {
			if i == *in {
				return aborted
			}
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		total, fail := 0, -1
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			if total == 0 {
				fail = *n
			}
			if total == fail {
				return nil, aborted
			}
			total++
		}
		return &total, nil
	})
	echo2.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		total, fail := 0, -1
		for n, err := range recv {
			if err != nil {
				return err
			}
			if total == 0 {
				fail = *n
			}
			if total == fail {
				return aborted
			}
			total++
			if err := send(n); err != nil {
				return err
			}
		}
		return nil
	})
}

// oneTorture makes one stream of any kind and ends it after some messages.
func oneTorture(ctx context.Context, c *yodel.Client, r *rand.Rand, way int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, fail := r.IntN(100), -1
	call := &yodel.Call{}
	switch way {
	case wayDeadline:
		call.Deadline = time.Now().Add(time.Duration(r.IntN(3000)) * time.Microsecond)
	case wayHandler:
		fail = at
	}
	own := yodel.Errorf(yodel.DataLoss, "the function's own")
	step := func(i int) error { // before message i
		if i != at {
			return nil
		}
		switch way {
		case wayCancel:
			go cancel()
		case wayFunction, wayLeave:
			return own
		}
		return nil
	}
	leave := func(err error) error {
		if way == wayLeave && err == own {
			return nil
		}
		return err
	}
	feed := func(send yodel.Send[int]) error {
		for i := range 100 {
			n := i
			if i == 0 {
				n = fail
			}
			if err := step(i); err != nil {
				return err
			}
			if err := send(&n); err != nil {
				return err
			}
		}
		return nil
	}
	switch r.IntN(3) {
	case 0:
		i := 0
		for _, err := range count.Do(ctx, c, call, &fail) {
			if err != nil {
				return err
			}
			if err := step(i); err != nil {
				return leave(err)
			}
			i++
		}
		if way == wayFunction { // nothing was left to leave
			return own
		}
		return nil
	case 1:
		_, err := sum.Do(ctx, c, call, feed)
		return leave(err)
	default:
		return leave(echo2.Do(ctx, c, call, func(recv yodel.Recv[int], send yodel.Send[int]) error {
			sent := make(chan error, 1)
			go func() { sent <- errors.Join(feed(send), send.End()) }()
			for _, err := range recv {
				if err != nil {
					<-sent
					return err
				}
			}
			err := <-sent
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				err = joined.Unwrap()[0]
			}
			return err
		}))
	}
}

// wantRoomFor wants that most streams can be open at once, which is as many as the limits of c
// allow, in slots and in bytes, and that each of them carries messages.
func wantRoomFor(t *testing.T, c *yodel.Client, most int) {
	t.Helper()
	var open, done sync.WaitGroup
	open.Add(most)
	release := make(chan struct{})
	for range most {
		done.Go(func() {
			once := sync.OnceFunc(open.Done)
			defer once()
			err := echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
				n := -1
				must(t, send(&n))
				_, err := recv.Next()
				once()
				<-release
				return err
			})
			if err != nil {
				t.Errorf("with the others open: %v", err)
			}
		})
	}
	all := make(chan struct{})
	go func() { open.Wait(); close(all) }()
	receive(t, all, "as many streams are open as at first")
	close(release)
	done.Wait()
}

// A caller that waits in Send, or for the next message, returns at once when the stream ends.
func TestBlockedStreamsEndAtOnce(t *testing.T) {
	const bound = 10 * time.Millisecond
	rounds := fewer(100, 4)
	s := yodel.NewServer(diagnosed(nil))
	finish := make(chan struct{})
	echo2.Handle(s, func(ctx context.Context, _ yodel.Recv[int], _ yodel.Send[int]) error { // it reads nothing
		select {
		case <-ctx.Done():
		case <-finish:
			return yodel.Errorf(yodel.Aborted, "closed")
		}
		return ctx.Err()
	})
	handlerEnded := make(chan time.Time, 1)
	count.Handle(s, func(_ context.Context, in *int, send yodel.Send[int]) error { // it sends without end
		for {
			if err := send(in); err != nil {
				handlerEnded <- time.Now()
				return err
			}
		}
	})
	c := connect(t, s, &yodel.ClientOptions{Limits: yodel.Limits{StreamWindow: 4096}})
	for name, end := range map[string]func(cancel context.CancelFunc, deadline time.Time) time.Time{
		"canceled":       func(cancel context.CancelFunc, _ time.Time) time.Time { now := time.Now(); cancel(); return now },
		"deadline":       func(_ context.CancelFunc, deadline time.Time) time.Time { return deadline },
		"server's reply": func(context.CancelFunc, time.Time) time.Time { now := time.Now(); finish <- struct{}{}; return now },
	} {
		t.Run(name, func(t *testing.T) {
			var took []time.Duration
			for range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				call := &yodel.Call{}
				if name == "deadline" {
					call.Deadline = time.Now().Add(15 * time.Millisecond)
				}
				var began time.Time
				stopped := make(chan time.Time, 2)
				err := echo2.Do(ctx, c, call, func(recv yodel.Recv[int], send yodel.Send[int]) error {
					var moved atomic.Int64
					go func() {
						for i := 0; ; i++ {
							if err := send(&i); err != nil {
								stopped <- time.Now()
								return
							}
							moved.Add(1)
						}
					}()
					go func() {
						_, _ = recv.Next()
						stopped <- time.Now()
					}()
					blocked(t, &moved, stopped)
					began = end(cancel, call.Deadline)
					for range 2 {
						took = append(took, receive(t, stopped, "who is blocked ends").Sub(began))
					}
					return nil
				})
				if err == nil {
					t.Error("the stream ended without an error")
				}
				cancel()
			}
			fast(t, took, bound)
		})
	}
	t.Run("the server's side", func(t *testing.T) {
		var took []time.Duration
		for range rounds {
			var began time.Time
			one := 1
			for range count.Call(t.Context(), c, &one) {
				sent := func() int64 { return int64(statsOf(t, c, string(count)).Sent) }
				for last := int64(-1); last != sent(); { // until the window is full
					last = sent()
				}
				began = time.Now()
				break
			}
			took = append(took, receive(t, handlerEnded, "the handler's sending ends").Sub(began))
		}
		fast(t, took, bound)
	})
}

// blocked waits until a sender makes no progress, or has stopped: on a busy machine, its deadline
// may pass before it has sent anything.
func blocked(t *testing.T, moved *atomic.Int64, stopped <-chan time.Time) {
	t.Helper()
	until(t, "the sender is blocked", func() bool {
		n := moved.Load()
		for range 3 {
			<-time.After(time.Millisecond)
		}
		return n > 0 && moved.Load() == n || len(stopped) > 0
	})
}

// fast wants nearly all of them below a bound.
func fast(t *testing.T, took []time.Duration, bound time.Duration) {
	t.Helper()
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d: median %v, 99th percentile %v, at worst %v", len(took), took[len(took)/2], p99, took[len(took)-1])
	if raceEnabled {
		bound *= 5
	}
	if most := took[len(took)*95/100]; most > bound { // a machine that does something else delays a few
		t.Errorf("one in 20 took %v and more, want %v at most", most, bound)
	}
}
