// SPDX-License-Identifier: Apache-2.0

package samples_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/samples"
	"github.com/yodel-rpc/yodel/introspect"
)

// These are the kinds of records.
var (
	failed    = samples.KindOf(false, int(yodel.Internal))
	canceled  = samples.KindOf(false, int(yodel.Canceled))
	slow      = samples.KindOf(false, 0)
	explained = samples.KindOf(true, int(yodel.Internal))
)

// admit asks for records of a kind at a reading of the clock, and returns how many were admitted.
func admit(s *samples.Sampler, kind samples.Kind, calls int, now time.Duration) (admitted int) {
	for range calls {
		if s.Admit(kind, now) {
			admitted++
		}
	}
	return admitted
}

func TestRecordsAreTakenInAtABoundedRate(t *testing.T) {
	s := samples.New()
	now := time.Hour
	if got := admit(s, failed, 1000, now); got != 64 {
		t.Errorf("%d of 1000 calls at once were admitted, want 64", got)
	}
	if got := admit(s, slow, 1, now); got != 1 {
		t.Error("calls that failed keep out one that was slow")
	}
	if got := admit(s, failed, 1000, now+100*time.Millisecond); got != 10 {
		t.Errorf("%d of 1000 calls were admitted 100 ms later, want 10", got)
	}
	if got := admit(s, failed, 1000, time.Minute); got != 64 { // as in a bubble of another test
		t.Errorf("%d of 1000 calls were admitted on an earlier clock, want 64", got)
	}
	if s.Seen(failed) != 3000 || s.Seen(slow) != 1 || s.LeftOut() != 3000-64-10-64 {
		t.Errorf("%d failed, %d were slow, %d were left out", s.Seen(failed), s.Seen(slow), s.LeftOut())
	}
}

func TestTheLastRecordsOfEachKindAreKept(t *testing.T) {
	s := samples.New()
	const first = -1
	s.Keep(slow, &introspect.CallReport{Attempt: first})
	for i := range 1000 {
		s.Keep(canceled, &introspect.CallReport{Code: "canceled"})
		s.Keep(failed, &introspect.CallReport{Attempt: i})
		s.Keep(explained, &introspect.CallReport{Attempt: i})
	}
	var kept []int
	for _, r := range s.Records() {
		if r.Code != "canceled" { // they displace no others
			kept = append(kept, r.Attempt)
		}
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

func TestCanceledCallsDidNotFail(t *testing.T) {
	s := samples.New()
	for _, code := range []yodel.Code{yodel.Canceled, yodel.Internal} {
		kind := samples.KindOf(false, int(code))
		admit(s, kind, 1, time.Hour)
		s.Keep(kind, &introspect.CallReport{Code: code.String()})
	}
	got := s.Read(&introspect.SamplesQuery{Failed: true})
	if got.Failed != 1 || got.Canceled != 1 || len(got.Calls) != 1 || got.Calls[0].Code != "internal" {
		t.Errorf("got %+v", got)
	}
	if all := s.Read(nil); len(all.Calls) != 2 {
		t.Errorf("got all records %+v", all)
	}
}

func TestRecordsAreSelectedByTraceAndTenant(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	s := samples.New()
	s.Keep(failed, &introspect.CallReport{Trace: id, Tenant: "acme", Code: "internal"})
	s.Keep(slow, &introspect.CallReport{Trace: id, Slow: true})
	s.Keep(slow, &introspect.CallReport{Slow: true})
	for _, test := range []struct {
		q    introspect.SamplesQuery
		want int
	}{
		{introspect.SamplesQuery{}, 3},
		{introspect.SamplesQuery{Trace: id}, 2},
		{introspect.SamplesQuery{Trace: "00-" + id + "-00f067aa0ba902b7-01"}, 2},
		{introspect.SamplesQuery{Trace: id, Slow: true}, 1},
		{introspect.SamplesQuery{Tenant: "acme"}, 1},
		{introspect.SamplesQuery{Trace: id[1:]}, 0},
	} {
		if got := len(s.Read(&test.q).Calls); got != test.want {
			t.Errorf("%+v selects %d records, want %d", test.q, got, test.want)
		}
	}
}

func TestOnlyAValidTraceContextHasATraceID(t *testing.T) {
	const id, rest = "4bf92f3577b34da6a3ce929d0e0e4736", "-00f067aa0ba902b7-01"
	for parent, want := range map[string]string{
		"00-" + id + rest: id,
		"00-4BF92F3577B34DA6A3CE929D0E0E4736" + rest: id,
		"00-" + id + rest + " vendor=1":              id,
		"":                                           "",
		id:                                           "",
		"00-00000000000000000000000000000000" + rest:       "",
		"00-my secret is in here, believe me" + rest + "x": "",
	} {
		if got := samples.TraceID(parent); got != want {
			t.Errorf("%q: got %q, want %q", parent, got, want)
		}
	}
}

func TestTheFlagsOfATraceContextSayWhetherItIsSampled(t *testing.T) {
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	for parent, want := range map[string]bool{
		trace + "01": true, trace + "03": true, trace + "01 vendor=1": true,
		trace + "00": false, trace + "02": false, trace + "zz": false, trace + "1": false, "": false,
	} {
		if got := samples.Sampled(parent); got != want {
			t.Errorf("%q: got %v, want %v", parent, got, want)
		}
	}
}

func TestWhenACallIsSlow(t *testing.T) {
	for option, want := range map[time.Duration]time.Duration{0: time.Second, 5: 5, -1: math.MaxInt64} {
		if got := samples.SlowAfter(option); got != want {
			t.Errorf("%d: got %d, want %d", option, got, want)
		}
	}
}

func TestARecordIsKeptByTheSamplersThatAdmitIt(t *testing.T) {
	own, server, full := samples.New(), samples.New(), samples.New()
	admit(full, slow, 1000, time.Hour)
	before := len(full.Read(nil).Calls)
	for _, test := range []struct {
		name          string
		to            []*samples.Sampler
		any           bool
		owns, servers int // records that are kept then
	}{
		{"a server", []*samples.Sampler{own}, true, 1, 0},
		{"a client without a server", []*samples.Sampler{own, nil}, true, 2, 0},
		{"a server's own calls", []*samples.Sampler{own, own}, true, 3, 0},
		{"a client of a handler", []*samples.Sampler{own, server}, true, 4, 1},
		{"a full one", []*samples.Sampler{full, server}, true, 4, 2},
		{"only a full one", []*samples.Sampler{full}, false, 4, 2},
	} {
		a := samples.Admit(false, 0, time.Hour, test.to...)
		if a.Any() != test.any {
			t.Errorf("%s: a sampler keeps the record: %t", test.name, a.Any())
		}
		a.Keep(&introspect.CallReport{Slow: true})
		if o, s, f := len(own.Read(nil).Calls), len(server.Read(nil).Calls), len(full.Read(nil).Calls); o != test.owns || s != test.servers || f != before {
			t.Errorf("%s: the samplers have %d, %d and %d records", test.name, o, s, f)
		}
	}
}
