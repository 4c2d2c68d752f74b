// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/introspect"
)

func attempt(addr string, failed record.Failure) *introspect.Attempt {
	a := &introspect.Attempt{Addr: addr, Connecting: 1, Credit: 2, BytesOut: 3, BytesIn: 4}
	failed.Attempt(a)
	return a
}

// attemptsOf returns the addresses of the attempts in the report of r, and how many are omitted.
func attemptsOf(r *record.Record) string {
	var to introspect.CallReport
	r.Attempts(&to)
	var addrs []string
	for i := range to.Attempts {
		addrs = append(addrs, to.Attempts[i].Addr)
	}
	return fmt.Sprint(addrs, to.MoreAttempts)
}

func TestARecordDropsAttemptsFromTheMiddle(t *testing.T) {
	var r record.Record
	for i := range 40 {
		r.Add(attempt(fmt.Sprint(i), record.Failure{}))
	}
	var want []string
	for i := range 40 {
		if i < 16 || i >= 24 {
			want = append(want, fmt.Sprint(i))
		}
	}
	if got, want := attemptsOf(&r), fmt.Sprint(want, 8); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if r.Made() != 40 {
		t.Errorf("%d attempts were made, want 40", r.Made())
	}
}

// An error that a caller holds has the attempts so far. Those that follow must not change it.
func TestLaterAttemptsDoNotChangeAReport(t *testing.T) {
	var r record.Record
	for range 31 {
		r.Add(attempt("early", record.Failure{}))
	}
	var to introspect.CallReport
	r.Attempts(&to)
	longer := append(to.Attempts, introspect.Attempt{Addr: "the caller's"})
	for range 40 {
		r.Add(attempt("late", record.Failure{}))
	}
	for i := range to.Attempts {
		if to.Attempts[i].Addr != "early" {
			t.Fatalf("attempt %d became %q", i, to.Attempts[i].Addr)
		}
	}
	if got := longer[31].Addr; got != "the caller's" {
		t.Errorf("the caller's own attempt became %q", got)
	}
	r = record.Record{}
	r.Add(attempt("early", record.Failure{}))
	r.Attempts(&to)
	r.Add(attempt("late", record.Failure{}))
	if len(to.Attempts) != 1 || to.Attempts[0].Addr != "early" {
		t.Errorf("a report with one attempt became %v", to.Attempts)
	}
}

func TestARecordAddsUpItsAttempts(t *testing.T) {
	var r record.Record
	if !r.Unsent() || r.Tried("a") || r.Waited() != 0 || r.Made() != 0 {
		t.Error("an empty record has attempts")
	}
	r.Add(attempt("a", record.Failure{Code: "unavailable", NotProcessed: true}))
	if !r.Unsent() {
		t.Error("the only attempt was not processed, the call was")
	}
	fork := attempt("b", record.Failure{})
	fork.Fork = true
	r.Add(fork)
	var traffic introspect.Traffic
	r.AddTraffic(&traffic)
	if want := (introspect.Traffic{BytesOut: 6, BytesIn: 8, Forks: 1}); traffic != want {
		t.Errorf("got %+v, want %+v", traffic, want)
	}
	if r.Unsent() || !r.Tried("b") || r.Tried("c") || r.Waited() != 6 {
		t.Errorf("unsent %v, b was tried: %v, c was tried: %v, waited %d, want false, true, false, 6", r.Unsent(), r.Tried("b"), r.Tried("c"), r.Waited())
	}
}

func TestNotesAreBoundedAndInOrder(t *testing.T) {
	var r, fork record.Record
	r.Note(5, "retry", "again")
	r.Note(30, "retry", strings.Repeat("x", 400))
	fork.Note(20, "hedge", "second")
	fork.Note(25, "hedge", "third")
	r.Join(&fork)
	var to introspect.CallReport
	r.Notes(&to, 10)
	var got strings.Builder
	for _, n := range to.Notes {
		fmt.Fprintf(&got, " %d %s %.6s;", n.At, n.By, n.What)
	}
	if want := " 0 retry again; 10 hedge second; 15 hedge third; 20 retry xxxxxx;"; got.String() != want {
		t.Errorf("got  %s\nwant %s", got.String(), want)
	}
	if n := len(to.Notes[3].What); n > record.MaxText {
		t.Errorf("a note has %d bytes, the limit is %d", n, record.MaxText)
	}
	for range 40 {
		fork.Note(20, "hedge", "more")
		r.Note(20, "retry", "more")
	}
	r.Join(&fork)
	to = introspect.CallReport{}
	r.Notes(&to, 10)
	if len(to.Notes) != 32 || to.MoreNotes != 12+32+10 { // 12 of r's own, and all 42 of the fork
		t.Errorf("%d notes and %d more, want 32 and 54", len(to.Notes), to.MoreNotes)
	}
}

func TestAForkJoinsItsCall(t *testing.T) {
	var r, fork record.Record
	r.Add(attempt("a", record.Failure{}))
	for range 33 {
		fork.Add(attempt("b", record.Failure{}))
	}
	fork.Candidates = &record.Candidates{Picker: "the fork's", At: 2}
	r.Join(&fork)
	if r.Made() != 34 || !strings.HasPrefix(attemptsOf(&r), "[a b b") {
		t.Errorf("%d attempts: %s", r.Made(), attemptsOf(&r))
	}
	if r.Candidates != fork.Candidates {
		t.Error("the candidates of the fork are missing")
	}
	older := record.Record{Candidates: &record.Candidates{Picker: "older", At: 1}}
	if r.Join(&older); r.Candidates.Picker != "the fork's" {
		t.Errorf("older candidates replaced newer ones: %s", r.Candidates.Picker)
	}
}

func TestCandidatesAreBoundedAndThoseWithAVerdictFirst(t *testing.T) {
	for _, test := range []struct{ judged, others, listed, more int }{
		{0, 0, 0, 0}, {1, 2, 3, 0}, {2, 40, 32, 10}, {40, 2, 32, 10}, {31, 3, 32, 2}, {50, 60, 32, 78},
	} {
		c := &record.Candidates{Picker: "round robin", At: 7}
		for range test.others {
			c.Add(introspect.Candidate{Addr: "other"})
		}
		for range test.judged {
			c.Add(introspect.Candidate{Addr: strings.Repeat("a", 200), Verdict: "not ready"})
		}
		var to introspect.CallReport
		c.Describe(&to, 5)
		if len(to.Candidates) != test.listed || to.MoreCandidates != test.more || to.Picker != "round robin" || to.CandidatesAt != 2 {
			t.Errorf("%+v: %d candidates and %d more, by %s at %d", test, len(to.Candidates), to.MoreCandidates, to.Picker, to.CandidatesAt)
		}
		for i, one := range to.Candidates {
			want := "not ready"
			if i >= test.judged {
				want = "not chosen"
			}
			if one.Verdict != want || len(one.Addr) > record.MaxName {
				t.Errorf("%+v: candidate %d is %q and has an address of %d bytes", test, i, one.Verdict, len(one.Addr))
			}
		}
	}
	var none *record.Candidates
	var to introspect.CallReport
	if none.Describe(&to, 5); to.Picker != "" || to.Candidates != nil {
		t.Errorf("no candidates became %+v", to)
	}
}

func TestTheTimeOfAnAttemptIsDivided(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		took, wait             uint64 // as the server says, in microseconds
		network, queue, handle time.Duration
	}{
		{0, 0, 0, 0, 0},
		{5000, 2000, 2 * ms, 2 * ms, 3 * ms},
		{5000, 9000, 2 * ms, 5 * ms, 0}, // no server waits for longer than it takes
		{50000, 0, 0, 0, 50 * ms},       // a clock that differs
	} {
		p := record.Parts{Connecting: ms}
		p.Server(test.took, test.wait)
		a := introspect.Attempt{Took: 10 * ms}
		p.Describe(&a, 2*ms)
		if a.Network != test.network || a.Queue != test.queue || a.Handler != test.handle || a.Connecting != ms || a.Credit != 2*ms {
			t.Errorf("%+v became %+v", test, a)
		}
	}
	var p record.Parts
	p.Server(1<<64-1, 1<<64-1)
	a := introspect.Attempt{}
	if p.Describe(&a, 0); a.Queue <= 0 || a.Handler != 0 || a.Network != 0 {
		t.Errorf("a time that is too long became %+v", a)
	}
}

func TestTheTimeOfAServedCallIsDivided(t *testing.T) {
	const now = 1000
	for _, test := range []struct {
		served        record.Served
		took          time.Duration
		began         time.Duration
		queue, handle time.Duration
	}{
		{record.Served{Arrived: 900, Taken: 920, Began: 930}, 60, 900, 30, 50},
		{record.Served{Arrived: 900, Taken: 920}, 60, 900, 20, 60},             // the method did not begin, or nobody looked
		{record.Served{Taken: 920, Began: 990}, 60, 920, 60, 0},                // the method cannot begin after the end
		{record.Served{}, 60, 940, 0, 60},                                      // nothing is known
		{record.Served{Arrived: 930, Taken: 920, Began: 925}, 60, 920, 5, 55},  // two clocks
		{record.Served{Arrived: 900, Taken: 920, Began: 800}, 60, 900, 20, 60}, // of an earlier request
	} {
		var r introspect.CallReport
		began := test.served.Describe(&r, test.took, now)
		if began != test.began || r.Queue != test.queue || r.Handler != test.handle || r.Took != r.Queue+r.Handler {
			t.Errorf("%+v began at %d, queued %d, handled %d, took %d", test, began, r.Queue, r.Handler, r.Took)
		}
	}
}

func TestTheTextsOfAFailureAreLimited(t *testing.T) {
	f := record.Failure{Code: "internal", ID: "a bad\nid", Message: strings.Repeat("m", 1000), NotProcessed: true}
	var a introspect.Attempt
	var r introspect.CallReport
	f.Attempt(&a)
	f.Call(&r)
	if a.Code != "internal" || a.ID != "a_bad_id" || len(a.Message) > record.MaxText || !a.NotProcessed {
		t.Errorf("the attempt is %+v", a)
	}
	if r.Code != a.Code || r.ID != a.ID || r.Message != a.Message || !r.NotProcessed {
		t.Errorf("the report differs from the attempt: %+v", r)
	}
}

func TestTheMessageOfFailedAttemptsMergesEqualReasons(t *testing.T) {
	const refused = "connection refused"
	of := func(reasons ...string) *record.Record {
		r := &record.Record{}
		for i, why := range reasons {
			addr := fmt.Sprintf("10.0.0.%d:1", i+1)
			r.Add(attempt(addr, record.Failure{Code: "unavailable", ID: "YDL1101", Message: "A.B: " + addr + ": " + why}))
		}
		return r
	}
	for _, test := range []struct {
		r    *record.Record
		room int
		want string
	}{
		{of(refused, refused), 500, "A.B: 2 attempts at 10.0.0.1:1 and 10.0.0.2:1 failed, both: connection refused"},
		{of(refused, refused, refused, refused), 500, "A.B: 4 attempts at 10.0.0.1:1, 10.0.0.2:1, 10.0.0.3:1 and 1 more failed, all: connection refused"},
		{of(refused, "timeout"), 500, "A.B: 2 attempts failed: 10.0.0.1:1: connection refused; 10.0.0.2:1: timeout"},
		{of("a", "b", "c", "d", "a"), 500, "A.B: 5 attempts failed: 10.0.0.1:1 and 10.0.0.5:1: a; 10.0.0.2:1: b; 10.0.0.3:1: c; and 1 more"},
		{of(refused, strings.Repeat("long-", 40)), 120, "A.B: 2 attempts failed: 10.0.0.1:1: connection refused; 10.0.0.2:1: long-long-long-long-long-long-long-long-long-long…"},
	} {
		if got := test.r.Message("A.B", test.room); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		} else if len(got) > test.room {
			t.Errorf("%s: %d bytes, there is room for %d", got, len(got), test.room)
		}
	}
	same := of(refused, "timeout")
	next := same.Next()
	if next == "" {
		t.Error("attempts that failed for the same reason have no common advice")
	}
	other := attempt("10.0.0.9:1", record.Failure{Code: "unavailable", ID: "YDL1104"})
	if same.Add(other); same.Next() != "" {
		t.Errorf("attempts that failed for different reasons have a common advice: %s", same.Next())
	}
}
