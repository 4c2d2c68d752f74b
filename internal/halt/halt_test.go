// SPDX-License-Identifier: Apache-2.0

package halt_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel/internal/halt"
)

// A halted context is a Context.
type halted struct {
	context.Context // it is one

	outer chan struct{}
}

func (h *halted) Outer() <-chan struct{}  { return h.outer }
func (h *halted) Await(halt.Conn, uint32) {}

// A lookalike is a context of other code with methods of the same names and shapes.
type lookalike struct {
	context.Context // it is one
}

func (lookalike) Outer() <-chan struct{}                     { panic("Outer was called") }
func (lookalike) Await(interface{ Halt(id uint32) }, uint32) { panic("Await was called") }

func TestEnds(t *testing.T) {
	of := &halted{t.Context(), make(chan struct{})}
	if done, h := halt.Ends(of); done != (<-chan struct{})(of.outer) || h != halt.Context(of) {
		t.Error("a Context does not end with its outer context")
	}
	if done, h := halt.Ends(t.Context()); done != t.Context().Done() || h != nil {
		t.Error("another context does not end by its channel")
	}
}

// Only a context that was written for this package takes over how a call is canceled. For any
// other, the call is canceled when Done is closed, whatever methods the context has.
func TestNoContextIsOneByAccident(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done, h := halt.Ends(lookalike{ctx})
	if h != nil {
		t.Fatal("a context of other code is taken for a Context")
	}
	cancel()
	<-done
}
