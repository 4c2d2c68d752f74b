// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// The tests of this page run schedules of faults during which a server answers at every moment, and
// allow no failed call.

var schedules = flag.Duration("schedules", 0, "how long each schedule of faults runs, beside its short form")

// scheduled returns how long a schedule runs: less with the race detector, which takes ten times as
// long.
func scheduled(short time.Duration) time.Duration {
	return max(time.Duration(fewer(int(short), 12)), *schedules)
}

// A tally counts the calls of a schedule.
type tally struct {
	calls, succeeded, failed, inDoubt atomic.Int64
	longest                           atomic.Int64
}

// callers has n goroutines call c, each after a pause, until stop is called, which waits for them.
// What may have been executed is in doubt and not failed.
func (y *tally) callers(t *testing.T, c *yodel.Client, n int, pause time.Duration) (stop func()) {
	ended := make(chan struct{})
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for !isClosed(ended) {
				began := time.Now()
				_, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{})
				took := int64(time.Since(began))
				for longest := y.longest.Load(); took > longest && !y.longest.CompareAndSwap(longest, took); {
					longest = y.longest.Load()
				}
				y.calls.Add(1)
				switch {
				case err == nil:
					y.succeeded.Add(1)
				case !yodel.NotProcessed(err):
					y.inDoubt.Add(1)
				case y.failed.Add(1) <= 3:
					t.Errorf("call %d: %+v", y.calls.Load(), err)
				}
				time.Sleep(pause)
			}
		})
	}
	return func() {
		close(ended)
		wg.Wait()
	}
}

func (y *tally) log(t *testing.T) {
	t.Helper()
	t.Logf("%d calls, %d failed, %d in doubt, longest %v", y.calls.Load(), y.failed.Load(), y.inDoubt.Load(), time.Duration(y.longest.Load()))
}

func named3(kind string, n int) []string {
	addrs := []string{"a", "b", "c"}
	for i := range n {
		addrs = append(addrs, fmt.Sprintf("%s-%d", kind, i))
	}
	return addrs
}

// Three servers answer, and the resolver names instances besides that refuse or are silent. No call
// waits for those.
func TestInstancesThatDoNotAnswerCostNoCall(t *testing.T) {
	many, callers := fewer(2000, 20), fewer(4, 2)
	for _, s := range []struct {
		kind string
		n    int
	}{{"refusing", 3}, {"silent", 3}, {"refusing", many}, {"silent", many}} {
		t.Run(fmt.Sprint(s.n, s.kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, "a", "b", "c")
				var y tally
				stop := y.callers(t, f.client, callers, 10*time.Millisecond)
				time.Sleep(time.Second)
				f.resolver.set(named3(s.kind, s.n)...)
				time.Sleep(max(20*time.Second, *schedules)) // less would not let the pauses between attempts grow
				if n := f.most.Load(); n > 80 {
					t.Errorf("%d connections were being made at the same time", n)
				}
				dials := f.dials.Load()
				time.Sleep(10 * time.Second)
				if n := f.dials.Load() - dials; n > 2000 {
					t.Errorf("%d attempts to connect were made in 10 s", n)
				}
				f.resolver.set("a", "b", "c")
				f.knows(t, "a", "b", "c")
				stop()
				if y.longest.Load() > 0 {
					t.Errorf("a call took %v", time.Duration(y.longest.Load()))
				}
				y.log(t)
			})
		})
	}
}

// A new client finds the servers among instances that do not answer.
func TestANewClientFindsWhoAnswers(t *testing.T) {
	for _, s := range []struct {
		kind string
		n    int
	}{{"refusing", 2000}, {"silent", 30}} {
		t.Run(fmt.Sprint(s.n, s.kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, "a", "b", "c")
				for range 10 {
					c := yodel.NewClient(discovery.Static(named3(s.kind, s.n)...), &yodel.ClientOptions{Transport: transportFunc(f.dial)})
					began := time.Now()
					for range 20 {
						if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); err != nil {
							t.Error(err)
						}
					}
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("20 calls took %v", took)
					}
					c.Close()
				}
			})
		})
	}
}

// Two servers take turns: one is told to end when the other one, which was away, listens again.
func TestTwoServersThatTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		var y tally
		stop := y.callers(t, f.client, 8, time.Millisecond)
		here, away := "a", "b"
		f.stop(away)
		for end := time.Now().Add(scheduled(time.Minute)); time.Now().Before(end); {
			time.Sleep(500*time.Millisecond + rand.N(1500*time.Millisecond))
			f.start(t, away)
			f.stop(here)
			here, away = away, here
		}
		stop()
		y.log(t)
	})
}

// The connections to a single server are cut again and again. Calls that were not executed wait for
// the next one.
func TestResetsOfASingleServer(t *testing.T) {
	for _, every := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 2 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, "a")
				var y tally
				stop := y.callers(t, f.client, 8, time.Millisecond)
				for end := time.Now().Add(scheduled(20 * time.Second)); time.Now().Before(end); {
					time.Sleep(every)
					f.cut("a")
				}
				stop()
				y.log(t)
			})
		})
	}
}

// The same through sockets, with resets.
func TestResetsOfASingleServerThroughSockets(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	var mu sync.Mutex
	var conns []*net.TCPConn
	c := newClient(t, &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler), Transport: transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := yodel.TCP.Dial(ctx, addr)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn.(*net.TCPConn))
		}
		return conn, err
	})}, addr)
	var y tally
	stop := y.callers(t, c, 8, time.Millisecond)
	for end := time.Now().Add(scheduled(3 * time.Second)); time.Now().Before(end); {
		before := y.succeeded.Load()
		time.Sleep(40 * time.Millisecond)
		until(t, "a call succeeds between two cuts", func() bool { return y.succeeded.Load() > before })
		mu.Lock()
		for _, conn := range conns {
			_ = conn.SetLinger(0)
			_ = conn.Close()
		}
		conns = nil
		mu.Unlock()
	}
	stop()
	y.log(t)
}

// A call that was certainly not executed, because its connection broke the protocol, goes to
// another endpoint.
func TestAConnectionThatBrokeTheProtocolCostsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		c := yodel.NewClient(discovery.Static("a", "b"), &yodel.ClientOptions{
			Transport: f.network,
			EndpointMiddleware: []yodel.EndpointMiddleware{func(ep *yodel.Endpoint, next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if ep.Addr() == "a" {
						return &yodel.Error{Code: yodel.Internal, ID: "YDL1106", Message: "it sent nonsense", NotProcessed: true}
					}
					return next(ctx, call)
				}
			}},
		})
		defer c.Close()
		for range 10 {
			if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call without a deadline does not wait for ever for servers that are gone. Each of its attempts
// waits for one search, which begins to dial within 300 ms. Once a call has failed at both, further
// calls make one attempt.
func TestCallsDoNotWaitForAServerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t, "a", "b")
		f.stop("a")
		f.stop("b")
		for i := range 50 {
			began := time.Now()
			_, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{})
			longest := 300 * time.Millisecond
			if i == 0 {
				longest *= 2
			}
			if !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) || time.Since(began) > longest {
				t.Errorf("call %d: got %v after %v", i, err, time.Since(began))
			}
		}
		f.start(t, "b")
		if _, err := inspect.Ping.Call(t.Context(), f.client, &inspect.Empty{}); err != nil {
			t.Error(err)
		}
	})
}

// hangs reports whether nobody answers at addr, and the network does not say so.
func hangs(addr string) bool { return strings.HasPrefix(addr, "silent") }

// Random calls with everything that can happen to them, in fake time, against what keyed order
// promises.

// A history is what happened, each event at an instant of its own.
type history struct {
	mu    sync.Mutex
	now   int
	cuts  []int // connections were cut, or a server was ended or drained
	calls map[string][]*fate
}

// A fate is what became of a call.
type fate struct {
	key        string
	n          int
	begun      int       // when it was to be made
	made       int       // when whoever made it went on
	told       int       // when its caller was told
	madeAt     time.Time // fake time then, and at told
	toldAt     time.Time
	err        error
	left       bool // its caller had given up by then
	sync       bool // made with Do, which does not wait for callbacks
	limited    bool // its time may pass
	oneWay     bool
	idempotent bool
	runs       []run
}

// String says all that is known of the call.
func (f *fate) String() string {
	return fmt.Sprintf("%d, one-way %t, idempotent %t, made with Do %t, begun at %d, made at %d, %v, told at %d, %v, executed at %v: %v",
		f.n, f.oneWay, f.idempotent, f.sync, f.begun, f.made, f.madeAt.Format(clockOfTest), f.told, f.toldAt.Format(clockOfTest), f.runs, f.err)
}

const clockOfTest = "05.000000000"

// A run is one execution.
type run struct{ begun, ended int }

func (h *history) instant() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	return h.now
}

func (h *history) cut() {
	at := h.instant()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cuts = append(h.cuts, at)
}

// cutBetween reports whether a connection was cut between two instants.
func (h *history) cutBetween(from, to int) bool {
	return slices.ContainsFunc(h.cuts, func(at int) bool { return from < at && at < to })
}

// gaveUp reports whether a caller left before the outcome was known, out of turn then.
func (f *fate) gaveUp() bool {
	return f.left || errors.Is(f.err, yodel.Canceled) || errors.Is(f.err, yodel.DeadlineExceeded)
}

// uncertain reports whether a caller was told that its call may have been executed, or was told
// nothing.
func (f *fate) uncertain() bool { return f.oneWay || f.err != nil && !yodel.NotProcessed(f.err) }

// check looks for what must not have happened.
func (h *history) check(t *testing.T) {
	for _, calls := range h.calls {
		for i, f := range calls {
			h.checkRuns(t, f)
			for _, later := range calls[i+1:] {
				h.checkPair(t, f, later)
			}
		}
	}
}

// checkRuns checks how often a call was executed.
func (h *history) checkRuns(t *testing.T, f *fate) {
	t.Attr("rerun", "never")
	switch n := len(f.runs); {
	case f.told == 0:
		t.Errorf("%s %d was never told", f.key, f.n)
	case n > 0 && yodel.NotProcessed(f.err):
		t.Errorf("%s %d was executed, and its caller was told %v", f.key, f.n, f.err)
	case n == 0 && f.err == nil && !f.oneWay:
		t.Errorf("%s %d succeeded without having been executed", f.key, f.n)
	case n > 1 && !f.idempotent:
		t.Errorf("%s %d was executed %d times", f.key, f.n, n)
	case f.oneWay && f.err == nil && n == 0 && !f.limited && !h.cutBetween(0, h.now):
		t.Errorf("the one-way call %s %d was not executed", f.key, f.n)
	}
}

// toldBefore reports whether the caller of f may have been told its outcome before later was made.
// The client begins to tell a caller before the first statement of the callback runs, and a call
// that is made between the two is made at the same fake time: a goroutine that has begun to tell
// can run, and time stands still until no goroutine can. At an earlier fake time the client had
// not begun.
func (f *fate) toldBefore(later *fate) bool {
	if f.oneWay {
		return f.made < later.made
	}
	return f.told < later.made || f.toldAt.Equal(later.madeAt)
}

// checkPair checks that a call was not overtaken by a later one, unless its caller had been told
// that nobody knows what became of it, with a connection, before the later one was made.
func (h *history) checkPair(t *testing.T, f, later *fate) {
	for _, b := range later.runs {
		for _, a := range f.runs {
			excused := f.uncertain() && f.toldBefore(later) && h.cutBetween(f.begun, b.begun)
			overlap := b.begun < a.ended && len(f.runs) == 1
			if (b.begun < a.begun || overlap) && !excused {
				t.Errorf("%s: %d ran at %v although %d ran at %v (%v; %v)",
					f.key, later.n, b, f.n, a, later, f)
			}
		}
	}
	if !f.gaveUp() && !later.gaveUp() && !later.sync && f.told > later.told {
		t.Errorf("%s: %d was told at %d, and %d at %d: %v, %v", f.key, f.n, f.told, later.n, later.told, f.err, later.err)
	}
}

// A chaos is a random test: its servers and its client.
type chaos struct {
	history
	t       *testing.T
	seed    uint64
	random  *rand.Rand // of whoever makes the calls
	network *mem.Network
	timed   bool // all calls of the client may be late

	serversMu sync.Mutex
	servers   map[string]*chaosServer
}

type chaosServer struct {
	*yodel.Server
	conns  map[net.Conn]bool
	served chan error
}

func (c *chaos) serve(addr string) {
	refusals := rand.New(rand.NewPCG(c.seed, 7))
	var mu sync.Mutex
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return refusals.IntN(n) == 0
	}
	s := &chaosServer{conns: make(map[net.Conn]bool), served: make(chan error, 1)}
	s.Server = yodel.NewServer(&yodel.ServerOptions{
		Connect: func(_ context.Context, peer *yodel.Peer) error {
			c.serversMu.Lock()
			defer c.serversMu.Unlock()
			s.conns[peer.Conn] = true
			return nil
		},
		Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if !call.OneWay && chance(20) {
					return &yodel.Error{Code: []yodel.Code{yodel.Unavailable, yodel.ResourceExhausted}[call.Attempt%2], Message: "not now", NotProcessed: true}
				}
				return next(ctx, call)
			}
		}},
	})
	Run.Handle(s.Server, func(ctx context.Context, step *Step) (*Step, error) {
		return step, c.execute(ctx, step, chance)
	})
	l, err := c.network.Listen(addr)
	must(c.t, err)
	go func() { s.served <- s.Serve(context.Background(), l) }()
	c.serversMu.Lock()
	defer c.serversMu.Unlock()
	c.servers[addr] = s
}

// execute is the handler.
func (c *chaos) execute(ctx context.Context, step *Step, chance func(int) bool) error {
	c.mu.Lock()
	f := c.calls[step.Key][step.N]
	c.now++
	i := len(f.runs)
	f.runs = append(f.runs, run{begun: c.now, ended: 1 << 60})
	c.mu.Unlock()
	d := time.Duration((step.N*7919+len(step.Key)*104729)%2000) * time.Microsecond
	if chance(2) {
		time.Sleep(d) // without regard to the context
	} else {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	f.runs[i].ended = c.now
	if chance(8) {
		return yodel.Errorf([]yodel.Code{yodel.Unavailable, yodel.NotFound}[step.N%2], "executed, and failed")
	}
	return nil
}

// disturb does something to a server.
func (c *chaos) disturb(addr string, how int) {
	c.serversMu.Lock()
	s := c.servers[addr]
	c.serversMu.Unlock()
	c.cut()
	switch how {
	case 0, 1: // its connections are lost
		c.serversMu.Lock()
		defer c.serversMu.Unlock()
		for nc := range s.conns {
			nc.Close()
		}
		clear(s.conns)
		return
	case 2: // it restarts and finishes what it has
		_ = s.Shutdown(context.Background())
	default: // it restarts at once
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx)
	}
	<-s.served
	c.cut()
	c.serve(addr)
}

// options makes a client of one kind or another.
func (c *chaos) options() *yodel.ClientOptions {
	o := &yodel.ClientOptions{Transport: c.network, Logger: slog.New(slog.DiscardHandler), ConnsPerEndpoint: 1 + c.random.IntN(2)}
	o.Limits.MaxOpen = []int{0, 0, 1, 3}[c.random.IntN(4)]
	switch c.random.IntN(5) {
	case 0: // the direct way
	case 4:
		c.timed = true
		o.Middleware = []yodel.Middleware{stubborn}
	case 1:
		o.Middleware = []yodel.Middleware{retry.Times(4)}
	case 2:
		c.timed = true
		o.Middleware = []yodel.Middleware{timeout.After(30 * time.Millisecond), retry.Times(4), timeout.After(10 * time.Millisecond)}
	default:
		o.EndpointMiddleware = []yodel.EndpointMiddleware{func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Args.(*Step).N%17 == 5 && call.Attempt < 2 {
					return &yodel.Error{Code: yodel.Unavailable, Message: "not here", NotProcessed: true}
				}
				return next(ctx, call)
			}
		}}
	}
	return o
}

// stubborn is middleware that makes idempotent calls again, also after their time, without asking
// whether it may.
func stubborn(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		short, cancel := context.WithTimeout(ctx, 3*time.Millisecond)
		defer cancel()
		err := next(short, call)
		for range 3 {
			if err == nil || !yodel.NotProcessed(err) && !call.Idempotent {
				break
			}
			if code := yodel.CodeOf(err); code != yodel.Unavailable && code != yodel.DeadlineExceeded {
				break
			}
			time.Sleep(time.Millisecond)
			err = next(ctx, call)
		}
		return err
	}
}

// call makes a call.
func (c *chaos) call(client *yodel.Client, f *fate, ended *sync.WaitGroup) {
	call := stepOf(f.key, f.n)
	call.Idempotent = f.idempotent
	if f.oneWay {
		call.OneWay, call.Reply = true, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	switch c.random.IntN(12) {
	case 0:
		time.AfterFunc(time.Duration(c.random.IntN(20_000))*time.Microsecond, cancel)
	case 1:
		f.limited = true
		call.Deadline = time.Now().Add(time.Duration(c.random.IntN(20_000)) * time.Microsecond)
	}
	told := func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now++
		if f.told != 0 {
			c.t.Errorf("%s %d was told twice", f.key, f.n)
		}
		f.told, f.toldAt, f.err = c.now, time.Now(), err
		f.left = ctx.Err() != nil || !call.Deadline.IsZero() && !time.Now().Before(call.Deadline)
		cancel()
	}
	f.sync, f.limited = c.random.IntN(30) == 0, f.limited || c.timed
	f.begun = c.instant()
	if f.sync {
		told(client.Do(ctx, call))
	} else {
		ended.Add(1)
		client.Go(ctx, call, func(err error) {
			defer ended.Done()
			told(err)
		})
	}
	at := c.instant()
	c.mu.Lock()
	defer c.mu.Unlock()
	f.made, f.madeAt = at, time.Now()
}

func runChaos(t *testing.T, seed uint64, calls int) {
	c := &chaos{
		history: history{calls: make(map[string][]*fate)}, t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)),
		network: mem.New(), servers: make(map[string]*chaosServer),
	}
	addrs := []string{"one", "two", "three"}[:1+c.random.IntN(3)]
	for _, addr := range addrs {
		c.serve(addr)
	}
	client := yodel.NewClient(discovery.Static(addrs...), c.options())
	must(t, client.Ready(context.Background()))
	stuck := time.AfterFunc(10*time.Minute, func() { panic(fmt.Sprint("seed ", seed, ": calls have not ended")) })
	defer stuck.Stop()
	calm := c.random.IntN(4) == 0
	stop := make(chan struct{})
	var wild, ended sync.WaitGroup
	if !calm {
		wild.Go(func() {
			random := rand.New(rand.NewPCG(seed, 2))
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(random.IntN(60)) * time.Millisecond):
					c.disturb(addrs[random.IntN(len(addrs))], random.IntN(4))
				}
			}
		})
	}
	for range calls {
		f := &fate{key: fmt.Sprint("key", c.random.IntN(3)), oneWay: c.random.IntN(10) == 0, idempotent: c.random.IntN(3) == 0, made: 1 << 60}
		c.mu.Lock()
		f.n = len(c.calls[f.key])
		c.calls[f.key] = append(c.calls[f.key], f)
		c.mu.Unlock()
		c.call(client, f, &ended)
		if c.random.IntN(20) == 0 {
			time.Sleep(time.Duration(c.random.IntN(5_000)) * time.Microsecond)
		}
	}
	ended.Wait()
	close(stop)
	wild.Wait()
	time.Sleep(10 * time.Second)
	if n := client.OrderedKeys(); n != 0 {
		t.Errorf("%d keys are remembered", n)
	}
	client.Close()
	for _, s := range c.servers {
		_ = s.Shutdown(context.Background())
		<-s.served
	}
	synctest.Wait()
	c.check(t)
}

func TestOrderHoldsWhateverHappens(t *testing.T) {
	t.Attr("rerun", "never")
	rounds := 60
	if raceEnabled || testing.Short() {
		rounds = 15
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runChaos(t, uint64(seed), 300) })
		})
	}
}
