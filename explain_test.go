// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// An explained is a set of servers and a client in fake time, and a network that takes its time.
type explained struct {
	t       *testing.T
	network *mem.Network
	// delay is what each read on a connection of the client takes longer, and dial what connecting
	// takes.
	delay, dial time.Duration
}

// Dial implements yodel.Transport.
func (x *explained) Dial(ctx context.Context, addr string) (net.Conn, error) {
	time.Sleep(x.dial)
	nc, err := x.network.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &delayed{nc, x}, nil
}

func (x *explained) Listen(addr string) (net.Listener, error) { return x.network.Listen(addr) }

// A delayed connection takes its time for what comes.
type delayed struct {
	net.Conn

	x *explained
}

func (d *delayed) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	time.Sleep(d.x.delay)
	return n, err
}

func newExplained(t *testing.T) *explained {
	t.Helper()
	return &explained{t: t, network: mem.New()}
}

// serve serves a method Work at addr.
func (x *explained) serve(addr string, o *yodel.ServerOptions, work func(ctx context.Context, call *yodel.Call) error) *yodel.Server {
	x.t.Helper()
	s := yodel.NewServer(diagnosed(o))
	handle(x.t, s, "Work", func(ctx context.Context, _ *Empty) (*Empty, error) { return nil, work(ctx, yodel.CallFrom(ctx)) })
	l, err := x.network.Listen(addr)
	must(x.t, err)
	serveOn(x.t, s, l)
	return s
}

func (x *explained) client(o *yodel.ClientOptions, addrs ...string) *yodel.Client {
	x.t.Helper()
	if o == nil {
		o = new(yodel.ClientOptions)
	}
	o.Transport = x
	return newClient(x.t, o, addrs...)
}

// work is a call of Work that is to be explained.
func work() *yodel.Call { return &yodel.Call{Method: "Work", Args: &Empty{}, Explain: true} }

// wantReport returns the record of a call with so many attempts.
func wantReport(t *testing.T, call *yodel.Call, attempts int) *introspect.CallReport {
	t.Helper()
	r := call.Report()
	if r == nil || len(r.Attempts) != attempts {
		t.Fatalf("got the record\n%v\nwant one of %d attempts", r, attempts)
	}
	return r
}

func idle(context.Context, *yodel.Call) error { return nil }

func lasts(d time.Duration) func(context.Context, *yodel.Call) error {
	return func(context.Context, *yodel.Call) error { time.Sleep(d); return nil }
}

func TestARecordSaysWhereTheTimeWent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.dial = 40 * time.Millisecond
		gate := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				time.Sleep(3 * time.Millisecond)
				return next(ctx, call)
			}
		}
		s := x.serve("a", &yodel.ServerOptions{Middleware: []yodel.Middleware{gate}}, lasts(7*time.Millisecond))
		c := x.client(nil, "a")
		call := work()
		call.Deadline, call.Criticality, call.Tenant, call.Budget = time.Now().Add(time.Minute), criticality.Critical, "acme", 3
		must(t, c.Do(t.Context(), call))
		r := wantReport(t, call, 1)
		a := r.Attempts[0]
		if a.Connecting != x.dial || a.Credit != 0 || a.Queue != 3*time.Millisecond || a.Handler != 7*time.Millisecond || a.Network != 0 || a.Took != 50*time.Millisecond || a.Began != 0 {
			t.Errorf("the first call took its time as follows: %+v", a)
		}
		if r.Took != 50*time.Millisecond || r.Timeout != time.Minute || r.Criticality != criticality.Critical || r.Tenant != "acme" || *r.Budget != (introspect.Budget{Given: 3, Left: 2}) || r.Slow || !r.Explained || r.Code != "" || r.Side != "client" {
			t.Errorf("the record of the first call is %+v", r)
		}
		if a.BytesOut != len("{}") || a.BytesIn == 0 || a.Addr != "a" || a.Code != "" {
			t.Errorf("the attempt is %+v", a)
		}

		x.delay = 5 * time.Millisecond // for what the client reads
		call = work()
		must(t, c.Do(t.Context(), call))
		if a := wantReport(t, call, 1).Attempts[0]; a.Connecting != 0 || a.Network != 5*time.Millisecond || a.Queue != 3*time.Millisecond || a.Handler != 7*time.Millisecond {
			t.Errorf("over a slow network the call took its time as follows: %+v", a)
		}

		// A method that is marked inline runs on the reading goroutine.
		s.MarkInline("Work")
		call = work()
		must(t, c.Do(t.Context(), call))
		if a := wantReport(t, call, 1).Attempts[0]; a.Network != 5*time.Millisecond || a.Queue != 3*time.Millisecond || a.Handler != 7*time.Millisecond {
			t.Errorf("inline the call took its time as follows: %+v", a)
		}
	})
}

func TestARecordSaysThatTheWindowWasFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.serve("a", &yodel.ServerOptions{Limits: yodel.Limits{MaxOpen: 1}}, lasts(time.Second))
		c := x.client(nil, "a")
		must(t, c.Do(t.Context(), work())) // afterwards the server's limits are known
		var wg sync.WaitGroup
		var calls [3]yodel.Call
		for i := range calls {
			calls[i] = *work()
			if i == 2 {
				calls[i].Deadline = time.Now().Add(1500 * time.Millisecond)
			}
			wg.Go(func() {
				err := c.Do(t.Context(), &calls[i])
				if late := errors.Is(err, yodel.DeadlineExceeded); late != (i == 2) {
					t.Errorf("call %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		for i, want := range []time.Duration{0, time.Second, 1500 * time.Millisecond} {
			r := wantReport(t, &calls[i], 1)
			if a := r.Attempts[0]; a.Credit != want || a.NotProcessed != (i == 2) || i < 2 && a.Handler != time.Second {
				t.Errorf("call %d: got %+v, want that it waited %v", i, a, want)
			}
			if slow := i < 2 || r.Took >= time.Second; r.Slow != slow {
				t.Errorf("call %d: slow: %t after %v", i, r.Slow, r.Took)
			}
		}
		if !strings.Contains(calls[1].Report().String(), "waiting for credit 1s") {
			t.Errorf("it does not say so: %v", calls[1].Report())
		}
	})
}

func TestARecordHasTheCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		tired := func(context.Context, *yodel.Call) error { return yodel.Errorf(yodel.Unavailable, "it is tired") }
		for _, addr := range []string{"a", "b", "c", "d"} {
			x.serve(addr, nil, tired)
		}
		c := x.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(2)}, Balancer: inOrder}, "a", "b", "c", "d", "nobody")
		must(t, c.Ready(t.Context()))
		endpoints := c.Endpoints()
		endpoints[2].SetReady("breaker", false)
		endpoints[2].SetReady("ejection", false)
		// whom nobody can connect to
		c.Do(t.Context(), &yodel.Call{Method: "Work", Args: &Empty{}, Endpoint: endpoints[4]})
		// at each pick, and when the call had failed
		for _, explain := range []bool{true, false} {
			call := &yodel.Call{Method: "Work", Args: &Empty{}, Idempotent: true, Explain: explain}
			err := c.Do(t.Context(), call)
			var r *introspect.CallReport
			if !errors.As(err, &r) || r != call.Report() || len(r.Attempts) != 2 {
				t.Fatalf("got %+v, want an error with the record of two attempts", err)
			}
			verdicts := make(map[string]string)
			for _, c := range r.Candidates {
				verdicts[c.Addr] = c.Verdict + strings.Join(c.NotReady, "+")
			}
			want := map[string]string{"a": "tried before", "b": "picked", "c": "not readybreaker+ejection", "d": "not chosen", "nobody": "not readyconnection"}
			if fmt.Sprint(verdicts) != fmt.Sprint(want) {
				t.Errorf("explain %t: got the verdicts %v, want %v", explain, verdicts, want)
			}
			if last := r.Candidates[len(r.Candidates)-1]; last.Addr != "d" || r.Picker != "the first of 4" || r.Resolver.Instances != 5 {
				t.Errorf("got %+v of %q, %+v", r.Candidates, r.Picker, r.Resolver)
			}
		}

		pinned := work()
		pinned.Endpoint = endpoints[3]
		if c.Do(t.Context(), pinned) == nil {
			t.Error("a tired server was not")
		}
		if v := pinned.Report().Candidates; len(v) != 5 || v[0].Addr != "a" || v[0].Verdict != "the call is pinned elsewhere" {
			t.Errorf("a pinned call had the candidates %+v", v)
		}
	})
}

// inOrder takes the first endpoint that is not avoided.
func inOrder(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return orderly(endpoints) }

type orderly []*yodel.Endpoint

func (o orderly) Pick(call *yodel.Call) *yodel.Endpoint {
	for _, ep := range o {
		if !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return nil
}

func (o orderly) String() string { return fmt.Sprintf("the first of %d", len(o)) }

func TestARecordIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.serve("a", nil, func(context.Context, *yodel.Call) error {
			return yodel.Errorf(yodel.Unavailable, "%s", strings.Repeat("long ", 500))
		})
		addrs := []string{"a"}
		for i := range 99 {
			addrs = append(addrs, fmt.Sprint("other", i))
		}
		again := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				var err error
				for range 100 {
					err = next(ctx, call)
					call.Note("again", strings.Repeat("and again ", 100))
				}
				return err
			}
		}
		c := x.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{again}, Balancer: inOrder}, addrs...)
		call := work()
		call.Endpoint = c.Endpoints()[0]
		if err := c.Do(t.Context(), call); err == nil {
			t.Fatal("it succeeded")
		}
		r := wantReport(t, call, 32)
		if r.MoreAttempts != 68 || len(r.Candidates) != 32 || r.MoreCandidates != 68 || len(r.Notes) != 32 || r.MoreNotes != 68 || len(r.Notes[0].What) > 300 || len(r.Message) > 300 || len(r.Attempts[0].Message) > 300 {
			t.Errorf("the record has %d and %d attempts, %d and %d candidates, %d and %d notes", len(r.Attempts), r.MoreAttempts, len(r.Candidates), r.MoreCandidates, len(r.Notes), r.MoreNotes)
		}
		if !slices.IsSortedFunc(r.Attempts, func(a, b introspect.Attempt) int { return int(a.Began - b.Began) }) {
			t.Error("the attempts are not in order")
		}
		if text := r.String(); strings.Count(text, "and 68 more") != 3 {
			t.Errorf("it does not say what was left out: %s", text)
		}
	})
}

// A record has what its forks did, whichever of them won.
func TestARecordHasTheForks(t *testing.T) {
	for _, winner := range []string{"the call", "the fork", "none"} {
		t.Run(winner, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newExplained(t)
				works := func(name string) func(context.Context, *yodel.Call) error {
					return func(ctx context.Context, _ *yodel.Call) error {
						if winner == name {
							time.Sleep(30 * time.Millisecond)
							return nil
						}
						time.Sleep(40 * time.Millisecond)
						return yodel.Errorf(yodel.NotFound, "not here")
					}
				}
				x.serve("a", nil, works("the call"))
				x.serve("b", nil, works("the fork"))
				c := x.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{beside(20 * time.Millisecond)}, Balancer: inOrder}, "a", "b")
				call := work()
				call.Reply = new(Empty)
				err := c.Do(t.Context(), call)
				r := wantReport(t, call, 2)
				slices.SortFunc(r.Attempts, func(a, b introspect.Attempt) int { return int(a.Began - b.Began) })
				first, second := r.Attempts[0], r.Attempts[1]
				if first.Addr != "a" || second.Addr != "b" || first.Fork || !second.Fork || first.Began != 0 || second.Began != 20*time.Millisecond {
					t.Errorf("the attempts are %+v", r.Attempts)
				}
				if (first.Code == "") != (winner == "the call") || (second.Code == "") != (winner == "the fork") || (err == nil) != (winner != "none") {
					t.Errorf("got %v after the attempts %+v", err, r.Attempts)
				}
				if len(r.Notes) != 1 || r.Notes[0] != (introspect.Note{At: 20 * time.Millisecond, By: "beside", What: "sent again"}) {
					t.Errorf("the notes are %+v", r.Notes)
				}
			})
		})
	}
}

// beside makes a second attempt while the first one has not ended, and returns the first good
// outcome when both have.
func beside(after time.Duration) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if !call.Attempts().Forkable() {
				return next(ctx, call)
			}
			fork := call.Attempts().Fork()
			forked := make(chan error, 1)
			go func() {
				time.Sleep(after)
				fork.Note("beside", "sent again")
				forked <- next(ctx, fork)
			}()
			err := next(ctx, call)
			other := <-forked
			take := err != nil && other == nil
			fork.Attempts().Join(take)
			if take {
				return nil
			}
			return err
		}
	}
}

func TestSlowCallsHaveARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.serve("a", nil, func(_ context.Context, call *yodel.Call) error {
			d, err := time.ParseDuration(call.Metadata["wait"])
			time.Sleep(d)
			return err
		})
		wait := func(d time.Duration) *yodel.Call {
			return &yodel.Call{Method: "Work", Args: &Empty{}, Metadata: yodel.Metadata{"wait": d.String()}}
		}
		pause := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error { time.Sleep(time.Second); return next(ctx, call) }
		}
		watch := yodel.Observer{End: func(context.Context, *yodel.Call, error) {}}
		for _, test := range []struct {
			name     string
			o        yodel.ClientOptions
			waits    time.Duration
			recorded bool
		}{
			{"fast", yodel.ClientOptions{}, 999 * time.Millisecond, false},
			{"slow", yodel.ClientOptions{}, time.Second, true},
			{"slow for a client", yodel.ClientOptions{SlowAfter: time.Millisecond}, 2 * time.Millisecond, true},
			{"never slow", yodel.ClientOptions{SlowAfter: -1}, time.Hour, false},
			{"slow before the balancer", yodel.ClientOptions{Middleware: []yodel.Middleware{pause}}, 0, true},
			{"slow together", yodel.ClientOptions{Middleware: []yodel.Middleware{pause}, SlowAfter: 1500 * time.Millisecond}, 500 * time.Millisecond, true},
			{"slow under a timeout", yodel.ClientOptions{Timeout: time.Minute, Middleware: []yodel.Middleware{timeout.After(time.Minute), pause}}, 0, true},
			{"slow and observed", yodel.ClientOptions{Observers: []yodel.Observer{watch}}, time.Second, true},
			{"fast and observed", yodel.ClientOptions{Observers: []yodel.Observer{watch}}, time.Millisecond, false},
		} {
			c := x.client(&test.o, "a")
			must(t, c.Ready(t.Context()))
			for how, do := range map[string]func(*yodel.Call) error{
				"synchronous": func(call *yodel.Call) error { return c.Do(t.Context(), call) },
				"asynchronous": func(call *yodel.Call) error {
					ended := make(chan error, 1)
					c.Go(t.Context(), call, func(err error) { ended <- err })
					return <-ended
				},
				"ordered": func(call *yodel.Call) error { call.Ordered = true; return c.Do(t.Context(), call) },
				"ordered, asynchronous": func(call *yodel.Call) error {
					call.Ordered = true
					ended := make(chan error, 1)
					c.Go(t.Context(), call, func(err error) { ended <- err })
					return <-ended
				},
			} {
				call := wait(test.waits)
				if err := do(call); err != nil {
					t.Fatal(err)
				}
				r := call.Report()
				if (r != nil) != test.recorded {
					t.Errorf("%s, %s: got the record\n%v", test.name, how, r)
				}
				if r != nil && (!r.Slow || r.Code != "" || len(r.Attempts) != 1 || r.Attempts[0].Handler != test.waits && test.waits >= 10*time.Millisecond) {
					t.Errorf("%s, %s: got the record %+v", test.name, how, r)
				}
			}
		}
	})
}

// Whoever is called to carry out a call that is to be explained is explained too.
func TestExplainTravelsDownTheTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		var asked []bool
		var inner yodel.Call
		x.serve("b", nil, func(_ context.Context, call *yodel.Call) error { asked = append(asked, call.Explain); return nil })
		back := x.client(nil, "b")
		x.serve("a", nil, func(ctx context.Context, _ *yodel.Call) error {
			inner = yodel.Call{Method: "Work", Args: &Empty{}}
			return back.Do(ctx, &inner)
		})
		c := x.client(nil, "a")
		for _, explain := range []bool{true, false} {
			asked = nil
			call := work()
			call.Explain = explain
			must(t, c.Do(t.Context(), call))
			if !slices.Equal(asked, []bool{explain}) || (inner.Report() != nil) != explain || (call.Report() != nil) != explain || inner.Explain {
				t.Errorf("explain %t: the second server was asked %v, and the records are\n%v\n%v", explain, asked, call.Report(), inner.Report())
			}
		}
	})
}

func TestCallsOfPeersAndStreamsHaveRecords(t *testing.T) {
	const Ticks yodel.Feed[int, int] = "Ticks"
	const Sum yodel.Upload[int, int] = "Sum"
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		var back yodel.Call
		s := x.serve("a", nil, func(ctx context.Context, call *yodel.Call) error {
			back = yodel.Call{Method: "Fail", Args: &Empty{}}
			if err := call.Peer().Do(ctx, &back); !errors.Is(err, yodel.NotFound) {
				return errors.New("the client has no error")
			}
			return nil
		})
		Ticks.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
			time.Sleep(2 * time.Second)
			for i := range *n {
				if err := send(&i); err != nil {
					return err
				}
			}
			time.Sleep(time.Hour)
			return nil
		})
		Sum.Handle(s, func(ctx context.Context, recv yodel.Recv[int]) (*int, error) {
			n, err := recv.Next()
			select {
			case <-time.After(time.Hour):
			case <-ctx.Done():
			}
			return n, err
		})
		own := yodel.NewServer(nil)
		handle(t, own, "Fail", func(context.Context, *Empty) (*Empty, error) {
			return nil, yodel.Errorf(yodel.NotFound, "nothing here")
		})
		c := x.client(&yodel.ClientOptions{Server: own}, "a")
		must(t, c.Do(t.Context(), work()))
		if r := wantReport(t, &back, 1); r.Code != "not_found" || r.Attempts[0].Code != "not_found" || r.Resolver != nil || !r.Explained {
			t.Errorf("the record of a call of a peer is %+v", r)
		}

		var feed, upload yodel.Call
		n := 1
		for _, err := range Ticks.Do(t.Context(), c, &feed, &n) {
			must(t, err)
		}
		if r := wantReport(t, &feed, 1); !r.Slow || r.Took != time.Hour+2*time.Second || r.Attempts[0].Took != r.Took {
			t.Errorf("the record of a stream that was slow to come is %+v", r)
		}
		send := func(send yodel.Send[int]) error { return send(&n) }
		_, err := Sum.Do(t.Context(), c, &upload, send)
		must(t, err)
		if r := upload.Report(); r != nil {
			t.Errorf("the record of a stream that was open for long is %+v", r)
		}
		_, err = Sum.Do(t.Context(), c, &upload, func(yodel.Send[int]) error { return errors.New("no") })
		if r := upload.Report(); err == nil || r == nil || r.ID != "YDL1006" {
			t.Errorf("got %v, and the record %+v", err, r)
		}
	})
}

func TestOneWayCallsHaveRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.dial = 2 * time.Second
		x.serve("a", nil, idle)
		c := x.client(nil, "a")
		for i, slow := range []bool{true, false} {
			call := &yodel.Call{Method: "Work", Args: &Empty{}, OneWay: true}
			must(t, c.Do(t.Context(), call))
			if r := call.Report(); (r != nil) != slow || slow && (len(r.Attempts) != 1 || r.Attempts[0].Connecting != x.dial) {
				t.Errorf("call %d has the record %v", i, r)
			}
		}
	})
}

func TestTheResolverIsPartOfTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.serve("a", nil, idle)
		fails := make(chan error)
		c := yodel.NewClient(resolverFunc(func(ctx context.Context, update func([]discovery.Instance)) error {
			time.Sleep(2 * time.Second)
			update([]discovery.Instance{{Addr: "a", Zone: "north", Weight: 3}})
			select {
			case err := <-fails:
				return err
			case <-ctx.Done():
				return nil
			}
		}), &yodel.ClientOptions{Transport: x})
		t.Cleanup(c.Close)
		call := &yodel.Call{Method: "Work", Args: &Empty{}}
		must(t, c.Do(t.Context(), call)) // slow, because the resolver was
		if s := call.Report().Resolver; s.Waited != 2*time.Second || s.Age != 0 || s.Instances != 1 || s.Err != "" {
			t.Errorf("got %+v", s)
		}
		if v := call.Report().Candidates; len(v) != 1 || v[0].Zone != "north" || v[0].Weight != 3 || v[0].Verdict != "picked" {
			t.Errorf("got %+v", v)
		}
		time.Sleep(time.Minute)
		fails <- errors.New("the registry is down")
		synctest.Wait()
		call = work()
		must(t, c.Do(t.Context(), call))
		if s := call.Report().Resolver; s.Waited != 0 || s.Age != time.Minute || s.Err != "the registry is down" {
			t.Errorf("got %+v", s)
		}
	})
}

// What users' middleware returns without an ID is theirs; refusals with one get the record.
func TestRefusalsOfMiddlewareHaveTheRecord(t *testing.T) {
	plain := errors.New("plain")
	own := &yodel.Error{Code: yodel.FailedPrecondition, Message: "own"}
	refusal := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3002", Message: "no more", NotProcessed: true}
	for _, err := range []error{plain, own, refusal} {
		c := newClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
			return func(_ context.Context, call *yodel.Call) error { call.Note("limit", "refused"); return err }
		}}}, "127.0.0.1:1")
		call := &yodel.Call{Method: "Work"}
		got := c.Do(t.Context(), call)
		var r *introspect.CallReport
		if found := errors.As(got, &r); found != (err == refusal) || !errors.Is(got, err) || (got == err) == found {
			t.Errorf("got %+v for %v", got, err)
		}
		if r := call.Report(); r == nil || r.Code != yodel.CodeOf(err).String() || len(r.Notes) != 1 {
			t.Errorf("the record is %v", r)
		}
	}
	if refusal.Report != nil {
		t.Error("an error of a middleware's was changed")
	}
}

func TestACallThatIsUsedAgainForgetsItsRecord(t *testing.T) {
	c := connect(t, newServer(t, nil), nil)
	call := &yodel.Call{Method: "Arith.Mul", Args: &Args{6, 7}, Explain: true}
	must(t, c.Do(t.Context(), call))
	wantReport(t, call, 1)
	call.Explain = false
	must(t, c.Do(t.Context(), call))
	if call.Report() != nil || new(yodel.Call).Report() != nil {
		t.Error("there is a record that nobody has asked for")
	}
}

// samplesOf returns the records that the client has kept of calls of Work, if q.Side is "client",
// and otherwise those of its server.
func samplesOf(t *testing.T, c *yodel.Client, q introspect.SamplesQuery) []introspect.CallReport {
	t.Helper()
	q.Method = "Work"
	if q.Side == "client" {
		return c.Samples(&q).Calls
	}
	got, err := inspect.Samples.Call(t.Context(), c, &q)
	must(t, err)
	return got.Calls
}

func TestServersKeepRecordsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		note := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Method != "Work" {
					return next(ctx, call)
				}
				time.Sleep(200 * time.Millisecond)
				call.Note("limit", "waited 200ms")
				return next(ctx, call)
			}
		}
		x.serve("a", &yodel.ServerOptions{Middleware: []yodel.Middleware{note}}, func(_ context.Context, call *yodel.Call) error {
			switch call.Tenant {
			case "slow":
				time.Sleep(time.Second)
			case "failing":
				return yodel.Errorf(yodel.NotFound, "nothing here")
			}
			return nil
		})
		c := x.client(nil, "a")
		for _, tenant := range []string{"", "slow", "failing"} {
			call := &yodel.Call{
				Method: "Work", Args: &Empty{}, Tenant: tenant, Budget: 4, Criticality: criticality.Batch, Deadline: time.Now().Add(time.Minute),
				Metadata: yodel.Metadata{"token": "a-secret"}, Attachment: []byte("a-secret"),
			}
			if err := c.Do(t.Context(), call); (err != nil) != (tenant == "failing") {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		served := samplesOf(t, c, introspect.SamplesQuery{Side: "server"})
		if len(served) != 2 {
			t.Fatalf("got %d records, want 2: %v", len(served), served)
		}
		failing, slow := served[0], served[1]
		if failing.Tenant != "failing" || failing.Code != "not_found" || failing.Message != "nothing here" || failing.Slow || failing.NotProcessed || failing.Took != 200*time.Millisecond {
			t.Errorf("the newest record is %+v", failing)
		}
		if slow.Tenant != "slow" || !slow.Slow || slow.Code != "" || slow.Queue != 200*time.Millisecond || slow.Handler != time.Second || slow.Took != 1200*time.Millisecond ||
			slow.Timeout != time.Minute || slow.Budget == nil || slow.Budget.Left != 0 || slow.Criticality != criticality.Batch || slow.BytesIn < len("{}a-secret") || slow.BytesOut == 0 ||
			slow.Peer == "" || len(slow.Notes) != 1 || slow.Notes[0] != (introspect.Note{At: 200 * time.Millisecond, By: "limit", What: "waited 200ms"}) {
			t.Errorf("the record of the slow call is %+v", slow)
		}
		for _, r := range samplesOf(t, c, introspect.SamplesQuery{}) {
			if strings.Contains(fmt.Sprintf("%+v %v", r, r.String()), "secret") {
				t.Errorf("a secret is in the record: %+v", r)
			}
		}
	})
}

// TestRecordsBelongToTheirServer has two servers and two clients in one process. Each keeps its own
// records, and the server whose handler makes calls has those, too.
func TestRecordsBelongToTheirServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		back := x.serve("back", nil, func(context.Context, *yodel.Call) error { return yodel.NotFound })
		inner := x.client(nil, "back")
		front := x.serve("front", nil, func(ctx context.Context, _ *yodel.Call) error {
			return inner.Do(ctx, &yodel.Call{Method: "Work", Args: &Empty{}})
		})
		outer := x.client(nil, "front")
		if err := outer.Do(t.Context(), &yodel.Call{Method: "Work", Args: &Empty{}}); err == nil {
			t.Fatal("the call succeeded")
		}
		// outside of a handler
		if err := inner.Do(t.Context(), &yodel.Call{Method: "Work", Args: &Empty{}}); err == nil {
			t.Fatal("the call succeeded")
		}
		synctest.Wait()
		for _, keeper := range []struct {
			name    string
			samples *introspect.Samples
			want    string
		}{
			{"the outer client", outer.Samples(nil), "client"},
			{"the front server", front.Samples(nil), "client server"},
			{"the inner client", inner.Samples(nil), strings.Repeat("client ", 2)},
			{"the back server", back.Samples(nil), strings.Repeat("server ", 2)},
		} {
			var sides []string
			for _, r := range keeper.samples.Calls {
				sides = append(sides, r.Side)
			}
			slices.Sort(sides)
			if got := strings.Join(sides, " "); got != strings.TrimSpace(keeper.want) {
				t.Errorf("%s has records of the sides %q, want %q", keeper.name, got, keeper.want)
			}
		}
	})
}

func TestSamplesAreFiltered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.serve("a", nil, func(_ context.Context, call *yodel.Call) error {
			if call.Tenant == "slow" {
				time.Sleep(time.Second)
			}
			if call.Tenant == "failing" {
				return yodel.NotFound
			}
			return nil
		})
		c := x.client(nil, "a")
		calls := []yodel.Call{{Tenant: "slow"}, {Tenant: "failing"}, {Tenant: "asked", Explain: true}, {Tenant: "none"}}
		for i := range calls {
			calls[i].Method, calls[i].Args = "Work", &Empty{}
			_ = c.Do(t.Context(), &calls[i])
			time.Sleep(time.Millisecond)
		}
		for _, test := range []struct {
			q    introspect.SamplesQuery
			want string
		}{
			{introspect.SamplesQuery{Side: "client"}, "asked failing slow"},
			{introspect.SamplesQuery{Side: "server"}, "asked failing slow"},
			{introspect.SamplesQuery{Side: "client", Slow: true}, "slow"},
			{introspect.SamplesQuery{Side: "client", Failed: true}, "failing"},
			{introspect.SamplesQuery{Side: "client", Explained: true, Slow: true}, "asked slow"},
			{introspect.SamplesQuery{Side: "client", Limit: 2}, "asked failing"},
			{introspect.SamplesQuery{Limit: 1, Slow: true}, "slow"},
		} {
			var got []string
			for _, r := range samplesOf(t, c, test.q) {
				got = append(got, r.Tenant)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("%+v: got the records of %v, want %s", test.q, got, test.want)
			}
		}
		got, err := inspect.Samples.Call(t.Context(), c, &introspect.SamplesQuery{Method: "Nothing"})
		must(t, err)
		for _, got := range []*introspect.Samples{got, c.Samples(&introspect.SamplesQuery{Method: "Nothing"})} {
			if len(got.Calls) != 0 || got.Failed != 1 || got.Slow != 1 || got.Explained != 1 || got.LeftOut != 0 {
				t.Errorf("got %+v, want one of each kind", got)
			}
		}
	})
}

// A storm of failing calls leaves a bounded number of records, does not wash away those of another
// kind, and is counted.
func TestAStormOfFailingCallsIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const storm = 1000
		x := newExplained(t)
		x.serve("a", nil, func(_ context.Context, call *yodel.Call) error {
			if call.Explain {
				return nil
			}
			return yodel.NotFound
		})
		c := x.client(nil, "a")
		must(t, c.Do(t.Context(), work()))
		for range storm {
			call := &yodel.Call{Method: "Work", Args: &Empty{}}
			err := c.Do(t.Context(), call)
			if r := call.Report(); r == nil || len(r.Attempts) != 1 {
				t.Fatalf("%v has no record", err)
			}
		}
		synctest.Wait()
		got, err := inspect.Samples.Call(t.Context(), c, &introspect.SamplesQuery{})
		must(t, err)
		failed, explained := 0, 0
		for _, r := range got.Calls {
			if r.Explained {
				explained++
			} else {
				failed++
			}
		}
		if failed != 64 || explained != 1 || got.Failed != storm || got.LeftOut != storm-64 {
			t.Errorf("got %d records of failed calls and %d explained ones, and %d of %d left out", failed, explained, got.LeftOut, got.Failed)
		}
		for range 3 * 128 { // slowly, all of them are taken in, and the newest stay
			time.Sleep(time.Second)
			_ = c.Do(t.Context(), &yodel.Call{Method: "Work", Args: &Empty{}, Tenant: "late"})
		}
		synctest.Wait()
		kept := samplesOf(t, c, introspect.SamplesQuery{Failed: true})
		if len(kept) != 128 || slices.ContainsFunc(kept, func(r introspect.CallReport) bool { return r.Tenant != "late" }) {
			t.Errorf("got %d records, want the newest 128", len(kept))
		}
	})
}

// In a storm, a refusal that never came to an endpoint costs no record, unless somebody has asked
// for it.
func TestRefusalsInAStormHaveNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		refusal := &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3002", Message: "no more", NotProcessed: true}
		c := x.client(&yodel.ClientOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
			return func(context.Context, *yodel.Call) error { return refusal }
		}}}, "a")
		recorded := 0
		for range 100 {
			call := &yodel.Call{Method: "Work", Args: &Empty{}}
			if err := c.Do(t.Context(), call); (err == refusal) != (call.Report() == nil) {
				t.Fatalf("got %+v and the record %v", err, call.Report())
			}
			if call.Report() != nil {
				recorded++
			}
		}
		asked := work()
		if c.Do(t.Context(), asked); recorded != 64 || asked.Report() == nil {
			t.Errorf("%d refusals have a record, want 64, and one that was asked for: %v", recorded, asked.Report())
		}
	})
}

// Records are read and made at the same time.
func TestSamplesAreReadWhileTheyAreMade(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Fail", func(context.Context, *Empty) (*Empty, error) { return nil, yodel.NotFound })
	c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{retry.Times(2)}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				err := c.Do(t.Context(), &yodel.Call{Method: "Fail", Args: &Empty{}, Explain: i%2 == 0})
				if text := fmt.Sprintf("%+v", err); !strings.Contains(text, "attempt 1") {
					t.Errorf("the error has no record: %s", text)
				}
			}
		})
	}
	for range 20 {
		got, err := inspect.Samples.Call(t.Context(), c, &introspect.SamplesQuery{})
		must(t, err)
		for _, r := range got.Calls {
			_ = r.String()
		}
	}
	wg.Wait()
}
