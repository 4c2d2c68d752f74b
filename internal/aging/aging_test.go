// SPDX-License-Identifier: Apache-2.0

package aging_test

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/aging"
	"github.com/yodel-rpc/yodel/internal/monotime"
)

// ends returns after which time a connection that began at now ends. Work and open say what is seen
// of its calls after a time.
func ends(t *testing.T, a *aging.Age, now int64, work func(after time.Duration) (uint64, bool)) time.Duration {
	t.Helper()
	begin := now
	for range 1000 {
		if now = a.Next(); now == monotime.Never {
			return -1
		}
		if n, open := work(time.Duration(now - begin)); a.Ended(now, n, open) {
			if a.Next() != monotime.Never {
				t.Error("the checks go on after the end")
			}
			return time.Duration(now - begin)
		}
	}
	return -1
}

func none(time.Duration) (uint64, bool) { return 0, false }

// begins are readings of the clock. In the fake time of tests they are negative.
var begins = []int64{1, -1 << 60, 1 << 40}

func TestAnIdleConnectionEnds(t *testing.T) {
	const idle = time.Minute
	for _, now := range begins {
		var a aging.Age
		if got := ends(t, &a, now, none); got != -1 {
			t.Errorf("a connection without limits ends after %v", got)
		}
		a.Begin(now, idle, 0)
		if got := ends(t, &a, now, none); got != idle {
			t.Errorf("an idle connection ends after %v, want %v", got, idle)
		}
		a.Begin(now, idle, 0)
		got := ends(t, &a, now, func(after time.Duration) (uint64, bool) { return uint64(min(after, time.Hour)), false })
		if got < time.Hour+idle || got > time.Hour+2*idle {
			t.Errorf("a connection with calls for an hour ends after %v", got)
		}
		a.Begin(now, idle, 0)
		got = ends(t, &a, now, func(after time.Duration) (uint64, bool) { return 1, after < time.Hour })
		if got < time.Hour+idle || got > time.Hour+2*idle {
			t.Errorf("a connection with a call of an hour ends after %v", got)
		}
		a.Begin(now, 1, 0)
		if got := ends(t, &a, now, none); got < 1 || got > 10 {
			t.Errorf("after the shortest time, it ends after %d ns", got)
		}
	}
}

func TestAnOldConnectionEnds(t *testing.T) {
	busy := func(after time.Duration) (uint64, bool) { return uint64(after), true }
	for _, now := range begins {
		var a aging.Age
		a.Begin(now, 0, monotime.Later(now, time.Hour))
		if got := ends(t, &a, now, busy); got != time.Hour {
			t.Errorf("it ends after %v, want an hour", got)
		}
		a.Begin(now, 7*time.Minute, monotime.Later(now, time.Hour))
		if got := ends(t, &a, now, busy); got != time.Hour {
			t.Errorf("with an idle time, it ends after %v, want an hour", got)
		}
	}
}
