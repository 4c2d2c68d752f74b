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

	"github.com/yodel-rpc/yodel"
)

// A Shape is a kind of method.
type Shape string

// The shapes of methods.
const (
	Unary  Shape = "unary"
	Feed   Shape = "feed"
	Upload Shape = "upload"
	Duplex Shape = "duplex"
	// OneWay is a call of a unary method that has no reply. The server's observers see its outcome.
	OneWay Shape = "one-way"
)

// A Guarantee is a row of the table: what a middleware, an option or the framework itself promises.
type Guarantee struct {
	Name string
	// Only says why other shapes than the unary one do not have the guarantee. Empty means that all
	// shapes have it.
	Only   string
	oneWay bool // it is about one-way calls
	// Lacks says why calls of a shape over a wire cannot have it. Nil or "" means that they have.
	Lacks func(w *Wire, shape Shape) string
	// Server and Client give the guarantee on that side. Nil means that it does not belong there.
	// If both are nil, the framework itself gives it.
	Server, Client func(t *testing.T, tr *Trial)
	// Prepare says what the methods do, with and without the guarantee. Nil means that they reply.
	Prepare func(tr *Trial)
	// AtOnce is how many calls of the check have to run at once. Default 1.
	AtOnce int
	// Servers is how many servers there are, among which a client divides its calls. Default 1.
	Servers int
	// Check returns an error of NotHeld if the guarantee does not hold, and any other error if the
	// check could not be made: if a call before the one that it is about failed, for example.
	Check func(ctx context.Context, c *Cell) error
}

// A notHeld is what a check has found: the guarantee does not hold.
type notHeld struct{ error }

func (n notHeld) Unwrap() error { return n.error }

// NotHeld returns an error that says that a guarantee does not hold. It is the only error with
// which a control succeeds, so a check returns it for nothing else: a server that cannot be
// reached, or a call that fails for another reason, shows nothing about a guarantee.
func NotHeld(format string, args ...any) error {
	return notHeld{fmt.Errorf(format, args...)}
}

// planned is the text of the errors with which the methods fail because a row says so.
const planned = "as planned: not now"

// isPlanned reports whether a call has reached a method that fails because its row says so.
func isPlanned(err error) bool { return err != nil && strings.Contains(err.Error(), planned) }

// A Cell is a guarantee of one side, over one wire, for one shape.
type Cell struct {
	*Trial
	Wire   *Wire
	Shape  Shape
	Side   string // "server", "client", "framework" or "control"
	Caller yodel.Caller

	number int64  // in the requests; 0 means 1
	pad    string // of the requests
	t      *testing.T
}

// Call makes a call of the cell's shape, and returns the number in the reply. The method, the
// arguments and the reply of like are set here. A one-way call has the outcome that the server's
// observers see, and instead of a reply the number of calls that were executed.
func (c *Cell) Call(ctx context.Context, like yodel.Call) (int64, error) {
	return c.callWith(ctx, &like)
}

// callWith is Call for a call that gets the header and the trailer of the reply.
func (c *Cell) callWith(ctx context.Context, call *yodel.Call) (int64, error) {
	switch c.Shape {
	case Feed:
		if p, ok := c.Caller.(*poster); ok {
			call.Method, call.Args = string(feed), c.ask()
			return p.feed(ctx, call)
		}
		return first(feed.Do(ctx, c.Caller, call, c.ask()))
	case Upload:
		told, err := upload.Do(ctx, c.Caller, call, func(send yodel.Send[Ask]) error { return send(c.ask()) })
		return number(told), err
	case Duplex:
		var n int64
		err := duplex.Do(ctx, c.Caller, call, func(recv yodel.Recv[Told], send yodel.Send[Ask]) (err error) {
			if err := send(c.ask()); err != nil {
				return err
			}
			if err := send.End(); err != nil {
				return err
			}
			n, err = first(recv)
			return err
		})
		return n, err
	case OneWay:
		call.Method, call.Args, call.OneWay = string(unary), c.ask(), true
		if err := c.Caller.Do(ctx, call); err != nil {
			return 0, err
		}
		select {
		case err := <-c.outcomes:
			return c.executed.Load(), err
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	default:
		told, err := unary.Do(ctx, c.Caller, call, c.ask())
		return number(told), err
	}
}

func (c *Cell) ask() *Ask { return &Ask{max(c.number, 1), c.pad} }

func number(told *Told) int64 {
	if told == nil {
		return 0
	}
	return told.N
}

// first receives all messages, and returns the number in the first one.
func first(recv yodel.Recv[Told]) (n int64, err error) {
	for told, err := range recv {
		if err != nil {
			return n, err
		}
		if n == 0 {
			n = told.N
		}
	}
	return n, nil
}

// Method is the method of the cell's shape.
func (c *Cell) Method() string {
	return map[Shape]string{Unary: string(unary), OneWay: string(unary), Feed: string(feed), Upload: string(upload), Duplex: string(duplex)}[c.Shape]
}

// Hold tries guarantees over every wire, on each side to which they belong and for each shape that
// the wire carries. Without what gives a guarantee, the check of its cell has to fail.
func Hold(t *testing.T, guarantees []Guarantee) {
	t.Helper()
	overWires(t, guarantees, false)
}

// overWires is Hold. With inTurn, it tries a guarantee over each wire in one of its shapes. From
// wire to wire, the shapes take turns.
func overWires(t *testing.T, guarantees []Guarantee, inTurn bool) {
	t.Helper()
	for i := range Wires {
		w := &Wires[i]
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			for j, g := range guarantees {
				shapes := g.held(w)
				if n := len(shapes); inTurn && n > 0 {
					shapes = shapes[(i+j)%n:][:1]
				}
				t.Run(g.Name, func(t *testing.T) {
					t.Parallel()
					g.try(t, w, shapes)
				})
			}
		})
	}
}

// held returns the shapes for which a guarantee holds over w. For the others, docs/wires.md has the
// reason.
func (g *Guarantee) held(w *Wire) []Shape {
	return slices.DeleteFunc(g.shapes(w), func(shape Shape) bool { return g.missing(w, shape) != "" })
}

// try tries a guarantee over w for some shapes.
func (g *Guarantee) try(t *testing.T, w *Wire, shapes []Shape) {
	for _, shape := range shapes {
		for side, put := range g.sides(w) {
			t.Run(string(shape)+"/"+side, func(t *testing.T) {
				t.Parallel()
				g.tryOn(t, w, shape, side, put)
			})
		}
	}
}

// sides returns what gives the guarantee on each side, and nil for the control.
func (g *Guarantee) sides(w *Wire) map[string]func(t *testing.T, tr *Trial) {
	sides := map[string]func(t *testing.T, tr *Trial){"control": nil}
	if g.Server != nil {
		sides["server"] = g.Server
	}
	// A caller of another kind is no client. A client whose connection carries one call queues the
	// others.
	if g.Client != nil && w.dial == nil && (!w.oneAtATime || g.AtOnce <= 1) {
		sides["client"] = g.Client
	}
	if g.Server == nil && g.Client == nil {
		sides["framework"] = func(*testing.T, *Trial) {}
	}
	return sides
}

// shapes returns the shapes that both the guarantee and a wire have.
func (g *Guarantee) shapes(w *Wire) []Shape {
	switch {
	case g.oneWay:
		return []Shape{OneWay}
	case g.Only != "" || !w.streams && !w.feeds:
		return []Shape{Unary}
	case !w.streams:
		return []Shape{Unary, Feed}
	}
	return []Shape{Unary, Feed, Upload, Duplex}
}

// missing returns why calls of a shape over a wire cannot have a guarantee. It is empty if it is
// tried there.
func (g *Guarantee) missing(w *Wire, shape Shape) string {
	if g.oneWay && !w.oneWay {
		return "the protocol has no one-way calls, or the caller makes none"
	}
	if g.Lacks != nil {
		if why := g.Lacks(w, shape); why != "" {
			return why
		}
	}
	if len(g.sides(w)) == 1 {
		return "it belongs on a client of yodel, and these callers are none"
	}
	return ""
}

func (g *Guarantee) tryOn(t *testing.T, w *Wire, shape Shape, side string, put func(t *testing.T, tr *Trial)) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tr := &Trial{Control: put == nil, count: g.Servers}
	if w.wire != nil {
		tr.speaks = []string{w.wire.Name()}
	}
	if g.Prepare != nil {
		g.Prepare(tr)
	}
	if put != nil {
		put(t, tr)
	}
	if shape == OneWay {
		tr.watchOutcomes()
	}
	tr.start()
	n := max(g.AtOnce, 1)
	if side == "client" {
		n = 1 // each client has middleware of its own
	}
	err := g.Check(ctx, &Cell{Trial: tr, Wire: w, Shape: shape, Side: side, t: t, Caller: w.caller(t, tr, n)})
	_, found := errors.AsType[notHeld](err)
	switch {
	case !tr.Control && err != nil:
		t.Error(err)
	case tr.Control && err == nil:
		t.Error("the check passes without what gives the guarantee")
	case tr.Control && !found:
		t.Errorf("without what gives the guarantee, the check fails for another reason: %v", err)
	}
}

// callAtOnce makes n calls at once, and returns how many of them have failed until now.
func (c *Cell) callAtOnce(ctx context.Context, n int) (failed *atomic.Int64, wait func()) {
	failed = new(atomic.Int64)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, err := c.Call(ctx, yodel.Call{}); err != nil {
				failed.Add(1)
			}
		})
	}
	return failed, all.Wait
}

// refuses wants a call to fail, and not to be executed.
func (c *Cell) refuses(ctx context.Context, code yodel.Code) error {
	before := c.executed.Load()
	_, err := c.Call(ctx, yodel.Call{})
	switch n := c.executed.Load() - before; {
	case n != 0:
		return NotHeld("the call was executed, want it to be refused: %w", err)
	case err == nil:
		return errors.New("the call succeeds, and was not executed")
	case yodel.CodeOf(err) != code:
		return errors.Join(errors.New("the code is not "+code.String()), err)
	}
	return nil
}

// lacks returns a function for Guarantee.Lacks: wires that do not have something lack it, for the
// reason why.
func lacks(has func(w *Wire) bool, why string) func(w *Wire, _ Shape) string {
	return func(w *Wire, _ Shape) string {
		if has(w) {
			return ""
		}
		return why
	}
}

// LacksKeys says why a call over a wire has no idempotency key.
var LacksKeys = lacks(func(w *Wire) bool { return w.keys }, noKey)

const noKey = "the protocol has no place for a key"

// ExecutesOnce wants two equal calls with a key, which may be empty, to be executed once.
func (c *Cell) ExecutesOnce(ctx context.Context, key string) error {
	for range 2 {
		got, err := c.Call(ctx, yodel.Call{IdempotencyKey: key})
		switch n := c.executed.Load(); {
		case err != nil:
			return err
		case n != 1:
			return NotHeld("two equal calls were executed %d times, and the second one gets the reply %d", n, got)
		case got != 1:
			return fmt.Errorf("the reply is %d, want that of the first call", got)
		}
	}
	return nil
}

// Seen waits until condition holds, or returns an error that says what was not seen.
func (c *Cell) Seen(ctx context.Context, what string, condition func() bool) error {
	own, cancel := context.WithTimeout(ctx, c.limit())
	defer cancel()
	if err := until(own, condition); err != nil {
		return NotHeld("%s: %w", what, err)
	}
	return nil
}

// replies wants a call to have a number as its reply. Another reply, or the error of a method that
// fails as planned, says that the guarantee does not hold.
func (c *Cell) replies(ctx context.Context, want int64) error {
	switch got, err := c.Call(ctx, yodel.Call{}); {
	case isPlanned(err):
		return NotHeld("the caller gets the error of the method: %w", err)
	case err != nil:
		return err
	case got != want:
		return NotHeld("the reply is %d, want %d", got, want)
	}
	return nil
}

// works wants a call to have a number as its reply, before the call that the check is about.
func (c *Cell) works(ctx context.Context, want int64) error {
	if got, err := c.Call(ctx, yodel.Call{}); err != nil || got != want {
		return errors.Join(err, fmt.Errorf("the reply is %d, want %d", got, want))
	}
	return nil
}

// CheckRate wants two calls to pass, and the third to be refused.
func CheckRate(ctx context.Context, c *Cell) error {
	for n := range int64(2) {
		if err := c.works(ctx, n+1); err != nil {
			return err
		}
	}
	return c.refuses(ctx, yodel.ResourceExhausted)
}

// Name is the name of the cell's test.
func (c *Cell) Name() string { return c.t.Name() }
