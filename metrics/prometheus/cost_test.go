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
	server, client := &yodel.ServerOptions{Logger: quiet}, &yodel.ClientOptions{Codec: yodel.Raw, Logger: quiet}
	server.Codecs = []yodel.Codec{yodel.Raw}
	args, reply := make([]byte, 64), make([]byte, 0, 64)
	p := &pair{args: &args, reply: &reply}
	m := New(nil)
	newServer, newClient := yodel.NewServer, yodel.NewClient
	if measured {
		newServer = func(o *yodel.ServerOptions) *yodel.Server { return m.NewServer("s", o) }
		newClient = func(r yodel.Resolver, o *yodel.ClientOptions) *yodel.Client { return m.NewClient("c", r, o) }
	}
	s := newServer(server)
	echo.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil })
	p.client = newClient(yodel.Static(serve(t, s)), client)
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

// BenchmarkCall makes calls over loopback, client and server in one process, one at a time and a
// hundred at a time. The calls with metrics and those without them alternate in blocks, so that
// both see the same noise of the machine. It reports the processor time of the whole process for
// each kind.
func BenchmarkCall(b *testing.B) {
	for _, flight := range []int{1, 100} {
		b.Run(fmt.Sprint(flight), func(b *testing.B) {
			pairs := [2]*pair{newPair(b, false), newPair(b, true)}
			var took [2][]float64
			for b.Loop() {
				for i, p := range pairs {
					began := processorTime(b)
					p.block(b, flight)
					took[i] = append(took[i], float64(processorTime(b)-began)/block)
				}
			}
			without, with := median(took[0]), median(took[1])
			b.ReportMetric(without, "cpu-ns/call-without")
			b.ReportMetric(with, "cpu-ns/call-with")
			b.ReportMetric(100*(with/without-1), "%more")
		})
	}
}

const block = 4000

// block makes calls, as many as flight at a time.
func (p *pair) block(b *testing.B, flight int) {
	b.Helper()
	if flight == 1 {
		for range block {
			p.call(b)
		}
		return
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, flight)
	for range block {
		free <- struct{}{}
		wg.Add(1)
		echo.Then(context.Background(), p.client, p.args, func(_ *[]byte, err error) {
			if err != nil {
				b.Error(err)
			}
			<-free
			wg.Done()
		})
	}
	wg.Wait()
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
