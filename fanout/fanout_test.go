// SPDX-License-Identifier: Apache-2.0

package fanout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/fanout"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const which yodel.Method[[]int, []int] = "Test.Which"

// A service appends its number to the request.
type service struct {
	number             int
	takes              time.Duration
	err                error
	executed, canceled atomic.Int32
	open, most         *atomic.Int32 // of all services
}

func (s *service) which(ctx context.Context, in *[]int) (*[]int, error) {
	s.executed.Add(1)
	open := s.open.Add(1)
	defer s.open.Add(-1)
	for most := s.most.Load(); open > most && !s.most.CompareAndSwap(most, open); most = s.most.Load() {
		continue
	}
	yodel.CallFrom(ctx).Trailer = yodel.Metadata{"number": fmt.Sprint(s.number)}
	if s.takes > 0 {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
			s.canceled.Add(1)
			return nil, ctx.Err()
		}
	}
	out := append(*in, s.number)
	return &out, s.err
}

// start returns a client of n services, and of down more addresses where nobody listens.
func start(t *testing.T, o *yodel.ClientOptions, n, down int) (*yodel.Client, []*service) {
	t.Helper()
	network, open, most := mem.New(), new(atomic.Int32), new(atomic.Int32)
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	var addrs []string
	services := make([]*service, n)
	for i := range n {
		addrs = append(addrs, fmt.Sprint("server-", i))
		l, err := network.Listen(addrs[i])
		if err != nil {
			t.Fatal(err)
		}
		s := yodel.NewServer(nil)
		services[i] = &service{number: i, open: open, most: most}
		which.Handle(s, services[i].which)
		s.Handle("Test.Pair", func(ctx context.Context, a int) (int, string) {
			yodel.CallFrom(ctx).SetHeader(yodel.Metadata{"by": fmt.Sprint(i)})
			return a, fmt.Sprint(i)
		})
		served.Go(func() {
			if err := s.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range down {
		addrs = append(addrs, fmt.Sprint("down-", i))
	}
	if o == nil {
		o = &yodel.ClientOptions{}
	}
	o.Transport = network
	c := yodel.NewClient(discovery.Static(addrs...), o)
	t.Cleanup(func() {
		c.Close()
		cancel()
		served.Wait()
	})
	return c, services
}

func TestInformHasAReceiptForEach(t *testing.T) {
	c, services := start(t, nil, 3, 1)
	services[1].err = yodel.Errorf(yodel.NotFound, "not here")
	receipts, err := fanout.Inform(t.Context(), c, which, &[]int{7}, nil)
	if err != nil || len(receipts) != 4 {
		t.Fatal(receipts, err)
	}
	for i, r := range receipts {
		switch {
		case i == 1:
			if r.Reply != nil || !errors.Is(r.Err, yodel.NotFound) || r.Trailer["number"] != "1" {
				t.Errorf("%+v", r)
			}
		case i == 3:
			if r.Reply != nil || !errors.Is(r.Err, yodel.Unavailable) || r.Addr != "down-0" {
				t.Errorf("%+v", r)
			}
		case r.Err != nil || fmt.Sprint(*r.Reply) != fmt.Sprint([]int{7, i}) || r.Addr != fmt.Sprint("server-", i) || r.Trailer["number"] != fmt.Sprint(i) || r.Took <= 0:
			t.Errorf("%+v", r)
		}
	}
}

func TestBroadcastFailsUnlessAllSucceed(t *testing.T) {
	c, services := start(t, nil, 3, 0)
	if receipts, err := fanout.Broadcast(t.Context(), c, which, &[]int{7}, nil); err != nil || len(receipts) != 3 {
		t.Errorf("got %v, %v", receipts, err)
	}
	services[1].err = yodel.Errorf(yodel.NotFound, "not here")
	receipts, err := fanout.Broadcast(t.Context(), c, which, &[]int{7}, nil)
	if err == nil || err.Error() != "not_found: Test.Which: 1 of 3 endpoints failed; server-1: not here [YDL3522]" || receipts[0].Err != nil || receipts[1].Err == nil {
		t.Errorf("got %+v, %v", receipts, err)
	}

	// One that cannot be reached is one that fails.
	c, services = start(t, nil, 2, 1)
	services[0].err = yodel.Errorf(yodel.NotFound, "not here")
	_, err = fanout.Broadcast(t.Context(), c, which, &[]int{7}, nil)
	var report *introspect.CallReport
	if !errors.Is(err, yodel.NotFound) || !errors.Is(err, yodel.Unavailable) || !errors.As(err, &report) || yodel.NotProcessed(err) ||
		!strings.Contains(err.Error(), "2 of 3 endpoints failed; server-0: not here; down-0: ") {
		t.Errorf("got %v", err)
	}
	if services[1].executed.Load() != 1 {
		t.Errorf("the good one was called %d times", services[1].executed.Load())
	}
}

func TestFirstTakesTheFirstSuccessAndCancelsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, services := start(t, nil, 4, 1)
		services[0].takes = time.Hour
		services[1].err = errors.New("broken")
		services[2].takes = time.Second
		services[3].takes = time.Minute
		began := time.Now()
		reply, err := fanout.First(t.Context(), c, which, &[]int{7}, nil)
		if err != nil || fmt.Sprint(*reply) != "[7 2]" || time.Since(began) != time.Second {
			t.Fatalf("got %v, %v after %v", reply, err, time.Since(began))
		}
		synctest.Wait()
		for i, want := range []int32{1, 0, 0, 1} {
			if n := services[i].canceled.Load(); n != want {
				t.Errorf("server %d was canceled %d times, want %d", i, n, want)
			}
		}
	})
}

func TestFirstFailsWhenAllDo(t *testing.T) {
	c, services := start(t, nil, 2, 3)
	services[0].err = yodel.Errorf(yodel.NotFound, "not here")
	services[1].err = yodel.Errorf(yodel.Internal, "broken")
	reply, err := fanout.First(t.Context(), c, which, &[]int{7}, nil)
	if reply != nil || !errors.Is(err, yodel.NotFound) || !errors.Is(err, yodel.Internal) || !errors.Is(err, yodel.Unavailable) ||
		!strings.Contains(err.Error(), "5 of 5 endpoints failed; server-0: not here; server-1: broken; down-0: ") || !strings.Contains(err.Error(), "; and 2 more [YDL3523]") {
		t.Errorf("got %v, %v", reply, err)
	}
}

func TestWhenThereIsNobody(t *testing.T) {
	none, _ := start(t, nil, 0, 0)
	some, services := start(t, nil, 2, 0)
	closed := yodel.NewClient(discovery.Static("x"), &yodel.ClientOptions{Transport: mem.New()})
	closed.Close()
	nobody := &fanout.Options{Only: func(*yodel.Endpoint) bool { return false }}
	for name, try := range map[string]func(c *yodel.Client, o *fanout.Options) error{
		"Broadcast": func(c *yodel.Client, o *fanout.Options) error {
			_, err := fanout.Broadcast(t.Context(), c, which, &[]int{7}, o)
			return err
		},
		"First": func(c *yodel.Client, o *fanout.Options) error {
			_, err := fanout.First(t.Context(), c, which, &[]int{7}, o)
			return err
		},
		"Inform": func(c *yodel.Client, o *fanout.Options) error {
			_, err := fanout.Inform(t.Context(), c, which, &[]int{7}, o)
			return err
		},
	} {
		for err, says := range map[error]string{
			try(none, nil):    "there is no endpoint to call: no instance is known",
			try(some, nobody): "there is no endpoint to call: Options.Only leaves out all 2",
		} {
			if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL3521" || !e.NotProcessed || !strings.Contains(e.Message, says) {
				t.Errorf("%s: got %v, want %q", name, err, says)
			}
		}
		if err := try(closed, nil); err == nil && name != "Inform" {
			t.Errorf("%s: a closed client was called", name)
		}
	}
	if services[0].executed.Load() != 0 {
		t.Error("one was called that was left out")
	}
}

// The first set of instances is waited for, as by any call.
func TestTheResolverIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("late")
		if err != nil {
			t.Fatal(err)
		}
		s := yodel.NewServer(nil)
		which.Handle(s, func(_ context.Context, in *[]int) (*[]int, error) { return in, nil })
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error)
		go func() { served <- s.Serve(ctx, l) }()
		c := yodel.NewClient(slow{}, &yodel.ClientOptions{Transport: network})
		if _, err := fanout.InformCall(t.Context(), c, &yodel.Call{Method: "Test.Which", Deadline: time.Now().Add(time.Second / 2)}, nil); !errors.Is(err, yodel.Unavailable) {
			t.Errorf("before: got %v", err)
		}
		if receipts, err := fanout.Broadcast(t.Context(), c, which, &[]int{7}, nil); err != nil || len(receipts) != 1 {
			t.Errorf("got %v, %v", receipts, err)
		}
		c.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// slow is a registry that takes a second.
type slow struct{}

func (slow) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	time.Sleep(time.Second)
	update([]discovery.Instance{{Addr: "late"}})
	<-ctx.Done()
	return nil
}

func TestDeadlineAndContextHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, services := start(t, nil, 3, 0)
		services[1].takes = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		receipts, err := fanout.Inform(ctx, c, which, &[]int{7}, nil)
		if err != nil || receipts[0].Err != nil || !errors.Is(receipts[1].Err, yodel.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("context: got %+v, %v after %v", receipts, err, time.Since(began))
		}
		call := &yodel.Call{Method: "Test.Which", Args: []int{7}, Deadline: time.Now().Add(time.Second)}
		outcomes, err := fanout.BroadcastCall(t.Context(), c, call, nil)
		if !errors.Is(err, yodel.DeadlineExceeded) || outcomes[2].Err != nil || outcomes[1].Took != time.Second {
			t.Errorf("deadline: got %+v, %v", outcomes, err)
		}
	})
}

func TestParallelCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, services := start(t, nil, 10, 0)
		for _, s := range services {
			s.takes = time.Second
		}
		began := time.Now()
		if _, err := fanout.Broadcast(t.Context(), c, which, &[]int{7}, &fanout.Options{Parallel: 3}); err != nil || time.Since(began) != 4*time.Second {
			t.Errorf("got %v after %v, want 4 s", err, time.Since(began))
		}
		if n := services[0].most.Load(); n != 3 {
			t.Errorf("%d were under way at a time, want 3", n)
		}
	})
}

// The client's middleware holds, and cannot send a call elsewhere.
func TestEachCallStaysWithItsEndpoint(t *testing.T) {
	c, services := start(t, &yodel.ClientOptions{Idempotent: []string{"Test.Which"}, Middleware: []yodel.Middleware{
		cache.For(time.Minute, "Test.Which"), retry.With(&retry.Options{Times: 3, Backoff: time.Microsecond}),
	}}, 3, 1)
	services[1].err = yodel.Errorf(yodel.Unavailable, "not now")
	for range 2 {
		receipts, err := fanout.Inform(t.Context(), c, which, &[]int{7}, nil)
		if err != nil || receipts[0].Err != nil || receipts[1].Err == nil || receipts[2].Err != nil || receipts[3].Err == nil {
			t.Errorf("got %+v, %v", receipts, err)
		}
	}
	for i, want := range []int32{2, 6, 2} {
		if n := services[i].executed.Load(); n != want {
			t.Errorf("server %d executed %d calls, want %d", i, n, want)
		}
	}
}

func TestCallsWithAllThatACallCanCarry(t *testing.T) {
	c, services := start(t, nil, 2, 0)
	var n int
	var name string
	call := &yodel.Call{Method: "Test.Pair", Args: yodel.Values{5}, Reply: yodel.Values{&n, &name}}
	outcomes, err := fanout.InformCall(t.Context(), c, call, nil)
	if err != nil || n != 0 {
		t.Fatal(outcomes, err, n)
	}
	for i, of := range outcomes {
		got := of.Call.Reply.(yodel.Values)
		if of.Err != nil || *got[0].(*int) != 5 || *got[1].(*string) != fmt.Sprint(i) {
			t.Errorf("%d: got %v, %v", i, got, of.Err)
		}
	}
	if err := fanout.FirstCall(t.Context(), c, call, nil); err != nil || n != 5 || name == "" || call.Header()["by"] != name {
		t.Errorf("got %d, %q, %v", n, name, err)
	}
	if err := fanout.FirstCall(t.Context(), c, &yodel.Call{Method: "Test.Pair", Args: yodel.Values{5}}, nil); err != nil {
		t.Errorf("without a reply: %v", err)
	}
	if _, err := fanout.BroadcastCall(t.Context(), c, &yodel.Call{Method: "Test.Which", Args: []int{1}, OneWay: true}, nil); err != nil {
		t.Errorf("one-way: %v", err)
	}
	until(t, func() bool { return services[0].executed.Load() == 1 && services[1].executed.Load() == 1 })
}

// until waits for a condition.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it does not happen")
		}
	}
}

// A panic below, in a codec for example, gets to the caller, who may be prepared for it, when all
// calls have ended.
func TestAPanicGetsToTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, services := start(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Endpoint == call.Client().Endpoints()[0] {
					panic("on purpose")
				}
				return next(ctx, call)
			}
		}}}, 3, 0)
		defer func() {
			if p := recover(); p != "on purpose" {
				t.Errorf("got the panic %v", p)
			}
			if n := services[1].executed.Load() + services[2].executed.Load(); n != 2 {
				t.Errorf("the others have executed %d calls", n)
			}
		}()
		_, err := fanout.Inform(t.Context(), c, which, &[]int{}, nil)
		t.Errorf("no panic, but %v", err)
	})
}

// A reply that nothing can be decoded into is an error of the codec's, not a panic.
func TestAReplyThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, nil, 2, 0)
		for _, reply := range []any{(*[]int)(nil), []int{}} {
			call := &yodel.Call{Method: string(which), Args: &[]int{}, Reply: reply}
			if err := fanout.FirstCall(t.Context(), c, call, nil); err == nil {
				t.Errorf("%T took something", reply)
			}
		}
	})
}

func TestEachCallIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, nil, 2, 0)
		call := &yodel.Call{Method: string(which), Args: &[]int{}, Reply: &[]int{}, Explain: true}
		outcomes, err := fanout.InformCall(t.Context(), c, call, nil)
		for _, of := range outcomes {
			if of.Call.Report() == nil {
				t.Errorf("%s: there is no record", of.Call.Endpoint.Addr())
			}
		}
		if err != nil || len(outcomes) != 2 {
			t.Errorf("got %v, %v", outcomes, err)
		}
	})
}
