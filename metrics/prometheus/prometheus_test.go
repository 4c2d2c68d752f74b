// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// gathered returns all series, as a family's name with the values of the labels in the order of
// their names: yodel_server_calls_total{code=ok,method=Double,server=shop}.
func gathered(t testing.TB, m *Metrics) map[string]*dto.Metric {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(m)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]*dto.Metric)
	for _, f := range all {
		for _, one := range f.GetMetric() {
			var labels []string
			for _, l := range one.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			series[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = one
		}
	}
	return series
}

// value returns the value of a counter or a gauge.
func value(m *dto.Metric) float64 {
	if m == nil {
		return math.NaN()
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// serve runs a server on loopback until the test ends.
func serve(t testing.TB, s *yodel.Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// eventually waits until the series have the values in want.
func eventually(t *testing.T, m *Metrics, want map[string]float64) map[string]*dto.Metric {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		got := gathered(t, m)
		var wrong []string
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if v := value(got[name]); v != want[name] {
				wrong = append(wrong, fmt.Sprintf("%s: got %v, want %v", name, v, want[name]))
			}
		}
		if len(wrong) == 0 {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s\nof %s", strings.Join(wrong, "\n"), strings.Join(slices.Sorted(maps.Keys(got)), "\n"))
		}
	}
}

// A registrar refuses all records, or accepts them.
type registrar struct{ err error }

func (r registrar) Announce(context.Context, string, discovery.Instance, time.Duration) error {
	return r.err
}
func (r registrar) Withdraw(context.Context, string, string) error { return nil }
func (r registrar) String() string                                 { return fmt.Sprint("accepts ", r.err == nil) }

// twice is a middleware that calls next again if it fails.
func twice(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if err != nil {
			return next(ctx, call)
		}
		return nil
	}
}

// both is a middleware that makes two attempts of calls of Shop.Double at the same time.
func both(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if call.Method != "Shop.Double" || !call.Attempts().Forkable() {
			return next(ctx, call)
		}
		fork := call.Attempts().Fork()
		ended := make(chan error)
		go func() { ended <- next(ctx, fork) }()
		err := next(ctx, call)
		<-ended
		fork.Attempts().Join(false)
		return err
	}
}

func TestMetrics(t *testing.T) {
	m := New(nil)
	quiet := slog.New(slog.DiscardHandler)
	s := m.NewServer("shop", &yodel.ServerOptions{
		Registrars: []discovery.Registrar{registrar{}, registrar{errors.New("no quorum")}}, Logger: quiet, Diagnostics: true,
	})
	double := yodel.Method[int, int]("Shop.Double")
	double.Handle(s, func(_ context.Context, n *int) (*int, error) {
		twice := *n * 2
		return &twice, nil
	})
	fail := yodel.Method[int, int]("Shop.Fail")
	fail.Handle(s, func(ctx context.Context, n *int) (*int, error) {
		if *n == 0 {
			panic("zero")
		}
		yodel.CallFrom(ctx).Trailer = yodel.Metadata{"huge": strings.Repeat("x", 17<<10)}
		return nil, &yodel.Error{Code: yodel.NotFound, ID: "SHOP7", Message: "no such item"}
	})
	count := yodel.Feed[int, int]("Shop.Count")
	count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	addr := serve(t, s)
	c := m.NewClient("front", discovery.Static(addr), &yodel.ClientOptions{Name: "web", Middleware: []yodel.Middleware{both, twice}, Logger: quiet})
	defer c.Close()
	n := 21
	call := &yodel.Call{Method: string(double), Args: &n, Reply: new(int), Trace: trace}
	if err := c.Do(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if _, err := fail.Call(t.Context(), c, &n); err == nil {
			t.Error("the call has succeeded")
		}
	}
	n = 3
	for _, err := range count.Call(t.Context(), c, &n) {
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 2 {
		if err := c.Call(t.Context(), fmt.Sprint("Shop.Nothing", i), &n, nil); yodel.CodeOf(err) != yodel.Unimplemented {
			t.Error(err)
		}
	}
	c.Endpoints()[0].SetReady("breaker", false)

	got := eventually(t, m, map[string]float64{
		"yodel_server_calls_total{code=ok,method=Shop.Double,server=shop}":                        2,
		"yodel_server_calls_total{code=not_found,method=Shop.Fail,server=shop}":                   2,
		"yodel_server_calls_total{code=internal,method=Shop.Fail,server=shop}":                    2,
		"yodel_server_calls_total{code=unimplemented,method=other,server=shop}":                   4,
		"yodel_server_caller_calls_total{caller=web,code=ok,method=Shop.Double,server=shop}":      2,
		"yodel_server_caller_calls_total{caller=web,code=not_found,method=Shop.Fail,server=shop}": 2,
		"yodel_server_caller_calls_total{caller=web,code=internal,method=Shop.Fail,server=shop}":  2,
		"yodel_server_bytes_total{direction=sent,method=Shop.Double,server=shop}":                 4, // 42, twice
		"yodel_client_bytes_total{client=front,direction=sent,method=Shop.Double}":                4,
		"yodel_server_calls_in_flight{method=Shop.Double,server=shop}":                            0,
		"yodel_server_stream_messages_total{direction=sent,method=Shop.Count,server=shop}":        3,
		"yodel_server_bytes_total{direction=received,method=Shop.Double,server=shop}":             4, // 21, twice
		"yodel_server_errors_total{id=SHOP7,server=shop}":                                         2,
		"yodel_server_panics_total{server=shop}":                                                  2,
		"yodel_server_metadata_left_out_total{server=shop}":                                       2,
		"yodel_server_connections{server=shop}":                                                   1,
		"yodel_server_connection_events_total{kind=accepted,server=shop}":                         1,
		"yodel_server_draining{server=shop}":                                                      0,
		"yodel_server_max_open_requests{server=shop}":                                             16384,
		"yodel_server_announced{addr=" + addr + ",registry=accepts true,server=shop}":             1,
		"yodel_server_announced{addr=" + addr + ",registry=accepts false,server=shop}":            0,
		"yodel_client_calls_total{client=front,code=ok,method=Shop.Double}":                       1,
		"yodel_client_calls_total{client=front,code=not_found,method=Shop.Fail}":                  1,
		"yodel_client_extra_attempts_total{client=front,kind=hedge,method=Shop.Double}":           1,
		"yodel_client_extra_attempts_total{client=front,kind=retry,method=Shop.Double}":           0,
		"yodel_client_extra_attempts_total{client=front,kind=retry,method=Shop.Fail}":             2,
		"yodel_client_stream_messages_total{client=front,direction=received,method=Shop.Count}":   3,
		"yodel_client_errors_total{client=front,id=SHOP7}":                                        1,
		"yodel_client_connection_events_total{client=front,kind=connected}":                       1,
		"yodel_client_endpoint_attempts_total{client=front,endpoint=" + addr + "}":                11,
		"yodel_client_endpoint_failures_total{client=front,endpoint=" + addr + "}":                8,
		"yodel_client_endpoint_connections{client=front,endpoint=" + addr + "}":                   1,
		"yodel_client_endpoint_ready{client=front,endpoint=" + addr + "}":                         0,
		"yodel_client_endpoint_not_ready{by=breaker,client=front,endpoint=" + addr + "}":          1,
		"yodel_client_endpoint_ejections_total{by=breaker,client=front,endpoint=" + addr + "}":    1,
		"yodel_client_resolver_instances{client=front}":                                           1,
		"yodel_client_resolver_failing{client=front}":                                             0,
	})
	for name, calls := range map[string]uint64{
		"yodel_server_call_seconds{method=Shop.Double,server=shop}":  2,
		"yodel_client_call_seconds{client=front,method=Shop.Double}": 1,
	} {
		h := got[name].GetHistogram()
		for deadline := time.Now().Add(10 * time.Second); len(h.GetExemplars()) == 0 && time.Now().Before(deadline); {
			h = gathered(t, m)[name].GetHistogram() // an observer notes a call after it is counted
		}
		if h.GetSampleCount() != calls || h.GetSampleSum() <= 0 || len(h.GetPositiveSpan()) == 0 {
			t.Errorf("%s: got %v", name, h)
		}
		exemplars := 0
		for _, b := range h.GetBucket() {
			if e := b.GetExemplar(); e != nil {
				exemplars++
				if id := e.GetLabel()[0].GetValue(); id != trace[3:35] || e.GetValue() > b.GetUpperBound() {
					t.Errorf("%s: the exemplar is %v", name, e)
				}
			}
		}
		if exemplars == 0 || len(h.GetExemplars()) != exemplars {
			t.Errorf("%s: got %d exemplars, and %d", name, exemplars, len(h.GetExemplars()))
		}
	}
	if h := got["yodel_server_call_seconds{method=other,server=shop}"].GetHistogram(); h.GetSampleCount() != 4 {
		t.Errorf("other calls: got %v", h)
	}

	// every family has been seen
	for _, f := range families {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(name string) bool { return strings.HasPrefix(name, f.name+"{") }) {
			t.Errorf("no series of %s", f.name)
		}
	}
}

// The built-in methods, and health and reflection of gRPC, have no metrics unless the options say
// so.
func TestWhatDescribesServersHasNoMetrics(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		m := New(&Options{Infrastructure: wanted})
		s := m.NewServer("shop", &yodel.ServerOptions{Diagnostics: true, Logger: slog.New(slog.DiscardHandler)})
		for _, name := range []string{"grpc.health.v1.Health/Check", "Shop.Get"} {
			if err := s.Handle(name, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		methods := make(map[string]bool)
		for name := range gathered(t, m) {
			if _, after, ok := strings.Cut(name, "method="); ok {
				method, _, _ := strings.Cut(after, ",")
				methods[strings.TrimSuffix(method, "}")] = true
			}
		}
		for _, name := range []string{"yodel.Stats", "grpc.health.v1.Health/Check"} {
			if methods[name] != wanted {
				t.Errorf("with Infrastructure %v, the methods with metrics are %v", wanted, slices.Sorted(maps.Keys(methods)))
			}
		}
		if !methods["Shop.Get"] {
			t.Error("the method of the program has no metrics")
		}
	}
}

func TestNamesAreNumberedAndFreed(t *testing.T) {
	m := New(nil)
	first, second := m.NewClient("a", discovery.Static("127.0.0.1:1"), nil), m.NewClient("a", discovery.Static("127.0.0.1:1"), nil)
	m.NewServer("a", nil)
	m.NewServer("a", nil)
	eventually(t, m, map[string]float64{
		"yodel_client_resolver_instances{client=a}": 1, "yodel_client_resolver_instances{client=a-2}": 1,
		"yodel_server_connections{server=a}": 0, "yodel_server_connections{server=a-2}": 0,
	})
	first.Close()
	got := gathered(t, m)
	if got["yodel_client_resolver_instances{client=a}"] != nil || got["yodel_client_resolver_instances{client=a-2}"] == nil {
		t.Error("the metrics of a closed client are still there, or those of another one are not")
	}
	second.Close()
}

func TestTheNumberOfSeriesIsBounded(t *testing.T) {
	m := New(&Options{MaxMethods: 2, MaxEndpoints: 1})
	c := m.NewClient("front", discovery.Static("127.0.0.1:1", "127.0.0.1:2"), &yodel.ClientOptions{Logger: slog.New(slog.DiscardHandler)})
	defer c.Close()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 10 {
		if err := c.Call(canceled, fmt.Sprint("M", i, "\xff"), nil, nil); err == nil {
			t.Error("the call has succeeded")
		}
	}
	got := eventually(t, m, map[string]float64{
		"yodel_client_calls_total{client=front,code=canceled,method=\"M0\\xff\"}": 1,
		"yodel_client_calls_total{client=front,code=canceled,method=\"M1\\xff\"}": 1,
		"yodel_client_calls_total{client=front,code=canceled,method=other}":       8,
		"yodel_client_resolver_instances{client=front}":                           2,
	})
	endpoints := 0
	for name := range got {
		if strings.HasPrefix(name, "yodel_client_endpoint_ready{") {
			endpoints++
		}
	}
	if endpoints != 1 {
		t.Errorf("got the metrics of %d endpoints, want 1", endpoints)
	}
}

func TestHistograms(t *testing.T) {
	var l latency
	took := []time.Duration{0, 3, 16 * time.Microsecond, 17 * time.Microsecond, time.Millisecond, time.Millisecond, time.Second, time.Hour, -1}
	for _, d := range took {
		l.count(d)
	}
	to := make(chan prometheus.Metric, 1)
	sink(to).histogram(clientSeconds, l.counted(), l.sum(), nil, "c", "m")
	var out dto.Metric
	if err := (<-to).Write(&out); err != nil {
		t.Fatal(err)
	}
	h := out.GetHistogram()
	if h.GetSampleCount() != uint64(len(took)) || math.Abs(h.GetSampleSum()-3601.002033) > 1e-6 || h.GetZeroCount() != 2 {
		t.Errorf("got %v", h)
	}
	for _, b := range h.GetBucket() { // the classic histogram is exact
		want := uint64(0)
		for _, d := range took {
			if d.Seconds() <= b.GetUpperBound() {
				want++
			}
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("up to %v: got %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
	// the native histogram has each duration in its bucket or in the one beside it
	index, calls, at := int32(0), int64(0), 0
	var found []int32
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range span.GetLength() {
			calls += h.GetPositiveDelta()[at]
			for range calls {
				found = append(found, index)
			}
			index, at = index+1, at+1
		}
	}
	slices.Sort(took)
	if took = took[2:]; len(found) != len(took) { // without those that are zero
		t.Fatalf("got %d durations, want %d", len(found), len(took))
	}
	for i, d := range took {
		if want := math.Ceil(math.Log2(d.Seconds()) * (1 << schema)); math.Abs(want-float64(found[i])) > 1 {
			t.Errorf("%v: got bucket %d, want %v", d, found[i], want)
		}
	}
}

func TestBucketsAreThoseOfTheServer(t *testing.T) {
	for i := range 250 { // the next ones are longer than a Duration
		if end := bucketEnd(i); bucketOf(uint64(end)) != i || bucketOf(uint64(end)+1) == i {
			t.Errorf("bucket %d ends at %d", i, end)
		}
	}
	// the bounds that Server.Stats reports are ends of these buckets
	m := New(nil)
	s := m.NewServer("shop", nil)
	yodel.Method[int, int]("Sum").Handle(s, func(_ context.Context, n *int) (*int, error) { return n, nil })
	addr := serve(t, s)
	c := yodel.Dial(addr)
	defer c.Close()
	for range 100 {
		if err := c.Call(t.Context(), "Sum", new(int), new(int)); err != nil {
			t.Fatal(err)
		}
	}
	stats := s.Stats().Methods
	at := slices.IndexFunc(stats, func(m introspect.MethodStats) bool { return m.Name == "Sum" })
	for _, b := range stats[at].Latency {
		if bucketEnd(bucketOf(uint64(b.UpTo))) != b.UpTo {
			t.Errorf("%v is not the end of a bucket", b.UpTo)
		}
	}
}

func TestExemplarsAreOfSampledTraces(t *testing.T) {
	for text, want := range map[string]int{
		trace: 1, trace + " a=b": 1, trace[:54] + "0": 0, trace[:54] + "3": 1, trace[:54]: 0, "": 0, strings.Repeat("x", 60): 0,
	} {
		var e exemplars
		e.note(text, time.Millisecond)
		if got := e.read(); len(got) != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
}
