// SPDX-License-Identifier: Apache-2.0

//go:build unix

package yodel_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// BenchmarkCost measures what live data, and the counters for metrics, add to the processor time of
// a call over loopback, for the client and the server together. The calls with an option and those
// without it alternate in blocks, so that both see the same noise of the machine. Each iteration
// makes new clients and servers, because where their memory lies makes a difference of a few
// percent. It reports the median of the iterations.
func BenchmarkCost(b *testing.B) {
	quiet := slog.New(slog.DiscardHandler)
	for _, option := range []struct {
		name   string
		client func() *yodel.ClientOptions
		server yodel.ServerOptions
	}{
		// two pairs without options: the noise of the machine
		{"nothing", func() *yodel.ClientOptions { return &yodel.ClientOptions{} }, yodel.ServerOptions{}},
		{"live data of the server", func() *yodel.ClientOptions { return &yodel.ClientOptions{} }, yodel.ServerOptions{Diagnostics: true}},
		{"live data of both", func() *yodel.ClientOptions {
			return &yodel.ClientOptions{Server: yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})}
		}, yodel.ServerOptions{Diagnostics: true}},
		{"counters of both", func() *yodel.ClientOptions { return &yodel.ClientOptions{CountCalls: true} }, yodel.ServerOptions{CountBytes: true}},
	} {
		for _, flight := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/%d", option.name, flight), func(b *testing.B) {
				var without, ratios []float64
				for b.Loop() {
					off, on := &yodel.ClientOptions{}, option.client()
					if on.Server != nil {
						off.Server = yodel.NewServer(nil)
					}
					server := option.server
					server.Logger = quiet
					of := &iteration{TB: b}
					var clients [2]*yodel.Client
					for _, i := range rand.Perm(2) {
						if i == 0 {
							clients[0] = costClient(of, &yodel.ServerOptions{Logger: quiet}, off)
						} else {
							clients[1] = costClient(of, &server, on)
						}
					}
					ns, ratio := compareCost(b, clients, flight)
					without, ratios = append(without, ns), append(ratios, ratio)
					of.end()
				}
				slices.Sort(ratios)
				b.ReportMetric(median(without), "cpu-ns/call-without")
				b.ReportMetric(100*(median(ratios)-1), "%more")
				b.ReportMetric(100*(ratios[len(ratios)/4]-1), "%more-quartile1")
				b.ReportMetric(100*(ratios[len(ratios)*3/4]-1), "%more-quartile3")
			})
		}
	}
}

// An iteration of a benchmark ends what it has started.
type iteration struct {
	testing.TB
	cleanups []func()
}

func (i *iteration) Cleanup(f func()) { i.cleanups = append(i.cleanups, f) }

func (i *iteration) end() {
	for _, f := range slices.Backward(i.cleanups) {
		f()
	}
}

// compareCost makes blocks of calls with two clients in turn. Chance decides which one is first. It
// returns the processor time of a call of the first in nanoseconds, and the ratio of the second to
// it, as medians.
func compareCost(b *testing.B, clients [2]*yodel.Client, flight int) (ns, ratio float64) {
	b.Helper()
	var firsts, ratios []float64
	for range 20 {
		var took [2]float64
		first := rand.IntN(2)
		for _, i := range []int{first, 1 - first, 1 - first, first} {
			began := processorTime(b)
			calls := costBlock(b, clients[i], flight)
			took[i] += float64(processorTime(b)-began) / float64(2*calls)
		}
		firsts, ratios = append(firsts, took[0]), append(ratios, took[1]/took[0])
	}
	return median(firsts), median(ratios)
}

var costEcho = yodel.Method[[]byte, []byte]("Cost.Echo")

// costClient returns a client of a server that has learned that its method is short.
func costClient(b testing.TB, so *yodel.ServerOptions, co *yodel.ClientOptions) *yodel.Client {
	b.Helper()
	so.Codecs, co.Codec = []yodel.Codec{raw.Codec}, raw.Codec
	s := yodel.NewServer(so)
	costEcho.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	c := connect(b, s, co)
	for range 10 {
		costBlock(b, c, 1)
	}
	return c
}

// costBlock makes calls, as many as flight at a time, and returns how many.
func costBlock(b testing.TB, c *yodel.Client, flight int) (calls int) {
	b.Helper()
	args := make([]byte, 64)
	if flight == 1 {
		reply := make([]byte, 0, 64)
		for range 100 {
			reply = reply[:0]
			must(b, c.Call(context.Background(), string(costEcho), &args, &reply))
		}
		return 100
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, flight)
	for range 1000 {
		free <- struct{}{}
		wg.Add(1)
		costEcho.Then(context.Background(), c, &args, func(_ *[]byte, err error) {
			if err != nil {
				b.Error(err)
			}
			<-free
			wg.Done()
		})
	}
	wg.Wait()
	return 1000
}

// processorTime returns the processor time of the process.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
