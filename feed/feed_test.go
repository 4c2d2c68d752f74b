// SPDX-License-Identifier: Apache-2.0

package feed_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/feed"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// count sends the numbers behind the one in the request.
const count yodel.Feed[int, int] = "Test.Count"

// A server counts at an address until it is stopped.
func serve(t *testing.T, network *mem.Network, at string, pause time.Duration, graceful bool) (stop func()) {
	t.Helper()
	l, err := network.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second})
	count.Handle(s, func(ctx context.Context, after *int, send yodel.Send[int]) error {
		for n := *after + 1; ; n++ {
			if n > 1000 {
				return yodel.Errorf(yodel.OutOfRange, "no more numbers")
			}
			if err := send(&n); err != nil {
				return err
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			case <-drainingIf(ctx, graceful):
				return nil
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(cancel)
	return stop
}

func drainingIf(ctx context.Context, graceful bool) <-chan struct{} {
	if !graceful {
		return nil
	}
	return yodel.CallFrom(ctx).Draining()
}

// A feed goes on where it was when its server shuts down, whether the handler ends it or is cut
// off, and ends with other errors.
func TestAFeedGoesOnWhenItsServerShutsDown(t *testing.T) {
	for _, graceful := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			network := mem.New()
			stops := map[string]func(){"a": serve(t, network, "a", 10*time.Millisecond, graceful)}
			c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{Transport: network, Logger: slog.New(slog.DiscardHandler)})
			defer c.Close()
			var opened atomic.Int32
			numbers := feed.Resume(t.Context(), func(ctx context.Context, last *int) yodel.Recv[int] {
				opened.Add(1)
				if last == nil {
					last = new(int)
				}
				return count.Call(ctx, c, last)
			}, &feed.Options{Endless: graceful})
			want := 1
			for n, err := range numbers {
				if err != nil {
					if yodel.CodeOf(err) != yodel.OutOfRange || want != 1001 {
						t.Errorf("at %d: %v", want, err)
					}
					break
				}
				if *n != want {
					t.Fatalf("got %d, want %d", *n, want)
				}
				if want++; want == 300 || want == 600 {
					from, to := "a", "b"
					if want == 600 {
						from, to = to, from
					}
					stops[to] = serve(t, network, to, 10*time.Millisecond, graceful)
					go stops[from]()
				}
			}
			if opened.Load() != 3 {
				t.Errorf("the feed was opened %d times", opened.Load())
			}
			for _, stop := range stops {
				stop()
			}
		})
	}
}

// failing returns a feed that sends some numbers and fails.
func failing(n int, err error) yodel.Recv[int] {
	return func(yield func(*int, error) bool) {
		for i := range n {
			if !yield(&i, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// Attempts are bounded and have pauses that grow, and other errors are passed on.
func TestResumeGivesUp(t *testing.T) {
	unavailable := yodel.Errorf(yodel.Unavailable, "gone")
	busy := &yodel.Error{Code: yodel.ResourceExhausted, Message: "busy", NotProcessed: true, RetryAfter: time.Minute}
	for name, test := range map[string]struct {
		first       int // messages of the first attempt
		err         error
		o           *feed.Options
		opened      int
		least, most time.Duration
		code        yodel.Code
	}{
		"unavailable":      {0, unavailable, &feed.Options{Attempts: 4, Pause: time.Second, MaxPause: 2 * time.Second}, 4, 1500 * time.Millisecond, 3 * time.Second, yodel.Unavailable},
		"after messages":   {3, unavailable, &feed.Options{Attempts: 2}, 2, 0, 0, yodel.Unavailable},
		"defaults":         {0, unavailable, nil, 10, 10 * time.Second, 60 * time.Second, yodel.Unavailable},
		"the server waits": {0, busy, &feed.Options{Attempts: 3}, 3, 2 * time.Minute, 2 * time.Minute, yodel.ResourceExhausted},
		"executed":         {0, yodel.Errorf(yodel.ResourceExhausted, "no"), nil, 1, 0, 0, yodel.ResourceExhausted},
		"a wrong request":  {2, yodel.Errorf(yodel.InvalidArgument, "no"), nil, 1, 0, 0, yodel.InvalidArgument},
		"the end":          {2, nil, nil, 1, 0, 0, 0},
		"without an end":   {2, nil, &feed.Options{Endless: true, Attempts: 3}, 3, 0, time.Second, yodel.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opened, began := 0, time.Now()
				var err error
				for _, e := range feed.Resume(t.Context(), func(context.Context, *int) yodel.Recv[int] {
					if opened++; opened == 1 {
						return failing(test.first, test.err)
					}
					return failing(0, test.err)
				}, test.o) {
					err = e
				}
				if took := time.Since(began); opened != test.opened || took < test.least || took > test.most || test.code != 0 && yodel.CodeOf(err) != test.code || test.code == 0 && err != nil {
					t.Errorf("opened %d times in %v, with %v", opened, took, err)
				}
			})
		})
	}
}

func TestResumeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		for _, e := range feed.Resume(ctx, func(context.Context, *int) yodel.Recv[int] {
			return failing(0, &yodel.Error{Code: yodel.Unavailable, RetryAfter: time.Hour})
		}, nil) {
			err = e
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// A slow reader gets new messages, in order, and the count of those that it has missed.
func TestASlowReaderGetsTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		stop := serve(t, network, "a", time.Millisecond, true)
		c := yodel.NewClient(discovery.Static("a"), &yodel.ClientOptions{Transport: network, Logger: slog.New(slog.DiscardHandler)})
		defer c.Close()
		var dropped atomic.Uint64
		numbers := feed.Latest(t.Context(), func(ctx context.Context) yodel.Recv[int] { return count.Call(ctx, c, new(int)) }, &dropped)
		var got []int
		var end error
		began := time.Now()
		for n, err := range numbers {
			if end = err; err != nil {
				break
			}
			if stale := int(time.Since(began)/time.Millisecond) + 1 - *n; *n < 1000 && stale > 50 {
				t.Errorf("%d is %d ms old", *n, stale)
			}
			got = append(got, *n)
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(got); n < 9 || n > 13 || got[n-1] != 1000 || uint64(n)+dropped.Load() != 1000 || yodel.CodeOf(end) != yodel.OutOfRange {
			t.Errorf("got %d, %d were dropped, and the end is %v", got, dropped.Load(), end)
		}
		for n := range numbers { // leaving the loop ends the call
			if *n > 0 {
				break
			}
		}
		stop()
	})
}

// A panic of the code that opens the feed, or of the reader, reaches the reader.
func TestPanicsReachTheReader(t *testing.T) {
	panics := func(f func()) (value any) {
		defer func() { value = recover() }()
		f()
		return nil
	}
	open := panics(func() {
		for range feed.Latest(t.Context(), func(context.Context) yodel.Recv[int] { panic("open") }, nil) {
		}
	})
	reader := panics(func() {
		for range feed.Latest(t.Context(), func(context.Context) yodel.Recv[int] { return failing(1, nil) }, nil) {
			panic("reader")
		}
	})
	if got := fmt.Sprint(open, " ", reader); got != "open reader" {
		t.Errorf("got %s", got)
	}
}
