// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	connectwire "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/yodeltest"
)

const (
	count yodel.Feed[int, int]   = "Stream.Count" // counts up to its argument
	sum   yodel.Upload[int, int] = "Stream.Sum"
	echo2 yodel.Duplex[int, int] = "Stream.Echo"
)

func streams(s *yodel.Server) {
	count.Handle(s, func(_ context.Context, in *int, send yodel.Send[int]) error {
		for i := range *in {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		total := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			total += *n
		}
		return &total, nil
	})
	echo2.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err := send(n); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestStreamsOfAllKinds(t *testing.T) {
	s := yodeltest.NewServer(t, nil)
	streams(s.Server)
	c := yodeltest.NewClient(t, nil, s)
	ctx := t.Context()

	const many = 10_000
	want, n := 0, many
	for i, err := range count.Call(ctx, c, &n) {
		if err != nil || *i != want {
			t.Fatal(i, err, want)
		}
		want++
	}
	if want != many {
		t.Errorf("got %d messages, want %d", want, many)
	}

	total, err := sum.Call(ctx, c, func(send yodel.Send[int]) error {
		for i := range many {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || *total != many*(many-1)/2 {
		t.Errorf("got %v, %v", total, err)
	}

	err = echo2.Call(ctx, c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 1000 {
			if err := send(&i); err != nil {
				return err
			}
			if got, err := recv.Next(); err != nil || *got != i {
				t.Errorf("got %v, %v, want %d", got, err, i)
			}
		}
		if err := send.End(); err != nil {
			return err
		}
		if _, err := recv.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// nilMessages sends 1, a nil message and 2, ends the stream, and sends a nil message once more.
func nilMessages(t *testing.T, send yodel.Send[int]) error {
	t.Helper()
	failed := func(when string) {
		if e := wantError(t, send(nil), yodel.InvalidArgument, "YDL2103"); !strings.HasSuffix(e.Message, ": a message of the stream is a nil pointer; Send.End ends the stream") {
			t.Errorf("%s the end: %v", when, e)
		}
	}
	one, two := 1, 2
	if err := send(&one); err != nil {
		return err
	}
	failed("before")
	if err := send(&two); err != nil {
		t.Errorf("after a nil message: %v", err)
	}
	wrapped := yodel.Send[int](func(msg *int) error { return fmt.Errorf("wrapped: %w", send(msg)) })
	for _, end := range []yodel.Send[int]{send, send, wrapped} { // twice is allowed
		if err := end.End(); err != nil {
			t.Errorf("End: %v", err)
		}
	}
	failed("after")
	if err := send(&one); yodel.CodeOf(err) != yodel.FailedPrecondition {
		t.Errorf("after the end: got %v", err)
	}
	return nil
}

// The pointer to a message is the program's: nil is a mistake, as in a unary call, and not the end.
func TestANilMessageIsAnError(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{http.New(nil)}})
	streams(s)
	const nils yodel.Feed[Empty, int] = "Stream.Nils"
	nils.Handle(s, func(_ context.Context, _ *Empty, send yodel.Send[int]) error { return nilMessages(t, send) })
	const nils2 yodel.Duplex[int, int] = "Stream.Nils2"
	nils2.Handle(s, func(_ context.Context, _ yodel.Recv[int], send yodel.Send[int]) error { return nilMessages(t, send) })
	const dynamic yodel.Feed[Empty, int] = "Stream.Dynamic"
	must(t, s.HandleStream(string(dynamic), "feed", func(_ context.Context, _ *yodel.Call, _, send func(any) error) error {
		for _, msg := range []any{nil, (*int)(nil), (*struct{})(nil)} {
			wantError(t, send(msg), yodel.InvalidArgument, "YDL2103")
		}
		return errors.Join(send(1), send(new(2)))
	}))
	addr := serve(t, s)
	wire := connectwire.Wire(nil)
	for name, c := range map[string]*yodel.Client{
		"native":  newClient(t, nil, addr),
		"connect": newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{wire}}, wire.Name()+"://"+addr),
	} {
		t.Run(name, func(t *testing.T) {
			for _, feed := range []yodel.Feed[Empty, int]{nils, dynamic} {
				wantNumbers(t, feed.Call(t.Context(), c, &Empty{}))
			}
			must(t, nils2.Call(t.Context(), c, func(recv yodel.Recv[int], _ yodel.Send[int]) error {
				wantNumbers(t, recv)
				return nil
			}))
			total, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error { return nilMessages(t, send) })
			if err != nil || *total != 3 {
				t.Errorf("the upload: got %v, %v, want 3", total, err)
			}
			must(t, echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
				must(t, nilMessages(t, send))
				wantNumbers(t, recv)
				return nil
			}))
			_, err = sum.Call(t.Context(), c, func(send yodel.Send[int]) error { return send(nil) })
			wantError(t, err, yodel.InvalidArgument, "YDL2103")
		})
	}
}

// wantNumbers checks that a stream has the messages 1 and 2, and then ends.
func wantNumbers(t *testing.T, recv yodel.Recv[int]) {
	t.Helper()
	var got []int
	for n, err := range recv {
		must(t, err)
		got = append(got, *n)
	}
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("got %v, want 1 and 2", got)
	}
}

// Where nil is a value of the type of the messages, it is a message.
func TestNilValuesAreMessages(t *testing.T) {
	s := yodel.NewServer(nil)
	c := connect(t, s, nil)
	carriesNil[[]int](t, s, c)
	carriesNil[map[string]int](t, s, c)
	carriesNil[*int](t, s, c)
	carriesNil[any](t, s, c)
	carriesNil[json.RawMessage](t, s, c)
}

func carriesNil[T any](t *testing.T, s *yodel.Server, c *yodel.Client) {
	t.Helper()
	echo := yodel.Duplex[T, T](fmt.Sprintf("Nil.%T", new(T)))
	echo.Handle(s, func(_ context.Context, recv yodel.Recv[T], send yodel.Send[T]) error {
		for msg, err := range recv {
			if err = errors.Join(err, send(msg)); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, echo.Call(t.Context(), c, func(recv yodel.Recv[T], send yodel.Send[T]) error {
		for range 2 {
			if err := send(new(T)); err != nil {
				return err
			}
			if msg, err := recv.Next(); err != nil {
				t.Errorf("%T: got %v, %v", msg, msg, err)
			}
		}
		return nil
	}))
}

// An endless is a server whose streams never end by themselves. It tells how their contexts end.
type endless struct {
	*yodel.Server
	begun chan struct{}
	ended chan error
}

func newEndless(o *yodel.ServerOptions) *endless {
	e := &endless{yodel.NewServer(diagnosed(o)), make(chan struct{}, 1000), make(chan error, 1000)}
	wait := func(ctx context.Context) error {
		e.begun <- struct{}{}
		<-ctx.Done()
		e.ended <- ctx.Err()
		return ctx.Err()
	}
	count.Handle(e.Server, func(ctx context.Context, in *int, send yodel.Send[int]) error {
		for range *in {
			if err := send(in); err != nil {
				e.ended <- ctx.Err()
				return err
			}
		}
		return wait(ctx)
	})
	sum.Handle(e.Server, func(ctx context.Context, _ yodel.Recv[int]) (*int, error) { return nil, wait(ctx) })
	echo2.Handle(e.Server, func(ctx context.Context, _ yodel.Recv[int], _ yodel.Send[int]) error { return wait(ctx) })
	return e
}

// forever sends until it cannot.
func forever(send yodel.Send[int]) error {
	for i := 0; ; i++ {
		if err := send(&i); err != nil {
			return err
		}
	}
}

// opened calls each kind of stream in its own way, and returns what it returns.
func opened(ctx context.Context, c yodel.Caller) map[string]func(call *yodel.Call) error {
	return map[string]func(call *yodel.Call) error{
		"feed": func(call *yodel.Call) error {
			n := 3
			for _, err := range count.Do(ctx, c, call, &n) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"upload": func(call *yodel.Call) error {
			_, err := sum.Do(ctx, c, call, forever)
			return err
		},
		"duplex": func(call *yodel.Call) error {
			return echo2.Do(ctx, c, call, func(recv yodel.Recv[int], _ yodel.Send[int]) error {
				_, err := recv.Next()
				return err
			})
		},
	}
}

func TestLeavingTheLoopOfAFeedCancels(t *testing.T) {
	s := newEndless(nil)
	c := connect(t, s.Server, nil)
	var slowest time.Duration
	for range 20 {
		n := 5
		for i, err := range count.Call(t.Context(), c, &n) {
			if err != nil || *i != 5 {
				t.Fatal(i, err)
			}
			break
		}
		left := time.Now()
		if err := receive(t, s.ended, "the handler's context ends"); err != context.Canceled {
			t.Errorf("the handler's context ended with %v", err)
		}
		slowest = max(slowest, time.Since(left))
	}
	t.Logf("the handler's context ended %v after the loop was left, at worst", slowest)
	if slowest > time.Second {
		t.Errorf("the handler's context ended %v after the loop was left", slowest)
	}
	until(t, "no call is open", func() bool { return c.Endpoints()[0].Inflight() == 0 })
	// A break in the first round, by Next: it takes the first message and leaves.
	n := 1
	if i, err := count.Call(t.Context(), c, &n).Next(); err != nil || *i != 1 {
		t.Errorf("got %v, %v", i, err)
	}
	receive(t, s.ended, "the handler's context ends")
}

// What the caller's function returns is what Call returns, as it is, and the call is canceled: a
// file that ends is no end of the stream.
func TestWhatTheFunctionReturnsIsWhatCallReturns(t *testing.T) {
	s := newEndless(nil)
	seen := make(chan error, 1)
	c := connect(t, s.Server, &yodel.ClientOptions{Observers: []yodel.Observer{{
		End: func(_ context.Context, _ *yodel.Call, err error) { seen <- err },
	}}})
	of := yodel.Errorf(yodel.NotFound, "no such file")
	for _, own := range []error{
		errors.New("the disk is full"), io.EOF, fmt.Errorf("line 7: %w", io.EOF), of, context.DeadlineExceeded, context.Canceled,
		&yodel.Error{Code: yodel.Unavailable, Message: "another service", NotProcessed: true},
	} {
		for kind, call := range map[string]func() error{
			"upload": func() error {
				_, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error { must(t, send(new(int))); return own })
				return err
			},
			"duplex": func() error {
				return echo2.Call(t.Context(), c, func(yodel.Recv[int], yodel.Send[int]) error { return own })
			},
		} {
			if err := call(); err != own {
				t.Errorf("%s: got %v, want %v itself", kind, err, own)
			}
			if err := receive(t, s.ended, "the handler's context ends"); err != context.Canceled {
				t.Errorf("%s: the handler's context ended with %v, want that it was canceled", kind, err)
			}
			e := wantError(t, receive(t, seen, "the observer sees the end"), yodel.Canceled, "YDL1006")
			if !errors.Is(e, own) || e.NotProcessed || !strings.Contains(e.Message, own.Error()) {
				t.Errorf("%s: the chain saw %+v, want a canceled call because of %v", kind, e, own)
			}
		}
	}
}

// A server may reply before it has everything. Then sending says that the call has ended, and the
// reply counts.
func TestAServerRepliesBeforeTheUploadIsOver(t *testing.T) {
	s := yodel.NewServer(diagnosed(nil))
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		n, err := recv.Next()
		if err == nil && *n < 0 {
			err = yodel.Errorf(yodel.OutOfRange, "%d is negative", *n)
		}
		return n, err
	})
	c := connect(t, s, nil)
	for name, body := range map[string]func(send yodel.Send[int]) error{
		"returned": forever,
		"wrapped":  func(send yodel.Send[int]) error { return fmt.Errorf("sending: %w", forever(send)) },
		"dropped": func(send yodel.Send[int]) error {
			if err := forever(send); err != io.EOF {
				t.Errorf("sending ended with %v, want io.EOF", err)
			}
			return nil
		},
	} {
		first, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
			seven := 7
			must(t, send(&seven))
			return body(send)
		})
		if err != nil || *first != 7 {
			t.Errorf("%s: got %v, %v, want the reply", name, first, err)
		}
		_, err = sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
			negative := -1
			must(t, send(&negative))
			return body(send)
		})
		wantError(t, err, yodel.OutOfRange, "")
	}
	// What the function meets with after the end is still its own.
	broken := errors.New("the disk is full")
	_, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
		_ = forever(send)
		return broken
	})
	if err != broken {
		t.Errorf("got %v, want %v", err, broken)
	}
}

func TestErrorsInTheMiddleOfAStreamReachTheCaller(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: new(logbook).logger()})
	aborted := &yodel.Error{Code: yodel.Aborted, Message: "in the middle", Details: []yodel.Detail{{Type: "t", Value: []byte("d")}}}
	count.Handle(s, func(_ context.Context, in *int, send yodel.Send[int]) error {
		for i := range 100 {
			if err := send(&i); err != nil {
				return err
			}
		}
		switch *in {
		case 1:
			panic("a bug")
		case 2:
			runtime.Goexit()
		}
		return aborted
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		_, _ = recv.Next()
		return nil, aborted
	})
	echo2.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		n, _ := recv.Next()
		_ = send(n)
		return aborted
	})
	c := connect(t, s, nil)
	for in, want := range []struct {
		code yodel.Code
		id   string
	}{{yodel.Aborted, ""}, {yodel.Internal, "YDL5001"}, {yodel.Internal, "YDL5002"}} {
		got, last := 0, error(nil)
		for i, err := range count.Call(t.Context(), c, &in) {
			if last = err; err == nil && *i == got {
				got++
			}
		}
		if wantError(t, last, want.code, want.id); got != 100 {
			t.Errorf("the error came after %d of 100 messages", got)
		}
	}
	_, err := sum.Call(t.Context(), c, forever)
	if e := wantError(t, err, yodel.Aborted, ""); len(e.Details) != 1 || string(e.Details[0].Value) != "d" {
		t.Errorf("got details %v", e.Details)
	}
	err = echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		must(t, send(new(int)))
		n := 0
		for _, err := range recv {
			must(t, err) // the call's outcome says what was wrong
			n++
		}
		if n != 1 {
			t.Errorf("got %d messages, want 1", n)
		}
		if err := forever(send); err != io.EOF {
			t.Errorf("sending after the end: %v, want io.EOF", err)
		}
		return nil
	})
	wantError(t, err, yodel.Aborted, "")
	if _, err := inspect.Stats.Call(t.Context(), c, &Empty{}); err != nil {
		t.Errorf("the connection afterwards: %v", err)
	}
}

// A function that panics, or ends its goroutine, cancels the call and leaves nothing open.
func TestAPanicInTheCallersFunctionEndsTheStream(t *testing.T) {
	yodeltest.NoLeaks(t)
	s := newEndless(nil)
	ended := make(chan error, 10)
	c := connect(t, s.Server, &yodel.ClientOptions{Observers: []yodel.Observer{{
		End: func(_ context.Context, _ *yodel.Call, err error) { ended <- err },
	}}})
	for what, leave := range map[string]func(){"panic": func() { panic("a bug") }, "Goexit": runtime.Goexit} {
		for kind, call := range map[string]func(){
			"feed": func() {
				n := 3
				for range count.Call(t.Context(), c, &n) {
					leave()
				}
			},
			"upload": func() {
				_, _ = sum.Call(t.Context(), c, func(send yodel.Send[int]) error { must(t, send(new(int))); leave(); return nil })
			},
			"duplex": func() {
				_ = echo2.Call(t.Context(), c, func(yodel.Recv[int], yodel.Send[int]) error { leave(); return nil })
			},
		} {
			gone := make(chan any, 1)
			go func() {
				defer func() { gone <- recover() }()
				call()
				t.Errorf("%s in a %s: the call returned", what, kind)
			}()
			if value := receive(t, gone, "the caller has gone"); (value != nil) != (what == "panic") {
				t.Errorf("%s in a %s: recovered %v", what, kind, value)
			}
			if err := receive(t, s.ended, "the handler's context ends"); err != context.Canceled {
				t.Errorf("%s in a %s: the handler's context ended with %v", what, kind, err)
			}
			wantError(t, receive(t, ended, "the observer sees the end"), yodel.Canceled, "YDL1006")
			until(t, "no call is open", func() bool { return c.Endpoints()[0].Inflight() == 0 })
		}
	}
	if n := len(ended); n != 0 {
		t.Errorf("observers saw %d more ends than calls", n)
	}
}

// Deadlines end streams of all kinds on both sides: that of the call, of its context, of the
// client, and of the server.
func TestDeadlinesEndStreams(t *testing.T) {
	const soon = 30 * time.Millisecond
	for name, test := range map[string]struct {
		client  yodel.ClientOptions
		server  yodel.ServerOptions
		call    func() *yodel.Call
		ctx     bool
		message string
	}{
		"of the call":    {call: func() *yodel.Call { return &yodel.Call{Deadline: time.Now().Add(soon)} }},
		"of its context": {ctx: true},
		"of the client":  {client: yodel.ClientOptions{StreamTimeout: soon, Timeout: time.Hour}},
		"by middleware":  {client: yodel.ClientOptions{Middleware: []yodel.Middleware{timeout.Streams(soon)}}},
		"of the server":  {server: yodel.ServerOptions{Middleware: []yodel.Middleware{timeout.Streams(soon)}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEndless(&test.server)
			c := connect(t, s.Server, &test.client)
			must(t, c.Ready(t.Context()))
			for kind := range opened(t.Context(), c) {
				ctx, call := t.Context(), &yodel.Call{}
				if test.call != nil {
					call = test.call()
				}
				if test.ctx {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, soon)
					defer cancel()
				}
				began := time.Now()
				err := opened(ctx, c)[kind](call)
				took := time.Since(began)
				if yodel.CodeOf(err) != yodel.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) || took < soon/2 || took > soon+time.Second {
					t.Errorf("%s: got %v after %v", kind, err, took)
				}
				if err := receive(t, s.ended, "the handler's context ends"); err != context.DeadlineExceeded && name == "of the server" || err == nil {
					t.Errorf("%s: the handler's context ended with %v", kind, err)
				}
			}
		})
	}
}

// A context that ends, ends sending and receiving with its cause, and so does a client that is
// closed.
func TestStreamsEndWithTheirContextAndTheirClient(t *testing.T) {
	s := newEndless(nil)
	addr := serve(t, s.Server)
	for kind := range opened(t.Context(), nil) {
		c := newClient(t, nil, addr)
		why := errors.New("the user went home")
		ctx, cancel := context.WithCancelCause(t.Context())
		outcome := make(chan error, 1)
		go func() { outcome <- opened(ctx, c)[kind](&yodel.Call{}) }()
		receive(t, s.begun, "the handler runs")
		cancel(why)
		if e := wantError(t, receive(t, outcome, "the call ends"), yodel.Canceled, "YDL1006"); !errors.Is(e, why) {
			t.Errorf("%s: got %v, want its cause", kind, e)
		}
		receive(t, s.ended, "the handler's context ends")

		go func() { outcome <- opened(t.Context(), c)[kind](&yodel.Call{}) }()
		receive(t, s.begun, "the handler runs")
		c.Close()
		wantError(t, receive(t, outcome, "the call ends"), yodel.Canceled, "YDL1007")
		receive(t, s.ended, "the handler's context ends")
		wantError(t, opened(t.Context(), c)[kind](&yodel.Call{}), yodel.Canceled, "YDL1007")
	}
}

// A connection that is lost in the middle says so, after what had come. The server's side says so
// too.
func TestALostConnectionEndsItsStreams(t *testing.T) {
	s := yodel.NewServer(diagnosed(nil))
	seen := make(chan error, 3)
	count.Handle(s, func(ctx context.Context, in *int, send yodel.Send[int]) error {
		for i := range *in {
			if err := send(&i); err != nil { // it may be lost before all are sent
				seen <- err
				return err
			}
		}
		<-ctx.Done()
		err := send(in)
		seen <- err
		return err
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		for _, err := range recv {
			if err != nil {
				seen <- err
			}
		}
		return nil, nil
	})
	p := newProxy(t, serve(t, s))
	c := newClient(t, nil, p.addr())
	want, got, last := 50, 0, error(nil)
	for i, err := range count.Call(t.Context(), c, &want) {
		if last = err; err != nil {
			break
		}
		if *i != got {
			t.Fatalf("got %d, want %d", *i, got)
		}
		if got++; got == want/2 { // the rest has come, or is lost
			p.cut()
		}
	}
	e := wantError(t, last, yodel.Unavailable, "YDL1104")
	if e.NotProcessed || !strings.Contains(e.Message, "may have been executed") || got < want/2 {
		t.Errorf("after %d messages: %v, not processed %t", got, e, e.NotProcessed)
	}
	wantError(t, receive(t, seen, "the feed's handler is told"), yodel.Unavailable, "YDL1104")

	until(t, "the client is connected again", func() bool { return c.Endpoints()[0].Ready() })
	_, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
		must(t, send(new(int)))
		p.cut()
		if err := forever(send); err != io.EOF {
			t.Errorf("sending ended with %v, want io.EOF: the outcome says why", err)
		}
		return nil
	})
	wantError(t, err, yodel.Unavailable, "YDL1104")
	wantError(t, receive(t, seen, "the upload's handler is told"), yodel.Unavailable, "YDL1104")
}

// A goroutine that a handler leaves behind cannot send into the reply.
func TestNothingIsSentAfterTheHandlerHasReturned(t *testing.T) {
	const Big yodel.Duplex[[]byte, []byte] = "Big"
	s := yodel.NewServer(diagnosed(nil))
	stopped := make(chan error, 1)
	Big.Handle(s, func(_ context.Context, _ yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		msg, sent := make([]byte, 30<<10), make(chan struct{}, 1)
		go func() {
			for {
				if err := send(&msg); err != nil {
					stopped <- err
					return
				}
				select {
				case sent <- struct{}{}:
				default:
				}
			}
		}()
		<-sent
		return &yodel.Error{Code: yodel.Aborted, Message: "left", Details: []yodel.Detail{{Value: make([]byte, 15<<10)}}}
	})
	c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec})
	for range 50 {
		err := Big.Call(t.Context(), c, func(recv yodel.Recv[[]byte], _ yodel.Send[[]byte]) error {
			for _, err := range recv {
				must(t, err)
			}
			return nil
		})
		if e := wantError(t, err, yodel.Aborted, ""); len(e.Details) != 1 || len(e.Details[0].Value) != 15<<10 {
			t.Errorf("got %d details", len(e.Details))
		}
		if err := receive(t, stopped, "the goroutine cannot send any more"); yodel.CodeOf(err) != yodel.Canceled {
			t.Errorf("sending after the end: %v", err)
		}
	}
}

// A goroutine of the caller's function may send and receive while the call ends, and afterwards. It
// gets an error that names the call and the server, or io.EOF. It reads nothing of the Call, which
// belongs to the caller again: the race detector watches that.
func TestMessagesAfterTheEndOfTheCall(t *testing.T) {
	s := newEndless(nil)
	c := connect(t, s.Server, nil)
	addr := c.Endpoints()[0].Addr()
	told := make(chan error, 2)
	until := func(message func() error) {
		for range 1000 {
			if err := message(); err == io.EOF || err != nil && !strings.Contains(err.Error(), addr) {
				told <- err
				return
			}
		}
		told <- nil
	}
	calls := map[string]func(ctx context.Context, cancel func(), call *yodel.Call) error{
		"upload": func(ctx context.Context, cancel func(), call *yodel.Call) error {
			_, err := sum.Do(ctx, c, call, func(send yodel.Send[int]) error {
				go until(func() error { return send(new(int)) })
				go until(func() error { return send(new(int)) })
				cancel()
				return ctx.Err()
			})
			return err
		},
		"duplex": func(ctx context.Context, cancel func(), call *yodel.Call) error {
			return echo2.Do(ctx, c, call, func(recv yodel.Recv[int], send yodel.Send[int]) error {
				go until(func() error { return send(new(int)) })
				go until(func() error { _, err := recv.Next(); return err })
				cancel()
				return ctx.Err()
			})
		},
	}
	for kind, do := range calls {
		t.Run(kind, func(t *testing.T) {
			for range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				call := new(yodel.Call)
				if err := do(ctx, cancel, call); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				*call = yodel.Call{}
				for range 2 {
					if err := receive(t, told, "the late messages fail"); err != nil && err != io.EOF {
						t.Errorf("got %v, which does not name %s", err, addr)
					}
				}
			}
		})
	}
}
