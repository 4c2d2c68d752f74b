// SPDX-License-Identifier: Apache-2.0

package expiry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }

func TestEarliest(t *testing.T) {
	now := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), now)
	defer cancel()
	for other, want := range map[time.Time]time.Time{{}: now, now.Add(1): now, now.Add(-1): now.Add(-1)} {
		if got := expiry.Earliest(ctx, other); !got.Equal(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := expiry.Earliest(t.Context(), time.Time{}); !got.IsZero() {
		t.Errorf("without a deadline: got %v", got)
	}
}

// An endless is a context that does not end at its deadline.
type endless struct{ context.Context }

func (endless) Deadline() (time.Time, bool) { return time.Now(), true }

func TestCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("enough")
		timed, cancel := context.WithTimeoutCause(t.Context(), time.Minute, enough)
		defer cancel()
		if got := expiry.Cause(timed); got != nil {
			t.Errorf("before the end: got %v", got)
		}
		time.Sleep(time.Minute - time.Microsecond) // it waits for what is left
		if got := expiry.Cause(timed); got != enough {
			t.Errorf("got %v, want the cause", got)
		}
		plain, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		if got := expiry.Cause(plain); got != nil || plain.Err() == nil {
			t.Errorf("a context without a cause: got %v, %v", got, plain.Err())
		}
		began := time.Now()
		if got := expiry.Cause(endless{t.Context()}); got != nil || time.Since(began) != time.Second {
			t.Errorf("a context that does not end: got %v after %v", got, time.Since(began))
		}
	})
}
