// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A workKind is a method of one kind that does some work. What governs calls is to be true of each
// of them.
type workKind struct {
	name    string
	repeats bool // it may be made again although its handler has begun
	handle  func(s *yodel.Server, work func(ctx context.Context) error)
	// with one message each way that the kind has
	call func(ctx context.Context, c yodel.Caller, call *yodel.Call) error
}

const (
	workFeed   yodel.Feed[int, int]   = "Work.Feed"
	workUpload yodel.Upload[int, int] = "Work.Upload"
	workDuplex yodel.Duplex[int, int] = "Work.Duplex"
)

var workKinds = []workKind{
	{
		"unary", true,
		func(s *yodel.Server, work func(context.Context) error) {
			relay.Handle(s, func(ctx context.Context, in *int) (*int, error) { return in, work(ctx) })
		},
		func(ctx context.Context, c yodel.Caller, call *yodel.Call) error {
			_, err := relay.Do(ctx, c, call, new(int))
			return err
		},
	}, {
		"feed", true,
		func(s *yodel.Server, work func(context.Context) error) {
			workFeed.Handle(s, func(ctx context.Context, in *int, send yodel.Send[int]) error {
				if err := work(ctx); err != nil {
					return err
				}
				return send(in)
			})
		},
		func(ctx context.Context, c yodel.Caller, call *yodel.Call) (err error) {
			for _, err = range workFeed.Do(ctx, c, call, new(int)) {
				continue
			}
			return err
		},
	}, {
		"upload", false,
		func(s *yodel.Server, work func(context.Context) error) {
			workUpload.Handle(s, func(ctx context.Context, recv yodel.Recv[int]) (*int, error) {
				n, err := recv.Next()
				return n, errors.Join(err, work(ctx))
			})
		},
		func(ctx context.Context, c yodel.Caller, call *yodel.Call) error {
			_, err := workUpload.Do(ctx, c, call, func(send yodel.Send[int]) error { return send(new(int)) })
			return err
		},
	}, {
		"duplex", false,
		func(s *yodel.Server, work func(context.Context) error) {
			workDuplex.Handle(s, func(ctx context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
				n, err := recv.Next()
				return errors.Join(err, send(n), work(ctx))
			})
		},
		func(ctx context.Context, c yodel.Caller, call *yodel.Call) error {
			return workDuplex.Do(ctx, c, call, func(recv yodel.Recv[int], send yodel.Send[int]) error {
				_ = send(new(int))
				_, err := recv.Next()
				return err
			})
		},
	},
}

// A tree is tiers of servers in one network.
type tree struct {
	t       *testing.T
	network *mem.Network
}

func (x tree) client(o *yodel.ClientOptions, addr string) *yodel.Client {
	x.t.Helper()
	if o == nil {
		o = new(yodel.ClientOptions)
	}
	o.Transport = x.network
	return newClient(x.t, o, addr)
}

func (x tree) serve(addr string, o *yodel.ServerOptions, k workKind, work func(ctx context.Context) error) {
	x.t.Helper()
	s := yodel.NewServer(diagnosed(o))
	k.handle(s, work)
	l, err := x.network.Listen(addr)
	must(x.t, err)
	serveOn(x.t, s, l)
}

// eachPair runs a test with a method of each kind that makes calls of each kind.
func eachPair(t *testing.T, test func(t *testing.T, x tree, upper, lower workKind)) {
	t.Helper()
	for _, upper := range workKinds {
		for _, lower := range workKinds {
			t.Run(upper.name+" to "+lower.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, tree{t, mem.New()}, upper, lower) })
			})
		}
	}
}

// Whatever the methods of a tree are, the last of them is not executed more often than the root's
// budget says, and as often when it is known which of them make calls.
func TestABudgetBoundsTheAttemptsBelowStreams(t *testing.T) {
	t.Attr("rerun", "never")
	eachPair(t, func(t *testing.T, x tree, upper, lower workKind) {
		var executed atomic.Int32
		options := func() *yodel.ClientOptions {
			return &yodel.ClientOptions{Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: 3, Share: 1})}}
		}
		last := workKinds[0]
		x.serve("last", nil, last, func(context.Context) error {
			executed.Add(1)
			return yodel.Errorf(yodel.Unavailable, "no")
		})
		below := x.client(options(), "last")
		x.serve("lower", nil, lower, func(ctx context.Context) error { return last.call(ctx, below, &yodel.Call{Idempotent: true}) })
		middle := x.client(options(), "lower")
		x.serve("upper", nil, upper, func(ctx context.Context) error { return lower.call(ctx, middle, &yodel.Call{Idempotent: true}) })
		c := x.client(options(), "upper")
		want := int32(3)
		if !upper.repeats && !lower.repeats { // a handler keeps one for the other calls that it may make
			want--
		}
		for i := range 6 {
			executed.Store(0)
			if err := upper.call(t.Context(), c, &yodel.Call{Idempotent: true}); yodel.CodeOf(err) != yodel.Unavailable {
				t.Fatalf("got %v", err)
			}
			if n := executed.Load(); n > 3 || i > 3 && n != want {
				t.Errorf("call %d: the last tier executed it %d times, want %d", i, n, want)
			}
		}
	})
}

// A stream brings back what the calls of its handler did not use, with its outcome.
func TestAStreamBringsItsBudgetBack(t *testing.T) {
	eachPair(t, func(t *testing.T, x tree, upper, lower workKind) {
		n, last := 0, workKinds[0]
		x.serve("last", nil, last, func(context.Context) error {
			if n++; n%2 != 0 {
				return yodel.Errorf(yodel.Unavailable, "not yet")
			}
			return nil
		})
		below := x.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{again(9)}}, "last")
		x.serve("lower", nil, lower, func(ctx context.Context) error { return last.call(ctx, below, &yodel.Call{}) })
		middle := x.client(nil, "lower")
		x.serve("upper", nil, upper, func(ctx context.Context) error {
			for range 3 { // each of which uses one
				if err := lower.call(ctx, middle, &yodel.Call{}); err != nil && yodel.CallFrom(ctx).Metadata["known"] != "" {
					return err
				}
			}
			return nil
		})
		c := x.client(nil, "upper")
		for range 3 { // until it is known which methods make calls
			must(t, upper.call(t.Context(), c, &yodel.Call{Budget: 9}))
		}
		n = 0
		call := &yodel.Call{Budget: 9, Explain: true, Metadata: yodel.Metadata{"known": "now"}}
		must(t, upper.call(t.Context(), c, call))
		if r := call.Report(); r == nil || r.Budget == nil || *r.Budget != (introspect.Budget{Given: 9, Left: 9 - 1 - 3}) {
			t.Errorf("the record is %v", r)
		}
	})
}

// What a stream took along comes back also when its caller has left it, once the server says how
// much of it was used.
func TestAStreamThatIsLeftBringsItsBudgetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := tree{t, mem.New()}
		executed := 0
		x.serve("last", nil, workKinds[0], func(ctx context.Context) error {
			if executed++; yodel.CallFrom(ctx).Tenant == "" || executed == 1 {
				return yodel.Errorf(yodel.Unavailable, "no")
			}
			return nil
		})
		patient := func() *yodel.ClientOptions { return &yodel.ClientOptions{Middleware: []yodel.Middleware{again(9)}} }
		below := x.client(patient(), "last")
		lower := yodel.NewServer(nil)
		workFeed.Handle(lower, func(ctx context.Context, in *int, send yodel.Send[int]) error {
			// it uses one
			if err := errors.Join(workKinds[0].call(ctx, below, &yodel.Call{Tenant: "acme"}), send(in)); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		l, err := x.network.Listen("lower")
		must(t, err)
		serveOn(t, lower, l)
		middle := x.client(nil, "lower")
		x.serve("upper", nil, workKinds[0], func(ctx context.Context) error {
			executed = 0
			if _, err := workFeed.Call(ctx, middle, new(int)).Next(); err != nil {
				return err
			}
			synctest.Wait() // the server has ended it too
			executed = 0
			_ = workKinds[0].call(ctx, below, &yodel.Call{})
			return nil
		})
		c := x.client(nil, "upper")
		for range 3 { // until it is known which methods make calls
			must(t, workKinds[0].call(t.Context(), c, &yodel.Call{Budget: 6}))
		}
		if executed != 1+3 { // of the five beyond the first, the root has kept one and the stream has used one
			t.Errorf("after the stream a call was made %d times, want 4", executed)
		}
	})
}

// Leaving a loop is no failure on either side; a record that was asked for says that it was left. A
// function that fails is one, for its caller.
func TestLeavingALoopIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := tree{t, mem.New()}
		s := newEndless(nil)
		l, err := x.network.Listen("a")
		must(t, err)
		serveOn(t, s.Server, l)
		var seen []error
		note := func(err error) error { seen = append(seen, err); return err }
		c := x.client(&yodel.ClientOptions{
			Observers:          []yodel.Observer{{End: func(_ context.Context, _ *yodel.Call, err error) { _ = note(err) }}},
			EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookAfter(func(_ *yodel.Call, err error) error { return note(err) }))},
		}, "a")
		n := 3
		for _, explain := range []bool{false, true} {
			seen = nil
			call := &yodel.Call{Explain: explain}
			for _, err := range count.Do(t.Context(), c, call, &n) {
				must(t, err)
				break
			}
			if len(seen) != 2 || errors.Join(seen...) != nil {
				t.Errorf("the chain saw %v", seen)
			}
			r := call.Report()
			if (r != nil) != explain || explain && (r.Code != "" || r.Attempts[0].Code != "" || len(r.Notes) != 1 || r.Notes[0].What != "left the loop") {
				t.Errorf("the record is\n%v", r)
			}
			synctest.Wait()
		}
		_, err = sum.Call(t.Context(), c, func(yodel.Send[int]) error { return errors.New("the disk is full") })
		if r, ok := errors.AsType[*yodel.Error](seen[len(seen)-1]); err == nil || !ok || r.ID != "YDL1006" {
			t.Errorf("got %v, and an observer %v", err, seen)
		}
		synctest.Wait()
		samples, err := inspect.Samples.Call(t.Context(), c, &introspect.SamplesQuery{})
		must(t, err)
		if samples.Failed != 0 || samples.Slow != 0 || samples.Explained != 1 || len(samples.Calls) != 1 {
			t.Errorf("got the server's records %+v", samples)
		}
		if own := c.Samples(nil); own.Failed != 0 || own.Canceled != 1 || own.Slow != 0 || own.Explained != 1 || len(own.Calls) != 2 {
			t.Errorf("got the client's records %+v", own)
		}
	})
}

// A handler's class, tenant and wish for records go down with its context, from and to streams as
// from and to other calls. What is the call's alone goes no further.
func TestWhatACallHasTravelsDownTheTreeThroughStreams(t *testing.T) {
	eachPair(t, func(t *testing.T, x tree, upper, lower workKind) {
		type seen struct {
			class     int
			tenant    string
			explain   bool
			key       string
			deadline  bool
			streaming bool
		}
		var got, before seen // the handler's, and the middleware's
		look := func(call *yodel.Call) seen {
			return seen{call.Criticality, call.Tenant, call.Explain, call.IdempotencyKey, !call.Deadline.IsZero(), call.Streams()}
		}
		gate := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				before = look(call)
				return next(ctx, call)
			}
		}
		o := func() *yodel.ServerOptions { return &yodel.ServerOptions{Middleware: []yodel.Middleware{gate}} }
		x.serve("lower", o(), lower, func(ctx context.Context) error { got = look(yodel.CallFrom(ctx)); return nil })
		below := x.client(nil, "lower")
		var inner *yodel.Call
		x.serve("upper", o(), upper, func(ctx context.Context) error {
			inner = &yodel.Call{}
			if own := (seen{criticality.Batch, "acme", true, "k", true, upper.name != "unary"}); before != own {
				t.Errorf("the first server's middleware saw %v, want %v", before, own)
			}
			return lower.call(ctx, below, inner)
		})
		c := x.client(nil, "upper")
		must(t, upper.call(t.Context(), c, &yodel.Call{
			Criticality: criticality.Batch, Tenant: "acme", Explain: true, IdempotencyKey: "k", Deadline: time.Now().Add(time.Minute),
		}))
		want := seen{criticality.Batch, "acme", true, "", true, lower.name != "unary"}
		if got != want || before != want {
			t.Errorf("the last tier has %v and its middleware saw %v, want %v", got, before, want)
		}
		if r := inner.Report(); r == nil || r.Timeout == 0 || inner.Criticality != 0 || inner.Tenant != "" || inner.Explain {
			t.Errorf("the call of the handler was left with %d %q %t, and its record is %v", inner.Criticality, inner.Tenant, inner.Explain, r)
		}
	})
}

// The records of both sides of all workKinds of calls: explained, failed, and slow to be taken.
func TestStreamsHaveRecordsOnBothSides(t *testing.T) {
	for _, k := range workKinds {
		for _, why := range []string{"explained", "failed", "slow"} {
			t.Run(k.name+" "+why, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x := tree{t, mem.New()}
					gate := func(next yodel.Handler) yodel.Handler {
						return func(ctx context.Context, call *yodel.Call) error {
							if why == "slow" && call.Tenant != "" {
								time.Sleep(time.Minute)
							}
							return next(ctx, call)
						}
					}
					x.serve("a", &yodel.ServerOptions{Middleware: []yodel.Middleware{gate}}, k, func(context.Context) error {
						if why == "failed" {
							return yodel.Errorf(yodel.NotFound, "nothing here")
						}
						return nil
					})
					c := x.client(nil, "a")
					call := &yodel.Call{Tenant: "acme", Criticality: criticality.Critical, Budget: 2, Explain: why == "explained", Deadline: time.Now().Add(time.Hour)}
					err := k.call(t.Context(), c, call)
					if (err != nil) != (why == "failed") {
						t.Fatal(err)
					}
					r := wantReport(t, call, 1)
					if err != nil {
						if of, ok := errors.AsType[*introspect.CallReport](err); !ok || of != r {
							t.Errorf("the record of the error is another one: %v", of)
						}
					}
					synctest.Wait()
					samples, err := inspect.Samples.Call(t.Context(), c, &introspect.SamplesQuery{Side: "server", Method: call.Method})
					must(t, err)
					if len(samples.Calls) != 1 {
						t.Fatalf("the server has %d records", len(samples.Calls))
					}
					checkRecords(t, k.name, why, r, &samples.Calls[0])
				})
			})
		}
	}
}

// checkRecords checks what the two sides say of a call of a kind that sends one message of one byte
// each way that it has.
func checkRecords(t *testing.T, name, why string, client, server *introspect.CallReport) {
	t.Helper()
	type traffic struct{ sent, received, bytesOut, bytesIn int }
	request, reply := map[string]int{"unary": 1, "feed": 1}[name], map[string]int{"unary": 1, "upload": 1}[name]
	up, down := map[string]int{"upload": 1, "duplex": 1}[name], map[string]int{"feed": 1, "duplex": 1}[name]
	if why == "failed" {
		reply = 0
		if name == "feed" {
			down = 0
		}
	}
	a := client.Attempts[0]
	if got, want := (traffic{a.Sent, a.Received, a.BytesOut, 0}), (traffic{up, down, request + up, 0}); got != want || a.BytesIn < down+reply {
		t.Errorf("the client has %+v and %d bytes in, want %+v and at least %d", got, a.BytesIn, want, down+reply)
	}
	if got, want := (traffic{server.Sent, server.Received, server.BytesOut, server.BytesIn}), (traffic{down, up, reply + down, request + up}); got != want {
		t.Errorf("the server has %+v, want %+v", got, want)
	}
	taken := time.Duration(0)
	if why == "slow" && name != "unary" {
		taken = time.Minute
	}
	if a.Taken != taken {
		t.Errorf("the stream was taken after %v, want %v", a.Taken, taken)
	}
	for _, r := range []*introspect.CallReport{client, server} {
		if r.Kind != strings.TrimPrefix(name, "unary") || r.Slow != (why == "slow") || r.Explained != (why == "explained") || (r.Code == "not_found") != (why == "failed") ||
			r.Tenant != "acme" || r.Criticality != criticality.Critical || r.Budget == nil || r.Timeout != time.Hour {
			t.Errorf("the record of the %s is\n%v", r.Side, r)
		}
		if text := r.String(); strings.Contains(text, " messages ") != (r == client && a.Sent+a.Received > 0 || r == server && r.Kind != "") || strings.Contains(text, "("+name+")") != (r.Kind != "") {
			t.Errorf("the %s's record reads\n%s", r.Side, text)
		}
	}
	if client.Resolver == nil || len(client.Candidates) != 1 || client.Candidates[0].Verdict != "picked" || a.Network+a.Queue+a.Handler == 0 {
		t.Errorf("the record of the client is\n%v", client)
	}
	if why == "slow" && (server.Queue != time.Minute || a.Queue != time.Minute) {
		t.Errorf("the method began after %v, and %v, want a minute", server.Queue, a.Queue)
	}
}

// A failed stream is slow as a good one is: by when it was taken, however long it went on.
func TestAFailedStreamIsSlowOnlyWhenItWasSlowToBeTaken(t *testing.T) {
	for _, plain := range []bool{true, false} {
		for before := range 2 {
			synctest.Test(t, func(t *testing.T) {
				x := tree{t, mem.New()}
				o := &yodel.ServerOptions{}
				if !plain {
					o.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
						return func(ctx context.Context, call *yodel.Call) error {
							time.Sleep(time.Duration(before) * time.Minute)
							return next(ctx, call)
						}
					}}
				}
				s := yodel.NewServer(diagnosed(o))
				workDuplex.Handle(s, func(_ context.Context, _ yodel.Recv[int], send yodel.Send[int]) error {
					err := send(new(int))
					time.Sleep(time.Hour)
					return errors.Join(err, yodel.Errorf(yodel.NotFound, "nothing here"))
				})
				l, err := x.network.Listen("a")
				must(t, err)
				serveOn(t, s, l)
				c := x.client(nil, "a")
				call := &yodel.Call{}
				err = workDuplex.Do(t.Context(), c, call, func(recv yodel.Recv[int], _ yodel.Send[int]) error {
					for _, err := range recv {
						if err != nil {
							return err
						}
					}
					return nil
				})
				if !errors.Is(err, yodel.NotFound) {
					t.Fatal(err)
				}
				slow := before > 0 && !plain
				if r := wantReport(t, call, 1); r.Slow != slow || r.Took < time.Hour || r.Attempts[0].Received != 1 {
					t.Errorf("plain %t, slow %t: the record is\n%v", plain, slow, r)
				}
				synctest.Wait()
				samples, err := inspect.Samples.Call(t.Context(), c, &introspect.SamplesQuery{Side: "server"})
				must(t, err)
				if len(samples.Calls) != 1 || samples.Calls[0].Slow != slow || samples.Calls[0].Took < time.Hour {
					t.Errorf("plain %t, slow %t: the server's records are %v", plain, slow, samples.Calls)
				}
			})
		}
	}
}

// Each attempt of a stream has its own part of the record, and messages count whole, whatever they
// are cut into.
func TestTheMessagesOfEachAttemptAreCounted(t *testing.T) {
	var feed yodel.Feed[[]byte, []byte] = "Feed"
	attempts, large := 0, 300<<10
	s := yodel.NewServer(nil)
	feed.Handle(s, func(_ context.Context, _ *[]byte, send yodel.Send[[]byte]) error {
		if attempts++; attempts == 1 {
			return yodel.Errorf(yodel.Unavailable, "not yet")
		}
		for _, n := range []int{10, 0, large, 10} {
			if err := send(new(make([]byte, n))); err != nil {
				return err
			}
		}
		return nil
	})
	c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{retry.With(&retry.Options{Times: 2, Backoff: 1})}})
	call, in := &yodel.Call{Idempotent: true, Explain: true, Codec: raw.Codec}, []byte("all")
	for _, err := range feed.Do(t.Context(), c, call, &in) {
		must(t, err)
	}
	r := wantReport(t, call, 2)
	first, second := r.Attempts[0], r.Attempts[1]
	if first.Received != 0 || first.Taken != 0 || first.Code != "unavailable" {
		t.Errorf("the first attempt is %+v", first)
	}
	if second.Received != 4 || second.Sent != 0 || second.BytesIn < large+20 || second.BytesIn > large+120 || second.BytesOut != len(in) || second.Taken <= 0 || second.Taken > second.Took {
		t.Errorf("the second attempt is %+v", second)
	}
}

// An idempotency key does not make it harmless to send a stream again of which nothing has come: no
// server remembers it.
func TestAKeyDoesNotMakeAStreamRepeatable(t *testing.T) {
	t.Attr("rerun", "never")
	for _, k := range workKinds {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, executed := tree{t, mem.New()}, 0
				o := &yodel.ServerOptions{}
				if k.name == "unary" {
					o.Keys = once.With(nil)
				}
				x.serve("a", o, k, func(context.Context) error {
					executed++
					return yodel.Errorf(yodel.Unavailable, "the database is away")
				})
				c := x.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(3)}}, "a")
				err := k.call(t.Context(), c, &yodel.Call{IdempotencyKey: "order 7"})
				want := 1
				if k.name == "unary" {
					want = 3
				}
				if !errors.Is(err, yodel.Unavailable) || executed != want {
					t.Errorf("got %v; it was executed %d times, want %d", err, executed, want)
				}
			})
		})
	}
}
