// SPDX-License-Identifier: Apache-2.0

package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/coalesce"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type Quote struct {
	Symbol string
	Tags   []string
}

const get yodel.Method[string, Quote] = "Quote.Get"

// A service takes as long as it is told, or until it is canceled.
type service struct {
	executed, canceled atomic.Int32
	takes              time.Duration
	err                error
}

func (s *service) get(ctx context.Context, in *string) (*Quote, error) {
	s.executed.Add(1)
	call := yodel.CallFrom(ctx)
	call.Trailer, call.ReplyAttachment = yodel.Metadata{"n": "1"}, []byte("attached")
	call.SetHeader(yodel.Metadata{"by": "desk 3"})
	if s.takes > 0 {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
			s.canceled.Add(1)
			return nil, ctx.Err()
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	return &Quote{Symbol: *in, Tags: []string{"x"}}, nil
}

// start returns a client of the service that makes one of its calls, with middleware below that.
func start(t *testing.T, s *service, below ...yodel.Middleware) *yodel.Client {
	t.Helper()
	server := yodeltest.NewServer(t, nil)
	get.Handle(server.Server, s.get)
	ms := append([]yodel.Middleware{coalesce.Calls("Quote.Get")}, below...)
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: ms}, server)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCallsForTheSameAreOne(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Second}
		c := start(t, s)
		for round := range 2 { // one after the other they are two
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					call := &yodel.Call{}
					quote, err := get.Do(t.Context(), c, call, new("A"))
					if err != nil || quote.Symbol != "A" || quote.Tags[0] != "x" || call.Trailer["n"] != "1" || string(call.ReplyAttachment) != "attached" {
						t.Errorf("got %+v, %v, trailer %v, attachment %q", quote, err, call.Trailer, call.ReplyAttachment)
						return
					}
					if got := call.Header()["by"]; got != "desk 3" {
						t.Errorf("got the header %v", call.Header())
						return
					}
					// the race detector sees who shares
					quote.Tags[0], call.Trailer["n"], call.ReplyAttachment[0], call.Header()["by"] = "changed", "changed", '!', "changed"
				})
			}
			all.Wait()
			if n := s.executed.Load(); int(n) != round+1 {
				t.Errorf("round %d: executed %d times", round, n)
			}
		}
	})
}

func TestOtherCallsAreNot(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Second}
		c := start(t, s)
		calls := []*yodel.Call{
			{Args: "A"}, {Args: "B"}, {Args: "A", Tenant: "acme"}, {Args: "A", Metadata: yodel.Metadata{"user": "ali"}}, {Args: "A", Criticality: 1},
			{Args: "A", IdempotencyKey: "1"}, {Args: "A", IdempotencyKey: "1"}, {Args: "A", Attachment: []byte{1}}, {Args: "A", Attachment: []byte{1}},
			{Args: "A", Key: "k", Ordered: true}, {Args: "A", Endpoint: c.Endpoints()[0]}, {Args: "A", Endpoint: c.Endpoints()[0]},
		}
		var all sync.WaitGroup
		for _, call := range calls {
			call.Method = "Quote.Get"
			all.Go(func() {
				if err := c.Do(t.Context(), call); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := s.executed.Load(); int(n) != len(calls) {
			t.Errorf("%d different calls were executed %d times", len(calls), n)
		}
	})
}

// Who leaves, leaves alone, and at its own time.
func TestACallerLeavesAlone(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: 10 * time.Second}
		c := start(t, s, timeout.After(time.Minute)) // of the shared call
		began := time.Now()
		var all sync.WaitGroup
		call := func(wants error, after time.Duration, ctx context.Context, deadline time.Time) {
			all.Go(func() {
				_, err := get.Do(ctx, c, &yodel.Call{Deadline: deadline}, new("A"))
				if !errors.Is(err, wants) || time.Since(began) != after {
					t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), wants, after)
				}
				if wants == nil {
					return
				}
				if e, ok := errors.AsType[*yodel.Error](err); !ok || e.NotProcessed || e.ID != "YDL1004" && e.ID != "YDL1006" {
					t.Errorf("got %#v", err)
				}
			})
			synctest.Wait()
		}
		first, cancel := context.WithCancel(t.Context())
		call(yodel.Canceled, time.Second, first, time.Time{}) // the one that began it
		short, cancelShort := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancelShort()
		call(yodel.DeadlineExceeded, 2*time.Second, short, time.Time{})
		call(yodel.DeadlineExceeded, 3*time.Second, t.Context(), began.Add(3*time.Second))
		call(nil, 10*time.Second, t.Context(), time.Time{})
		time.Sleep(time.Second)
		cancel()
		all.Wait()
		if s.executed.Load() != 1 || s.canceled.Load() != 0 {
			t.Errorf("executed %d times, canceled %d times", s.executed.Load(), s.canceled.Load())
		}
	})
}

func TestTheLastToLeaveCancels(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Hour}
		c := start(t, s)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				if _, err := get.Call(ctx, c, new("A")); !errors.Is(err, yodel.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				synctest.Wait()
				if left := s.canceled.Load() == 1; left != (i == 2) {
					t.Errorf("caller %d left: canceled %v", i, left)
				}
			})
		}
		all.Wait()
		s.takes = 0
		if _, err := get.Call(t.Context(), c, new("A")); err != nil || s.executed.Load() != 2 {
			t.Errorf("the next one: %v, executed %d times", err, s.executed.Load())
		}
	})
}

func TestAllHaveTheError(t *testing.T) {
	t.Attr("rerun", "never")
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Second, err: yodel.Errorf(yodel.NotFound, "no such symbol")}
		c := start(t, s)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := get.Call(t.Context(), c, new("A"))
				e, ok := errors.AsType[*yodel.Error](err)
				if !ok || e.Code != yodel.NotFound || e.Message != "no such symbol" {
					t.Errorf("got %v", err)
					return
				}
				e.Message = "changed" // the race detector sees who shares
			})
		}
		all.Wait()
		if n := s.executed.Load(); n != 1 {
			t.Errorf("executed %d times", n)
		}
	})
}

func TestAClosedClientEndsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Hour}
		c := start(t, s)
		ended := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := get.Call(t.Context(), c, new("A"))
				ended <- err
			}()
		}
		synctest.Wait()
		c.Close()
		for range 2 {
			if err := <-ended; !errors.Is(err, yodel.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		if _, err := get.Call(t.Context(), c, new("A")); !strings.Contains(fmt.Sprint(err), "YDL1007") {
			t.Errorf("afterwards: got %v", err)
		}
	})
}

// What a call may spend on attempts is not more for going through the package twice.
func TestTheBudgetIsSpentOnce(t *testing.T) {
	server := yodeltest.NewServer(t, nil)
	below := yodeltest.NewClient(t, nil, server)
	var budgets []int
	get.Handle(server.Server, func(ctx context.Context, in *string) (*Quote, error) {
		budgets = append(budgets, yodel.CallFrom(ctx).Budget)
		// only such methods are given more than one attempt
		return &Quote{Symbol: *in}, below.Call(ctx, string(inspect.Ping), &struct{}{}, nil)
	})
	again := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			return errors.Join(next(ctx, call), next(ctx, call))
		}
	}
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{again, coalesce.Calls("Quote.Get")}}, server)
	if _, err := get.Call(t.Context(), c, new("A")); err != nil { // two attempts, after which the client knows that
		t.Fatal(err)
	}
	budgets = nil
	if _, err := get.Do(t.Context(), c, &yodel.Call{Budget: 3}, new("A")); err != nil || len(budgets) != 2 || budgets[0] != 2 || budgets[1] != 1 {
		t.Errorf("got %v, the attempts came with budgets %v, want 2 and 1: of three attempts one is kept for another try", err, budgets)
	}
}

// A panic is its callers', who may recover it.
func TestAPanicReachesTheCallers(t *testing.T) {
	c := start(t, &service{}, func(yodel.Handler) yodel.Handler {
		return func(context.Context, *yodel.Call) error { panic("oh") }
	})
	defer func() {
		if value := recover(); value != "oh" {
			t.Errorf("recovered %v", value)
		}
	}()
	_, err := get.Call(t.Context(), c, new("A"))
	t.Errorf("the call returned %v", err)
}

// Calls come and go at random; each gets its own reply, and at the end nothing is left.
func TestManyComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: 5 * time.Millisecond}
		c := start(t, s)
		var all sync.WaitGroup
		var succeeded atomic.Int32
		for i := range 20 {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				for range 100 {
					symbol := string(rune('A' + rng.IntN(3)))
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(20))*time.Millisecond)
					quote, err := get.Call(ctx, c, &symbol)
					cancel()
					switch {
					case err == nil && quote.Symbol == symbol:
						succeeded.Add(1)
					case err == nil || !errors.Is(err, yodel.DeadlineExceeded):
						t.Errorf("%s: got %+v, %v", symbol, quote, err)
					}
				}
			})
		}
		all.Wait()
		if succeeded.Load() < 500 || s.executed.Load() >= succeeded.Load() {
			t.Errorf("%d calls succeeded with %d executions", succeeded.Load(), s.executed.Load())
		}
	})
}

func TestOtherMethodsCostNothing(t *testing.T) {
	h := coalesce.Calls("Quote.Get")(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{Method: "Quote.Set"}
	if n := testing.AllocsPerRun(100, func() {
		if err := h(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}

// BenchmarkAlone is what a call costs more that nobody shares.
func BenchmarkAlone(b *testing.B) {
	for name, methods := range map[string][]string{"with": {"Raw.Get"}, "without": nil} {
		b.Run(name, func(b *testing.B) {
			server := yodeltest.NewServer(b, nil)
			yodel.Method[[]byte, []byte]("Raw.Get").Handle(server.Server, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
			c := yodeltest.NewClient(b, &yodel.ClientOptions{Codec: raw.Codec, Middleware: []yodel.Middleware{coalesce.Calls(methods...)}}, server)
			in, out := []byte("key"), make([]byte, 0, 10)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Call(b.Context(), "Raw.Get", &in, &out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
