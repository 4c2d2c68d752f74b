// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/rate"
)

// What the framework itself promises holds over every wire.
func TestGuaranteesOverEveryWire(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	overWires(t, frameworkGuarantees, inTurn())
}

const countsUntil = "a message of a stream counts until the method has it"

const noPlace = "the protocol has no place for it"

// lacksMetadata says why a call over a wire has no metadata.
var lacksMetadata = lacks(func(w *Wire) bool { return w.Metadata }, noPlace)

var frameworkGuarantees = []Guarantee{
	{
		Name: "deadline", Lacks: lacks(func(w *Wire) bool { return w.deadline }, noPlace),
		Prepare: func(tr *Trial) {
			tr.observe = func(ctx context.Context) {
				deadline, _ := ctx.Deadline()
				tr.deadline.Store(deadline)
			}
		},
		Check: checkDeadline,
	},
	{
		Name: "cancel", Prepare: closeGate, Check: checkCancel,
		Lacks: lacks(func(w *Wire) bool { return w.cancels }, "the protocol cannot cancel a call: the context of its method ends with the connection"),
	},
	{
		Name: "a caller that leaves", Prepare: closeGate,
		Lacks: lacks(isClient, "the caller is no client that could be closed"),
		Check: checkLeave,
	},
	{Name: "codes of errors", Prepare: failWith(absent, yodel.Errorf(yodel.Aborted, "%s", absent.Message)), Check: checkCode},
	{Name: "codes without names", Prepare: failWith(unnamed, yodel.Errorf(yodel.Aborted, "%s", unnamed.Message)), Check: checkUnnamed},
	{Name: "texts of errors", Prepare: failWith(absent, yodel.Errorf(absent.Code, planned)), Check: checkText},
	{
		Name: "details of errors", Lacks: lacks(func(w *Wire) bool { return w.details }, noPlace),
		Prepare: failWith(absent, yodel.Errorf(absent.Code, "%s", absent.Message)), Check: checkDetails,
	},
	{Name: "errors of grpc-go", Prepare: failWith(grpcAbsent, yodel.Errorf(yodel.Aborted, planned)), Check: checkGRPC},
	{
		Name: "not processed", Prepare: failIfBad,
		Lacks: lacks(func(w *Wire) bool { return w.notProcessed }, noPlace),
		Server: maker(func(*testing.T, *Trial) yodel.Middleware {
			return rate.With(&rate.Limit{PerSecond: 1e-3, Burst: 1, Name: "one"})
		}).server,
		Check: checkNotProcessed,
	},
	{
		Name: "MaxOpen", Prepare: closeGate, AtOnce: 10,
		Server: func(_ *testing.T, tr *Trial) { tr.Options.MaxOpen = 2 },
		Check:  checkMaxOpen,
	},
	{
		Name:   "MaxMessage",
		Server: func(_ *testing.T, tr *Trial) { tr.Options.Limits.MaxMessage = 64 << 10 },
		Check: func(ctx context.Context, c *Cell) error {
			c.pad = strings.Repeat("x", 128<<10)
			if err := c.refuses(ctx, yodel.ResourceExhausted); err != nil {
				return err
			}
			c.pad = ""
			return c.works(ctx, 1)
		},
	},
	{
		Name: "MaxMemory", Prepare: closeGate, AtOnce: 20,
		Lacks: func(w *Wire, shape Shape) string {
			switch {
			case w.oneAtATime:
				return "the limit of a connection, which carries one call here, does not matter"
			case shape == Upload || shape == Duplex:
				return countsUntil
			}
			return ""
		},
		Server: func(_ *testing.T, tr *Trial) { tr.Options.Limits.MaxMemory = 8 * large },
		Check:  checkMaxMemory(8, 20),
	},
	{
		Name: "MaxMemory of the server", Prepare: closeGate, AtOnce: 12,
		Lacks: func(_ *Wire, shape Shape) string {
			if shape == Upload || shape == Duplex {
				return countsUntil
			}
			return ""
		},
		Server: func(_ *testing.T, tr *Trial) { tr.Options.MaxMemory = 8 * large }, // half of it is for requests
		Check:  checkMaxMemory(4, 12),
	},
	{Name: "fair share", Prepare: prepareShares, Lacks: lacksOwnConnection, Check: checkShares},
	{
		Name: "metadata", Lacks: lacksMetadata,
		Prepare: func(tr *Trial) {
			tr.observe = func(ctx context.Context) {
				call := yodel.CallFrom(ctx)
				tr.metadata.Store(call.Metadata["tenant-of"])
			}
		},
		Check: checkMetadata,
	},
	{
		Name: "a reply without the metadata that cannot be sent", Prepare: prepareOdd, Check: checkOddReply,
		Lacks: lacks(func(w *Wire) bool { return w.Name != "in process" }, "a call within the process carries all metadata"),
	},
	{
		Name: "a request whose metadata cannot be sent is refused", Prepare: seeOrder, Check: checkOddRequest,
		Lacks: lacks(isClient, "the caller is no client of yodel, which would refuse it"),
	},
	{
		Name: "order", Only: "streams are not ordered", Check: checkOrder,
		Lacks: lacks(func(w *Wire) bool { return w.Name == "yodel" }, "only yodel's own protocol has ordered calls, from a client to a server"),
	},
	{
		Name: "drain", Servers: 2, Lacks: lacksDrain, Prepare: takeTime, Check: checkDrain,
	},
	{
		Name: "replies of a drain", Servers: 2, Lacks: lacks(func(w *Wire) bool { return w.dial == nil }, "the caller knows one server"),
		Prepare: takeTime, Check: checkRepliesOfDrain,
	},
	{
		Name: "rolling restart", Servers: 2, Lacks: lacksDrain, Prepare: takeTime, Check: checkRestart,
	},
	{Name: "statistics", Check: checkStatistics},
	{Name: "samples", Prepare: failIfBad, Check: checkSamples},
	{Name: "live data", Server: func(_ *testing.T, tr *Trial) { tr.Options.Diagnostics = true }, Check: checkLive},
}

// absent is an error of a handler with everything that a wire can carry.
var absent = &yodel.Error{
	Code: yodel.NotFound, Message: "there is no such thing",
	Details: []yodel.Detail{{Type: "all.Missing", Value: []byte("what is missing")}},
}

// unnamed is an error with a code of the application, which gRPC does not have.
var unnamed = &yodel.Error{Code: 1001, Message: "that is our business"}

// failWith makes the methods fail with err, or in a control with an error that lacks what the row
// is about.
func failWith(err, lacking error) func(tr *Trial) {
	return func(tr *Trial) {
		tr.fail = func(int) error {
			if tr.Control {
				return lacking
			}
			return err
		}
	}
}

func checkDeadline(ctx context.Context, c *Cell) error {
	var like yodel.Call
	if !c.Control {
		like.Deadline = time.Now().Add(time.Hour)
	}
	if _, err := c.Call(context.WithoutCancel(ctx), like); err != nil { // the deadline of a context travels too
		return err
	}
	got, _ := c.deadline.Load().(time.Time)
	if left := time.Until(got); left < 59*time.Minute || left > time.Hour {
		return NotHeld("the method has %v left, want an hour", left)
	}
	return nil
}

// checkCancel wants the context of a method to end when its caller cancels the call.
func checkCancel(ctx context.Context, c *Cell) error {
	return c.leave(ctx, func(cancel context.CancelFunc) { cancel() })
}

// checkLeave wants the context of a method to end when its client is closed.
func checkLeave(ctx context.Context, c *Cell) error {
	return c.leave(ctx, func(context.CancelFunc) {
		for _, client := range c.Caller.(*spread).clients {
			client.Close()
		}
	})
}

// leave makes a call that waits, ends it, and wants its method to end.
func (c *Cell) leave(ctx context.Context, end func(context.CancelFunc)) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Call(own, yodel.Call{})
		ended <- err
	}()
	if err := until(ctx, func() bool { return c.running.Load() == 1 }); err != nil {
		return fmt.Errorf("the method does not begin: %w", err)
	}
	defer func() { cancel(); <-ended }()
	if !c.Control {
		end(cancel)
	}
	return c.Seen(ctx, "the method goes on", func() bool { return c.running.Load() == 0 })
}

func checkCode(ctx context.Context, c *Cell) error {
	switch _, err := c.Call(ctx, yodel.Call{}); {
	case err == nil || !strings.Contains(err.Error(), absent.Message):
		return fmt.Errorf("the error is not that of the method: %w", err)
	case yodel.CodeOf(err) != absent.Code:
		return NotHeld("the code is %v, want %v: %w", yodel.CodeOf(err), absent.Code, err)
	}
	return nil
}

func checkUnnamed(ctx context.Context, c *Cell) error {
	switch _, err := c.Call(ctx, yodel.Call{}); {
	case err == nil || !strings.Contains(err.Error(), unnamed.Message):
		return fmt.Errorf("the error is not that of the method: %w", err)
	case yodel.CodeOf(err) != unnamed.Code:
		return NotHeld("the code is %v, want %v: %w", yodel.CodeOf(err), unnamed.Code, err)
	}
	return nil
}

func checkText(ctx context.Context, c *Cell) error {
	switch _, err := c.Call(ctx, yodel.Call{}); {
	case yodel.CodeOf(err) != absent.Code:
		return fmt.Errorf("the error is not that of the method: %w", err)
	case !strings.Contains(err.Error(), absent.Message):
		return NotHeld("the error is %w, want the text %q", err, absent.Message)
	}
	return nil
}

func checkDetails(ctx context.Context, c *Cell) error {
	_, err := c.Call(ctx, yodel.Call{})
	switch e, ok := errors.AsType[*yodel.Error](err); {
	case !ok || e.Code != absent.Code || !strings.Contains(err.Error(), absent.Message):
		return fmt.Errorf("the error is not that of the method: %w", err)
	case len(e.Details) != 1 || e.Details[0].Type != absent.Details[0].Type || string(e.Details[0].Value) != string(absent.Details[0].Value):
		return NotHeld("the error is %#v, want the details %v", e, absent.Details)
	}
	return nil
}

// checkNotProcessed wants a call that was refused to say that it was not executed.
func checkNotProcessed(ctx context.Context, c *Cell) error {
	c.bad.Store(true)
	_, err := c.Call(ctx, yodel.Call{})
	switch e, ok := errors.AsType[*yodel.Error](err); {
	case !ok || c.executed.Load() != 1:
		return fmt.Errorf("the error of a method that was executed %d times is %w", c.executed.Load(), err)
	case e.NotProcessed:
		return NotHeld("the error of a method that was executed says that it was not: %w", err)
	}
	_, err = c.Call(ctx, yodel.Call{})
	switch e, ok := errors.AsType[*yodel.Error](err); {
	case !ok:
		return fmt.Errorf("the second call: %w", err)
	case c.executed.Load() != 1, !e.NotProcessed && e.Code == yodel.ResourceExhausted:
		return NotHeld("the error is %w, want one that says that the call was not executed", err)
	case !e.NotProcessed:
		return fmt.Errorf("the second call: %w", err)
	}
	return nil
}

// checkMaxOpen wants two of ten calls to run at once, and all to succeed.
func checkMaxOpen(ctx context.Context, c *Cell) error {
	failed, wait := c.callAtOnce(ctx, 10)
	err := until(ctx, func() bool { return c.running.Load() >= 1 })
	own, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	_ = until(own, func() bool { return c.running.Load() > 2 })
	close(c.gate)
	wait()
	switch peak, n := c.peak.Load(), c.executed.Load(); {
	case peak > 2:
		return NotHeld("%d calls ran at once, want at most 2", peak)
	case err != nil || n != 10 || failed.Load() != 0:
		return errors.Join(err, fmt.Errorf("%d calls ran, %d failed, want 10 and 0", n, failed.Load()))
	}
	return nil
}

// large is the size of the requests that meet the limits of memory. A busy machine takes 20 of them
// at once, with the race detector.
const large = 256 << 10

// checkMaxMemory wants large requests to wait or to be refused beyond the limit.
func checkMaxMemory(limit int64, calls int) func(ctx context.Context, c *Cell) error {
	return func(ctx context.Context, c *Cell) error {
		c.pad = strings.Repeat("x", large)
		_, wait := c.callAtOnce(ctx, calls)
		if c.Control { // on a busy machine, the requests come one after the other
			_ = until(ctx, func() bool { return c.peak.Load() > limit })
		} else {
			_ = c.settled(ctx)
		}
		close(c.gate)
		wait()
		switch peak, n := c.peak.Load(), c.executed.Load(); {
		case peak > limit:
			return NotHeld("%d large requests ran at once, %d in all, want at most %d", peak, n, limit)
		case n == 0:
			return errors.New("no call was executed")
		}
		return nil
	}
}

// settled waits until methods run, and no more of them begin.
func (c *Cell) settled(ctx context.Context) error {
	last, quiet := int64(-1), 0
	return until(ctx, func() bool {
		now := c.running.Load()
		if quiet++; now != last || now == 0 {
			last, quiet = now, 0
		}
		return quiet == 200
	})
}

// prepareShares lets calls with the number 2 wait.
func prepareShares(tr *Trial) {
	closeGate(tr)
	tr.waits = func(n int64) bool { return n == 2 }
	tr.Options.MaxOpen = 32
}

func lacksOwnConnection(w *Wire, _ Shape) string {
	switch {
	case w.dial != nil:
		return "the callers share what they call over"
	case w.oneAtATime:
		return "a connection carries one call, and yodel's servers do not count the connections of one client together"
	}
	return ""
}

// checkShares wants a call to be executed while another client has 200 calls that wait. In a
// control they are of the same client.
func checkShares(ctx context.Context, c *Cell) error {
	greedy := *c
	greedy.number = 2
	if !c.Control {
		greedy.Caller = &spread{clients: []*yodel.Client{c.Wire.client(c.t, c.Trial, c.resolver)}} //nolint:contextcheck // it waits with the context of the test
	}
	_, wait := greedy.callAtOnce(ctx, 200)
	defer func() { close(c.gate); wait() }()
	if err := c.settled(ctx); err != nil {
		return err
	}
	own, cancel := context.WithTimeout(ctx, c.limit())
	defer cancel()
	switch _, err := c.Call(own, yodel.Call{}); {
	case yodel.CodeOf(err) == yodel.DeadlineExceeded && ctx.Err() == nil && c.running.Load() > 1:
		return NotHeld("a call beside %d that wait: %w", c.running.Load(), err)
	case err != nil:
		return err
	}
	return nil
}

func checkMetadata(ctx context.Context, c *Cell) error {
	var like yodel.Call
	if !c.Control {
		like.Metadata = yodel.Metadata{"tenant-of": "ann"}
	}
	if _, err := c.Call(ctx, like); err != nil {
		return err
	}
	if got, _ := c.metadata.Load().(string); got != "ann" {
		return NotHeld("the method gets the metadata %q, want ann", got)
	}
	return nil
}

// checkOrder wants calls to be executed in the order in which they were made.
func checkOrder(ctx context.Context, c *Cell) error {
	const calls = 1000
	client := c.Caller.(*spread).clients[0]
	ended := make(chan error, calls)
	told := make([]Told, calls)
	for i := range calls {
		client.Go(ctx, &yodel.Call{Method: string(unary), Args: c.ask(), Reply: &told[i], Ordered: !c.Control}, func(err error) { ended <- err })
	}
	for range calls {
		if err := <-ended; err != nil {
			return err
		}
	}
	for i := range told {
		if told[i].N != int64(i+1) {
			return NotHeld("call %d was executed as number %d", i+1, told[i].N)
		}
	}
	return nil
}

// takeTime makes calls take some time, so that some run when a shutdown begins.
func takeTime(tr *Trial) {
	work := 5 * time.Millisecond
	if tr.Control {
		work *= 10
	}
	tr.act = func() { <-time.After(work) }
}

func lacksDrain(w *Wire, shape Shape) string {
	switch {
	case w.dial != nil:
		return "the caller knows one server"
	case slices.Contains([]string{"JSON-RPC 2", "JSON-RPC 1", "net rpc", "rpcx", "Thrift"}, w.Name):
		return "the protocol cannot announce it: what a client sends when the server stops reading fails, and was not executed"
	case w.oneAtATime:
		return "HTTP/1 cannot announce it: a server closes a connection that has no request, and one may be on its way"
	}
	return ""
}

// checkDrain wants no call to be lost, and none to be executed twice, while a server shuts down.
func checkDrain(ctx context.Context, c *Cell) error {
	made, failed, err := c.callInDrain(ctx)
	switch n := c.executed.Load(); {
	case err != nil:
		return err
	case failed != 0 || n != made:
		return NotHeld("of %d calls %d failed, and %d were executed: %w", made, failed, n, c.first())
	}
	return nil
}

// checkRepliesOfDrain wants each call that was executed while a server shuts down to have its
// reply.
func checkRepliesOfDrain(ctx context.Context, c *Cell) error {
	made, failed, err := c.callInDrain(ctx)
	switch n := c.executed.Load(); {
	case err != nil:
		return err
	case n != made-failed:
		return NotHeld("of %d calls %d were executed, and %d have replies: %w", made, n, made-failed, c.first())
	}
	return nil
}

// callInDrain makes calls while server 0 shuts down.
func (c *Cell) callInDrain(ctx context.Context) (made, failed int64, err error) {
	return c.callDuring(ctx, func() error {
		err := c.shutDownInCall(ctx, 0)
		before := c.by[1].Load()
		return errors.Join(err, until(ctx, func() bool { return c.by[1].Load() > before+50 }))
	})
}

// shutDownInCall shuts a server down when it has just begun a call. A control loses that call,
// which runs until the server cuts it off.
func (c *Cell) shutDownInCall(ctx context.Context, server int) error {
	begun, before := &c.by[server], c.by[server].Load()
	if c.Control {
		h := &hold{server: server, over: make(chan struct{})}
		begun, before = &h.calls, 0 // when they all wait, no further one begins
		c.held.Store(h)
		defer func() {
			c.held.Store(nil)
			close(h.over)
		}()
	}
	if err := until(ctx, func() bool { return begun.Load() > before }); err != nil {
		return err
	}
	return c.shutDown(ctx, c.servers[server])
}

// checkRestart wants no call to be lost, and none to be executed twice, while one server after the
// other shuts down and begins again at its address.
func checkRestart(ctx context.Context, c *Cell) error {
	made, failed, err := c.callDuring(ctx, func() error {
		for i := range c.servers {
			if err := c.shutDownInCall(ctx, i); err != nil {
				return err
			}
			c.servers[i] = c.newServer(i)
			serveAt(c.t, c.servers[i], nil, c.addrs[i]) //nolint:contextcheck // it ends with the test
			before := c.by[i].Load()
			if err := until(ctx, func() bool { return c.by[i].Load() > before+20 }); err != nil {
				return fmt.Errorf("server %d gets no calls after its restart: %w", i, err)
			}
		}
		return nil
	})
	switch n := c.executed.Load(); {
	case err != nil:
		return err
	case failed != 0 || n != made:
		return NotHeld("of %d calls %d failed, and %d were executed: %w", made, failed, n, c.first())
	}
	return nil
}

// shutDown shuts a server down, which takes less than half of what it may. In a control the server
// does not wait for the calls that run.
func (c *Cell) shutDown(ctx context.Context, s *yodel.Server) error {
	const most = 12 * time.Second
	drained, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if c.Control {
		cancel()
	}
	began := time.Now()
	err := s.Shutdown(drained)
	if took := time.Since(began); took > most/2 {
		return errors.Join(err, fmt.Errorf("the shutdown took %v", took))
	}
	if c.Control {
		return nil
	}
	return err
}

// callDuring makes calls while something happens that begins when server 0 has executed some.
func (c *Cell) callDuring(ctx context.Context, what func() error) (made, failed int64, err error) {
	const callers = 8
	var calls, lost atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range callers {
		all.Go(func() {
			for calls.Load() < 100_000 {
				select {
				case <-stop:
					return
				default:
				}
				calls.Add(1)
				if _, err := c.Call(ctx, yodel.Call{}); err != nil {
					lost.Add(1)
					c.failure.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	err = until(ctx, func() bool { return c.by[0].Load() > 50 })
	if n := lost.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d calls failed before the shutdown: %w", n, c.first()))
	}
	if err == nil {
		err = what()
	}
	close(stop)
	all.Wait()
	return calls.Load(), lost.Load(), err
}

// callOrOther makes a call, or in a control a call of another method.
func (c *Cell) callOrOther(ctx context.Context) error {
	if c.Control {
		return c.Caller.Do(ctx, &yodel.Call{Method: string(other), Args: c.ask(), Reply: new(Told)})
	}
	_, err := c.Call(ctx, yodel.Call{})
	return err
}

func checkStatistics(ctx context.Context, c *Cell) error {
	if err := c.callOrOther(ctx); err != nil {
		return err
	}
	return c.Seen(ctx, "the statistics do not have the call", func() bool {
		return slices.ContainsFunc(c.server.Stats().Methods, func(m introspect.MethodStats) bool {
			return m.Name == c.Method() && m.Calls == 1 && len(m.Errors) == 0
		})
	})
}

// checkSamples wants a record of a call that failed.
func checkSamples(ctx context.Context, c *Cell) error {
	c.bad.Store(true)
	if err := c.callOrOther(ctx); yodel.CodeOf(err) != absent.Code {
		return fmt.Errorf("the call does not fail as planned: %w", err)
	}
	return c.Seen(ctx, "there is no record of the call", func() bool {
		calls := c.server.Samples(&introspect.SamplesQuery{Failed: true, Side: "server"}).Calls
		return len(calls) == 1 && calls[0].Method == c.Method() && calls[0].Code == yodel.NotFound.String()
	})
}

func checkLive(ctx context.Context, c *Cell) error {
	if _, err := c.Call(ctx, yodel.Call{}); err != nil {
		return err
	}
	return c.Seen(ctx, "the live data do not have the call", func() bool {
		live := c.server.Live(&introspect.LiveQuery{})
		return live != nil && slices.ContainsFunc(live.Series, func(s introspect.Series) bool {
			var calls uint64
			for _, n := range s.Calls {
				calls += n
			}
			return s.Side == "server" && s.Method == c.Method() && calls == 1
		})
	})
}
