// SPDX-License-Identifier: Apache-2.0

//go:build unix

package torture_test

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A farm is servers with addresses that they keep when they are killed and started again.
type farm struct {
	servers []*child
	past    []*child // those that were killed
}

func newFarm(t *testing.T, n int) *farm {
	t.Helper()
	f := &farm{}
	for range n {
		f.servers = append(f.servers, launch(t))
	}
	for _, c := range f.servers {
		c.listens(t)
	}
	return f
}

func (f *farm) addrs() (all []string) {
	for _, c := range f.servers {
		all = append(all, c.addr)
	}
	return all
}

func (f *farm) signal(t *testing.T, s os.Signal) {
	t.Helper()
	for _, c := range f.servers {
		if err := c.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

// restart starts servers where those listened that were killed, and returns when they listen.
func (f *farm) restart(t *testing.T) {
	t.Helper()
	for i, c := range f.servers {
		c.kill() // it is dead
		f.past = append(f.past, c)
		f.servers[i] = launch(t, addrEnv+"="+c.addr)
	}
	for _, c := range f.servers {
		c.listens(t)
	}
}

// executions kills all, and returns how often each job was executed.
func (f *farm) executions() map[int]int {
	sum := map[int]int{}
	for _, c := range append(f.past, f.servers...) {
		c.kill()
		for id, n := range c.executed {
			sum[id] += n
		}
	}
	return sum
}

// moments are when something happened.
type moments struct {
	mu sync.Mutex
	at []time.Time
}

func (m *moments) add() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = append(m.at, time.Now())
}

// within is how long what may come at once is counted.
const within = 100 * time.Millisecond

// between returns how often it happened, how often at most within 100 ms, and the longest time
// without it.
func (m *moments) between(from, to time.Time) (n, most int, longest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var recent []time.Time
	last := from
	for _, at := range m.at { // as good as sorted
		if at.Before(from) || !at.Before(to) {
			continue
		}
		n, longest, last = n+1, max(longest, at.Sub(last)), at
		recent = append(recent, at)
		for at.Sub(recent[0]) >= within {
			recent = recent[1:]
		}
		most = max(most, len(recent))
	}
	return n, most, max(longest, to.Sub(last))
}

// A dialler counts attempts to connect.
type dialler struct {
	yodel.Transport

	dials *moments
}

func (d dialler) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d.dials.add()
	return d.Transport.Dial(ctx, addr)
}

// A paced call is one of many that are made whatever becomes of the others.
type paced struct {
	id, client int
	made       time.Time
	err        error
}

// method returns one that may be executed once for every fifth call.
func (p *paced) method() yodel.Method[Job, Done] {
	if p.id%5 == 0 {
		return once
	}
	return twice
}

// Traffic is clients that make calls.
type traffic struct {
	clients                []*yodel.Client
	calls, attempts, dials moments // below everything: retries, hedges, and what the client sends elsewhere by itself

	pacers, open sync.WaitGroup
	mu           sync.Mutex
	made         int
	ended        []*paced
	succeeded    []int // of each client
}

func newTraffic(clients int, addrs []string) *traffic {
	r := &traffic{succeeded: make([]int, clients)}
	count := func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			r.attempts.add()
			return next(ctx, call)
		}
	}
	for range clients {
		r.clients = append(r.clients, yodel.NewClient(discovery.Static(addrs...), recommended.Client(&yodel.ClientOptions{
			Timeout: 1500 * time.Millisecond, Transport: dialler{yodel.TCP, &r.dials}, EndpointMiddleware: []yodel.EndpointMiddleware{count},
		})))
	}
	return r
}

// run makes a hundred calls a second from each client until ctx ends.
func (r *traffic) run(ctx context.Context) {
	for i, c := range r.clients {
		r.pacers.Go(func() {
			tick := time.NewTicker(time.Second / 100)
			defer tick.Stop()
			began := time.Now()
			for n := 0; ctx.Err() == nil; {
				// also what should have been made while others had the processors
				for ; n < int(time.Since(began)/(time.Second/100)); n++ {
					r.open.Go(func() { r.call(c, i) }) //nolint:contextcheck // a call may outlive the traffic
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
}

func (r *traffic) call(c *yodel.Client, client int) {
	r.mu.Lock()
	r.made++
	p := &paced{id: r.made, client: client, made: time.Now()}
	r.mu.Unlock()
	r.calls.add()
	_, p.err = p.method().Call(context.Background(), c, &Job{p.id})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, p)
	if p.err == nil {
		r.succeeded[client]++
	}
}

// warm returns when each client has made so many calls that hedges know what is slow.
func (r *traffic) warm() {
	const enough = 150
	for cold := true; cold; {
		<-time.After(10 * time.Millisecond)
		r.mu.Lock()
		cold = slices.Min(r.succeeded) < enough
		r.mu.Unlock()
	}
}

// end ends the traffic. All its calls have their time to end.
func (r *traffic) end() {
	r.pacers.Wait()
	r.open.Wait()
	for _, c := range r.clients {
		c.Close()
	}
}

// TestTotalOutage has all servers of eight clients with the recommended chain killed, and started
// again where they were; and then stopped, so that their connections stay and nobody answers, and
// continued. Meanwhile there are few more attempts than calls, and afterwards neither a stampede
// nor a long wait; and nothing is executed twice that may not be.
func TestTotalOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	for name, how := range map[string]func(t *testing.T, f *farm) (begin, end func()){
		"killed": func(t *testing.T, f *farm) (begin, end func()) {
			t.Helper()
			return func() { f.signal(t, syscall.SIGKILL) }, func() { f.restart(t) }
		},
		"stopped": func(t *testing.T, f *farm) (begin, end func()) {
			t.Helper()
			return func() { f.signal(t, syscall.SIGSTOP) }, func() { f.signal(t, syscall.SIGCONT) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			yodeltest.NoLeaks(t)
			const servers, clients = 3, 8
			f := newFarm(t, servers)
			r := newTraffic(clients, f.addrs())
			begin, end := how(t, f)
			o := r.suffer(t, begin, end)
			o.checkMeanwhile(t)
			o.checkReturn(t, servers*clients)
			r.checkExecutions(t, f.executions())
		})
	}
}

// An outage is when everything was: it began; it began to end; all servers listened; and nobody
// looked any more.
type outage struct {
	*traffic

	began, down, back, up, over time.Time
}

// suffer runs the traffic through an outage.
func (r *traffic) suffer(t *testing.T, begin, end func()) *outage {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer r.end() // also when begin or end fail
	defer cancel()
	o := &outage{traffic: r, began: time.Now()}
	r.run(ctx)
	r.warm()
	o.down = time.Now()
	begin()
	<-time.After(2500 * time.Millisecond)
	o.back = time.Now()
	end()
	o.up = time.Now()
	<-time.After(recovery + 300*time.Millisecond)
	o.over = time.Now()
	return o
}

// recovery is how long calls may fail when the servers are back.
const recovery = 2 * time.Second

// checkMeanwhile checks that there are few more attempts than calls, including those that fail at
// once because no server is there.
func (o *outage) checkMeanwhile(t *testing.T) {
	t.Helper()
	calls, _, _ := o.calls.between(o.down, o.back)
	attempts, _, _ := o.attempts.between(o.down, o.back)
	dials, most, _ := o.dials.between(o.down, o.back)
	failed := 0
	for _, p := range o.ended {
		if p.err != nil && p.made.After(o.down) && p.made.Before(o.back) {
			failed++
		}
	}
	ratio := float64(attempts) / float64(calls)
	t.Logf("outage of %v: %d calls, %d failed; %d attempts, %.3f times as many; %d dials, at most %d in 100 ms",
		o.back.Sub(o.down).Round(time.Millisecond), calls, failed, attempts, ratio, dials, most)
	if failed == 0 {
		t.Errorf("%d of %d calls failed: the test did not test anything", failed, calls)
	}
	if ratio > 1.2 {
		t.Errorf("%d calls had %d attempts, want at most 1.2 times as many", calls, attempts)
	}
}

// checkReturn checks that all clients soon have replies, and that nobody was trampled down for
// that. So many connections are to be made.
func (o *outage) checkReturn(t *testing.T, conns int) {
	t.Helper()
	var failing time.Duration // the last call that fails was made so long after the return
	var last error
	first := make([]time.Duration, len(o.clients)) // call that succeeds was made so long after the return
	after, waited := 0, 0
	for _, p := range o.ended {
		switch made := p.made.Sub(o.up); {
		case made < 0:
			if p.err == nil && p.made.Sub(o.down) > within { // it waited for the servers to return, and was sent then
				waited++
			}
		case p.err != nil:
			if made >= failing {
				failing, last = made, p.err
			}
		default:
			if made < first[p.client] || first[p.client] == 0 {
				first[p.client] = made
			}
			if made > recovery {
				after++
			}
		}
	}
	// What a machine with other things to do puts off comes all at once then.
	_, usual, _ := o.attempts.between(o.began, o.down)
	_, _, stall := o.calls.between(o.back, o.over)
	room := 1 + float64(stall)/float64(within)
	dials, mostDials, _ := o.dials.between(o.back, o.over)
	_, mostAttempts, _ := o.attempts.between(o.back, o.over)
	if dials == 0 { // the connections are as before, and so those calls were sent before
		waited = 0
	}
	t.Logf("return: all listen after %v; the last call that fails comes %v later, each client has a reply to one of %v; %d dials, at most %d in 100 ms; at most %d attempts in 100 ms, usually %d; %d calls had waited; nothing happens for %v",
		o.up.Sub(o.back).Round(time.Millisecond), failing.Round(time.Millisecond), slices.Max(first).Round(time.Millisecond), dials, mostDials, mostAttempts, usual, waited, stall.Round(time.Millisecond))
	if failing > recovery || slices.Min(first) == 0 || slices.Max(first) > recovery || after == 0 {
		t.Errorf("calls fail %v after the return, first calls to succeed are made after %v, and %d after %v: %v", failing, first, after, recovery, last)
	}
	// Clients pause for 150 to 300 ms, so 44 % of the connections are expected within 100 ms. While
	// the servers start, which takes long on a busy machine, connections are refused and tried
	// again.
	if late, _, _ := o.dials.between(o.up, o.over); late > 2*conns || float64(mostDials) > float64(conns)*2/3*room {
		t.Errorf("%d connections were tried after all listened, and at most %d within 100 ms of the return; %d are to be made", late, mostDials, conns)
	}
	if float64(mostAttempts) > 2*float64(usual)*room+float64(waited) {
		t.Errorf("after the return there are %d attempts in 100 ms, and usually %d; %d calls had waited for the return", mostAttempts, usual, waited)
	}
}

// checkExecutions checks that each call was executed as often as its caller was told.
func (r *traffic) checkExecutions(t *testing.T, executed map[int]int) {
	t.Helper()
	t.Attr("rerun", "never")
	unknown, again := 0, 0
	for _, p := range r.ended {
		n := executed[p.id]
		switch {
		case p.err == nil && n == 0, yodel.NotProcessed(p.err) && n > 0, n > 1 && p.method() == once:
			t.Errorf("call %d of %s was executed %d times: %v", p.id, p.method(), n, p.err)
		case n > 1:
			again++
		}
		if p.err != nil && !yodel.NotProcessed(p.err) {
			unknown++
		}
	}
	t.Logf("%d calls: %d with an unknown outcome, %d executed again because they may be", len(r.ended), unknown, again)
	if unknown == 0 {
		t.Error("no call was interrupted: the test did not test anything")
	}
}
