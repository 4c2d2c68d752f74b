// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"maps"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/grpcstatus"
	"github.com/yodel-rpc/yodel/internal/live"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// Method returns the counters of a method of a server.
func Method(name string, m *stats.Method) introspect.MethodStats {
	out := introspect.MethodStats{
		Name: name, Inflight: m.Inflight(), Received: m.Received.Load(), Sent: m.Sent.Load(), Took: time.Duration(m.Took.Load()),
		Calls: m.Calls(0), Errors: errorsOf(m.Calls),
	}
	for _, n := range out.Errors {
		out.Calls += n
	}
	out.BytesIn, out.BytesOut = m.Bytes.Sums()
	for upTo, calls := range m.Latency() {
		out.Latency = append(out.Latency, introspect.Bucket{UpTo: upTo, Calls: calls})
	}
	return out
}

// Calls returns the counters of the calls that a client has made of a method.
func Calls(name string, c *stats.Calls) introspect.MethodStats {
	out := introspect.MethodStats{Name: name}
	out.BytesIn, out.BytesOut = c.Bytes.Sums()
	out.Received, out.Sent = c.Messages.Sums()
	out.Retries, out.Hedges = c.Extra.Sums()
	out.Errors = errorsOf(c.Failed)
	out.Calls = c.Others()
	for bucket, took := range c.Latency() {
		out.Latency = append(out.Latency, bucket)
		out.Calls += bucket.Calls
		out.Took += took
	}
	return out
}

// callers returns the calls of a method by caller, under all its names.
func callers(all map[string]map[string]live.Totals, names []string) (out []introspect.CallerStats) {
	sums := make(map[string]live.Totals)
	for _, name := range names {
		for caller, t := range all[name] {
			sum := sums[caller]
			for code, n := range t {
				sum[code] += n
			}
			sums[caller] = sum
		}
	}
	for _, caller := range slices.Sorted(maps.Keys(sums)) {
		t := sums[caller]
		if t[0] > 0 {
			out = append(out, introspect.CallerStats{Name: caller, Calls: t[0], Errors: errorsOf(func(code int) uint64 { return t[code] })})
		}
	}
	return out
}

// Conn returns the counters of a connection.
func Conn(conn *mux.Conn) introspect.Conn {
	open, full := conn.Load()
	n := conn.Counters()
	return introspect.Conn{
		Open: open, Full: full, BytesIn: n.BytesIn, BytesOut: n.BytesOut,
		FramesIn: n.FramesIn, FramesOut: n.FramesOut, Reads: n.Reads, Writes: n.Writes,
	}
}

// nameOf returns the name of a code under which calls are counted.
func nameOf(code int) string {
	if code == int(catalogue.Disabled) {
		return introspect.Disabled
	}
	return grpcstatus.CodeName(uint16(code)) //nolint:gosec // less than stats.Codes
}

// errorsOf returns the numbers of failed calls by the names of their codes, or nil if there are
// none.
func errorsOf(failed func(code int) uint64) (errors map[string]uint64) {
	for code := 1; code < stats.Codes; code++ {
		if n := failed(code); n > 0 {
			if errors == nil {
				errors = make(map[string]uint64)
			}
			errors[nameOf(code)] = n
		}
	}
	return errors
}
