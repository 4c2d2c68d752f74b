// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// countedMethod returns the statistics of a method.
func countedMethod(t testing.TB, all []introspect.MethodStats, name string) introspect.MethodStats {
	t.Helper()
	i := slices.IndexFunc(all, func(m introspect.MethodStats) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("there are no statistics of %s among %v", name, all)
	}
	return all[i]
}

// A client counts the same outcomes, bytes and messages of calls as an Observer, in every mode of a
// call. The server counts the same bytes as its Observer.
func TestCallsAreCounted(t *testing.T) {
	sum := func(to *introspect.MethodStats, call *yodel.Call, err error) {
		traffic := call.Traffic()
		to.Calls++
		to.BytesIn += uint64(traffic.BytesIn)
		to.BytesOut += uint64(traffic.BytesOut)
		to.Received += uint64(traffic.Received)
		to.Sent += uint64(traffic.Sent)
		if err != nil {
			if to.Errors == nil {
				to.Errors = make(map[string]uint64)
			}
			to.Errors[yodel.CodeOf(err).String()]++
		}
	}
	ended := make(chan introspect.MethodStats)
	server := make(chan introspect.MethodStats)
	observer := func(to chan introspect.MethodStats) yodel.Observer {
		return yodel.Observer{End: func(_ context.Context, call *yodel.Call, err error) {
			one := introspect.MethodStats{Name: call.Method}
			sum(&one, call, err)
			go func() { to <- one }()
		}}
	}
	for _, observed := range []bool{false, true} {
		options := &yodel.ClientOptions{CountCalls: true}
		serverOptions := &yodel.ServerOptions{CountBytes: true, Observers: []yodel.Observer{observer(server)}}
		if observed {
			options.Observers = []yodel.Observer{observer(ended)}
		}
		s := newServer(t, serverOptions)
		must(t, s.Handle("Fail", func(context.Context, *int) (*int, error) {
			return nil, yodel.Errorf(yodel.NotFound, "there is none")
		}))
		count := yodel.Feed[int, int]("Count")
		count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
			for i := range *n {
				if err := send(&i); err != nil {
					return err
				}
			}
			return nil
		})
		c := connect(t, s, options)
		must(t, c.Ready(t.Context()))
		n := 3
		done := make(chan error)
		for name, do := range map[string]func() (string, error){
			"call": func() (string, error) {
				return string(Mul), c.Call(t.Context(), string(Mul), &Args{A: 6, B: 7}, new(Reply))
			},
			"notify": func() (string, error) { return string(Mul), c.Notify(t.Context(), string(Mul), &Args{A: 6, B: 7}) },
			"metadata": func() (string, error) {
				call := &yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Metadata: yodel.Metadata{"key": "value"}, Attachment: []byte("attached")}
				return string(Mul), c.Do(t.Context(), call)
			},
			"ordered": func() (string, error) {
				call := &yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Ordered: true, Key: "k"}
				return string(Mul), c.Do(t.Context(), call)
			},
			"ordered, without waiting": func() (string, error) {
				call := &yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Ordered: true, Key: "k"}
				c.Go(t.Context(), call, func(err error) { done <- err })
				return string(Mul), <-done
			},
			"without waiting": func() (string, error) {
				c.Go(t.Context(), &yodel.Call{Method: "Fail", Args: &n, Reply: new(int)}, func(err error) { done <- err })
				return "Fail", <-done
			},
			"then": func() (string, error) {
				Mul.Then(t.Context(), c, &Args{A: 6, B: 7}, func(_ *Reply, err error) { done <- err })
				return string(Mul), <-done
			},
			"fails": func() (string, error) { return "Fail", c.Call(t.Context(), "Fail", &n, new(int)) },
			"feed": func() (string, error) {
				for _, err := range count.Call(t.Context(), c, &n) {
					if err != nil {
						return "Count", err
					}
				}
				return "Count", nil
			},
		} {
			t.Run(fmt.Sprintf("%s, observed %t", name, observed), func(t *testing.T) {
				find := func(all []introspect.MethodStats, method string) (m introspect.MethodStats) {
					if i := slices.IndexFunc(all, func(m introspect.MethodStats) bool { return m.Name == method }); i >= 0 {
						m = all[i]
					}
					return m
				}
				clientBefore, serverBefore := c.Stats().Methods, s.Stats().Methods
				method, err := do()
				want := introspect.MethodStats{Calls: 1}
				if err != nil {
					want.Errors = map[string]uint64{yodel.CodeOf(err).String(): 1}
				}
				seen := <-server
				if seen.BytesIn == 0 {
					t.Error("the server's observer has seen no bytes")
				}
				was, is := find(serverBefore, method), countedMethod(t, s.Stats().Methods, method)
				if is.BytesIn-was.BytesIn != seen.BytesIn || is.BytesOut-was.BytesOut != seen.BytesOut {
					t.Errorf("the server counts %d and %d bytes, its observer %d and %d", is.BytesIn-was.BytesIn, is.BytesOut-was.BytesOut, seen.BytesIn, seen.BytesOut)
				}
				was, is = find(clientBefore, method), countedMethod(t, c.Stats().Methods, method)
				if is.Calls-was.Calls != want.Calls || sumOf(slices.Collect(maps.Values(is.Errors)))-sumOf(slices.Collect(maps.Values(was.Errors))) != uint64(len(want.Errors)) {
					t.Errorf("the client counts %+v after %+v, want a call more with the errors %v", is, was, want.Errors)
				}
				if is.Took <= was.Took && name != "notify" && name != "feed" {
					t.Errorf("the calls took %v after %v", is.Took, was.Took)
				}
				if is.BytesOut == was.BytesOut {
					t.Error("the client has counted no bytes that it has sent")
				}
				if !observed {
					return
				}
				seen = <-ended
				if is.BytesIn-was.BytesIn != seen.BytesIn || is.BytesOut-was.BytesOut != seen.BytesOut || is.Received-was.Received != seen.Received || is.Sent-was.Sent != seen.Sent {
					t.Errorf("the client counts %+v after %+v, its observer %+v", is, was, seen)
				}
			})
		}
	}
}

// Calls that could not be sent count under their names, as long as there are not too many. The
// method "other" has the rest.
func TestTheCountedMethodsAreBounded(t *testing.T) {
	c := newClient(t, &yodel.ClientOptions{CountCalls: true}, "127.0.0.1:1")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	const calls = 1100
	for i := range calls {
		if err := c.Call(canceled, fmt.Sprint("M", i), nil, nil); err == nil {
			t.Fatal("the call has succeeded")
		}
	}
	all, counted := c.Stats().Methods, uint64(0)
	for _, m := range all {
		counted += m.Calls
		if sumOf(slices.Collect(maps.Values(m.Errors))) != m.Calls {
			t.Errorf("%+v", m)
		}
	}
	if other := countedMethod(t, all, "other"); counted != calls || len(all) != 1001 || other.Calls != calls-1000 {
		t.Errorf("got %d calls of %d methods, and %d of others", counted, len(all), other.Calls)
	}
	if !slices.IsSortedFunc(all, func(a, b introspect.MethodStats) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the methods are not sorted")
	}
}

// The durations of calls are those that the caller sees, with the wait for instances and all
// attempts.
func TestCountedDurations(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		handle(t, s, "Slow", func(took *time.Duration) (*Empty, error) {
			<-time.After(*took) // in fake time
			return &Empty{}, nil
		})
		serveInMemory(t, n, s, "a")
		for name, o := range map[string]*yodel.ClientOptions{
			"plain": {},
			"middleware": {Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					<-time.After(time.Second)
					err := next(ctx, call)
					<-time.After(time.Second)
					return err
				}
			}}},
		} {
			o.CountCalls, o.Transport = true, n
			c := newClient(t, o, "a")
			took, want := 3*time.Second, 3*time.Second
			if name == "middleware" {
				want = 5 * time.Second
			}
			must(t, c.Call(t.Context(), "Slow", &took, new(Empty)))
			if m := countedMethod(t, c.Stats().Methods, "Slow"); m.Took != want || len(m.Latency) != 1 || m.Latency[0].UpTo < want {
				t.Errorf("%s: got %v in %v, want %v", name, m.Took, m.Latency, want)
			}
			ended := make(chan error)
			c.Go(t.Context(), &yodel.Call{Method: "Slow", Args: &took, Reply: new(Empty)}, func(err error) { ended <- err })
			must(t, <-ended)
			if m := countedMethod(t, c.Stats().Methods, "Slow"); m.Took != 2*want {
				t.Errorf("%s, without waiting: got %v together, want %v", name, m.Took, 2*want)
			}
			c.Close()
		}
	})
}

// Notable runs for calls that fail and for calls with a sampled trace, on both sides and in every
// mode of a call, and for no others.
func TestNotableCalls(t *testing.T) {
	var l notebook
	observer := func(side string) []yodel.Observer {
		return []yodel.Observer{{Notable: func(_ context.Context, call *yodel.Call, err error) {
			l.notef("%s %s %v took %t", side, call.Method, yodel.CodeOf(err), call.Took() > 0)
			if err == nil {
				panic("a broken observer") // is logged
			}
		}}}
	}
	const sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	s := newServer(t, &yodel.ServerOptions{Observers: observer("server")})
	c := connect(t, s, &yodel.ClientOptions{Observers: observer("client")})
	for range 200 { // the server has learned that the method is short
		must(t, c.Call(t.Context(), string(Mul), &Args{A: 6, B: 7}, new(Reply)))
	}
	for name, do := range map[string]func(call *yodel.Call) error{
		"do": func(call *yodel.Call) error { return c.Do(t.Context(), call) },
		"go": func(call *yodel.Call) error {
			ended := make(chan error)
			c.Go(t.Context(), call, func(err error) { ended <- err })
			return <-ended
		},
	} {
		for trace, want := range map[string][]string{
			"": nil, "garbage": nil, strings.TrimSuffix(sampled, "1") + "0": nil,
			sampled:          {"client Arith.Mul ok took true", "server Arith.Mul ok took true"},
			sampled + " a=b": {"client Arith.Mul ok took true", "server Arith.Mul ok took true"},
		} {
			must(t, do(&yodel.Call{Method: string(Mul), Args: &Args{A: 6, B: 7}, Reply: new(Reply), Trace: trace}))
			// the server has ended this call when it has executed the next one of the connection
			if err := do(&yodel.Call{Method: "Arith.Nothing", Args: &Args{}, Reply: new(Reply)}); yodel.CodeOf(err) != yodel.Unimplemented {
				t.Error(err)
			}
			want = append(slices.Clone(want), "client Arith.Nothing unimplemented took true", "server Arith.Nothing unimplemented took true")
			slices.Sort(want)
			var got []string
			for len(got) < len(want) {
				got = append(got, l.take()...)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s, trace %q: got %q, want %q", name, trace, got, want)
			}
		}
	}
}

// Server.Stats has the callers of each method with live data.
func TestStatsHaveCallers(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, &yodel.ServerOptions{Diagnostics: true})
		handle(t, s, "Fail", func(fails *bool) (*Empty, error) {
			if *fails {
				return nil, yodel.Errorf(yodel.NotFound, "there is none")
			}
			return &Empty{}, nil
		})
		serveInMemory(t, n, s, "a")
		for _, name := range []string{"web", "batch"} {
			c := newClient(t, &yodel.ClientOptions{Name: name, Transport: n}, "a")
			for i := range 10 {
				fails := i == 0
				err := c.Call(t.Context(), "Fail", &fails, new(Empty))
				if (err != nil) != fails {
					t.Error(err)
				}
				<-time.After(700 * time.Millisecond) // in fake time: the calls are in several steps
			}
		}
		got := countedMethod(t, s.Stats().Methods, "Fail").Callers
		want := []introspect.CallerStats{
			{Name: "batch", Calls: 10, Errors: map[string]uint64{"not_found": 1}},
			{Name: "web", Calls: 10, Errors: map[string]uint64{"not_found": 1}},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
