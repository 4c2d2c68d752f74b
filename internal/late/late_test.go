// SPDX-License-Identifier: Apache-2.0

package late_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel/internal/late"
)

func TestAReplyIsSetOnce(t *testing.T) {
	r, failed := late.New(), errors.New("it failed")
	if !r.Set(func() (any, error) { return "first", failed }) {
		t.Error("the first reply is not taken")
	}
	if r.Set(func() (any, error) { t.Error("a second outcome was asked for"); return "second", nil }) {
		t.Error("a second reply is taken")
	}
	if reply, err := r.Get(); reply != "first" || err != failed {
		t.Errorf("got %v, %v", reply, err)
	}
	if reply, err := r.Wait(context.Background()); reply != "first" || err != failed {
		t.Errorf("waited for %v, %v", reply, err)
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if reply, err := late.New().Wait(ctx); reply != nil || err != cause {
		t.Errorf("got %v, %v", reply, err)
	}
}

func TestOneOfManyRepliesArrives(t *testing.T) {
	r := late.New()
	var wg sync.WaitGroup
	var taken atomic.Int32
	for i := range 8 {
		wg.Go(func() {
			if r.Set(func() (any, error) { return i, nil }) {
				taken.Store(int32(i))
			}
		})
	}
	reply, err := r.Wait(context.Background())
	wg.Wait()
	if reply != int(taken.Load()) || err != nil {
		t.Errorf("got %v, %v, want %d", reply, err, taken.Load())
	}
}
