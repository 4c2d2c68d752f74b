// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/live"
)

func TestCountersBelongToAGenerationOfABinding(t *testing.T) {
	var counters diagnose.Counters
	if c, set := counters.At(3, 0); c != nil || set {
		t.Error("there is a counter that was not set")
	}
	first, later := new(live.Counter), new(live.Counter)
	counters.Set(3, 0, first)
	counters.Set(5, 0, nil) // there was no memory for it
	if c, set := counters.At(3, 0); c != first || !set {
		t.Error("the counter is another one than was set")
	}
	if c, set := counters.At(5, 0); c != nil || !set {
		t.Error("the counter without memory was forgotten")
	}
	if _, set := counters.At(3, 1); set {
		t.Error("the next binding with the handle has the counter of the last one")
	}
	counters.Set(3, 1, later)
	if c, set := counters.At(3, 1); c != later || !set {
		t.Error("the counter of the next binding is another one than was set")
	}
}
