// SPDX-License-Identifier: Apache-2.0

package monotime_test

import (
	"math"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/monotime"
)

func TestReadingsAndTimesConvertExactly(t *testing.T) {
	at := time.Now()
	if back := monotime.Time(monotime.Of(at)); !back.Equal(at) || back.Sub(at) != 0 {
		t.Errorf("got %v, want %v", back, at)
	}
	before := monotime.Of(time.Now())
	if now := monotime.Now(); now < before || before <= 0 {
		t.Errorf("got %v after %v, want later readings, and none of 0", now, before)
	}
}

func TestASumThatOverflowsIsNever(t *testing.T) {
	for _, test := range []struct {
		now  int64
		by   []time.Duration
		want int64
	}{
		{5, nil, 5},
		{5, []time.Duration{2, 3}, 10},
		{1, []time.Duration{math.MaxInt64}, monotime.Never},
		{5, []time.Duration{2, monotime.Never - 7}, monotime.Never},
		{5, []time.Duration{math.MaxInt64 - 1, 9}, monotime.Never},
		{-7, []time.Duration{math.MaxInt64}, math.MaxInt64 - 7}, // in the fake time of tests
	} {
		if got := monotime.Later(test.now, test.by...); got != test.want {
			t.Errorf("%d and %v: got %d, want %d", test.now, test.by, got, test.want)
		}
	}
}

func TestReadingsBecomeWallClockTimes(t *testing.T) {
	before := time.Now()
	now := monotime.Now()
	got := monotime.Wall(now - time.Hour)
	if got.Before(before.Add(-time.Hour).Round(0)) || got.After(time.Now().Add(-time.Hour)) || got.Location() != time.UTC {
		t.Errorf("an hour before %v is %v", before, got)
	}
}
