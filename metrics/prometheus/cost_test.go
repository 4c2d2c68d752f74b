// SPDX-License-Identifier: Apache-2.0

//go:build !race && unix

package prometheus

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
)

// A pair is a client with its server.
type pair struct {
	client *yodel.Client
	args   *[]byte
	reply  *[]byte
}

var echo = yodel.Method[[]byte, []byte]("Echo.Echo")

// newPair starts a pair, with metrics or without them.
func newPair(t testing.TB, measured bool) *pair {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, client := &yodel.ServerOptions{Logger: quiet}, &yodel.ClientOptions{Codec: raw.Codec, Logger: quiet}
	server.Codecs = []yodel.Codec{raw.Codec}
	args, reply := make([]byte, 64), make([]byte, 0, 64)
	p := &pair{args: &args, reply: &reply}
	m := New(nil)
	newServer, newClient := yodel.NewServer, yodel.NewClient
	if measured {
		newServer = func(o *yodel.ServerOptions) *yodel.Server { return m.NewServer("s", o) }
		newClient = func(r discovery.Resolver, o *yodel.ClientOptions) *yodel.Client { return m.NewClient("c", r, o) }
	}
	s := newServer(server)
	echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	p.client = newClient(discovery.Static(serve(t, s)), client)
	t.Cleanup(p.client.Close)
	for range 200 { // the server has learned that the method is short
		p.call(t)
	}
	return p
}

func (p *pair) call(t testing.TB) {
	*p.reply = (*p.reply)[:0]
	if err := p.client.Call(context.Background(), string(echo), p.args, p.reply); err != nil {
		t.Fatal(err)
	}
}

func TestMetricsAllocateNothingPerCall(t *testing.T) {
	allocs := func(measured bool) float64 {
		p := newPair(t, measured)
		return testing.AllocsPerRun(2000, func() { p.call(t) })
	}
	without, with := allocs(false), allocs(true)
	if with > without {
		t.Errorf("a call allocates %v times with metrics, %v without them", with, without)
	}
}

// maxCost is how much of the processor time of a call metrics may cost.
const maxCost = 0.05

// Metrics cost at most maxCost. The test measures several times, and fails only if all measurements
// exceed the limit, because other programs of the machine disturb single measurements. A cost far
// above the limit makes all of them exceed it.
func TestMetricsCostLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures processor time for several seconds")
	}
	for _, flight := range []int{1, 100} {
		pairs := newPairs(t)
		var costs []float64
		for len(costs) < 6 && (len(costs) == 0 || slices.Min(costs) > maxCost) {
			_, ratios := pairs.compare(t, flight, 100)
			costs = append(costs, median(ratios)-1)
		}
		t.Logf("%d in flight: %.3f", flight, costs)
		if slices.Min(costs) > maxCost {
			t.Errorf("with %d calls in flight, metrics cost %.3f of a call, want at most %v", flight, costs, maxCost)
		}
	}
}

// BenchmarkCall makes calls over loopback, client and server in one process, one at a time and a
// hundred at a time. It reports the processor time of the whole process per call without metrics,
// and the median of how much more the neighbouring calls with metrics take.
func BenchmarkCall(b *testing.B) {
	for _, flight := range []int{1, 100} {
		b.Run(fmt.Sprint(flight), func(b *testing.B) {
			pairs := newPairs(b)
			var without, ratios []float64
			for b.Loop() {
				w, r := pairs.compare(b, flight, 1)
				without, ratios = append(without, w...), append(ratios, r...)
			}
			b.ReportMetric(median(without), "cpu-ns/call-without")
			b.ReportMetric(100*(median(ratios)-1), "%more")
		})
	}
}

// pairs is a pair without metrics and one with metrics.
type pairs [2]*pair

func newPairs(t testing.TB) pairs { return pairs{newPair(t, false), newPair(t, true)} }

// compare makes rounds of calls. In each round, blocks of calls without metrics and with them
// alternate, so that both see the same noise of the machine. It returns the processor time per call
// without metrics in nanoseconds, and the ratio of the calls with metrics to it, for each round.
func (p *pairs) compare(t testing.TB, flight, rounds int) (without, ratios []float64) {
	t.Helper()
	for range rounds {
		var took [len(p)]float64
		for _, i := range []int{0, 1, 1, 0} {
			began := processorTime(t)
			calls := p[i].block(t, flight)
			took[i] += float64(processorTime(t)-began) / float64(2*calls)
		}
		without, ratios = append(without, took[0]), append(ratios, took[1]/took[0])
	}
	return without, ratios
}

// block makes calls, as many as flight at a time, and returns how many.
func (p *pair) block(t testing.TB, flight int) (calls int) {
	t.Helper()
	if flight == 1 {
		const calls = 100
		for range calls {
			p.call(t)
		}
		return calls
	}
	const many = 1000
	var wg sync.WaitGroup
	free := make(chan struct{}, flight)
	for range many {
		free <- struct{}{}
		wg.Add(1)
		echo.Then(context.Background(), p.client, p.args, func(_ *[]byte, err error) {
			if err != nil {
				t.Error(err)
			}
			<-free
			wg.Done()
		})
	}
	wg.Wait()
	return many
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// processorTime returns the processor time of the process.
func processorTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
