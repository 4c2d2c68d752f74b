// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// A query selects series by side, method and peer. Errors are counted by the names of codes.
func TestSeriesAreSelected(t *testing.T) {
	m := diagnose.NewMeasured[string]()
	for _, k := range []live.Key{
		{Side: live.Server, Method: "A", Peer: "x"}, {Side: live.Server, Method: "B", Peer: "x"}, {Side: live.Client, Method: "A", Peer: "y"},
	} {
		m.Counter(k).End(time.Millisecond, 0)
		m.Counter(k).End(time.Millisecond, 5)
	}
	for _, test := range []struct {
		q    introspect.LiveQuery
		want int
	}{
		{introspect.LiveQuery{}, 3}, {introspect.LiveQuery{Side: live.Server}, 2}, {introspect.LiveQuery{Method: "A"}, 2},
		{introspect.LiveQuery{Method: "A", Peer: "y"}, 1}, {introspect.LiveQuery{Method: "C"}, 0},
	} {
		out := &introspect.Live{Now: time.Now()}
		m.Answer(&test.q, out)
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
	m := diagnose.NewMeasured[string]()
	m.Counter(live.Key{Side: live.Server, Method: "A", Peer: "idle"})
	for k, codes := range map[live.Key][]int{
		{Side: live.Server, Method: "A", Peer: "shop"}: {0, 0, 5}, {Side: live.Server, Method: "Alias", Peer: "shop"}: {0, 0, 0, 0},
		{Side: live.Server, Method: "Other", Peer: "x"}: {0}, {Side: live.Client, Method: "A", Peer: "shop"}: {0},
	} {
		for _, code := range codes {
			m.Counter(k).End(time.Millisecond, code)
		}
	}
	got := m.Callers(live.Server)([]string{"A", "Alias"})
	if len(got) != 1 || got[0].Name != "shop" || got[0].Calls != 7 || got[0].Errors["not_found"] != 1 {
		t.Errorf("got %+v, want 7 calls of shop, one of them failed", got)
	}
}

func TestWhatAServerMeasuresOfItsClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := diagnose.NewMeasured[string]()
		stop := m.Follow()
		alone := &introspect.Live{Name: "program"}
		if m.Answer(&introspect.LiveQuery{}, alone); alone.Name != "program" {
			t.Errorf("without a client the name is %q", alone.Name)
		}
		m.Adopt("c1", "shop")
		m.Adopt("c2", "stock")
		m.Leave("c1")
		if got := m.Clients(); !slices.Equal(got, []string{"c2"}) {
			t.Errorf("the clients are %q", got)
		}
		event := introspect.Event{Kind: "rule", At: time.Now()}
		m.Note(event)
		m.Note(event) // the server and its clients may all be told
		m.CountTenant("A", "acme", 8)
		out := &introspect.Live{Name: "program", Now: time.Now()}
		m.Answer(&introspect.LiveQuery{Tenants: 10}, out)
		if out.Name != "shop" || len(out.Events) != 1 || len(out.Tenants) != 1 || out.Tenants[0].Limited != 1 {
			t.Errorf("got %+v", out)
		}
		stop()
	})
	var none *diagnose.Measured[string]
	none.Follow()()
	none.Note(introspect.Event{})
	if none.Clients() != nil || none.Callers(live.Server)([]string{"A"}) != nil {
		t.Error("nothing is measured, and there are clients or calls")
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
	if name := diagnose.Program(); name == "" || strings.ContainsAny(name, "/ ") {
		t.Errorf("the program is named %q", name)
	}
	p := diagnose.Process(time.Unix(1000, 0))
	if p.PID != os.Getpid() || p.Goroutines < 1 || p.Heap == 0 || p.Go == "" || !p.Started.Equal(time.Unix(1000, 0)) {
		t.Errorf("got %+v", p)
	}
}
