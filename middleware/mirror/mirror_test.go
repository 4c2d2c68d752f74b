// SPDX-License-Identifier: Apache-2.0

package mirror_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/mirror"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type Order struct{ Items []string }

const (
	place yodel.Method[Order, Order] = "Order.Place"
	watch yodel.Feed[Order, Order]   = "Order.Watch"
)

// A service remembers its last call.
type service struct {
	executed atomic.Int32
	takes    time.Duration
	err      error
	reply    string
	last     chan seen
}

type seen struct {
	order       Order
	md          yodel.Metadata
	attachment  string
	key, tenant string
	idempotency string
	class       int
	patience    time.Duration
	oneWay      bool
}

func start(t testing.TB, name string, ms ...yodel.Middleware) (*service, *yodeltest.Server) {
	t.Helper()
	s := &service{reply: name, last: make(chan seen, 1000)}
	server := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: ms})
	place.Handle(server.Server, func(ctx context.Context, in *Order) (*Order, error) {
		s.executed.Add(1)
		call := yodel.CallFrom(ctx)
		s.last <- seen{*in, call.Metadata, string(call.Attachment), call.Key, call.Tenant, call.IdempotencyKey, call.Criticality, time.Until(call.Deadline), call.OneWay}
		if s.takes > 0 {
			select {
			case <-time.After(s.takes):
			case <-ctx.Done():
			}
		}
		return &Order{Items: []string{s.reply}}, s.err
	})
	watch.Handle(server.Server, func(context.Context, *Order, yodel.Send[Order]) error { s.executed.Add(1); return nil })
	return s, server
}

// pair is a client of one service that mirrors to another.
func pair(t testing.TB, o *mirror.Options) (c *yodel.Client, original, dark *service) {
	t.Helper()
	original, server := start(t, "original")
	dark, darkServer := start(t, "dark")
	to := yodeltest.NewClient(t, nil, darkServer)
	return yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{mirror.To(to, o)}}, server), original, dark
}

func TestTheMirrorGetsACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := &mirror.Stats{}
		c, original, dark := pair(t, &mirror.Options{Stats: stats, Timeout: time.Second})
		call := &yodel.Call{
			Metadata: yodel.Metadata{"user": "ali"}, Attachment: []byte("attached"), Key: "k", Tenant: "acme", IdempotencyKey: "once", Criticality: criticality.Critical,
		}
		order := &Order{Items: []string{"a"}}
		reply, err := place.Do(t.Context(), c, call, order)
		if err != nil || reply.Items[0] != "original" {
			t.Fatal(reply, err)
		}
		order.Items[0], call.Attachment[0] = "changed", '!' // the race detector sees who shares
		if o := <-original.last; o.md[mirror.Key] != "" || o.idempotency != "once" || o.class != criticality.Critical {
			t.Errorf("the original is %+v", o)
		}
		m := <-dark.last
		if m.order.Items[0] != "a" || m.attachment != "attached" || m.key != "k" || m.tenant != "acme" || m.md["user"] != "ali" {
			t.Errorf("the mirrored call is no copy: %+v", m)
		}
		if m.md[mirror.Key] != "1" || m.idempotency != "" || m.class != criticality.Sheddable || m.patience <= 0 || m.patience > time.Second {
			t.Errorf("the mirrored call is not marked as one: %+v", m)
		}
		if len(call.Metadata) != 1 {
			t.Errorf("the call was left with %v", call.Metadata)
		}
		synctest.Wait()
		if stats.Sent.Load() != 1 || stats.Failed.Load() != 0 || stats.Dropped.Load() != 0 {
			t.Errorf("counted %d sent, %d failed, %d dropped", stats.Sent.Load(), stats.Failed.Load(), stats.Dropped.Load())
		}
	})
}

func TestTheCallNoticesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := &mirror.Stats{}
		c, _, dark := pair(t, &mirror.Options{Stats: stats, Timeout: time.Second})
		dark.takes, dark.err = time.Hour, errors.New("broken")
		began := time.Now()
		if _, err := place.Call(t.Context(), c, &Order{}); err != nil || time.Since(began) != 0 {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		time.Sleep(2 * time.Second)
		if stats.Sent.Load() != 1 || stats.Failed.Load() != 1 {
			t.Errorf("counted %d sent, %d failed", stats.Sent.Load(), stats.Failed.Load())
		}
	})
}

// Of what comes faster than it can be sent, the rest is dropped and counted.
func TestTheQueueIsBounded(t *testing.T) {
	for _, test := range []struct {
		name string
		o    mirror.Options
		sent uint64
	}{
		{"calls", mirror.Options{Concurrency: 2, Queue: 3}, 5},
		{"bytes", mirror.Options{Concurrency: 2, Queue: 100, MaxBytes: 4 * len(`{"Items":["0123456789"]}`)}, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			stats := &mirror.Stats{}
			test.o.Stats, test.o.Timeout = stats, time.Minute
			c, _, dark := pair(t, &test.o)
			dark.takes = time.Second
			for range 20 {
				if _, err := place.Call(t.Context(), c, &Order{Items: []string{"0123456789"}}); err != nil {
					t.Error(err)
				}
				synctest.Wait() // so that the goroutines have taken theirs out of the queue
			}
			if n := dark.executed.Load(); n != 2 {
				t.Errorf("%s: %d are under way, want 2", test.name, n)
			}
			time.Sleep(time.Minute)
			if stats.Sent.Load() != test.sent || stats.Dropped.Load() != 20-test.sent {
				t.Errorf("%s: %d were sent and %d dropped, want %d sent", test.name, stats.Sent.Load(), stats.Dropped.Load(), test.sent)
			}
			if _, err := place.Call(t.Context(), c, &Order{}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if stats.Sent.Load() != test.sent+1 {
				t.Errorf("%s: nothing is sent afterwards", test.name)
			}
		})
	}
}

func TestAShareIsMirrored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := &mirror.Stats{}
		c, _, _ := pair(t, &mirror.Options{Percent: 20, Stats: stats, Concurrency: 100, Queue: 1000})
		const calls = 2000
		for range calls {
			if err := c.Notify(t.Context(), "Order.Other", &Order{}); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		// more than five standard deviations
		if n := stats.Sent.Load() + stats.Dropped.Load(); n < calls*15/100 || n > calls*25/100 {
			t.Errorf("%d of %d calls were mirrored, want 20 %%", n, calls)
		}
	})
}

func TestWhatIsNotMirrored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, dark := pair(t, &mirror.Options{Methods: []string{"Order.Place", "Order.Watch"}})
		for _, err := range watch.Call(t.Context(), c, &Order{}) {
			t.Error(err)
		}
		if err := c.Call(t.Context(), string(inspect.Ping), &struct{}{}, nil); err != nil {
			t.Error(err)
		}
		if _, err := place.Do(t.Context(), c, &yodel.Call{Metadata: yodel.Metadata{mirror.Key: "1"}}, &Order{}); err != nil {
			t.Error(err)
		}
		if err := c.Call(t.Context(), "Order.Place", make(chan int), nil); err == nil {
			t.Error("a channel was sent")
		}
		synctest.Wait()
		if n := dark.executed.Load(); n != 0 {
			t.Errorf("%d were mirrored", n)
		}
	})
}

func TestServersMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dark, darkServer := start(t, "dark")
		compared := make(chan string, 1)
		to := yodeltest.NewClient(t, nil, darkServer)
		_, server := start(t, "original", mirror.To(to, &mirror.Options{Compare: func(_ string, o, m *mirror.Outcome) {
			compared <- string(o.Reply.Body) + " " + string(m.Reply.Body)
		}}))
		reply, err := place.Call(t.Context(), yodeltest.NewClient(t, nil, server), &Order{Items: []string{"a"}})
		if err != nil || reply.Items[0] != "original" {
			t.Errorf("got %v, %v", reply, err)
		}
		if m := <-dark.last; m.order.Items[0] != "a" || m.md[mirror.Key] != "1" {
			t.Errorf("the mirrored call is %+v", m)
		}
		if got := <-compared; got != `{"Items":["original"]} {"Items":["dark"]}` {
			t.Errorf("compared %s", got)
		}
	})
}

func TestBothOutcomesAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type pairOf struct{ original, mirrored *mirror.Outcome }
		compared := make(chan pairOf, 1)
		c, original, dark := pair(t, &mirror.Options{Compare: func(method string, o, m *mirror.Outcome) {
			if method != "Order.Place" {
				t.Errorf("compared %s", method)
			}
			compared <- pairOf{o, m}
		}})
		original.takes, dark.takes = time.Second, 2*time.Second
		reply, err := place.Call(t.Context(), c, &Order{})
		if err != nil || reply.Items[0] != "original" {
			t.Errorf("got %v, %v", reply, err)
		}
		p := <-compared
		if string(p.original.Reply.Body) != `{"Items":["original"]}` || p.original.Took != time.Second ||
			string(p.mirrored.Reply.Body) != `{"Items":["dark"]}` || p.mirrored.Took != 2*time.Second {
			t.Errorf("compared %+v and %+v", p.original, p.mirrored)
		}
		original.err = yodel.Errorf(yodel.NotFound, "gone")
		dark.err = yodel.Errorf(yodel.Internal, "broken")
		if _, err := place.Call(t.Context(), c, &Order{}); !errors.Is(err, yodel.NotFound) {
			t.Errorf("got %v", err)
		}
		if p = <-compared; !errors.Is(p.original.Err, yodel.NotFound) || p.original.Reply != nil || !errors.Is(p.mirrored.Err, yodel.Internal) || p.mirrored.Reply != nil {
			t.Errorf("compared %+v and %+v", p.original, p.mirrored)
		}
	})
}

// What waits when the client is closed that it would go to is dropped, and so is what comes later.
func TestItEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := &mirror.Stats{}
		_, server := start(t, "original")
		dark, darkServer := start(t, "dark")
		dark.takes = time.Hour
		to := yodeltest.NewClient(t, nil, darkServer)
		o := &mirror.Options{Concurrency: 1, Stats: stats, Timeout: 2 * time.Hour}
		c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{mirror.To(to, o)}}, server)
		for range 3 {
			if _, err := place.Call(t.Context(), c, &Order{}); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		to.Close()
		if stats.Sent.Load() != 1 || stats.Failed.Load() != 1 || stats.Dropped.Load() != 2 {
			t.Errorf("counted %d sent, %d failed, %d dropped", stats.Sent.Load(), stats.Failed.Load(), stats.Dropped.Load())
		}
		if _, err := place.Call(t.Context(), c, &Order{}); err != nil || stats.Dropped.Load() != 3 {
			t.Errorf("afterwards: %v, %d dropped", err, stats.Dropped.Load())
		}
	})
}

func TestWhatIsNotChosenCostsNothing(t *testing.T) {
	h := mirror.To(yodel.Dial(), &mirror.Options{Methods: []string{"Order.Place"}})(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{Method: "Order.Other"}
	if n := testing.AllocsPerRun(100, func() {
		if err := h(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}

func BenchmarkNotChosen(b *testing.B) {
	h := mirror.Percent(0.01, yodel.Dial())(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{Method: "Order.Other"}
	b.ReportAllocs()
	for b.Loop() {
		if err := h(ctx, call); err != nil {
			b.Fatal(err)
		}
	}
}

// A call that panics takes nothing of the room for good.
func TestAPanicLeavesTheRoom(t *testing.T) {
	_, darkServer := start(t, "dark")
	stats := &mirror.Stats{}
	m := mirror.To(yodeltest.NewClient(t, nil, darkServer), &mirror.Options{
		Stats: stats, MaxBytes: 100, Compare: func(string, *mirror.Outcome, *mirror.Outcome) {},
	})
	h := m(func(context.Context, *yodel.Call) error { panic("on purpose") })
	for range 20 {
		func() {
			defer func() { _ = recover() }()
			_ = h(t.Context(), &yodel.Call{Method: string(place), Args: []byte("ten bytes."), Codec: raw.Codec})
		}()
	}
	if n := stats.Dropped.Load(); n != 0 {
		t.Errorf("%d calls were dropped, because there was no room", n)
	}
}

func TestAQueueWithoutEnd(t *testing.T) {
	_, darkServer := start(t, "dark")
	mirror.To(yodeltest.NewClient(t, nil, darkServer), &mirror.Options{Queue: math.MaxInt})
}
