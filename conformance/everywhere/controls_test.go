// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// troubles are ways in which no call reaches the method. None of them shows that a guarantee does
// not hold.
var troubles = map[string]func(ctx context.Context) error{
	"the server cannot be reached": func(context.Context) error {
		return &yodel.Error{Code: yodel.Unavailable, Message: "connection refused", NotProcessed: true}
	},
	"the reply is malformed": func(context.Context) error { return yodel.Errorf(yodel.Internal, "malformed reply") },
	"the server does not reply": func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		return yodel.Errorf(yodel.DeadlineExceeded, "no reply")
	},
}

// A control fails because of its guarantee, and not because no call can be made.
func TestControlsDoNotSucceedInTrouble(t *testing.T) {
	t.Parallel()
	for _, tab := range tables() {
		for _, g := range tab.Rows {
			if g.Check == nil {
				continue // a test of another module has it
			}
			for trouble, fail := range troubles {
				t.Run(tab.Title+"/"+g.Name+"/"+g.on()+"/"+trouble, func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
					defer cancel()
					err := g.inTrouble(ctx, t, fail)
					if _, found := errors.AsType[notHeld](err); err == nil || found {
						t.Errorf("the control succeeds: %v", err)
					}
				})
			}
		}
	}
}

// inTrouble makes the check of a control with a client all of whose calls fail.
func (g *Guarantee) inTrouble(ctx context.Context, t *testing.T, fail func(ctx context.Context) error) error {
	t.Helper()
	w := &Wires[0]
	tr := &Trial{Control: true, count: g.Servers}
	if g.Prepare != nil {
		g.Prepare(tr)
	}
	tr.Client.Middleware = slices.Insert(tr.Client.Middleware, 0, func(yodel.Handler) yodel.Handler {
		return func(ctx context.Context, _ *yodel.Call) error { return fail(ctx) }
	})
	tr.start()
	return g.Check(ctx, &Cell{Trial: tr, Wire: w, Shape: g.shapes(w)[0], Side: "control", t: t, Caller: w.caller(t, tr, 1)}) //nolint:contextcheck // the server ends with the test
}
