// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

const noStreams = "streams have a time of their own"

// isNoStream says why a unary call has no time of streams.
func isNoStream(_ *Wire, shape Shape) string {
	if shape == Unary {
		return "a time of streams does not concern it"
	}
	return ""
}

// short is the time that a client gives the calls whose deadline should not be touched.
const short = 150 * time.Millisecond

// deadlineGuarantees are about which calls ClientOptions.Timeout and StreamTimeout end, without
// rules and with rules.With, which takes their place.
func deadlineGuarantees() []Guarantee {
	late := Guarantee{
		Name: "a deadline of the caller counts, even a later one", Prepare: outlast,
		Client: func(_ *testing.T, tr *Trial) { tr.Client.Timeout, tr.Client.StreamTimeout = short, short },
		Check: func(ctx context.Context, c *Cell) error {
			return c.outlasts(ctx, yodel.Call{Deadline: time.Now().Add(time.Hour)}, !c.Control)
		},
	}
	open := Guarantee{
		Name: "Timeout does not end streams", Lacks: isNoStream, Prepare: outlast,
		Client: func(_ *testing.T, tr *Trial) { tr.Client.Timeout = short },
		Check: func(ctx context.Context, c *Cell) error {
			return c.outlasts(ctx, yodel.Call{}, !c.Control)
		},
	}
	named := Guarantee{
		Name: "StreamTimeout ends streams, and the error says so", Lacks: isNoStream, Prepare: closeGate,
		Client: func(_ *testing.T, tr *Trial) { tr.Client.StreamTimeout = 2 * short },
		Check:  checkStreamTimeout,
	}
	all := []Guarantee{late, open, named}
	for _, g := range all[:3:3] {
		g.Name += ", with rules.With"
		prepare := g.Prepare
		g.Prepare = func(tr *Trial) { prepare(tr); followRules(tr) }
		all = append(all, g)
	}
	return all
}

// followRules makes the clients and the servers of a trial follow the rules of a registry.
func followRules(tr *Trial) {
	registry := memory.New(nil)
	tr.rules = registry
	follow := rules.With(registry, &rules.Options{Logger: silent})
	tr.Options.Registrars = []discovery.Registrar{follow}
	tr.resolve = func([]discovery.Instance) discovery.Resolver { return follow.Service("All") }
}

// outlast makes the methods take twice as long as short. Without what gives the guarantee,
// the client ends each call before.
func outlast(tr *Trial) {
	tr.act = func() { <-time.After(2 * short) }
	if tr.Control {
		tr.Client.Timeout, tr.Client.StreamTimeout = short, short
	}
}

// outlasts wants a call to succeed that takes longer than short.
func (c *Cell) outlasts(ctx context.Context, like yodel.Call, deadline bool) error {
	if !deadline {
		like.Deadline = time.Time{}
	}
	for {
		_, err := c.Call(context.WithoutCancel(ctx), like)
		cut := yodel.CodeOf(err) == yodel.DeadlineExceeded
		switch {
		case cut && c.executed.Load() > 0:
			return NotHeld("the call was cut: %w", err)
		case cut && c.Control && ctx.Err() == nil:
			continue // on a busy machine, it was cut before the method ran
		}
		return err
	}
}

// checkStreamTimeout wants a stream to end, and its error to name the deadline of the stream. The
// context has no deadline of its own.
func checkStreamTimeout(ctx context.Context, c *Cell) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer time.AfterFunc(c.limit(), cancel).Stop()
	_, err := c.Call(own, yodel.Call{})
	switch {
	case own.Err() != nil:
		return NotHeld("the deadline of the stream does not end it: %w", err)
	case yodel.CodeOf(err) != yodel.DeadlineExceeded:
		return fmt.Errorf("the code is not deadline_exceeded: %w", err)
	case !strings.Contains(err.Error(), "the deadline of the stream"):
		return fmt.Errorf("the error does not name the deadline of the stream: %w", err)
	}
	return nil
}

func TestDeadlinesOverEveryWire(t *testing.T) {
	t.Parallel()
	overWires(t, deadlineGuarantees(), inTurn())
}
