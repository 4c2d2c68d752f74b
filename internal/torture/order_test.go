// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// callsEnv is how many calls TestKeyedOrder makes, for example 1000000.
const callsEnv = "YODEL_TORTURE_CALLS"

// A Step is number N of a key.
type Step struct{ Key, N int }

const step yodel.Method[Step, Step] = "Torture.Step"

// serveSteps registers what the tests of keyed order call, in a process that may be killed. Each
// execution prints when it began and when it ended.
func serveSteps(s *yodel.Server) {
	step.Handle(s, func(ctx context.Context, in *Step) (*Step, error) {
		say := func(what string) {
			// the parent may be gone
			_, _ = fmt.Fprintf(os.Stdout, "%s %d %d %d\n", what, in.Key, in.N, time.Now().UnixNano())
		}
		say("begin")
		defer say("end")
		select {
		case <-time.After(time.Duration(in.N*7919%2000) * time.Microsecond):
		case <-ctx.Done():
		}
		return in, nil
	})
}

// refuseSteps is server middleware that refuses one in twenty of them.
func refuseSteps(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if call.Method == string(step) && !call.OneWay && rand.IntN(20) == 0 {
			return &yodel.Error{Code: yodel.Unavailable, Message: "not now", NotProcessed: true}
		}
		return next(ctx, call)
	}
}

// TestKeyedOrder makes calls with 64 keys to a method that takes up to 2 ms, for at most 10 at
// once. Ordered, none begins and none is told out of order, and there are as many of them in a
// second as without an order. A single key has one tenth of that.
func TestKeyedOrder(t *testing.T) {
	t.Attr("rerun", "never")
	const keys, workers = 64, 10
	calls := 20_000
	if raceEnabled || testing.Short() {
		calls = 3000
	}
	if v := os.Getenv(callsEnv); v != "" {
		var err error
		if calls, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	r := &racecourse{begun: make([]atomic.Int64, keys), told: make([]atomic.Int64, keys), busy: make(chan struct{}, workers)}
	c := r.serve(t)
	one := r.run(t, c, 1, calls/40, true)
	begun, told := r.inversions()
	var plain, ordered float64
	var wildBegun, wildTold int64
	for i := range 4 { // by turns, so that what else the machine does hits both
		if i == 1 || i == 2 {
			ordered += r.run(t, c, keys, calls/2, true) / 2
			b, o := r.inversions()
			begun, told = begun+b, told+o
			continue
		}
		plain += r.run(t, c, keys, calls/2, false) / 2
		b, o := r.inversions()
		wildBegun, wildTold = wildBegun+b, wildTold+o
	}
	t.Logf("%d calls, %d keys, %d at once: %.0f calls/s without an order (%d begun and %d told out of order), %.0f calls/s ordered (%d begun, %d told), %.1f %%; %.0f calls/s with one key, %.1f times as many with %d",
		calls, keys, workers, plain, wildBegun, wildTold, ordered, begun, told, 100*ordered/plain, one, ordered/one, keys)
	if begun+told != 0 {
		t.Errorf("%d calls were begun out of order, and %d told", begun, told)
	}
	if wildBegun == 0 {
		t.Error("without an order nothing was out of order: the test does not test anything")
	}
	if raceEnabled {
		return
	}
	if ordered < 0.8*plain {
		t.Errorf("%.0f calls/s are less than 80 %% of %.0f", ordered, plain)
	}
	if ordered < 0.8*workers*one {
		t.Errorf("%.0f calls/s are less than 80 %% of %d times %.0f", ordered, workers, one)
	}
}

// A racecourse counts what overtakes.
type racecourse struct {
	begun, told         []atomic.Int64 // by key, the newest number
	busy                chan struct{}
	overtook, overtaken atomic.Int64
}

func (r *racecourse) inversions() (begun, told int64) { return r.overtook.Swap(0), r.overtaken.Swap(0) }

// serve runs the server in this process, behind a socket.
func (r *racecourse) serve(t *testing.T) *yodel.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(nil)
	step.Handle(s, func(_ context.Context, in *Step) (*Step, error) {
		if r.begun[in.Key].Swap(int64(in.N)) != int64(in.N)-1 {
			r.overtook.Add(1)
		}
		r.busy <- struct{}{}
		<-time.After(time.Duration(rand.IntN(2000)) * time.Microsecond)
		<-r.busy
		return in, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	c := yodel.Dial(l.Addr().String())
	t.Cleanup(func() {
		c.Close()
		cancel()
		<-served
	})
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// run makes calls, many at once, and returns how many there were in a second.
func (r *racecourse) run(t *testing.T, c *yodel.Client, keys, calls int, ordered bool) float64 {
	t.Helper()
	for key := range r.begun {
		r.begun[key].Store(0)
		r.told[key].Store(0)
	}
	const open = 2000
	tokens := make(chan struct{}, open)
	names := make([]string, keys)
	for key := range names {
		names[key] = fmt.Sprint("key ", key)
	}
	began := time.Now()
	for i := range calls {
		key, n := i%keys, i/keys+1
		tokens <- struct{}{}
		call := &yodel.Call{Method: string(step), Args: &Step{key, n}, Reply: new(Step), Key: names[key], Ordered: ordered}
		c.Go(context.Background(), call, func(err error) {
			if err != nil {
				t.Error(err)
			}
			if r.told[key].Swap(int64(n)) != int64(n)-1 {
				r.overtaken.Add(1)
			}
			<-tokens
		})
	}
	for range open {
		tokens <- struct{}{}
	}
	return float64(calls) / time.Since(began).Seconds()
}

// note takes in what serveSteps prints.
func (c *child) note(line string) {
	var what string
	var s Step
	var at int64
	if n, _ := fmt.Sscanf(line, "%s %d %d %d", &what, &s.Key, &s.N, &at); n < 4 { // it was killed while it printed
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if what == "begin" {
		c.steps[s] = append(c.steps[s], run{began: at})
		return
	}
	runs := c.steps[s] // the last one that has not ended: executions of a step do not overlap on one server
	runs[len(runs)-1].ended = at
}

func (c *child) runs(key, n int) []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.steps[Step{key, n}])
}

// catchUp returns when all that the process has printed by now has been taken in.
func (c *child) catchUp(t *testing.T, id int) {
	t.Helper()
	client := yodel.Dial(c.addr)
	defer client.Close()
	if _, err := once.Call(t.Context(), client, &Job{id}); err != nil { // which prints a line
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for known := false; !known; <-tick.C {
		c.mu.Lock()
		known = c.executed[id] > 0
		c.mu.Unlock()
	}
}

// A fate is what became of one step.
type fate struct {
	made, told         int64 // when
	err                error
	oneWay, idempotent bool
	runs               []run
}

// A run is one execution; ended is 0 when the process was killed before.
type run struct{ began, ended int64 }

// TestKeyedOrderWhenServersAreKilled kills a server twenty times while ordered calls are made,
// canceled, refused and retried. Nothing begins before a call made earlier has ended, unless the
// caller of that one had been told before that nobody knows what became of it; nothing is executed
// twice that may not be.
func TestKeyedOrderWhenServersAreKilled(t *testing.T) {
	t.Attr("rerun", "never")
	const rounds, keys, each = 20, 16, 60
	survivor := start(t)
	var interrupted, behind, executed int
	for round := range rounds {
		victim := start(t)
		o := &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler)} // which is told of lost one-way calls
		switch round % 3 {
		case 1:
			o.Middleware = []yodel.Middleware{retry.Times(4)}
		case 2:
			o.Limits.MaxOpen = 1
		}
		c := yodel.NewClient(discovery.Static(victim.addr, survivor.addr), o)
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		fates := make([][]*fate, keys)
		var ended sync.WaitGroup
		kill := keys * each * (1 + round%4) / 5
		for i := range keys * each {
			if i == kill {
				ended.Go(victim.kill)
			}
			f := &fate{oneWay: rand.IntN(10) == 0, idempotent: rand.IntN(3) == 0}
			key := i % keys
			fates[key] = append(fates[key], f)
			goStep(c, f, fmt.Sprint(round, " ", key), Step{round*keys + key, i / keys}, &ended)
		}
		ended.Wait()
		c.Close()
		victim.kill()
		survivor.catchUp(t, round)
		for key, steps := range fates {
			for n, f := range steps {
				f.runs = append(victim.runs(round*keys+key, n), survivor.runs(round*keys+key, n)...)
				executed += len(f.runs)
				switch {
				case yodel.NotProcessed(f.err) && errors.Is(f.err, yodel.Aborted):
					behind++
				case f.err != nil && !yodel.NotProcessed(f.err):
					interrupted++
				}
			}
			checkSteps(t, fmt.Sprintf("round %d, key %d", round, key), steps)
		}
	}
	t.Logf("%d kills, %d calls: %d executions, %d calls with an unknown outcome, %d not sent because of one", rounds, rounds*keys*each, executed, interrupted, behind)
	if interrupted == 0 || behind == 0 {
		t.Error("no call was interrupted, or none was behind one: the test did not test anything")
	}
}

// goStep makes a call.
func goStep(c *yodel.Client, f *fate, key string, s Step, ended *sync.WaitGroup) {
	call := &yodel.Call{Method: string(step), Args: &s, Reply: new(Step), Key: key, Ordered: true, Idempotent: f.idempotent}
	if f.oneWay {
		call.OneWay, call.Reply = true, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	switch rand.IntN(15) {
	case 0:
		time.AfterFunc(time.Duration(rand.IntN(50))*time.Millisecond, cancel)
	case 1:
		call.Deadline = time.Now().Add(time.Duration(rand.IntN(50)) * time.Millisecond)
	}
	ended.Add(1)
	c.Go(ctx, call, func(err error) {
		defer ended.Done()
		f.told, f.err = time.Now().UnixNano(), err
		cancel()
	})
	f.made = time.Now().UnixNano()
}

// checkSteps checks the steps of one key.
func checkSteps(t *testing.T, key string, steps []*fate) {
	t.Helper()
	t.Attr("rerun", "never")
	for n, f := range steps {
		switch {
		case len(f.runs) > 1 && !f.idempotent:
			t.Errorf("%s: step %d was executed %d times", key, n, len(f.runs))
		case len(f.runs) > 0 && yodel.NotProcessed(f.err):
			t.Errorf("%s: step %d was executed, and its caller was told %v", key, n, f.err)
		case len(f.runs) == 0 && f.err == nil && !f.oneWay:
			t.Errorf("%s: step %d succeeded without having been executed", key, n)
		}
		uncertain := f.oneWay || f.err != nil && !yodel.NotProcessed(f.err)
		for m, later := range steps[n+1:] {
			if uncertain && f.told < later.made {
				continue
			}
			for _, b := range later.runs {
				for _, a := range f.runs {
					if b.began < a.began || b.began < a.ended && len(f.runs) == 1 {
						t.Errorf("%s: step %d began at %d, before step %d had ended: %+v (%v; %v)", key, n+1+m, b.began, n, a, f.err, later.err)
					}
				}
			}
		}
	}
}
