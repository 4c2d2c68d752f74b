// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// An instance that answers nonsense must neither fill the reader's memory nor make numbers that
// cannot be shown.
func TestNonsenseOfAnInstanceIsBounded(t *testing.T) {
	odd := introspect.Series{
		Side: "server", Method: "shop.Cart.Add", Peer: strings.Repeat("x", 1<<20), Calls: []uint64{math.MaxUint64, math.MaxUint64, 1},
		Errors: map[string][]uint64{"internal": {math.MaxUint64, 1, 1}, "<script>": {1}},
		P50:    []time.Duration{-1, math.MinInt64, 1}, P90: []time.Duration{1, 1, 1}, P99: []time.Duration{math.MaxInt64, 1, 1},
		Latency: [][]introspect.Bucket{slices.Repeat([]introspect.Bucket{{UpTo: -1, Calls: math.MaxUint64}}, 1000)},
	}
	live := &introspect.Live{Step: time.Second, Now: time.Now(), Left: -5, Name: odd.Peer, Series: slices.Repeat([]introspect.Series{odd}, maxSeries+1)}
	live.Process.Version = odd.Peer
	live.Series[1].Calls = make([]uint64, maxSteps+1)
	live.Inflight = map[string]int64{odd.Method: math.MinInt64, odd.Peer: math.MaxInt64}
	live.Events = slices.Repeat([]introspect.Event{{What: odd.Peer}}, maxEvents+1)
	bound(live)
	if len(live.Series) != maxSeries-1 || len(live.Events) != maxEvents || len(live.Name) != maxText || len(live.Process.Version) != maxText || len(live.Events[0].What) != maxText || live.Left != 1 {
		t.Errorf("got %d series, %d events, a name of %d bytes, %d left", len(live.Series), len(live.Events), len(live.Name), live.Left)
	}
	if n := live.Inflight; len(n) != 2 || n[odd.Method] != 0 || n[short(odd.Peer)] != maxCalls {
		t.Errorf("got %v in flight", n)
	}
	s := &live.Series[0]
	if len(s.Peer) != maxText || len(s.Errors) != 1 || s.P50[1] != 0 || len(s.Latency[0]) != maxBuckets || s.Latency[0][0].UpTo != 0 {
		t.Errorf("got the series %+v", s)
	}
	tr := ofSeries(s, live, 2*time.Second).traffic()
	if !(tr.Rate > 0 && tr.Rate <= 2*maxCalls) || tr.Failed < 0 || tr.Failed > 1 || tr.P99 < 0 {
		t.Errorf("got the traffic %+v", tr)
	}
	for _, step := range []time.Duration{0, -time.Second, 1000 * time.Hour} {
		live.Step, live.Series = step, []introspect.Series{odd}
		if bound(live); len(live.Series) != 0 {
			t.Errorf("a step of %v: got %d series", step, len(live.Series))
		}
	}
	info := &introspect.Info{
		Methods: slices.Repeat([]introspect.Method{{Name: odd.Peer}}, maxMethods+1), Overrides: make([]introspect.Override, maxMethods+1),
	}
	if boundInfo(info); len(info.Methods) != maxMethods || len(info.Methods[0].Name) != maxText || len(info.Overrides) != maxMethods {
		t.Errorf("got %d methods and %d overrides", len(info.Methods), len(info.Overrides))
	}
	conns := &introspect.Conns{Conns: slices.Repeat([]introspect.ConnInfo{{Peer: odd.Peer}}, maxConns+2), Left: -5}
	if boundConns(conns); len(conns.Conns) != maxConns || conns.Left != 2 || len(conns.Conns[0].Peer) != maxText {
		t.Errorf("got %d connections, %d left", len(conns.Conns), conns.Left)
	}
}

// A resolver with one set of records.
type records []discovery.Instance

func (r records) Watch(_ context.Context, update func([]discovery.Instance)) error {
	update(r)
	return nil
}

// Each field of a record and of a description has a bound, also those that are added later.
func TestRecordsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	record := discovery.Instance{Metadata: yodel.Metadata{long: long}}
	fill(reflect.ValueOf(&record), long, 100)
	for i := range 99 {
		record.Metadata[fmt.Sprint(long, i)] = long
	}
	given := records{record}
	if err := Bounded(given).Watch(t.Context(), func(got []discovery.Instance) {
		if text, err := json.Marshal(got); err != nil || len(text) > 300<<10 || len(got[0].Version) != maxText || len(got[0].Tags) != maxList {
			t.Errorf("the record has %d bytes, %v", len(text), err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if r := given[0]; len(r.Version) != len(long) || len(r.Tags) != 100 || len(r.Tags[0]) != len(long) || len(r.Metadata) != 100 {
		t.Error("the record of the resolver was changed")
	}
	info := &introspect.Info{Methods: []introspect.Method{{Args: []introspect.Schema{{Fields: []introspect.Schema{{}}}}}}}
	fill(reflect.ValueOf(info), long, 2)
	boundInfo(info)
	if text, err := json.Marshal(info); err != nil || len(text) > 64<<10 {
		t.Errorf("the description has %d bytes, %v", len(text), err)
	}
}

// fill sets all texts in the value to which v points, and gives it lists of n texts.
func fill(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem(), text, n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), text, n)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			fill(v.Index(i), text, n)
		}
	case reflect.String:
		v.SetString(text)
	}
}

// The names and the errors of a registry are bounded too.
func TestNamesAndErrorsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	f := New(longSource(long), &Options{Timeout: 50 * time.Millisecond})
	defer f.Close()
	view, err := f.Read(t.Context())
	if err != nil || len(view.Services) != 1 || len(view.Services[0].Err) != maxText || !strings.Contains(view.Err, "1 services have names of more than 1024 bytes") {
		t.Errorf("got %v, and %d services, %.200q", err, len(view.Services), view.Err)
	}
}

// A longSource has a service with a long name, and one whose resolver fails with a long text.
type longSource string

func (s longSource) Services(context.Context) ([]string, error) { return []string{string(s), "a"}, nil }

func (s longSource) Service(string) discovery.Resolver { return s }

func (s longSource) Watch(context.Context, func([]discovery.Instance)) error {
	return errors.New(string(s))
}

func TestNonsenseInStatisticsIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	codes := func() map[string]uint64 { return map[string]uint64{"internal": math.MaxUint64, long: 1} }
	odd := introspect.MethodStats{Name: long, Calls: math.MaxUint64, Inflight: math.MinInt64, Errors: codes()}
	odd.Latency = slices.Repeat([]introspect.Bucket{{UpTo: -1, Calls: math.MaxUint64}}, maxBuckets+1)
	odd.Callers = slices.Repeat([]introspect.CallerStats{{Name: long, Calls: math.MaxUint64, Errors: codes()}}, maxCallers+1)
	stats := &introspect.Stats{Methods: slices.Repeat([]introspect.MethodStats{odd}, maxMethods+1)}
	stats.Methods[1].Inflight = math.MaxInt64
	boundStats(stats)
	m := &stats.Methods[0]
	if len(stats.Methods) != maxMethods || len(m.Name) != maxText || m.Calls != maxCalls || m.Inflight != 0 || stats.Methods[1].Inflight != maxCalls ||
		len(m.Errors) != 1 || m.Errors["internal"] != maxCalls || len(m.Latency) != maxBuckets || m.Latency[0] != (introspect.Bucket{Calls: maxCalls}) {
		t.Errorf("got %d methods, the first with %d calls, %v, %d buckets", len(stats.Methods), m.Calls, m.Errors, len(m.Latency))
	}
	if c := m.Callers; len(c) != maxCallers || len(c[0].Name) != maxText || c[0].Calls != maxCalls || len(c[0].Errors) != 1 {
		t.Errorf("got %d callers", len(c))
	}
	tr := ofStats(m, &answer{span: time.Second}, time.Second).traffic()
	if tr.Rate != maxCalls || tr.Failed != 1 || tr.P99 != 0 {
		t.Errorf("got the traffic %+v", tr)
	}
}

// The bounds of a record do not hide what its resolver can do.
func TestBoundedHidesNothing(t *testing.T) {
	yodeltest.TestWrapper(t, func(inner yodeltest.Described) any { return Bounded(inner) })
}
