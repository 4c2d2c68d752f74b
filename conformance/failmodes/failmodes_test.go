// SPDX-License-Identifier: Apache-2.0

// Package failmodes has no code but this test: what becomes of a call in each fail mode, under each
// fault.
//
// The table is docs/failmodes.md. The test fails when it is not what happens; -update writes it.
package failmodes_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/fanout"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	yodeltest.VerifyNoLeaks(m)
}

var update = flag.Bool("update", false, "write docs/failmodes.md")

// work answers with the name of the instance that did it.
const work yodel.Method[string, string] = "Work.Do"

// A fleet is three instances, of which the first is the one in trouble, and a client that prefers
// them in their order.
type fleet struct {
	*mem.Network

	client   *yodel.Client
	servers  map[string]*yodel.Server
	executed map[string]*atomic.Int32 // by instance
	attempts atomic.Int32
	broken   atomic.Bool // writes to the first instance fail
	proxy    *proxy      // in front of the first instance, for the faults that happen during the call; else nil
	refusing atomic.Bool // the first instance refuses every call
	happened atomic.Bool // the client met the fault during the call
	shut     sync.Once   // the first instance

	mu   sync.Mutex
	stop []func()
}

var names = []string{"a", "b", "c"}

// A fault is what is wrong with the first instance.
type fault struct {
	name, what string
	prepare    func(f *fleet) // before the call
	handler    func(f *fleet, ctx context.Context) error
	cancel     bool
	// inFlight says that the fault happens during the call: a proxy stands in front of the first
	// instance, and prepare sees that happened is set when an attempt has met the fault.
	inFlight bool
	limited  bool          // the first instance has a concurrency limit of 1
	idle     time.Duration // the client's Limits.IdleTimeout
}

var faults = []fault{
	{name: "none", what: "all is well"},
	{name: "refused", what: "nobody listens there, which the client knows before the call", prepare: (*fleet).neverStarted},
	{name: "dial refused in flight", what: "the client has no connection, because the last one was idle for too long, and the one that the call makes is refused", prepare: (*fleet).refuseDials, inFlight: true, idle: 10 * time.Second},
	{name: "refused in flight", what: "the server refuses the request with `unavailable`, and says that it was not executed", prepare: (*fleet).refuseCalls, inFlight: true},
	{name: "overloaded", what: "the server refuses the request because its concurrency limit is reached", prepare: (*fleet).overload, inFlight: true, limited: true},
	{name: "reset before sending", what: "the connection has just been lost; the server takes another one", prepare: (*fleet).reset},
	{name: "reset while sending", what: "the connection breaks when the request is written, and nobody knows whether any of it has left", prepare: (*fleet).breakWrites},
	{name: "reset after sending", what: "the connection breaks while the method runs, which goes on to its end", handler: (*fleet).cutOff},
	{name: "timeout", what: "the method runs until its context ends; an attempt has 400 ms", handler: (*fleet).hang},
	{name: "slow", what: "the method takes 150 ms", handler: (*fleet).dawdle},
	{name: "application error", what: "the method fails with `failed_precondition`", handler: (*fleet).refuse},
	{name: "cancel", what: "the caller gives up after 50 ms, and the method runs until its context ends", handler: (*fleet).hang, cancel: true},
	{name: "drain", what: "the server is shutting down, which the client knows before the call", prepare: (*fleet).drain},
	{name: "drain in flight", what: "the server begins to shut down while the request is on its way, and the client learns that before the request arrives", prepare: (*fleet).drainInFlight, inFlight: true},
	{name: "drain in flight, late notice", what: "the same, and the client learns it after the server has refused the request", prepare: (*fleet).drainInFlightLate, inFlight: true},
	{name: "drain while executing", what: "the server begins to shut down while the method runs, which takes 50 ms", handler: (*fleet).drainMeanwhile},
}

// A mode is a way to carry calls out.
type mode struct {
	name, with string
	middleware []yodel.Middleware
	balancer   yodel.Balancer // inOrder if nil
	// Client.Do if nil
	call func(ctx context.Context, c *yodel.Client, call *yodel.Call) (result string, err error)
	// success comes without one
	noReply bool
}

var modes = []mode{
	{name: "failfast", with: "no middleware"},
	{name: "failover", with: "`retry.Times(3)`", middleware: []yodel.Middleware{retry.Times(3)}},
	{name: "failtry", with: "`retry.Same(3)`", middleware: []yodel.Middleware{retry.Same(3)}},
	{name: "failback", with: "`retry.Later(nil)`, for a call that wants no reply", middleware: []yodel.Middleware{retry.Later(nil)}, noReply: true},
	{name: "failback of a call that wants a reply", with: "`retry.Later(nil)`, which tells its caller", middleware: []yodel.Middleware{retry.Later(nil)}},
	{name: "available", with: "the balancer `retry.Any`", balancer: retry.Any},
	{name: "failsafe", with: "`fallback.To(reply)`: the reply is said to be from nobody", middleware: []yodel.Middleware{fallback.To(new("nobody"))}},
	{name: "backup request", with: "`hedge.After(20 * time.Millisecond)`", middleware: []yodel.Middleware{hedge.After(20 * time.Millisecond)}},
	{name: "broadcast", with: "`fanout.Broadcast`: all must succeed", call: broadcast},
	{name: "fork", with: "`fanout.First`: the first success wins", call: fork},
	{name: "inform", with: "`fanout.Inform`: a receipt for each", call: inform},
}

func broadcast(ctx context.Context, c *yodel.Client, call *yodel.Call) (string, error) {
	_, err := fanout.BroadcastCall(ctx, c, call, nil)
	return "ok from all", err
}

// fork says no more than that one of the two succeeded that are well: which of them is chance.
func fork(ctx context.Context, c *yodel.Client, call *yodel.Call) (string, error) {
	err := fanout.FirstCall(ctx, c, call, nil)
	if reply := *call.Reply.(*string); err == nil && !slices.Contains(names, reply) {
		return "", fmt.Errorf("the reply is %q", reply)
	}
	return "ok from one", err
}

func inform(ctx context.Context, c *yodel.Client, call *yodel.Call) (string, error) {
	outcomes, err := fanout.InformCall(ctx, c, call, nil)
	slices.SortFunc(outcomes, func(a, b fanout.Outcome) int { return strings.Compare(a.Call.Endpoint.Addr(), b.Call.Endpoint.Addr()) })
	receipts := make([]string, len(outcomes))
	for i, o := range outcomes {
		receipts[i] = o.Call.Endpoint.Addr() + " ok"
		if o.Err != nil {
			receipts[i] = o.Call.Endpoint.Addr() + " " + yodel.CodeOf(o.Err).String()
		}
	}
	return strings.Join(receipts, "; "), err
}

// An outcome is what became of a call.
type outcome struct {
	result     string
	attempts   int32
	executions int32
}

func (o outcome) String() string {
	return fmt.Sprintf("%s, %d, %d", o.result, o.attempts, o.executions)
}

func TestFailModesUnderFaults(t *testing.T) {
	var page strings.Builder
	page.WriteString(preface)
	for _, f := range faults {
		fmt.Fprintf(&page, "- **%s**: %s.\n", f.name, f.what)
	}
	for _, m := range modes {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n| fault | not idempotent | idempotent |\n|---|---|---|\n", m.name, m.with)
		for _, f := range faults {
			var cells [2]string
			for i, idempotent := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) { cells[i] = try(t, m, f, idempotent).String() })
			}
			fmt.Fprintf(&page, "| %s | %s | %s |\n", f.name, cells[0], cells[1])
		}
	}
	const file = "../../docs/failmodes.md"
	if *update {
		if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(page.String(), "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if i >= len(got) || got[i] != line {
			t.Fatalf("line %d of docs/failmodes.md is\n%s\nand what happens is\n%s\n(go test -update writes the page)", i+1, line, got[min(i, len(got)-1)])
		}
	}
}

const preface = `# Fail modes under faults

<!-- Written by go test -update ./conformance/failmodes, which checks it otherwise. -->

What becomes of a call in each fail mode when something is wrong with the instance that is chosen first; two others are well. A cell is the outcome, how many
attempts were made (requests that were begun on an endpoint, whether they could be sent or not), and how often the method was executed, on all servers together. An attempt has 400 ms, the
call 2 s.

Nothing is executed twice that is not declared idempotent, and no call succeeds without its reply: the test insists on both.

The faults:

`

// try makes one call.
func try(t *testing.T, m mode, broken fault, idempotent bool) outcome {
	t.Helper()
	t.Attr("rerun", "never")
	f := start(t, m, broken)
	defer f.close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if broken.cancel {
		time.AfterFunc(50*time.Millisecond, cancel)
	}
	in, out := "x", ""
	call := &yodel.Call{Method: string(work), Args: &in, Reply: &out, Idempotent: idempotent}
	if m.noReply {
		call.Reply = nil
	}
	do := m.call
	if do == nil {
		do = func(ctx context.Context, c *yodel.Client, call *yodel.Call) (string, error) {
			return "", c.Do(ctx, call)
		}
	}
	result, err := do(ctx, f.client, call)
	time.Sleep(5 * time.Second) // what goes on in the background
	o := outcome{attempts: f.attempts.Load()}
	for name, n := range f.executed {
		o.executions += n.Load()
		if n := n.Load(); n > 1 && !idempotent {
			t.Errorf("%s under %s: %s executed it %d times", m.name, broken.name, name, n)
		}
	}
	if m.call == nil && !idempotent && o.executions > 1 {
		t.Errorf("%s under %s: executed %d times on all servers together", m.name, broken.name, o.executions)
	}
	switch {
	case err != nil:
		o.result = yodel.CodeOf(err).String()
		if yodel.NotProcessed(err) {
			o.result += " (not executed)"
		}
	case result != "":
		o.result = result
	case m.noReply:
		o.result = "ok"
	default:
		o.result = "ok from " + out
		if slices.Contains(names[1:], out) { // whichever is connected first
			o.result = "ok from another"
		}
		if out == "" {
			t.Errorf("%s under %s: success without a reply", m.name, broken.name)
		}
	}
	if broken.inFlight && !f.happened.Load() {
		t.Errorf("%s under %s: no attempt met the fault", m.name, broken.name)
	}
	if yodel.NotProcessed(err) && o.executions > 0 {
		t.Errorf("%s under %s: %v, and it was executed %d times", m.name, broken.name, err, o.executions)
	}
	return o
}

// start starts a fleet and connects to all of it.
func start(t *testing.T, m mode, broken fault) *fleet {
	t.Helper()
	f := &fleet{Network: mem.New(), servers: make(map[string]*yodel.Server), executed: make(map[string]*atomic.Int32)}
	for _, name := range names {
		f.executed[name] = new(atomic.Int32)
		first := name == names[0]
		options := &yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second}
		if first {
			options.Middleware = []yodel.Middleware{f.noteRefusals, f.refusals}
			if broken.limited {
				options.Middleware = append(options.Middleware, limit.With(&limit.Options{Limit: 1, Queue: -1}))
			}
		}
		s := yodel.NewServer(options)
		f.servers[name] = s
		work.Handle(s, func(ctx context.Context, _ *string) (*string, error) {
			f.executed[name].Add(1)
			// so that calls that are made at the same time have all begun before the first of them
			// ends
			<-time.After(time.Millisecond)
			if first && broken.handler != nil {
				if err := broken.handler(f, ctx); err != nil {
					return nil, err
				}
			}
			return &name, nil
		})
		at := name
		if first && broken.inFlight {
			at += " behind the proxy"
		}
		l, err := f.Listen(at)
		if err != nil {
			t.Fatal(err)
		}
		f.serve(t, s, l)
		if at != name {
			if f.proxy, err = startProxy(f.Network, name, at); err != nil {
				t.Fatal(err)
			}
			f.stop = append(f.stop, f.proxy.stop)
		}
	}
	count := func(_ *yodel.Endpoint, next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == string(work) {
				f.attempts.Add(1)
			}
			return next(ctx, call)
		}
	}
	balancer := m.balancer
	if balancer == nil {
		balancer = inOrder
	}
	f.client = yodel.NewClient(discovery.Static(names...), &yodel.ClientOptions{
		Transport: f, Balancer: balancer, Timeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Middleware:         slices.Concat(m.middleware, []yodel.Middleware{timeout.After(400 * time.Millisecond)}),
		EndpointMiddleware: []yodel.EndpointMiddleware{count},
		Limits:             yodel.Limits{IdleTimeout: broken.idle},
	})
	for _, ep := range f.client.Endpoints() { // connected, so that what is tried is the fault
		if err := f.client.Do(t.Context(), &yodel.Call{Method: string(inspect.Ping), Args: &struct{}{}, Endpoint: ep}); err != nil {
			t.Fatal(err)
		}
	}
	if broken.prepare != nil {
		broken.prepare(f)
	}
	synctest.Wait()
	return f
}

func (f *fleet) serve(t *testing.T, s *yodel.Server, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(ctx, l); err != nil && !errors.Is(err, yodel.ErrServerClosed) && !strings.Contains(err.Error(), "shutdown") {
			t.Errorf("Serve: %v", err)
		}
	})
	f.stop = append(f.stop, cancel, wg.Wait)
}

func (f *fleet) close() {
	f.client.Close()
	f.mu.Lock()
	stop := f.stop
	f.mu.Unlock()
	for _, stop := range stop {
		stop()
	}
}

// inOrder prefers the endpoints in the order of their names.
func inOrder(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
	sorted := slices.Clone(endpoints)
	slices.SortFunc(sorted, func(a, b *yodel.Endpoint) int { return strings.Compare(a.Addr(), b.Addr()) })
	return ordered(sorted)
}

type ordered []*yodel.Endpoint

func (o ordered) Pick(call *yodel.Call) *yodel.Endpoint {
	for _, ep := range o {
		if !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return nil
}

// Dial implements yodel.Transport: writes on the connection to the first instance can be made to
// fail.
func (f *fleet) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := f.Network.Dial(ctx, addr)
	if addr != names[0] {
		return c, err
	}
	if err != nil {
		f.happened.Store(true)
		return nil, err
	}
	return &breakable{c, f}, nil
}

type breakable struct {
	net.Conn

	fleet *fleet
}

func (b *breakable) Write(p []byte) (int, error) {
	if b.fleet.broken.Load() {
		_ = b.Close() // both directions are gone
		return 0, syscall.ECONNRESET
	}
	return b.Conn.Write(p)
}

// neverStarted ends the first instance before the call, as if it had never been there.
func (f *fleet) neverStarted() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = f.servers[names[0]].Shutdown(ctx) // nothing is open
	synctest.Wait()
}

// reset ends the connections of the first instance.
func (f *fleet) reset() {
	for _, peer := range f.servers[names[0]].Peers() {
		_ = peer.Conn.Close() // that is the fault
	}
}

func (f *fleet) breakWrites() { f.broken.Store(true) }

// refuseDials lets the connections end because they are idle, and refuses new ones to the first
// instance.
func (f *fleet) refuseDials() {
	time.Sleep(20 * time.Second)
	f.proxy.refuse()
}

// refuseCalls makes the first instance refuse calls from when the request is on its way.
func (f *fleet) refuseCalls() {
	f.whileHeld(func() { f.refusing.Store(true) })
}

// refusals is middleware of the first instance: it refuses calls.
func (f *fleet) refusals(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if f.refusing.Load() {
			return &yodel.Error{Code: yodel.Unavailable, Message: "not now", NotProcessed: true}
		}
		return next(ctx, call)
	}
}

// noteRefusals is middleware of the first instance: it notes that a call was refused.
func (f *fleet) noteRefusals(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if yodel.NotProcessed(err) {
			f.happened.Store(true)
		}
		return err
	}
}

// overload occupies the first instance, whose concurrency limit is 1.
func (f *fleet) overload() { f.occupy() }

// drain makes the first instance shut down, with a call open that keeps it from ending.
func (f *fleet) drain() {
	f.occupy()
	f.shutDown()
	synctest.Wait()
}

// drainInFlight makes the first instance shut down while the request is on its way.
func (f *fleet) drainInFlight() {
	f.whileHeld(func() {
		f.shutDown()
		synctest.Wait() // the client has read the notice
		f.happened.Store(true)
	})
}

// drainInFlightLate is drainInFlight, and holds the notice until the server has refused the
// request.
func (f *fleet) drainInFlightLate() {
	notice := f.proxy.down.hold()
	f.whileHeld(func() {
		f.shutDown()
		<-notice
		f.happened.Store(true)
	}, f.proxy.down.release)
}

// drainMeanwhile makes the first instance shut down while it executes the call.
func (f *fleet) drainMeanwhile(context.Context) error {
	f.shutDown() //nolint:contextcheck // it outlasts the call
	<-time.After(50 * time.Millisecond)
	return nil
}

// whileHeld has the proxy hold the next request, runs happen, lets the request go, and runs then
// when the server has dealt with it.
func (f *fleet) whileHeld(happen func(), then ...func()) {
	came := f.proxy.up.hold()
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-came:
		case <-f.proxy.ended:
			return
		}
		happen()
		f.proxy.up.release()
		for _, next := range then {
			synctest.Wait()
			next()
		}
	})
	f.stop = append(f.stop, wg.Wait)
}

// occupy begins a call to the first instance that stays open until the fleet is closed.
func (f *fleet) occupy() {
	s := f.servers[names[0]]
	hold := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	_ = s.Handle("Hold", func(context.Context) error { // the name is free
		close(hold)
		<-ctx.Done()
		return ctx.Err()
	})
	ep := f.client.Endpoints()[slices.IndexFunc(f.client.Endpoints(), func(ep *yodel.Endpoint) bool { return ep.Addr() == names[0] })]
	var wg sync.WaitGroup
	wg.Go(func() {
		// it is canceled
		_ = f.client.Do(ctx, &yodel.Call{Method: "Hold", Args: yodel.Values{}, Reply: yodel.Values{}, Endpoint: ep})
	})
	<-hold
	f.stop = append([]func(){cancel, wg.Wait}, f.stop...)
}

// shutDown begins to shut the first instance down. What is left when the fleet is closed is cut
// off.
func (f *fleet) shutDown() {
	f.shut.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = f.servers[names[0]].Shutdown(ctx) }) // it may be cut off
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stop = append([]func(){cancel, wg.Wait}, f.stop...)
	})
}

// cutOff breaks the connection to the caller and lets the method go on to its end.
func (f *fleet) cutOff(ctx context.Context) error {
	_ = yodel.CallFrom(ctx).Peer().Conn.Close() // that is the fault
	return nil
}

func (f *fleet) hang(ctx context.Context) error {
	<-ctx.Done()
	<-time.After(time.Millisecond) // when the client has given up, whose deadline is the same
	return ctx.Err()
}

func (f *fleet) dawdle(context.Context) error {
	<-time.After(150 * time.Millisecond)
	return nil
}

func (f *fleet) refuse(context.Context) error {
	return yodel.Errorf(yodel.FailedPrecondition, "not in this state")
}
