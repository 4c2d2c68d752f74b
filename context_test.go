// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	connectwire "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// inBubble runs a test in fake time, with a server and a client that need no network.
func inBubble(t *testing.T, o *yodel.ClientOptions, test func(t *testing.T, s *yodeltest.Server, c *yodel.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := yodeltest.NewServer(t, nil)
		must(t, s.Register(Arith{}))
		test(t, s, yodeltest.NewClient(t, o, s))
	})
}

func TestDeadlineTravels(t *testing.T) {
	s := newServer(t, nil)
	type seen struct {
		ctx, call time.Time
		ok        bool
	}
	got := make(chan seen, 1)
	handle(t, s, "When", func(ctx context.Context, _ *Empty) (*Empty, error) {
		d, ok := ctx.Deadline()
		got <- seen{d, yodel.CallFrom(ctx).Deadline, ok}
		return nil, nil
	})
	c := connect(t, s, nil)
	nearest := time.Hour
	for range 20 { // a machine that does something else may be late once, but not always
		for _, after := range []time.Duration{patience, 365 * 24 * time.Hour} {
			want := time.Now().Add(after)
			for _, how := range []string{"context", "call", "both"} {
				ctx, call := t.Context(), &yodel.Call{Method: "When", Args: &Empty{}}
				cancel := func() {}
				switch how {
				case "context":
					ctx, cancel = context.WithDeadline(ctx, want)
				case "call":
					call.Deadline = want
				case "both":
					ctx, cancel = context.WithDeadline(ctx, want)
					call.Deadline = want.Add(time.Hour)
				}
				must(t, c.Do(ctx, call))
				cancel()
				s := <-got
				if !s.ok || !s.call.Equal(s.ctx) {
					t.Fatalf("by %s: deadline %v, %t, in the call %v", how, s.ctx, s.ok, s.call)
				}
				if diff := s.ctx.Sub(want); diff < -time.Millisecond {
					t.Fatalf("by %s: the handler's deadline is %v too early", how, -diff)
				} else {
					nearest = min(nearest, diff)
				}
			}
		}
	}
	if nearest > time.Millisecond {
		t.Errorf("the handler's deadline is at best %v too late", nearest)
	}
	must(t, c.Call(t.Context(), "When", &Empty{}, nil))
	if s := <-got; s.ok || !s.call.IsZero() {
		t.Errorf("without a deadline the handler has one: %v, %v", s.ctx, s.call)
	}
}

func TestDeadlineEndsCallAndHandler(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *yodeltest.Server, c *yodel.Client) {
		var mu sync.Mutex
		ended := make(map[string]error)
		handle(t, s.Server, "Wait", func(ctx context.Context, name *string) (*Empty, error) {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			ended[*name] = ctx.Err()
			return nil, ctx.Err()
		})
		const after = 300 * time.Millisecond
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		causeCtx, cancelCause := context.WithTimeoutCause(t.Context(), after, errors.New("too slow for me"))
		defer cancelCause()
		calls := map[string]func() error{
			"context":            func() error { return c.Call(ctx, "Wait", "context", nil) },
			"context with cause": func() error { return c.Call(causeCtx, "Wait", "context with cause", nil) },
			"call": func() error {
				return c.Do(t.Context(), &yodel.Call{Method: "Wait", Args: "call", Deadline: began.Add(after)})
			},
			"asynchronous": func() error {
				name := "asynchronous"
				_, err := yodel.Method[string, Empty]("Wait").Go(ctx, c, &name).Get()
				return err
			},
			"asynchronous with cause": func() error {
				name := "asynchronous with cause"
				_, err := yodel.Method[string, Empty]("Wait").Go(causeCtx, c, &name).Get()
				return err
			},
		}
		var wg sync.WaitGroup
		for name, call := range calls {
			for range 50 { // the connection's clock and the context race to be first
				wg.Go(func() {
					err := call()
					took := time.Since(began)
					e, ok := err.(*yodel.Error)
					if !ok || e.Code != yodel.DeadlineExceeded || e.ID != "YDL1004" || !errors.Is(err, context.DeadlineExceeded) || e.NotProcessed {
						t.Errorf("by %s: got %v", name, err)
					}
					if took < after || took > after+time.Millisecond {
						t.Errorf("by %s: it ended after %v, want %v", name, took, after)
					}
				})
			}
		}
		wg.Wait()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for name := range calls {
			if !errors.Is(ended[name], context.DeadlineExceeded) {
				t.Errorf("by %s: the handler's context ended with %v", name, ended[name])
			}
		}
	})
}

func TestDeadlineEndsOneWayHandlers(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *yodeltest.Server, c *yodel.Client) {
		ended := make(chan error, 1)
		handle(t, s.Server, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
			select {
			case <-ctx.Done():
				ended <- ctx.Err()
			case <-time.After(time.Minute):
				ended <- nil
			}
			return nil, nil
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		must(t, c.Notify(ctx, "Wait", &Empty{}))
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context of a one-way call's handler ended with %v", err)
		}
	})
}

func TestTimeoutOptionIsForCallsWithoutDeadline(t *testing.T) {
	inBubble(t, &yodel.ClientOptions{Timeout: time.Second}, func(t *testing.T, s *yodeltest.Server, c *yodel.Client) {
		handle(t, s.Server, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			return nil, ctx.Err()
		})
		took := func(ctx context.Context, call *yodel.Call) (time.Duration, error) {
			began := time.Now()
			err := c.Do(ctx, call)
			return time.Since(began), err
		}
		call := &yodel.Call{Method: "Wait", Args: &Empty{}}
		d, err := took(t.Context(), call)
		wantError(t, err, yodel.DeadlineExceeded, "YDL1004")
		if d != time.Second {
			t.Errorf("it took %v, want 1 s", d)
		}
		time.Sleep(time.Minute)
		if d, _ = took(t.Context(), call); d != time.Second {
			t.Errorf("used again, the call took %v, want 1 s", d)
		}
		if d, err = took(t.Context(), &yodel.Call{Method: "Wait", Args: &Empty{}, Deadline: time.Now().Add(time.Minute)}); err != nil || d != 5*time.Second {
			t.Errorf("with a later deadline of its own the call took %v: %v", d, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if d, err = took(ctx, &yodel.Call{Method: "Wait", Args: &Empty{}}); d != time.Second && err != nil {
			t.Errorf("with a later deadline of its context the call took %v: %v", d, err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if d, _ = took(ctx, &yodel.Call{Method: "Wait", Args: &Empty{}}); d != time.Millisecond {
			t.Errorf("with an earlier deadline of its context the call took %v", d)
		}
	})
}

func TestCancelReachesTheHandler(t *testing.T) {
	s := newServer(t, nil)
	begun, ended := make(chan struct{}), make(chan time.Time, 1)
	handle(t, s, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- time.Now()
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("the handler's context ended with %v", ctx.Err())
		}
		return nil, ctx.Err()
	})
	c := connect(t, s, nil)
	var toCaller, toHandler []time.Duration
	for range 201 {
		ctx, cancel := context.WithCancel(t.Context())
		outcome := make(chan error, 1)
		go func() { outcome <- c.Call(ctx, "Wait", &Empty{}, nil) }()
		<-begun
		at := time.Now()
		cancel()
		err := receive(t, outcome, "the call ends")
		toCaller = append(toCaller, time.Since(at))
		e := wantError(t, err, yodel.Canceled, "YDL1006")
		if e.NotProcessed || !errors.Is(err, context.Canceled) {
			t.Fatalf("got %+v", err)
		}
		toHandler = append(toHandler, receive(t, ended, "the handler ends").Sub(at))
	}
	slices.Sort(toCaller)
	slices.Sort(toHandler)
	t.Logf("after a cancel the caller has its error in %v in the median, and the handler knows in %v (99th percentile %v)",
		toCaller[100], toHandler[100], toHandler[199])
	if toCaller[100] > time.Millisecond || toHandler[100] > time.Millisecond {
		t.Errorf("median of %v to the caller and %v to the handler, want less than 1 ms", toCaller[100], toHandler[100])
	}
}

func TestAsynchronousCallsAreCanceledToo(t *testing.T) {
	s := newServer(t, nil)
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	const Wait yodel.Method[Empty, Empty] = "Wait"
	Wait.Handle(s, func(ctx context.Context, _ *Empty) (*Empty, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, nil
	})
	c := connect(t, s, nil)
	userLeft := errors.New("the user left")
	ctx, cancel := context.WithCancelCause(t.Context())
	f := Wait.Go(ctx, c, &Empty{})
	receive(t, begun, "the handler runs")
	cancel(userLeft)
	_, err := f.Get()
	wantError(t, err, yodel.Canceled, "YDL1006")
	if !errors.Is(err, userLeft) {
		t.Errorf("the cause is lost: %v", err)
	}
	if err := receive(t, ended, "the handler ends"); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context ended with %v", err)
	}
	// A context that has ended does not let a call begin.
	_, err = Wait.Go(ctx, c, &Empty{}).Get()
	if e := wantError(t, err, yodel.Canceled, "YDL1006"); !e.NotProcessed {
		t.Errorf("got %+v, want that it was not executed", e)
	}
	if len(begun) != 0 {
		t.Error("a call whose context had ended was executed")
	}
}

func TestCallsThatAreOverBeforeTheyBeginAreNotSent(t *testing.T) {
	s := newServer(t, nil)
	var executed atomic.Int64
	handle(t, s, "Run", func(context.Context, *Empty) (*Empty, error) { executed.Add(1); return nil, nil })
	c := connect(t, s, nil)
	must(t, c.Call(t.Context(), "Run", &Empty{}, nil))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for range 100 {
		e := wantError(t, c.Call(canceled, "Run", &Empty{}, nil), yodel.Canceled, "YDL1006")
		f := wantError(t, c.Call(late, "Run", &Empty{}, nil), yodel.DeadlineExceeded, "YDL1005")
		g := wantError(t, c.Do(t.Context(), &yodel.Call{Method: "Run", Deadline: time.Now().Add(-1)}), yodel.DeadlineExceeded, "YDL1005")
		h := wantError(t, c.Notify(canceled, "Run", &Empty{}), yodel.Canceled, "YDL1006")
		for _, e := range []*yodel.Error{e, f, g, h} {
			if !e.NotProcessed {
				t.Fatalf("%v: want that it was not executed", e)
			}
		}
	}
	must(t, c.Call(t.Context(), "Run", &Empty{}, nil)) // behind all the others, if they were sent
	if n := executed.Load(); n != 2 {
		t.Errorf("%d calls were executed that were over before they began", n-2)
	}
}

func TestWorkThatExpiredOnItsWayIsNotExecuted(t *testing.T) {
	t.Attr("rerun", "never")
	s := newServer(t, nil)
	var executed atomic.Int64
	handle(t, s, "Run", func(context.Context, *string) (*Empty, error) { executed.Add(1); return nil, nil })
	p := newProxy(t, serve(t, s))
	c := newClient(t, nil, p.addr())
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Fatal(err)
	}
	// The request begins to arrive, and its last byte comes when the caller has given up.
	p.holdAfter(100 << 10)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := c.Call(ctx, "Run", strings.Repeat("x", 300<<10), nil)
	wantError(t, err, yodel.DeadlineExceeded, "YDL1004")
	p.release()
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Fatal(err)
	}
	if executed.Load() != 0 {
		t.Error("a call was executed whose deadline had passed before it had come")
	}
}

func TestHandlersContextIsAContext(t *testing.T) {
	s := newServer(t, nil)
	type key struct{}
	results := make(chan string, 1)
	handle(t, s, "Look", func(ctx context.Context, _ *Empty) (*Empty, error) {
		call := yodel.CallFrom(ctx)
		derived, cancel := context.WithCancel(context.WithValue(ctx, key{}, "v"))
		defer cancel()
		timed, cancelTimed := context.WithTimeout(ctx, time.Hour)
		defer cancelTimed()
		stop := context.AfterFunc(ctx, func() { t.Error("AfterFunc ran though it had been stopped") })
		switch {
		case ctx.Err() != nil || derived.Err() != nil:
			results <- "a context has an error before anything happened"
		case ctx.Value(key{}) != nil || derived.Value(key{}) != "v":
			results <- "values do not work"
		case call == nil || yodel.CallFrom(derived) != call || yodel.CallFrom(timed) != call || yodel.CallFrom(context.WithoutCancel(ctx)) != call:
			results <- "a derived context does not know the call"
		case !stop():
			results <- "AfterFunc cannot be stopped"
		default:
			cancel()
			<-derived.Done()
			if ctx.Err() != nil {
				results <- "the end of a derived context ended the handler's"
			} else {
				results <- ""
			}
		}
		return nil, nil
	})
	c := connect(t, s, nil)
	for name, mark := range placements(s) {
		mark("Look")
		must(t, c.Call(t.Context(), "Look", &Empty{}, nil))
		if wrong := <-results; wrong != "" {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	if yodel.CallFrom(t.Context()) != nil {
		t.Error("CallFrom finds a call in a context that is no handler's")
	}
}

func TestHandlersContextEndsWhenTheHandlerReturns(t *testing.T) {
	s := newServer(t, nil)
	type key struct{}
	kept, after := make(chan context.Context, 1), make(chan struct{}, 1)
	handle(t, s, "Keep", func(ctx context.Context, _ *Empty) (*Empty, error) {
		context.AfterFunc(ctx, func() { after <- struct{}{} })
		kept <- context.WithValue(ctx, key{}, "v")
		return nil, nil
	})
	c := connect(t, s, nil)
	for name, mark := range placements(s) {
		mark("Keep")
		must(t, c.Call(t.Context(), "Keep", &Empty{}, nil))
		ctx := <-kept
		receive(t, ctx.Done(), "the context ends with the handler")
		receive(t, after, "AfterFunc runs when the handler has returned")
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("%s: the context ended with %v", name, ctx.Err())
		}
		if call := yodel.CallFrom(ctx); call == nil || call.Method != "Keep" {
			t.Errorf("%s: a context that was kept lost its call", name)
		}
	}
}

func TestLostConnectionReachesTheHandler(t *testing.T) {
	s := newServer(t, nil)
	begun, ended := make(chan struct{}, 2), make(chan error, 2)
	handle(t, s, "Wait", func(ctx context.Context, _ *Empty) (*Empty, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, nil
	})
	p := newProxy(t, serve(t, s))
	c := newClient(t, nil, p.addr())
	go func() { _ = c.Call(context.Background(), "Wait", &Empty{}, nil) }()
	receive(t, begun, "the handler runs")
	must(t, c.Notify(t.Context(), "Wait", &Empty{}))
	receive(t, begun, "the one-way handler runs")
	p.cut()
	if err := receive(t, ended, "the handler ends with its connection"); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context ended with %v", err)
	}
	// Nobody was waiting for the one-way call: it goes on, until the server's patience ends.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown returned %v although a call was running", err)
	}
	if err := receive(t, ended, "the one-way handler ends with the server"); !errors.Is(err, context.Canceled) {
		t.Errorf("the one-way handler's context ended with %v", err)
	}
}

func TestTheClientsTimeoutIsForOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{Timeout: time.Second})
		n, call := 21, &yodel.Call{}
		for range 2 { // a call may be used again
			if _, err := hookDouble.Do(t.Context(), h.client, call, &n); err != nil {
				t.Errorf("got %v, want success", err)
			}
			time.Sleep(time.Minute)
		}
	})
}

var errImpatient = errors.New("the caller was impatient")

// causes makes contexts that end with errImpatient.
var causes = map[string]func(ctx context.Context, after time.Duration) (context.Context, func()){
	"timeout": func(ctx context.Context, after time.Duration) (context.Context, func()) {
		return context.WithTimeoutCause(ctx, after, errImpatient)
	},
	"deadline of an outer context": func(ctx context.Context, after time.Duration) (context.Context, func()) {
		ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(after), errImpatient)
		inner, cancelInner := context.WithTimeout(ctx, time.Hour)
		return inner, func() { cancelInner(); cancel() }
	},
	"cancel": func(ctx context.Context, after time.Duration) (context.Context, func()) {
		ctx, cancel := context.WithCancelCause(ctx)
		timer := time.AfterFunc(after, func() { cancel(errImpatient) })
		return ctx, func() { timer.Stop(); cancel(nil) }
	},
}

// impatient makes calls that end before their replies, and checks that each has the cause. The
// clock of the connection, the context and the server race to end them.
func impatient(t *testing.T, times int, calls map[string]func(ctx context.Context) error) {
	t.Helper()
	var wg sync.WaitGroup
	for how, ending := range causes {
		for name, call := range calls {
			for range times {
				wg.Go(func() {
					ctx, cancel := ending(t.Context(), 50*time.Millisecond)
					defer cancel()
					err := call(ctx)
					code := yodel.DeadlineExceeded
					if how == "cancel" {
						code = yodel.Canceled
					}
					if !errors.Is(err, errImpatient) || yodel.CodeOf(err) != code {
						t.Errorf("%s, %s: got %v, want %v with the cause", name, how, err, code)
					}
				})
			}
		}
	}
	wg.Wait()
}

// handleWait registers methods that return when their context ends.
func handleWait(t *testing.T, s *yodel.Server) {
	t.Helper()
	wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	handle(t, s, "Wait.Unary", func(ctx context.Context, _ *int) (*int, error) { return nil, wait(ctx) })
	yodel.Feed[int, int]("Wait.Feed").Handle(s, func(ctx context.Context, _ *int, _ yodel.Send[int]) error { return wait(ctx) })
	yodel.Duplex[int, int]("Wait.Duplex").Handle(s, func(ctx context.Context, _ yodel.Recv[int], _ yodel.Send[int]) error { return wait(ctx) })
}

// waiting has calls of the methods of handleWait.
func waiting(c *yodel.Client, streams bool) map[string]func(ctx context.Context) error {
	calls := map[string]func(ctx context.Context) error{
		"call": func(ctx context.Context) error { return c.Call(ctx, "Wait.Unary", new(int), new(int)) },
		"do": func(ctx context.Context) error {
			return c.Do(ctx, &yodel.Call{Method: "Wait.Unary", Args: new(int), Deadline: time.Now().Add(time.Hour)})
		},
		"go": func(ctx context.Context) error {
			_, err := yodel.Method[int, int]("Wait.Unary").Go(ctx, c, new(int)).Get()
			return err
		},
	}
	if streams {
		calls["ordered"] = func(ctx context.Context) error {
			return c.Do(ctx, &yodel.Call{Method: "Wait.Unary", Args: new(int), Ordered: true})
		}
		calls["feed"] = func(ctx context.Context) error {
			_, err := yodel.Feed[int, int]("Wait.Feed").Call(ctx, c, new(int)).Next()
			return err
		}
		calls["duplex"] = func(ctx context.Context) error {
			return yodel.Duplex[int, int]("Wait.Duplex").Call(ctx, c, func(recv yodel.Recv[int], _ yodel.Send[int]) error {
				_, err := recv.Next()
				return err
			})
		}
	}
	return calls
}

func TestErrorsHaveTheCauseOfTheContext(t *testing.T) {
	wrapping := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if err := next(ctx, call); err != nil {
				return fmt.Errorf("wrapped: %w", err)
			}
			return nil
		}
	}
	for name, o := range map[string]*yodel.ClientOptions{
		"plain": nil, "middleware that wraps errors": {Middleware: []yodel.Middleware{wrapping}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, s *yodeltest.Server, c *yodel.Client) {
				handleWait(t, s.Server)
				impatient(t, 30, waiting(c, true))
				impatient(t, 30, map[string]func(ctx context.Context) error{"in process": func(ctx context.Context) error {
					return s.Do(ctx, &yodel.Call{Method: "Wait.Unary", Args: new(int)})
				}})
			})
		})
	}
}

func TestErrorsHaveTheCauseOfTheContextOverEachWire(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{yodel.JSON, gob.Codec},
		Protocols: []yodel.Protocol{http.New(nil), jsonrpc.Protocol, rpcx.Protocol, netrpc.Protocol},
		Logger:    slog.New(slog.DiscardHandler),
	})
	handleWait(t, s)
	addr := serve(t, s)
	for _, w := range []struct {
		codec yodel.Codec
		wire  yodel.Wire
	}{
		{yodel.JSON, nil}, {yodel.JSON, connectwire.Wire(nil)}, {yodel.JSON, connectwire.Wire(&connectwire.Options{HTTP1: true})},
		{gob.Codec, netrpc.Wire(gob.Codec)}, {yodel.JSON, jsonrpc.Wire(yodel.JSON)}, {yodel.JSON, rpcx.Wire(yodel.JSON)},
	} {
		name, o := "native", yodel.ClientOptions{Codec: w.codec}
		if w.wire != nil {
			name, o.Wires = w.wire.Name(), []yodel.Wire{w.wire}
		}
		t.Run(name, func(t *testing.T) {
			to := addr
			if w.wire != nil {
				to = name + "://" + addr
			}
			impatient(t, 10, waiting(newClient(t, &o, to), strings.HasPrefix(name, "native")))
		})
	}
}

// A lateWire makes links that lose their connections before a call is sent, with an error that has
// the ID. If there is none, the fourth attempt of a call does that when the call's context ends.
type lateWire struct {
	singleWire
	id       string
	attempts atomic.Int32
}

func (*lateWire) Name() string { return "late" }

func (w *lateWire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	link, err := w.singleWire.Connect(ctx, nc, ep)
	return lateLink{link, w}, err
}

type lateLink struct {
	yodel.Link
	wire *lateWire
}

func (l lateLink) Do(ctx context.Context, call *yodel.Call) error {
	l.wire.attempts.Add(1)
	if l.wire.id == "" && call.Attempt == 4 { // the client's last one
		<-ctx.Done()
	}
	return &yodel.Error{Code: yodel.Unavailable, ID: l.wire.id, NotProcessed: true, Message: "gone", Cause: errors.New("gone")}
}

// A server may say YDL1110 too, and must not make the client send a call forever.
func TestACallThatAlwaysWaitedEnds(t *testing.T) {
	w := &lateWire{id: "YDL1110"}
	c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{w}}, "late://"+serve(t, yodel.NewServer(nil)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := c.Call(ctx, "Wait.Unary", new(1), new(int))
	if got := w.attempts.Load(); yodel.CodeOf(err) != yodel.Unavailable || got != 1+100+8 {
		t.Errorf("got %v after %d attempts, want one, 100 that are not counted and 8 that are", err, got)
	}
}

// The end of a call's own context is its outcome, and not that its connection was lost then.
func TestTheEndOfTheContextIsTheOutcomeOfACallThatWasNotSent(t *testing.T) {
	addr := serve(t, yodel.NewServer(nil))
	for name, o := range map[string]*yodel.ClientOptions{
		"plain": {}, "endpoint middleware": {EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler { return next }}},
	} {
		t.Run(name, func(t *testing.T) {
			o.Wires = []yodel.Wire{&lateWire{}}
			impatient(t, 1, waiting(newClient(t, o, "late://"+addr), false))
		})
	}
	c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{&lateWire{}}}, "late://"+addr)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := c.Call(ctx, "Wait.Unary", new(1), new(int))
	want := "deadline_exceeded: Wait.Unary: the deadline passed after an attempt: unavailable: Wait.Unary: " + addr + ": the connection was lost: gone; it was not executed [YDL1104] [YDL1005]"
	if err == nil || err.Error() != want || !yodel.NotProcessed(err) {
		t.Errorf("got %v, want %s, and not processed", err, want)
	}
}

// A call of HTTP/1 closes its connection when its context ends. Calls that wait for that connection
// do not fail because of that. Net/http may close a connection just before a call is sent: a few of
// the calls may meet that four times in a row.
func TestPatientCallsAmongImpatientOnes(t *testing.T) {
	t.Attr("rerun", "never")
	s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{yodel.JSON}, Protocols: []yodel.Protocol{http.New(nil)}})
	handleWait(t, s)
	c := newClient(t, &yodel.ClientOptions{
		Codec: yodel.JSON, ConnsPerEndpoint: 4, Wires: []yodel.Wire{connectwire.Wire(&connectwire.Options{HTTP1: true})},
	}, "connect+http1://"+serve(t, s))
	storm, end := context.WithCancel(t.Context())
	var others, patient sync.WaitGroup
	for range 20 {
		others.Go(func() {
			for storm.Err() == nil {
				ctx, cancel := context.WithTimeout(storm, 5*time.Millisecond)
				_ = c.Call(ctx, "Wait.Unary", new(int), new(int)) // its time ends
				cancel()
			}
		})
	}
	var lost atomic.Int64
	for range 5 {
		patient.Go(func() {
			for range 8 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if _, err := Mul.Call(ctx, c, &Args{A: 2, B: 3}); err != nil {
					lost.Add(1)
					t.Log(err)
				}
				cancel()
			}
		})
	}
	patient.Wait()
	end()
	others.Wait()
	if lost.Load() > 3 {
		t.Errorf("%d of 40 calls were lost", lost.Load())
	}
}

// endAnother ends a call over HTTP/1 while another one waits for its connection, and returns the
// error of the attempt of that one. The other call goes on, over another connection.
func endAnother(p *provocation) error {
	s := newServer(p, &yodel.ServerOptions{Codecs: []yodel.Codec{yodel.JSON}, Protocols: []yodel.Protocol{http.New(nil)}})
	began := make(chan struct{}, 1)
	must(p, s.Handle("Wait.Here", func(ctx context.Context, _ *int) (*int, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	p.addr = serve(p, s)
	attempts := make(chan error, 10)
	c := newClient(p, &yodel.ClientOptions{
		Codec: yodel.JSON, Wires: []yodel.Wire{connectwire.Wire(&connectwire.Options{HTTP1: true})},
		EndpointMiddleware: []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				err := next(ctx, call)
				if call.Method == string(Mul) {
					attempts <- err
				}
				return err
			}
		}},
	}, "connect+http1://"+p.addr)
	for range 100 { // the call may not wait yet when the other one ends
		ctx, cancel := context.WithCancel(p.Context())
		go func() { _ = c.Call(ctx, "Wait.Here", new(int), nil) }()
		receive(p, began, "a call has the connection")
		done := make(chan error, 1)
		go func() { _, err := Mul.Call(p.Context(), c, &Args{}); done <- err }()
		until(p, "the other call has begun", func() bool { return c.Endpoints()[0].Inflight() == 2 })
		cancel()
		must(p, receive(p, done, "the call that waited"))
		for err := range attempts {
			if err == nil {
				break
			}
			if e, ok := errors.AsType[*yodel.Error](err); ok && e.ID == "YDL1110" {
				return err
			}
		}
	}
	return nil
}

// hangingServerEnv makes the test program a server whose method hangs.
const hangingServerEnv = "YODEL_TEST_HANGING_SERVER"

// serveHanging is a program as the documentation of ListenAndServe has it.
func serveHanging() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "restored") // the effect of a signal
	})
	s := yodel.NewServer(&yodel.ServerOptions{DrainTimeout: time.Minute})
	err := s.Handle("Shop.Hang", func() {
		fmt.Fprintln(os.Stderr, "hanging")
		select {}
	})
	if err == nil {
		err = s.ListenAndServe(ctx, "127.0.0.1:0")
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestASecondInterruptEndsAServerAtOnce(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no signals to send")
	}
	interrupt := syscall.SIGINT
	if signal.Ignored(os.Interrupt) { // as in a shell's background job, and then a child ignores it too
		interrupt = syscall.SIGTERM
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	program, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), hangingServerEnv+"=1")
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(log)
	var seen []string
	wait := func(want string) []string { // in any order
		t.Helper()
		pattern := regexp.MustCompile(want)
		for _, line := range seen {
			if found := pattern.FindStringSubmatch(line); found != nil {
				return found
			}
		}
		for lines.Scan() {
			seen = append(seen, lines.Text())
			if found := pattern.FindStringSubmatch(lines.Text()); found != nil {
				return found
			}
		}
		t.Fatalf("the server did not log %s:\n%s", want, strings.Join(seen, "\n"))
		return nil
	}
	addr := wait(`INFO yodel: listening addr=(127\.0\.0\.1:\d+) transport=tcp`)[1]
	c := newClient(t, nil, addr)
	outcome := make(chan error, 1)
	go func() { outcome <- c.Call(context.Background(), "Shop.Hang", yodel.Values{}, nil) }()
	wait("hanging")
	must(t, cmd.Process.Signal(interrupt))
	wait(`INFO yodel: draining calls=1 open="Shop.Hang from 127\.0\.0\.1:\d+" forAtMost=`)
	wait("restored") // by another goroutine than the one that drains
	select {
	case err := <-outcome:
		t.Errorf("the first interrupt ended the call with %v", err)
	default:
	}
	began := time.Now()
	must(t, cmd.Process.Signal(interrupt))
	for lines.Scan() {
		t.Errorf("the server logged %q after the second interrupt", lines.Text())
	}
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if status, _ := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != interrupt {
		t.Errorf("the server ended with %v, want the second interrupt", exit)
	}
	t.Logf("the process ended %v after the second interrupt", time.Since(began))
	if err := receive(t, outcome, "the call ends"); err == nil {
		t.Error("the call succeeded")
	}
}
