// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel/internal/budget"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestTokensAreTakenOnce(t *testing.T) {
	var tokens budget.Tokens
	tokens.Set(budget.Of(101))
	var taken atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if tokens.Take() {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() != 100 || tokens.Left() != 0 {
		t.Errorf("%d of 100 were taken, and %d are left", taken.Load(), tokens.Left())
	}
}

func TestLentTokensComeBack(t *testing.T) {
	for _, test := range []struct {
		lent int32
		used uint64
		want int32
	}{{9, 0, 10}, {9, 4, 6}, {9, 9, 1}, {9, 100, 1}, {9, math.MaxUint64, 1}} {
		var tokens budget.Tokens
		tokens.Set(10)
		if lent := tokens.Lend(1); lent != test.lent {
			t.Errorf("lent %d, want %d", lent, test.lent)
		}
		if lent := tokens.Lend(1); lent != 0 {
			t.Errorf("lent %d of the token that is kept", lent)
		}
		tokens.Repay(test.lent, test.used)
		if got := tokens.Left(); got != test.want {
			t.Errorf("after %d were used, %d are left, want %d", test.used, got, test.want)
		}
	}
}

func TestBudgetsAreBounded(t *testing.T) {
	if got := budget.Of(math.MaxInt); got != budget.Max-1 {
		t.Errorf("got %d", got)
	}
	var tokens budget.Tokens
	tokens.Set(3)
	if got := tokens.TakeAll(); got != 3 || tokens.Left() != 0 {
		t.Errorf("took %d, and %d are left", got, tokens.Left())
	}
}

func TestTheTokensOfAnAbandonedStreamComeBack(t *testing.T) {
	for _, test := range []struct {
		answer *mux.Answer
		err    error
		want   int32
	}{
		{&mux.Answer{Fields: wire.AppendFields(nil, &wire.Fields{Budget: 2})}, nil, 3},
		{&mux.Answer{}, nil, 5},
		{nil, mux.ErrClosed, 0},
	} {
		var tokens budget.Tokens
		follower, ok := tokens.Lender(nil, 5).(mux.Follower)
		if !ok {
			t.Fatal("the Completer is not a Follower")
		}
		follower.Abandoned().Complete(test.answer, test.err)
		if got := tokens.Left(); got != test.want {
			t.Errorf("after %v, %v: %d tokens, want %d", test.answer, test.err, got, test.want)
		}
	}
}
