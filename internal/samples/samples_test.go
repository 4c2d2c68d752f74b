// SPDX-License-Identifier: Apache-2.0

package samples_test

import (
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/samples"
)

// admit asks for records of a kind at a reading of the clock, and returns how many were admitted.
func admit(s *samples.Sampler[int], kind samples.Kind, calls int, now time.Duration) (admitted int) {
	for range calls {
		if s.Admit(kind, now) {
			admitted++
		}
	}
	return admitted
}

func TestRecordsAreTakenInAtABoundedRate(t *testing.T) {
	s := samples.New[int]()
	now := time.Hour
	if got := admit(s, samples.Failed, 1000, now); got != 64 {
		t.Errorf("%d of 1000 calls at once were admitted, want 64", got)
	}
	if got := admit(s, samples.Slow, 1, now); got != 1 {
		t.Error("calls that failed keep out one that was slow")
	}
	if got := admit(s, samples.Failed, 1000, now+100*time.Millisecond); got != 10 {
		t.Errorf("%d of 1000 calls were admitted 100 ms later, want 10", got)
	}
	if got := admit(s, samples.Failed, 1000, time.Minute); got != 64 { // as in a bubble of another test
		t.Errorf("%d of 1000 calls were admitted on an earlier clock, want 64", got)
	}
	if s.Seen(samples.Failed) != 3000 || s.Seen(samples.Slow) != 1 || s.LeftOut() != 3000-64-10-64 {
		t.Errorf("%d failed, %d were slow, %d were left out", s.Seen(samples.Failed), s.Seen(samples.Slow), s.LeftOut())
	}
}

func TestTheLastRecordsOfEachKindAreKept(t *testing.T) {
	s := samples.New[int]()
	first := -1
	s.Keep(samples.Slow, &first)
	for i := range 1000 {
		s.Keep(samples.Failed, &i)
		s.Keep(samples.Explained, &i)
	}
	var kept []int
	for _, r := range s.Records() {
		kept = append(kept, *r)
	}
	slices.Sort(kept)
	want := []int{first}
	for i := 1000 - 128; i < 1000; i++ {
		want = append(want, i)
		if i >= 1000-64 {
			want = append(want, i)
		}
	}
	if !slices.Equal(kept, want) {
		t.Errorf("got %v, want the slow one, the last 128 that failed and the last 64 that were explained: %v", kept, want)
	}
}

func TestKindOf(t *testing.T) {
	for _, test := range []struct {
		explained, failed bool
		want              samples.Kind
	}{
		{true, true, samples.Explained},
		{true, false, samples.Explained},
		{false, true, samples.Failed},
		{false, false, samples.Slow},
	} {
		if got := samples.KindOf(test.explained, test.failed); got != test.want {
			t.Errorf("explained %t, failed %t: got %d, want %d", test.explained, test.failed, got, test.want)
		}
	}
}
