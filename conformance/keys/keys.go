// SPDX-License-Identifier: Apache-2.0

// Package keys checks that no call with an idempotency key is executed twice because of its key. It
// sends calls with keys to three servers while connections are reset, requests are held up, and
// servers are killed and started again at the same addresses. The clients retry and hedge in every
// way there is. It runs for each kind of server: one that does not remember keys, one that
// remembers them in its process, and servers that share a memory.
//
//	go test ./conformance/keys                      # a few seconds
//	go test ./conformance/keys -keys.for=3m -v      # three minutes for each kind
//	go test ./conformance/keys -keys.seed=42        # the same schedule again
package keys

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// A Kind is what servers remember.
type Kind struct {
	Name string
	// Memory makes the memory of a server that starts, and returns what happens to it when the
	// server is killed. A nil Memory is that of a server that does not remember keys.
	Memory func() (m once.KeyMemory, killed func())
	// Lose makes a shared memory forget all keys. Nil means that it does not.
	Lose func()
	// Recommended is recommended.Client, which a package cannot import. Default: no client has
	// those options.
	Recommended func(o *yodel.ClientOptions) *yodel.ClientOptions
	// Repeats says that calls which may have been executed are expected to be sent again with
	// success.
	Repeats bool
}

// Counts is what became of the calls of a run.
type Counts struct {
	Calls, Succeeded, NotExecuted, Doubtful int // what their callers were told
	Executed, Twice                         int // keys
	// calls that succeeded although an attempt of theirs may have been executed before
	Repeated                                int
	Attempts, Resets, Kills, Delays, Losses int
}

func (c Counts) String() string {
	return fmt.Sprintf("%d calls with %d attempts: %d succeeded (%d after an attempt in doubt), %d not executed, %d in doubt; %d keys executed, %d twice; "+
		"%d resets, %d kills, %d delays, %d losses", c.Calls, c.Attempts, c.Succeeded, c.Repeated, c.NotExecuted, c.Doubtful, c.Executed, c.Twice, c.Resets, c.Kills, c.Delays, c.Losses)
}

const work yodel.Method[string, string] = "Keys.Work"

var quiet = slog.New(slog.DiscardHandler)

// A run is one schedule.
type run struct {
	testing.TB

	kind       Kind
	random     *rand.Rand // of the faults
	nodes      []*node
	executions sync.Map // of *atomic.Int32, by key
	outcomes   sync.Map // whether a key was executed, as its caller was told
	doubted    sync.Map // keys of calls of which an attempt that may have been executed has failed
	attempts   atomic.Int64

	mu     sync.Mutex
	counts Counts
}

// Run runs a schedule, and fails the test if a key was executed twice, or a caller was told
// something wrong.
func Run(t testing.TB, kind Kind, seed uint64, length time.Duration) Counts {
	t.Helper()
	r := &run{TB: t, kind: kind, random: rand.New(rand.NewPCG(seed, 12))}
	addrs := make([]string, 3)
	for i := range addrs {
		r.nodes = append(r.nodes, r.newNode())
		addrs[i] = r.nodes[i].proxy.addr
	}
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var load sync.WaitGroup
	for i, o := range r.clients() {
		c := yodel.NewClient(discovery.Static(addrs...), o.options)
		defer c.Close()
		for j := range 4 {
			calls := rand.New(rand.NewPCG(seed, uint64(100*i+j)))
			load.Go(func() { r.call(ctx, c, o, fmt.Sprintf("%s-%d", o.name, j), calls) })
		}
	}
	load.Go(func() { r.disturb(ctx) })
	load.Wait()
	for _, n := range r.nodes {
		n.close()
	}
	r.judge(seed)
	return r.counts
}

// A client is one way to repeat calls.
type client struct {
	name    string
	options *yodel.ClientOptions
	prepare func(call *yodel.Call)
}

func (r *run) clients() []client {
	with := func(o yodel.ClientOptions, ms ...yodel.Middleware) *yodel.ClientOptions {
		o.Logger, o.Timeout, o.DialTimeout = quiet, 2*time.Second, 500*time.Millisecond
		o.Middleware, o.EndpointMiddleware = ms, []yodel.EndpointMiddleware{r.watch}
		return &o
	}
	often := func(o retry.Options) yodel.Middleware {
		o.Times, o.Share, o.MaxBackoff = 5, 1, 100*time.Millisecond
		return retry.With(&o)
	}
	soon := hedge.With(&hedge.Options{After: 3 * time.Millisecond, Share: 1})
	ordered := func(call *yodel.Call) {
		call.Ordered, call.Key = true, call.IdempotencyKey[:len(call.IdempotencyKey)-1]
	}
	keyed := func(call *yodel.Call) { call.Key = call.IdempotencyKey }
	all := []client{
		{name: "failover", options: with(yodel.ClientOptions{}, often(retry.Options{}))},
		{name: "failtry", options: with(yodel.ClientOptions{}, often(retry.Options{Same: true}))},
		{name: "hedge", options: with(yodel.ClientOptions{Balancer: balance.P2C}, soon, often(retry.Options{}))},
		{name: "spares", options: with(yodel.ClientOptions{ConnsPerEndpoint: 3}, often(retry.Options{}), soon)},
		{name: "any", options: with(yodel.ClientOptions{Balancer: retry.Any}, often(retry.Options{}), soon)},
		{name: "hash", options: with(yodel.ClientOptions{Balancer: balance.Ketama(balance.ByKey)}, soon, often(retry.Options{})), prepare: keyed},
		{name: "ordered", options: with(yodel.ClientOptions{}, often(retry.Options{})), prepare: ordered},
	}
	if r.kind.Recommended != nil {
		all = append(all, client{name: "recommended", options: r.kind.Recommended(with(yodel.ClientOptions{}))})
	}
	return all
}

// watch notes the keys of calls of which an attempt may have been executed and failed.
func (r *run) watch(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		r.attempts.Add(1)
		err := next(ctx, call)
		if err != nil && !yodel.NotProcessed(err) {
			r.doubted.Store(call.IdempotencyKey, true)
		}
		return err
	}
}

// call makes calls until ctx ends.
func (r *run) call(ctx context.Context, c *yodel.Client, o client, name string, random *rand.Rand) {
	for i := 0; ctx.Err() == nil; i++ {
		call := &yodel.Call{IdempotencyKey: fmt.Sprintf("%s-%d", name, i)}
		key := call.IdempotencyKey
		if o.prepare != nil {
			o.prepare(call)
		}
		if random.IntN(20) == 0 {
			call.Deadline = time.Now().Add(time.Duration(random.IntN(30)) * time.Millisecond)
		}
		out, err := work.Do(context.Background(), c, call, &key) //nolint:contextcheck // it ends when it ends
		r.told(key, out, err)
		if err != nil {
			<-time.After(time.Duration(random.IntN(5)) * time.Millisecond)
		}
	}
}

// told notes what a caller was told.
func (r *run) told(key string, out *string, err error) {
	_, doubted := r.doubted.Load(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Calls++
	switch {
	case err == nil:
		r.counts.Succeeded++
		if doubted {
			r.counts.Repeated++
		}
		if *out != key {
			r.Errorf("%s: the reply is that of %q", key, *out)
		}
		r.outcomes.Store(key, true)
	case yodel.NotProcessed(err):
		r.counts.NotExecuted++
		r.outcomes.Store(key, false)
	default:
		r.counts.Doubtful++
		if err := allowed(err); err != nil {
			r.Errorf("%s: %v", key, err)
		}
	}
}

// allowed returns err unless it is one that the faults of a run explain.
func allowed(err error) error {
	if slices.Contains([]yodel.Code{yodel.Unavailable, yodel.DeadlineExceeded, yodel.Aborted}, yodel.CodeOf(err)) {
		return nil
	}
	return err
}

// execute is the method of all servers.
func (r *run) execute(ctx context.Context, key *string) (*string, error) {
	random := rand.IntN(100)
	if random < 2 {
		return nil, yodel.Errorf(yodel.Unavailable, "not now") // it has done nothing
	}
	n, _ := r.executions.LoadOrStore(*key, new(atomic.Int32))
	n.(*atomic.Int32).Add(1) //nolint:forcetypeassert // it is one
	wait := time.Duration(rand.IntN(2000)) * time.Microsecond
	if random < 10 {
		wait = 20 * time.Millisecond
	}
	select {
	case <-time.After(wait):
		return key, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// judge compares what was executed with what callers were told.
func (r *run) judge(seed uint64) {
	r.Attr("rerun", "never")
	c := &r.counts
	c.Attempts = int(r.attempts.Load())
	times := func(key any) int32 {
		n, ok := r.executions.Load(key)
		if !ok {
			return 0
		}
		return n.(*atomic.Int32).Load() //nolint:forcetypeassert // it is one
	}
	r.executions.Range(func(key, _ any) bool {
		c.Executed++
		if n := times(key); n > 1 {
			c.Twice++
			r.Errorf("%v was executed %d times", key, n)
		}
		return true
	})
	r.outcomes.Range(func(key, executed any) bool {
		switch n := times(key); {
		case executed == true && n == 0:
			r.Errorf("%v succeeded, and was not executed", key)
		case executed == false && n > 0:
			r.Errorf("%v was executed, and its caller was told that it was not", key)
		}
		return true
	})
	if r.Failed() {
		r.Errorf("%s: run again with -keys.seed=%d", r.kind.Name, seed)
	}
	if r.kind.Repeats && c.Repeated == 0 {
		r.Errorf("%s: no call succeeded after an attempt in doubt (seed %d)", r.kind.Name, seed)
	}
}

// disturb makes faults until ctx ends.
func (r *run) disturb(ctx context.Context) {
	for ctx.Err() == nil {
		<-time.After(time.Duration(10+r.random.IntN(40)) * time.Millisecond)
		n := r.nodes[r.random.IntN(len(r.nodes))]
		switch r.random.IntN(8) {
		case 0:
			r.counts.Kills++
			n.kill()
			<-time.After(time.Duration(r.random.IntN(30)) * time.Millisecond)
			n.start() //nolint:contextcheck // the server outlives the call that restarts it
		case 1, 2:
			r.counts.Delays++
			n.proxy.delay.Store(int64(r.random.IntN(20)) * int64(time.Millisecond))
		case 3:
			n.proxy.delay.Store(0)
		case 4:
			if r.kind.Lose != nil {
				r.counts.Losses++
				r.kind.Lose()
			}
		default:
			r.counts.Resets++
			n.proxy.reset()
		}
	}
}

// A node is a place at which servers run, one after the other.
type node struct {
	run   *run
	proxy *proxy

	server *yodel.Server
	killed func()
	stop   context.CancelFunc
	served chan error
	dead   sync.WaitGroup // servers that were killed, and the calls that they had
}

func (r *run) newNode() *node {
	n := &node{run: r, proxy: newProxy(r)}
	n.start()
	return n
}

func (n *node) start() {
	memory, killed := n.run.kind.Memory()
	n.server = yodel.NewServer(&yodel.ServerOptions{Keys: memory, Logger: quiet, DrainTimeout: time.Millisecond})
	work.Handle(n.server, n.run.execute)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.run.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	server := n.server
	go func() { served <- server.Serve(ctx, l) }()
	n.killed, n.stop, n.served = killed, stop, served
	n.proxy.target.Store(l.Addr().String())
}

// kill ends the server as the end of its process would: its memory is gone, and nobody is told
// anything.
func (n *node) kill() {
	n.proxy.target.Store("")
	n.proxy.reset()
	n.killed()
	n.stop()
	served := n.served
	n.dead.Go(func() {
		if err := <-served; err != nil && !errors.Is(err, context.DeadlineExceeded) {
			n.run.Error(err)
		}
	}) // calls that it has may go on for a moment
}

func (n *node) close() {
	n.kill()
	n.proxy.close()
	n.dead.Wait()
}
