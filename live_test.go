// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// seriesOf returns a series of live data, or nil.
func seriesOf(l *introspect.Live, side, method, peer string) *introspect.Series {
	i := slices.IndexFunc(l.Series, func(s introspect.Series) bool {
		return s.Side == side && s.Method == method && s.Peer == peer
	})
	if i < 0 {
		return nil
	}
	return &l.Series[i]
}

func sumOf(numbers []uint64) (n uint64) {
	for _, more := range numbers {
		n += more
	}
	return n
}

// inMemory runs f in a bubble with fake time, with a network of its own.
func inMemory(t *testing.T, f func(t *testing.T, network *mem.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, mem.New()) })
}

func serveInMemory(t *testing.T, n *mem.Network, s *yodel.Server, addr string) {
	t.Helper()
	l, err := n.Listen(addr)
	must(t, err)
	serveOn(t, s, l)
}

func TestLiveDataHasCallsOfEachSecond(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		handle(t, s, "Slow.Call", func(took *time.Duration) (*Empty, error) {
			<-time.After(*took) // in fake time
			if *took > 10*time.Millisecond {
				return nil, yodel.Errorf(yodel.NotFound, "too slow")
			}
			return &Empty{}, nil
		})
		serveInMemory(t, n, s, "shop")
		c := newClient(t, &yodel.ClientOptions{Transport: n, Name: "checkout"}, "shop")
		call := func(took time.Duration) error {
			return c.Call(t.Context(), "Slow.Call", &took, nil)
		}
		for range 3 {
			must(t, call(time.Millisecond))
		}
		<-time.After(2 * time.Second)
		if call(20*time.Millisecond) == nil {
			t.Fatal("the call has not failed")
		}
		l, err := inspect.Live.Call(t.Context(), c, &introspect.LiveQuery{Span: 5 * time.Second, Histograms: true, Method: "Slow.Call"})
		must(t, err)
		got := seriesOf(l, "server", "Slow.Call", "checkout")
		if got == nil || len(l.Series) != 1 {
			t.Fatalf("got series %+v, want one of checkout", l.Series)
		}
		if l.Step != time.Second || !slices.Equal(got.Calls, []uint64{0, 0, 3, 0, 1}) || !slices.Equal(got.Errors["not_found"], []uint64{0, 0, 0, 0, 1}) || len(got.Errors) != 1 {
			t.Errorf("got calls %v and errors %v in steps of %v", got.Calls, got.Errors, l.Step)
		}
		if p := got.P50[2]; p < time.Millisecond || p > time.Millisecond*5/4 || got.P99[4] < 20*time.Millisecond || got.P90[0] != 0 {
			t.Errorf("got P50 %v, P90 %v, P99 %v", got.P50, got.P90, got.P99)
		}
		if h := got.Latency[2]; len(h) != 1 || h[0].Calls != 3 {
			t.Errorf("got histograms %v", got.Latency)
		}
	})
}

func TestLiveDataIsSummedUp(t *testing.T) {
	inMemory(t, func(t *testing.T, n *mem.Network) {
		s := newServer(t, nil)
		serveInMemory(t, n, s, "shop")
		c := newClient(t, &yodel.ClientOptions{Transport: n, Name: "checkout"}, "shop")
		call := func(times int) {
			for range times {
				_, err := Mul.Call(t.Context(), c, &Args{A: 2, B: 3})
				must(t, err)
			}
		}
		call(5)
		<-time.After(90 * time.Minute)
		call(7)
		<-time.After(time.Minute)
		call(11)
		<-time.After(time.Second)
		call(13)
		for _, want := range []struct {
			span, step time.Duration
			calls      []uint64
		}{
			{2 * time.Second, time.Second, []uint64{11, 13}},
			{2 * time.Minute, time.Minute, []uint64{7, 24}},
			{2 * time.Hour, time.Hour, []uint64{5, 31}},
		} {
			span := want.span
			if want.step > time.Second {
				span = 60 * want.step // the ring is chosen by the span
			}
			l := s.Live(&introspect.LiveQuery{Span: span, Method: string(Mul)})
			got := seriesOf(l, "server", string(Mul), "checkout")
			if l.Step != want.step || got == nil || !slices.Equal(got.Calls[len(got.Calls)-2:], want.calls) {
				t.Errorf("%v: got %+v in steps of %v, want %v", want.span, got, l.Step, want.calls)
			}
		}
	})
}

func TestNameOfTheCallerReachesTheServer(t *testing.T) {
	for given, want := range map[string]string{
		"":                      "yodel.test",
		"checkout":              "checkout",
		"a b/c\n\u00e4":         "a-b-c--",
		fmt.Sprintf("%080d", 1): fmt.Sprintf("%064d", 0),
	} {
		s := newServer(t, nil)
		names := make(chan string, 1)
		handle(t, s, "Who.Calls", func(ctx context.Context, _ *Empty) (*Empty, error) {
			names <- yodel.CallFrom(ctx).Peer().Name
			return &Empty{}, nil
		})
		c := connect(t, s, &yodel.ClientOptions{Name: given})
		must(t, c.Call(t.Context(), "Who.Calls", &Empty{}, nil))
		if got := receive(t, names, "the call"); got != want || c.Name() != want {
			t.Errorf("%q: the server knows it as %q, the client as %q, want %q", given, got, c.Name(), want)
		}
	}
}
