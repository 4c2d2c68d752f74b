// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// The built-in methods. They are served like any other, through the same middleware, so that
// authorization covers them. ServerOptions.NoIntrospection leaves them out. GetStats and GetSamples
// answer only if ServerOptions.Diagnostics is set: they name methods, peers, tenants and errors.
const (
	// GetInfo says which methods a server has.
	GetInfo Method[Empty, introspect.Info] = "yodel.Info"
	// GetStats says how often they were called, with what outcome, and how long they took.
	GetStats Method[Empty, introspect.Stats] = "yodel.Stats"
	// GetHealth says whether the server accepts calls.
	GetHealth Method[Empty, introspect.Health] = "yodel.Health"
	// GetSamples returns records of calls that the server has carried out, and of calls that it and
	// its handlers have made: of those that failed lately, that were slow, and that were to be
	// explained.
	GetSamples Method[introspect.SamplesQuery, introspect.Samples] = "yodel.Samples"
	// Ping does nothing.
	Ping Method[Empty, Empty] = "yodel.Ping"
)

// Empty is a message without content.
type Empty struct{}

// methodStats counts the calls of a method, and learns whether they are short.
type methodStats struct {
	pulse    atomic.Uint64 // calls in flight, and above them, by untimedOne, those that succeeded since one was timed
	received atomic.Uint64 // messages on streams
	sent     atomic.Uint64
	codes    [len(codeNames)]atomic.Uint64
	buckets  [64 * perOctave]atomic.Uint64
	mean     atomic.Int64 // nanoseconds
	measured atomic.Int64 // how many calls mean comes from, up to learnCalls
	short    atomic.Bool
}

// A call that is not timed, as most short ones, takes two atomic instructions to be counted: it is
// added to pulse, and moves up in it.
const (
	untimedOne = 1 << 32
	inflight32 = untimedOne - 1
)

func (st *methodStats) begun() { st.pulse.Add(1) }

func (st *methodStats) inflight() int64 { return int64(st.pulse.Load() & inflight32) }

func (st *methodStats) untimed() uint64 { return st.pulse.Load() / untimedOne }

// takeUntimed makes the calls that were not timed counted ones.
func (st *methodStats) takeUntimed() (calls uint64) {
	for {
		n := st.pulse.Load()
		if calls = n / untimedOne; calls == 0 {
			return 0
		}
		if st.pulse.CompareAndSwap(n, n&inflight32) {
			st.codes[0].Add(calls)
			return calls
		}
	}
}

// due reports whether the next call is to be timed.
func (st *methodStats) due() bool {
	return st.untimed() >= timedEvery-1 || st.mean.Load() >= quick
}

// perOctave is how many latency buckets there are between a duration and its double.
const perOctave = 4

// bucketOf returns the bucket of a duration in nanoseconds.
func bucketOf(ns uint64) int {
	if ns < perOctave {
		return int(ns)
	}
	octave := bits.Len64(ns) - 1
	return (octave-1)*perOctave + int(ns>>(octave-2))&(perOctave-1) //nolint:gosec // small
}

// bucketEnd returns the longest duration of a bucket.
func bucketEnd(i int) time.Duration {
	if i < perOctave {
		return time.Duration(i)
	}
	octave := i/perOctave + 1
	return time.Duration((uint64(perOctave+i%perOctave)+1)<<(octave-2) - 1) //nolint:gosec // within 64 bits
}

// record counts a call that has ended. One that was timed stands for those before it that were not.
// How long it takes to refuse a call says nothing of how long it takes to execute one: an
// overloaded server would take its slow methods for short ones.
func (st *methodStats) record(took time.Duration, code Code, handedOver, executed bool) {
	if took == mux.Untimed && code == 0 {
		st.pulse.Add(untimedOne - 1)
		return
	}
	st.pulse.Add(^uint64(0))
	st.codes[min(int(code), len(st.codes)-1)].Add(1)
	if took == mux.Untimed {
		took = time.Duration(st.mean.Load())
		st.buckets[bucketOf(uint64(took))].Add(1) //nolint:gosec // not negative
		return
	}
	calls := 1 + st.takeUntimed()
	st.buckets[bucketOf(uint64(max(took, 0)))].Add(calls)

	if !executed && code != 0 && !handedOver {
		return
	}
	// Updates may be lost to others at the same moment: it is a mean.
	d := min(int64(took), outlier)
	if handedOver {
		d = outlier
	}
	mean := st.mean.Load()
	mean += (d - mean) / weight
	st.mean.Store(mean)
	n := st.measured.Load()
	if n < learnCalls {
		st.measured.Store(n + 1)
		return
	}
	switch isShort := st.short.Load(); {
	case isShort && mean > long:
		st.short.Store(false)
	case !isShort && mean < short:
		st.short.Store(true)
	}
}

// introspect registers the built-in methods.
func (s *Server) introspect() {
	builtIn(s, GetInfo, func(*Empty) *introspect.Info { return s.info() })
	diagnostic(s, GetStats, func(*Empty) *introspect.Stats { return s.stats() })
	diagnostic(s, GetSamples, s.samples.read)
	builtIn(s, GetHealth, func(*Empty) *introspect.Health {
		s.mu.Lock()
		defer s.mu.Unlock()
		return &introspect.Health{Serving: !s.closing}
	})
	builtIn(s, Ping, func(*Empty) *Empty { return &Empty{} })
}

// diagnostic registers a built-in method that answers only if ServerOptions.Diagnostics is set.
func diagnostic[In, Out any](s *Server, name Method[In, Out], f func(*In) *Out) {
	if s.opts.Diagnostics {
		builtIn(s, name, f)
		return
	}
	register(s, name, func(*In) (*Out, error) {
		return nil, failure("YDL3103", "%s: this server does not share its diagnostics", name)
	})
}

// builtIn registers a built-in method that always succeeds.
func builtIn[In, Out any](s *Server, name Method[In, Out], f func(*In) *Out) {
	register(s, name, func(in *In) (*Out, error) { return f(in), nil })
}

// register registers a built-in method, unless OnRegister is against it.
func register[In, Out any](s *Server, name Method[In, Out], f func(*In) (*Out, error)) {
	m := name.method(func(_ context.Context, in *In) (*Out, error) { return f(in) })
	m.idempotent.Store(true)
	if err := s.add(string(name), m); err != nil {
		s.opts.Logger.Debug("yodel: built-in method left out", "err", err)
	}
}

// registered calls f for each method with its names, in the order of the first.
func (s *Server) registered(f func(names []string, m *method)) {
	s.methodsMu.Lock()
	byName := *s.methods.Load()
	methods := make(map[*method][]string)
	for _, m := range byName {
		methods[m] = slices.Clone(m.names)
	}
	s.methodsMu.Unlock()
	sorted := make([]*method, 0, len(methods))
	for m := range methods {
		sorted = append(sorted, m)
	}
	slices.SortFunc(sorted, func(a, b *method) int { return strings.Compare(methods[a][0], methods[b][0]) })
	for _, m := range sorted {
		f(methods[m], m)
	}
}

func (s *Server) info() *introspect.Info {
	info := &introspect.Info{Agent: agent, Started: s.started, Codecs: strings.Split(names(s.codecs), ", ")}
	info.Overrides = s.overrides()
	if !s.opts.Diagnostics { // strangers do not learn where the registry is
		for i := range info.Overrides {
			info.Overrides[i].Registry = ""
		}
	}
	if len(s.compressors) > 0 {
		info.Compressors = strings.Split(names(s.compressors), ", ")
	}
	s.registered(func(names []string, m *method) {
		info.Methods = append(info.Methods, introspect.Method{
			Name: names[0], Aliases: names[1:], Args: schemas(m.in), Results: schemas(m.out),
			Values: m.positional, Kind: strings.TrimPrefix(kindName(m.kind), kindName(wire.Unary)), Idempotent: m.idempotent.Load(),
		})
	})
	return info
}

func (s *Server) stats() *introspect.Stats {
	s.mu.Lock()
	stats := &introspect.Stats{Since: s.started, Conns: len(s.conns) + len(s.links), Panics: s.guard.panics.Load()}
	s.mu.Unlock()
	stats.Open, stats.Granted = s.budget.Open(), s.budget.Granted()
	s.registered(func(names []string, m *method) {
		stats.Methods = append(stats.Methods, m.stats.read(names[0]))
	})
	return stats
}

func (st *methodStats) read(name string) introspect.MethodStats {
	out := introspect.MethodStats{Name: name, Inflight: st.inflight(), Received: st.received.Load(), Sent: st.sent.Load()}
	for code := range st.codes {
		n := st.codes[code].Load()
		if code == 0 {
			n += st.untimed()
		}
		out.Calls += n
		if n > 0 && code > 0 {
			if out.Errors == nil {
				out.Errors = make(map[string]uint64)
			}
			out.Errors[codeNames[code]] = n
		}
	}
	for i := range st.buckets {
		if n := st.buckets[i].Load(); n > 0 {
			out.Latency = append(out.Latency, introspect.Bucket{UpTo: bucketEnd(i), Calls: n})
		}
	}
	return out
}

func schemas(types []reflect.Type) []introspect.Schema {
	out := make([]introspect.Schema, len(types))
	for i, t := range types {
		out[i] = schemaOf(t, nil)
	}
	return out
}

// schemaOf describes t. Inside is the types that t is a part of.
func schemaOf(t reflect.Type, inside []reflect.Type) introspect.Schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := introspect.Schema{Type: t.String()}
	switch t.Kind() {
	case reflect.Bool:
		s.Kind = "boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		s.Kind = "integer"
	case reflect.Float32, reflect.Float64:
		s.Kind = "number"
	case reflect.String:
		s.Kind = "string"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			s.Kind = "bytes"
			return s
		}
		elem := schemaOf(t.Elem(), inside)
		s.Kind, s.Elem = "array", &elem
	case reflect.Map:
		elem := schemaOf(t.Elem(), inside)
		s.Kind, s.Elem = "map", &elem
	case reflect.Struct:
		s.Kind = "object"
		if slices.Contains(inside, t) {
			return s
		}
		inside = append(slices.Clone(inside), t)
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || f.Anonymous || name == "-" {
				continue
			}
			if name == "" {
				name = f.Name
			}
			field := schemaOf(f.Type, inside)
			field.Name = name
			s.Fields = append(s.Fields, field)
		}
	default:
		s.Kind = "any"
	}
	return s
}
