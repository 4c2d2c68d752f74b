// SPDX-License-Identifier: Apache-2.0

//go:build !race

package outlier_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// brief leaves out most of what takes minutes under the race detector.
func brief() bool { return testing.Short() }

// Under the race detector calls are not used again.
func TestSuccessAllocatesNothing(t *testing.T) {
	c := stub(t, 2, nil, func(context.Context, int, *yodel.Call) error { return nil })
	ctx, in := context.Background(), &struct{}{}
	if n := testing.AllocsPerRun(1000, func() {
		if err := c.Call(ctx, string(work), in, nil); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}
