// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
)

// blocker is the value of serverEnv that makes the test binary the server of
// TestBlockingHandlersAreNeverThePrice, with no option set.
const blocker = "blocker"

const (
	short    yodel.Method[Job, Done] = "Torture.Short"    // does nothing
	sleeper  yodel.Method[Job, Done] = "Torture.Sleeper"  // always takes 1 ms
	deceiver yodel.Method[Job, Done] = "Torture.Deceiver" // is short until nobody expects anything else
)

// The deceiver's ways.
const (
	deceiverShort = 10_000 // calls that are short before any is not
	deceiverEach  = 1_000  // afterwards, one of so many
	deceiverSleep = 100 * time.Millisecond
)

// serveBlocking serves until its standard input ends.
func serveBlocking() {
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	var calls atomic.Int64
	short.Handle(s, func(_ context.Context, job *Job) (*Done, error) { return &Done{job.ID}, nil })
	sleeper.Handle(s, func(_ context.Context, job *Job) (*Done, error) {
		<-time.After(time.Millisecond)
		return &Done{job.ID}, nil
	})
	deceiver.Handle(s, func(_ context.Context, job *Job) (*Done, error) {
		if n := calls.Add(1); n > deceiverShort && n%deceiverEach == 0 {
			<-time.After(deceiverSleep)
		}
		return &Done{job.ID}, nil
	})
	l, err := yodel.TCP.Listen("127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if err := s.Serve(ctx, l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestBlockingHandlersAreNeverThePrice calls a short method beside one that always sleeps and one
// that was short for 10,000 calls and then sleeps 100 ms once in 1,000, on the same connection,
// with no option set on either side. Latency counts from when a call was due, so that calls that
// wait for others are not left out.
func TestBlockingHandlersAreNeverThePrice(t *testing.T) {
	if raceEnabled {
		t.Skip("it judges latency, which make test-timing does")
	}
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	server := start(t, serverEnv+"="+blocker)
	c := yodel.Dial(server.addr)
	defer c.Close()
	for id := range deceiverShort {
		if _, err := deceiver.Call(t.Context(), c, &Job{id}); err != nil {
			t.Fatal(err)
		}
	}
	alone := yodel.Dial(server.addr)
	defer alone.Close()
	const bound = 5 * time.Millisecond
	// A machine that does something else meanwhile is slow in some windows, and for calls on a
	// connection of their own too. A server that makes calls wait is slow in all windows, and not
	// for those.
	const windows = 5
	good := false
	for n := 0; n < windows && !good; n++ {
		shorts, control, sleeps := mix(t, c, alone, time.Second)
		p99, most := percentile99(shorts), max(bound, 2*percentile99(control))
		good = p99 <= most
		t.Logf("%d short calls beside others, of which %d slept 100 ms: p50 %v, p99 %v, want at most %v, p99.9 %v, max %v",
			len(shorts), sleeps, shorts[len(shorts)/2], p99, most, shorts[len(shorts)*999/1000], shorts[len(shorts)-1])
		if sleeps == 0 {
			t.Error("nothing slept: the test did not test anything")
		}
	}
	if !good {
		t.Errorf("in each of %d windows a short call took longer than %v, and than twice what one took on a connection of its own (p99)", windows, bound)
	}
	stats, err := inspect.Stats.Call(t.Context(), c, &inspect.Empty{})
	if err != nil || stats.Conns != 2 {
		t.Errorf("want all that on two connections, got %v, %v", stats, err)
	}
}

// percentile99 is the 99th percentile of what is in order.
func percentile99(took []time.Duration) time.Duration { return took[len(took)*99/100] }

// mix makes 2 short calls, 1 of the sleeper and 10 of the deceiver each millisecond, all from one
// goroutine. It makes another short call by alone. It returns how long the short ones took, in
// order, how long those by alone took, and how many of the deceiver's were not short.
func mix(t *testing.T, c, alone *yodel.Client, lasts time.Duration) (shorts, control []time.Duration, sleeps int) {
	t.Helper()
	var mu sync.Mutex
	var open sync.WaitGroup
	call := func(c *yodel.Client, method yodel.Method[Job, Done], id int, due time.Time, ended func(took time.Duration)) {
		open.Add(1)
		method.Then(t.Context(), c, &Job{id}, func(done *Done, err error) {
			defer open.Done()
			took := time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || done.ID != id {
				t.Errorf("call %d of %s: %v, %v", id, method, done, err)
			}
			ended(took)
		})
	}
	const every = time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	// a tick that comes late has all its calls to make
	for begin, n := time.Now(), 0; time.Since(begin) < lasts; <-tick.C {
		for ; time.Duration(n)*every <= time.Since(begin); n++ {
			due := begin.Add(time.Duration(n) * every)
			call(c, sleeper, n, due, func(time.Duration) {})
			for i := range 10 {
				call(c, deceiver, i, due, func(took time.Duration) {
					if took >= deceiverSleep {
						sleeps++
					}
				})
			}
			for i := range 2 {
				call(c, short, i, due, func(took time.Duration) { shorts = append(shorts, took) })
			}
			call(alone, short, n, due, func(took time.Duration) { control = append(control, took) })
		}
	}
	open.Wait()
	slices.Sort(shorts)
	slices.Sort(control)
	return shorts, control, sleeps
}
