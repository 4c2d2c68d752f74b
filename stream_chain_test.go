// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A stream passes middleware and observers of both sides as a call does: it opens once and ends
// once, with its outcome.
func TestAStreamPassesTheChainAsACall(t *testing.T) {
	type key struct{}
	log := &hookLog{}
	ended := make(chan error, 4)
	outcome := func(side string) yodel.Observer {
		return yodel.Observer{
			Start: func(ctx context.Context, call *yodel.Call) context.Context {
				log.add(side + " begins " + call.Method)
				return context.WithValue(ctx, key{}, side)
			},
			End: func(ctx context.Context, _ *yodel.Call, err error) {
				log.add(side + " ends for the " + ctx.Value(key{}).(string))
				ended <- err
			},
		}
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Observers: []yodel.Observer{outcome("server")}, Middleware: []yodel.Middleware{log.around("server middleware")},
	})
	fail := false
	finish := func(ctx context.Context) error {
		log.add("handler of the " + ctx.Value(key{}).(string))
		if fail {
			return yodel.Errorf(yodel.Aborted, "for a reason")
		}
		return nil
	}
	count.Handle(s, func(ctx context.Context, in *int, send yodel.Send[int]) error {
		return errors.Join(send(in), finish(ctx))
	})
	sum.Handle(s, func(ctx context.Context, recv yodel.Recv[int]) (*int, error) {
		n, err := recv.Next()
		return n, errors.Join(err, finish(ctx))
	})
	echo2.Handle(s, func(ctx context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		n, err := recv.Next()
		return errors.Join(err, send(n), finish(ctx))
	})
	c := connect(t, s, &yodel.ClientOptions{
		Observers: []yodel.Observer{outcome("client")}, Middleware: []yodel.Middleware{log.around("middleware")},
		EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(log.around("endpoint middleware"))},
	})
	for _, fails := range []bool{false, true} {
		fail = fails
		for method, call := range map[string]func() error{
			string(count): func() error {
				for _, err := range count.Call(t.Context(), c, new(int)) {
					if err != nil {
						return err
					}
					log.add("function")
				}
				return nil
			},
			string(sum): func() error {
				_, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error { log.add("function"); return send(new(int)) })
				return err
			},
			string(echo2): func() error {
				return echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
					log.add("function")
					_ = send(new(int))
					_, err := recv.Next()
					return err
				})
			},
		} {
			if err := call(); (yodel.CodeOf(err) == yodel.Aborted) != fails || (err == nil) == fails {
				t.Errorf("%s: %v", method, err)
			}
			for range 2 {
				if err := receive(t, ended, "observers see the end"); (err != nil) != fails || fails && yodel.CodeOf(err) != yodel.Aborted {
					t.Errorf("%s: an observer saw %v", method, err)
				}
			}
			log.mu.Lock() // the function runs beside the server: its place is checked by itself
			lines := log.lines
			function, last := slices.Index(lines, "function"), slices.Index(lines, "endpoint middleware again")
			if function < slices.Index(lines, "endpoint middleware") || function > last {
				t.Errorf("%s: the function ran at %d of %q", method, function, lines)
			}
			log.lines = slices.DeleteFunc(lines, func(line string) bool { return line == "function" })
			at := slices.Index(log.lines, "server ends for the server") // which is when the reply is on its way
			log.lines = append(slices.Delete(log.lines, at, at+1), "server ends for the server")
			log.mu.Unlock()
			log.is(t,
				"client begins "+method, "middleware", "endpoint middleware",
				"server begins "+method, "server middleware", "handler of the server", "server middleware again",
				"endpoint middleware again", "middleware again", "client ends for the client", "server ends for the server",
			)
			log.mu.Lock()
			log.lines = nil
			log.mu.Unlock()
		}
	}
	if len(ended) > 0 {
		t.Errorf("%d ends too many", len(ended))
	}
}

// Who may not call sends nothing: the function runs only when the server has taken the call.
func TestWhoMayNotCallDoesNotBeginToSend(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{
		auth.Check(func(ctx context.Context, _, token string) (context.Context, error) {
			if token != "right" {
				return nil, errors.New("a wrong token")
			}
			return ctx, nil
		}),
	}})
	must(t, s.Register(Counter{}, "Sum", "Echo", "Count"))
	for token, id := range map[string]string{"wrong": "YDL3102", "right": ""} {
		c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token(token)}})
		ran := 0
		_, err := yodel.Upload[int, int]("Counter.Sum").Call(t.Context(), c, func(yodel.Send[int]) error { ran++; return nil })
		err2 := yodel.Duplex[int, int]("Counter.Echo").Call(t.Context(), c, func(yodel.Recv[int], yodel.Send[int]) error { ran++; return nil })
		one := 1
		_, err3 := yodel.Feed[int, int]("Counter.Count").Call(t.Context(), c, &one).Next()
		if id == "" {
			must(t, errors.Join(err, err2, err3))
			if ran != 2 {
				t.Errorf("the functions ran %d times, want 2", ran)
			}
			continue
		}
		for _, err := range []error{err, err2, err3} {
			if e := wantError(t, err, yodel.PermissionDenied, id); !e.NotProcessed {
				t.Errorf("%v: want that it was not executed", e)
			}
		}
		if ran != 0 {
			t.Errorf("the functions ran %d times for who may not call", ran)
		}
	}
}

// refuser is a middleware that refuses all calls, and counts them.
func refuser(refused *atomic.Int64) yodel.Middleware {
	return func(yodel.Handler) yodel.Handler {
		return func(context.Context, *yodel.Call) error {
			refused.Add(1)
			return &yodel.Error{Code: yodel.Unavailable, Message: "not now", NotProcessed: true}
		}
	}
}

// A stream that a server refuses goes to another one whole, and the function runs once.
func TestRefusedStreamsGoElsewhereWhole(t *testing.T) {
	var refused atomic.Int64
	a := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{refuser(&refused)}})
	streams(a)
	b := yodel.NewServer(nil)
	streams(b)
	c := newClient(t, nil, serve(t, a), serve(t, b))
	until(t, "both are connected", func() bool { return len(c.Endpoints()) == 2 })
	streamsWork(t.Context(), t, c, 10)
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
}

// streamsWork calls each kind n times, and wants each function to run once.
func streamsWork(ctx context.Context, t *testing.T, c yodel.Caller, n int) {
	t.Helper()
	for range n {
		ran, three := 0, 3
		for i, err := range count.Call(ctx, c, &three) {
			if err != nil || *i != ran {
				t.Fatalf("feed: got %v, %v, want %d", i, err, ran)
			}
			ran++
		}
		total, err := sum.Call(ctx, c, func(send yodel.Send[int]) error {
			ran++
			return errors.Join(send(&three), send(&three))
		})
		if err != nil || *total != 6 {
			t.Errorf("upload: got %v, %v, want 6", total, err)
		}
		err = echo2.Call(ctx, c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
			ran++
			must(t, send(&three))
			_, err := recv.Next()
			return err
		})
		if err != nil {
			t.Errorf("duplex: %v", err)
		}
		if ran != 5 {
			t.Errorf("the functions ran %d times, want 5", ran)
		}
	}
}

// A server opens streams to its client, on the client's own connection, as a client does.
func TestAServerOpensStreamsToItsClient(t *testing.T) {
	own := yodel.NewServer(nil)
	streams(own)
	s := newServer(t, nil)
	handle(t, s, "Back", func(ctx context.Context, _ *Empty) (*Empty, error) {
		streamsWork(ctx, t, yodel.CallFrom(ctx).Peer(), 3)
		refused := yodel.Errorf(yodel.NotFound, "the function's own")
		_, err := sum.Call(ctx, yodel.CallFrom(ctx).Peer(), func(yodel.Send[int]) error { return refused })
		if err != refused {
			t.Errorf("got %v, want what the function returned", err)
		}
		return nil, nil
	})
	c := connect(t, s, &yodel.ClientOptions{Server: own})
	must(t, c.Call(t.Context(), "Back", &Empty{}, nil))
}

// A server that is draining finishes its streams, and new ones go to another server.
func TestStreamsGoElsewhereWhileAServerDrains(t *testing.T) {
	a, b := yodel.NewServer(nil), yodel.NewServer(nil)
	streams(a)
	streams(b)
	addrA, addrB := serve(t, a), serve(t, b)
	alone := newClient(t, nil, addrA)
	c := newClient(t, nil, addrA, addrB)
	streamsWork(t.Context(), t, c, 4)
	down := make(chan error, 1)
	err := echo2.Call(t.Context(), alone, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		go func() { down <- a.Shutdown(context.Background()) }()
		until(t, "the server is shutting down", func() bool {
			_, err := inspect.Ping.Call(t.Context(), alone, &Empty{})
			return err != nil
		})
		streamsWork(t.Context(), t, c, 10)
		for i := range 100 { // the stream that was accepted goes on
			must(t, send(&i))
			if n, err := recv.Next(); err != nil || *n != i {
				t.Errorf("got %v, %v, want %d", n, err, i)
			}
		}
		select {
		case err := <-down:
			t.Errorf("Shutdown returned %v though a stream was open", err)
		default:
		}
		return nil
	})
	must(t, err)
	must(t, receive(t, down, "Shutdown returns"))
}

// A stream that failed before anything came of it may be repeated if it is idempotent. One of which
// messages have come, or may have been sent, cannot: the caller has seen half of it.
func TestOnlyStreamsThatHaveNotBegunAreRetried(t *testing.T) {
	var attempts atomic.Int64
	at := 0 // after how many messages the server fails
	unavailable := yodel.Errorf(yodel.Unavailable, "the database is away")
	s := yodel.NewServer(nil)
	count.Handle(s, func(_ context.Context, in *int, send yodel.Send[int]) error {
		for i := range *in {
			if attempts.Load() == 0 && i == at {
				attempts.Add(1)
				return unavailable
			}
			if err := send(&i); err != nil {
				return err
			}
		}
		attempts.Add(1)
		return nil
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		attempts.Add(1)
		_, _ = recv.Next()
		return nil, unavailable
	})
	s.MarkIdempotent(string(count), string(sum))
	c := connect(t, s, &yodel.ClientOptions{
		Idempotent: []string{string(count), string(sum)},
		Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: 3, Backoff: time.Microsecond})},
	})
	for at = range 3 {
		attempts.Store(0)
		three, got, last := 3, 0, error(nil)
		for i, err := range count.Call(t.Context(), c, &three) {
			if last = err; err == nil && *i != got {
				t.Errorf("got %d, want %d", *i, got)
			}
			if err == nil {
				got++
			}
		}
		switch n := attempts.Load(); {
		case at == 0 && (last != nil || got != 3 || n != 2):
			t.Errorf("before the first message: got %d messages in %d attempts, %v; want all in the second", got, n, last)
		case at > 0 && (yodel.CodeOf(last) != yodel.Unavailable || got != at || n != 1):
			t.Errorf("after %d messages: got %d messages in %d attempts, %v; want the error", at, got, n, last)
		}
	}
	attempts.Store(0)
	ran := 0
	_, err := sum.Call(t.Context(), c, func(yodel.Send[int]) error { ran++; return nil })
	if yodel.CodeOf(err) != yodel.Unavailable || ran != 1 || attempts.Load() != 1 {
		t.Errorf("the upload: %v, the function ran %d times, the handler %d times; want once", err, ran, attempts.Load())
	}
}

// A middleware that makes a call again all the same gets an error, and the function does not see a
// second stream.
func TestAStreamThatHasBegunCannotBeMadeAgain(t *testing.T) {
	s := yodel.NewServer(nil)
	streams(s)
	var may []bool
	c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			err := next(ctx, call)
			call.Idempotent = true
			may = append(may, call.Attempts().NoRepeat(err) == "")
			return next(ctx, call)
		}
	}}})
	ran, one := 0, 1
	_, err := sum.Call(t.Context(), c, func(yodel.Send[int]) error { ran++; return nil })
	wantError(t, err, yodel.FailedPrecondition, "YDL2007")
	for _, err = range count.Call(t.Context(), c, &one) {
		if err == nil {
			ran++
		}
	}
	wantError(t, err, yodel.FailedPrecondition, "YDL2007")
	one = 0 // a feed without messages has not begun
	for _, err = range count.Call(t.Context(), c, &one) {
		t.Error(err)
	}
	if want := []bool{false, false, true}; !slices.Equal(may, want) || ran != 2 {
		t.Errorf("NoRepeat allowed %v, want %v; the functions ran %d times, want 2", may, want, ran)
	}
}

// The functions of EachMessage see each message of a stream, on both sides, before it is sent and
// before it is received.
func TestEachMessageSeesEachMessage(t *testing.T) {
	type key struct{}
	for _, codec := range []yodel.Codec{yodel.JSON, raw.Codec} {
		t.Run(codec.Name(), func(t *testing.T) {
			lines := make(chan string, 100)
			watch := func(side string) yodel.Middleware {
				return func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						for _, name := range []string{"1", "2"} {
							call.EachMessage(func(message any, sent bool) error {
								text := string(*message.(*[]byte))
								lines <- fmt.Sprint(side, name, text, sent)
								if text == side+name {
									return yodel.Errorf(yodel.Aborted, "refused by %s", text)
								}
								return nil
							})
						}
						return next(context.WithValue(ctx, key{}, side), call)
					}
				}
			}
			s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{codec}, Middleware: []yodel.Middleware{watch("s")}})
			const echo yodel.Duplex[[]byte, []byte] = "Each.Echo"
			got := make(chan error, 10)
			echo.Handle(s, func(_ context.Context, recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
				for {
					in, err := recv.Next()
					if got <- err; errors.Is(err, io.EOF) {
						return nil
					}
					if err == nil {
						err = send(in)
					}
					if err != nil && yodel.CodeOf(err) != yodel.Aborted {
						return err
					}
				}
			})
			c := connect(t, s, &yodel.ClientOptions{Codec: codec, Middleware: []yodel.Middleware{watch("c")}})
			must(t, echo.Call(t.Context(), c, func(recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
				for _, text := range []string{"c2", "s1", "ok"} {
					message := []byte(text)
					if err := send(&message); (err != nil) != (text == "c2") {
						t.Errorf("sending %s: %v", text, err)
					}
					if text == "s1" {
						if err := receive(t, got, "the method receives"); yodel.CodeOf(err) != yodel.Aborted {
							t.Errorf("the method gets %v in place of a refused message", err)
						}
					}
				}
				out, err := recv.Next()
				if err != nil || string(*out) != "ok" {
					t.Errorf("received %q, %v", *out, err)
				}
				return nil
			}))
			close(lines)
			var all []string
			for line := range lines {
				all = append(all, line)
			}
			want := []string{
				"c1c2true", "c2c2true",
				"c1s1true", "c2s1true", "s1s1false",
				"c1oktrue", "c2oktrue", "s1okfalse", "s2okfalse", "s1oktrue", "s2oktrue", "c1okfalse", "c2okfalse",
			}
			slices.Sort(all) // two messages may be on their way at once
			slices.Sort(want)
			if !slices.Equal(all, want) {
				t.Errorf("got  %q\nwant %q", all, want)
			}
		})
	}
}

// A method of HandleCall decodes its request itself, and EachMessage sees it then.
func TestEachMessageSeesWhatDecodeIntoDecodes(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			call.EachMessage(func(message any, sent bool) error {
				return yodel.Errorf(yodel.Aborted, "%d, %v", *message.(*int), sent)
			})
			return next(ctx, call)
		}
	}}})
	must(t, s.HandleCall("Each.Call", func(_ context.Context, call *yodel.Call) error { return call.DecodeInto(new(int)) }))
	err := connect(t, s, nil).Call(t.Context(), "Each.Call", 7, nil)
	if yodel.CodeOf(err) != yodel.Aborted || !strings.Contains(err.Error(), "7, false") {
		t.Errorf("got %v", err)
	}
}

// A large message, in a call or in a stream, does not hold up the small calls on its connection:
// they get in between its pieces.
func TestLargeMessagesDoNotDelaySmallCalls(t *testing.T) {
	const large, bound = 16<<20 - 1024, 10 * time.Millisecond // as much as the limits allow
	const (
		up   yodel.Method[[]byte, []byte] = "Large.Up"
		down yodel.Method[[]byte, []byte] = "Large.Down"
		feed yodel.Feed[[]byte, []byte]   = "Large.Feed"
		push yodel.Upload[[]byte, []byte] = "Large.Push"
	)
	body, none := randomBytes(large), []byte{}
	s := yodel.NewServer(nil)
	up.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) {
		if len(*in) != large {
			return nil, yodel.Errorf(yodel.Internal, "got %d bytes", len(*in))
		}
		return &none, nil
	})
	down.Handle(s, func(context.Context, *[]byte) (*[]byte, error) { return &body, nil })
	feed.Handle(s, func(_ context.Context, _ *[]byte, send yodel.Send[[]byte]) error {
		for {
			if err := send(&body); err != nil {
				return err
			}
		}
	})
	push.Handle(s, func(_ context.Context, recv yodel.Recv[[]byte]) (*[]byte, error) {
		for msg, err := range recv {
			if err != nil {
				return nil, err
			}
			if len(*msg) != large {
				return nil, yodel.Errorf(yodel.Internal, "got %d bytes", len(*msg))
			}
		}
		return &none, nil
	})
	addr := serve(t, s)
	for name, load := range map[string]func(ctx context.Context, c *yodel.Client, moved func()) error{
		"a call, up": func(ctx context.Context, c *yodel.Client, moved func()) error {
			_, err := up.Call(ctx, c, &body)
			moved()
			return err
		},
		"a call, down": func(ctx context.Context, c *yodel.Client, moved func()) error {
			_, err := down.Call(ctx, c, &none)
			moved()
			return err
		},
		"a feed": func(ctx context.Context, c *yodel.Client, moved func()) error {
			for _, err := range feed.Call(ctx, c, &none) {
				if err != nil {
					return err
				}
				moved()
			}
			return nil
		},
		"an upload": func(ctx context.Context, c *yodel.Client, moved func()) error {
			_, err := push.Call(ctx, c, func(send yodel.Send[[]byte]) error {
				for {
					if err := send(&body); err != nil {
						return err
					}
					moved()
				}
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, apart := newClient(t, &yodel.ClientOptions{Codec: raw.Codec}, addr), newClient(t, nil, addr)
			small := func(c *yodel.Client) time.Duration {
				began := time.Now()
				must(t, c.Do(t.Context(), &yodel.Call{Method: string(inspect.Ping), Args: &Empty{}, Codec: yodel.JSON}))
				return time.Since(began)
			}
			small(c)
			small(apart)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n, moving := 0, make(chan struct{})
			begun := sync.OnceFunc(func() { close(moving) })
			var wg sync.WaitGroup
			wg.Go(func() {
				for ctx.Err() == nil {
					err := load(ctx, c, func() { n++; begun() })
					if err != nil && ctx.Err() == nil {
						t.Error(err)
						begun()
						return
					}
				}
			})
			receive(t, moving, "a large message moves")
			calls := fewer(2000, 20)
			took, alone := make([]time.Duration, calls), make([]time.Duration, calls)
			began := time.Now()
			for i := range took {
				took[i], alone[i] = small(c), small(apart)
			}
			lasted := time.Since(began)
			cancel()
			wg.Wait()
			slices.Sort(took)
			slices.Sort(alone)
			t.Logf("%d small calls beside %d large messages in %v: median %v, 99th percentile %v, at worst %v",
				calls, n, lasted, took[calls/2], took[calls*99/100], took[calls-1])
			limit := bound
			if raceEnabled {
				limit *= 10
			}
			// On a machine of its own the worst stays below the bound. One that does something else
			// delays a few, and those on a connection of their own, too.
			if most, other := took[calls*95/100], alone[calls*95/100]; most > limit+3*other {
				t.Errorf("one small call in 20 took %v and more, and %v on a connection of its own", most, other)
			}
		})
	}
}

// Whose the memory of a stream's messages is.

// A pair is a message with something that JSON leaves out when it is zero.
type pair struct {
	Name  string `json:",omitempty"`
	Value int    `json:",omitempty"`
}

// With Reuse there is one message, in every position that a Recv has, and nothing of the one before
// is left in it.
func TestReuseReceivesIntoOneMessage(t *testing.T) {
	sent := []pair{{"one", 1}, {"two", 0}, {"", 3}, {}, {"five", 5}}
	feed, upload, duplex := yodel.Feed[pair, pair]("Reuse.Feed"), yodel.Upload[pair, pair]("Reuse.Upload"), yodel.Duplex[pair, pair]("Reuse.Duplex")
	sendAll := func(send yodel.Send[pair]) error {
		for i := range sent {
			if err := send(&sent[i]); err != nil {
				return err
			}
		}
		return send.End()
	}
	check := func(recv yodel.Recv[pair]) error {
		var one *pair
		n := 0
		for msg, err := range recv {
			if err != nil {
				return err
			}
			if one == nil {
				one = msg
			}
			if msg != one || *msg != sent[n] {
				t.Errorf("message %d is %+v, at the place of the first one: %t; want %+v", n, *msg, msg == one, sent[n])
			}
			n++
		}
		if n != len(sent) {
			t.Errorf("got %d messages, want %d", n, len(sent))
		}
		return nil
	}
	s := yodeltest.NewServer(t, nil)
	feed.Handle(s.Server, func(_ context.Context, _ *pair, send yodel.Send[pair]) error { return sendAll(send) })
	upload.Handle(s.Server, func(_ context.Context, recv yodel.Recv[pair]) (*pair, error) { return &pair{}, check(recv.Reuse()) })
	duplex.Handle(s.Server, func(_ context.Context, recv yodel.Recv[pair], send yodel.Send[pair]) error {
		if err := check(recv.Reuse()); err != nil {
			return err
		}
		return sendAll(send)
	})
	c, ctx := yodeltest.NewClient(t, nil, s), t.Context()
	must(t, check(feed.Call(ctx, c, &pair{}).Reuse()))
	_, err := upload.Call(ctx, c, sendAll)
	must(t, err)
	must(t, duplex.Call(ctx, c, func(recv yodel.Recv[pair], send yodel.Send[pair]) error {
		if err := sendAll(send); err != nil {
			return err
		}
		return check(recv.Reuse())
	}))
}
