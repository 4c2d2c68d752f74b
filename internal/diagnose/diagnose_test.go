// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"os"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// A query selects series by side, method and peer. Errors are counted by the names of codes.
func TestSeriesAreSelected(t *testing.T) {
	r := live.New(time.Now())
	for _, k := range []live.Key{
		{Side: live.Server, Method: "A", Peer: "x"}, {Side: live.Server, Method: "B", Peer: "x"}, {Side: live.Client, Method: "A", Peer: "y"},
	} {
		r.Counter(k).End(time.Millisecond, 0)
		r.Counter(k).End(time.Millisecond, 5)
	}
	for _, test := range []struct {
		q    introspect.LiveQuery
		want int
	}{
		{introspect.LiveQuery{}, 3}, {introspect.LiveQuery{Side: live.Server}, 2}, {introspect.LiveQuery{Method: "A"}, 2},
		{introspect.LiveQuery{Method: "A", Peer: "y"}, 1}, {introspect.LiveQuery{Method: "C"}, 0},
	} {
		out := &introspect.Live{Now: time.Now()}
		diagnose.Series(r, &test.q, out)
		if len(out.Series) != test.want {
			t.Errorf("%+v: got %d series, want %d", test.q, len(out.Series), test.want)
		}
		for _, s := range out.Series {
			calls, failed := uint64(0), uint64(0)
			for i := range s.Calls {
				calls += s.Calls[i]
				failed += s.Errors["not_found"][i]
			}
			if calls != 2 || failed != 1 {
				t.Errorf("%+v: got %d calls and %v, want 2 with one not_found", test.q, calls, s.Errors)
			}
		}
	}
}

func TestCallersAreAddedUpOverTheNamesOfAMethod(t *testing.T) {
	var one, two live.Totals
	one[0], one[5] = 3, 1
	two[0] = 4
	got := diagnose.Callers(map[string]map[string]live.Totals{"A": {"shop": one, "idle": {}}, "Alias": {"shop": two}, "Other": {"x": two}}, []string{"A", "Alias"})
	if len(got) != 1 || got[0].Name != "shop" || got[0].Calls != 7 || got[0].Errors["not_found"] != 1 {
		t.Errorf("got %+v, want 7 calls of shop, one of them failed", got)
	}
}

func TestCallsHaveTheirErrorsByName(t *testing.T) {
	var c stats.Calls
	c.End(time.Millisecond, 0)
	c.End(time.Millisecond, 14)
	got := diagnose.Calls("A", &c)
	if got.Name != "A" || got.Calls != 2 || got.Errors["unavailable"] != 1 || got.Took != 2*time.Millisecond {
		t.Errorf("got %+v, want two calls, one unavailable", got)
	}
}

func TestProcessDescribesThisProcess(t *testing.T) {
	p := diagnose.Process(time.Unix(1000, 0))
	if p.PID != os.Getpid() || p.Goroutines < 1 || p.Heap == 0 || p.Go == "" || !p.Started.Equal(time.Unix(1000, 0)) {
		t.Errorf("got %+v", p)
	}
}
