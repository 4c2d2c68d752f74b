// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A row is a peer in a scenario's table: medians over its rounds.
type row struct {
	Peer   PeerInfo
	Rounds int
	Rate   Spread
	Best   ratio // to the best Go peer
	Raw    ratio // to the ceiling
	Median Result
	Errors int64 // of all rounds
}

// rows are the peers that have figures in a scenario, the fastest first.
func (r *Report) rows(scenario string) []row {
	var rows []row
	for key, runs := range r.good(scenario) {
		w := row{Peer: r.peer(key), Rounds: len(runs), Median: medians(runs)}
		w.Rate, _ = r.spread(scenario, key, rate)
		w.Best, _ = r.ratio(scenario, key, rate, false, goPeers)
		w.Raw, _ = r.ratio(scenario, key, rate, false, ceilings)
		for _, run := range runs {
			w.Errors += run.Errors
		}
		rows = append(rows, w)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.Rate.Median, a.Rate.Median), strings.Compare(a.Peer.Key, b.Peer.Key))
	})
	return rows
}

// A column is a figure that tables and CSV show.
type column struct {
	name string // in CSV
	of   func(*Result) *float64
}

// The columns. All but the first and those of latency and memory are per call.
var columns = []column{
	{"calls_per_second", func(r *Result) *float64 { return &r.Rate }},
	{"calls_beside_per_second", func(r *Result) *float64 { return &r.Beside }},
	{"latency_min_us", func(r *Result) *float64 { return &r.Latency.Min }},
	{"latency_mean_us", func(r *Result) *float64 { return &r.Latency.Mean }},
	{"latency_p50_us", func(r *Result) *float64 { return &r.Latency.P50 }},
	{"latency_p90_us", func(r *Result) *float64 { return &r.Latency.P90 }},
	{"latency_p99_us", func(r *Result) *float64 { return &r.Latency.P99 }},
	{"latency_p999_us", func(r *Result) *float64 { return &r.Latency.P999 }},
	{"latency_max_us", func(r *Result) *float64 { return &r.Latency.Max }},
	{"client_cpu_seconds_per_call", func(r *Result) *float64 { return &r.Client.CPU }},
	{"server_cpu_seconds_per_call", func(r *Result) *float64 { return &r.Server.CPU }},
	{"client_reads_per_call", func(r *Result) *float64 { return &r.Client.Reads }},
	{"server_reads_per_call", func(r *Result) *float64 { return &r.Server.Reads }},
	{"client_writes_per_call", func(r *Result) *float64 { return &r.Client.Writes }},
	{"server_writes_per_call", func(r *Result) *float64 { return &r.Server.Writes }},
	{"wire_bytes_per_call", func(r *Result) *float64 { return &r.Wire }},
	{"packets_per_call", func(r *Result) *float64 { return &r.Packets }},
	{"request_bytes_per_call", func(r *Result) *float64 { return &r.Client.BytesOut }},
	{"reply_bytes_per_call", func(r *Result) *float64 { return &r.Server.BytesOut }},
	{"client_allocations_per_call", func(r *Result) *float64 { return &r.Client.Mallocs }},
	{"server_allocations_per_call", func(r *Result) *float64 { return &r.Server.Mallocs }},
	{"client_allocated_bytes_per_call", func(r *Result) *float64 { return &r.Client.Bytes }},
	{"server_allocated_bytes_per_call", func(r *Result) *float64 { return &r.Server.Bytes }},
	{"client_memory_bytes", func(r *Result) *float64 { return &r.Client.Memory }},
	{"server_memory_bytes", func(r *Result) *float64 { return &r.Server.Memory }},
	{"client_peak_memory_bytes", func(r *Result) *float64 { return &r.Client.Peak }},
	{"server_peak_memory_bytes", func(r *Result) *float64 { return &r.Server.Peak }},
}

// perCalls is the run with all that its sides have used divided by its calls; memory stays.
func (r Result) perCalls() Result {
	if r.Calls == 0 {
		r.divide(math.Inf(1))
	} else {
		r.divide(r.Calls)
	}
	return r
}

// divide divides all that was used; memory stays.
func (r *Result) divide(by float64) {
	r.Wire /= by
	r.Packets /= by
	for _, s := range []*Side{&r.Client, &r.Server} {
		for _, n := range []*float64{&s.CPU, &s.Reads, &s.Writes, &s.BytesIn, &s.BytesOut, &s.Mallocs, &s.Bytes, &s.GCs} {
			*n /= by
		}
	}
}

// medians are those of each figure by itself, of a call.
func medians(runs []Result) Result {
	var m Result
	var of []Result
	for _, run := range runs {
		of = append(of, run.perCalls())
	}
	for _, c := range columns {
		var values []float64
		for i := range of {
			values = append(values, *c.of(&of[i]))
		}
		*c.of(&m) = spreadOf(values).Median
	}
	return m
}

// writeTable writes a scenario's table for a terminal, and beneath it who is not in it and why.
func (r *Report) writeTable(out io.Writer, s Scenario) error {
	rows := r.rows(s.Name)
	rounds := 0 // fewer than planned when the command was interrupted
	for _, w := range rows {
		rounds = max(rounds, w.Rounds)
	}
	fmt.Fprintf(out, "\n%s: %s (median of %d rounds)\n", s.Name, s.Title, rounds)
	if len(rows) == 0 {
		fmt.Fprintln(out, "  nobody has figures")
	} else {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, strings.Join(terminalHead, "\t")+"\t")
		for _, w := range rows {
			fmt.Fprintln(table, strings.Join(w.terminalCells(), "\t")+"\t")
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	for _, line := range r.absent(s) {
		fmt.Fprintln(out, "  "+line)
	}
	return nil
}

var terminalHead = []string{
	"", "calls/s", "min–max", "× best", "of raw", "min", "mean", "p50", "p90", "p99", "p99.9", "max",
	"CPU µs c+s", "writes c+s", "reads c+s", "wire bytes", "allocs c+s", "peak MiB c+s", "errors",
}

func (w row) terminalCells() []string {
	m := w.Median
	return []string{
		w.Peer.Name, amount(w.Rate.Median), amount(w.Rate.Min) + "–" + amount(w.Rate.Max), times(w.Best), share(w.Raw),
		microseconds(m.Latency.Min), microseconds(m.Latency.Mean), microseconds(m.Latency.P50), microseconds(m.Latency.P90),
		microseconds(m.Latency.P99), microseconds(m.Latency.P999), microseconds(m.Latency.Max),
		two(m.Client.CPU*1e6, m.Server.CPU*1e6), m.SystemCalls(m.Client.Writes, m.Server.Writes), m.SystemCalls(m.Client.Reads, m.Server.Reads),
		amount(m.Wire), two(m.Client.Mallocs, m.Server.Mallocs),
		two(m.Client.Peak/(1<<20), m.Server.Peak/(1<<20)), strconv.FormatInt(w.Errors, 10),
	}
}

// absent says which peers declined a scenario or failed in it, and how.
func (r *Report) absent(s Scenario) []string {
	var lines []string
	declined := make(map[string][]string) // peers by their reason
	var reasons []string
	for _, run := range r.Results {
		if run.Scenario == s.Name && run.Cannot != "" {
			if declined[run.Cannot] == nil {
				reasons = append(reasons, run.Cannot)
			}
			declined[run.Cannot] = append(declined[run.Cannot], r.nameOf(run.Peer))
		}
	}
	for _, reason := range reasons {
		lines = append(lines, "without "+strings.Join(declined[reason], ", ")+": "+reason)
	}
	for _, run := range r.Results {
		if run.Scenario != s.Name {
			continue
		}
		head := fmt.Sprintf("%s, round %d: ", r.nameOf(run.Peer), run.Round)
		if run.Problem != "" {
			lines = append(lines, head+run.Problem)
		}
		if run.Errors > 0 {
			lines = append(lines, head+"first error: "+run.FirstError)
		}
		if run.Note != "" {
			lines = append(lines, head+run.Note)
		}
		if run.Late > 0 { // the open loop did not keep its promise
			lines = append(lines, head+strconv.FormatInt(run.Late, 10)+" calls began late because of the client's own program")
		}
	}
	return lines
}

// writeCSV writes every run in a line.
func (r *Report) writeCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	head := []string{"scenario", "peer", "version", "kind", "round", "problem", "calls", "errors", "late"}
	for _, c := range columns {
		head = append(head, c.name)
	}
	lines := [][]string{head}
	for _, run := range r.Results {
		p := r.peer(run.Peer)
		line := []string{
			run.Scenario, p.Name, p.Version, string(p.Kind), strconv.Itoa(run.Round), cmp.Or(run.Problem, run.Cannot),
			number(run.Calls), strconv.FormatInt(run.Errors, 10), strconv.FormatInt(run.Late, 10),
		}
		run = run.perCalls()
		for _, c := range columns {
			line = append(line, number(*c.of(&run)))
		}
		lines = append(lines, line)
	}
	return w.WriteAll(lines)
}

// Numbers as people read them.

func number(n float64) string { return strconv.FormatFloat(n, 'g', 6, 64) }

// amount shortens a large number: 4.16M, 264k, 9.81k.
func amount(n float64) string {
	switch {
	case n >= 999.5e3:
		return digits(n/1e6) + "M"
	case n >= 999.5:
		return digits(n/1e3) + "k"
	default:
		return digits(n)
	}
}

// digits writes three significant digits, but all that are before the point.
func digits(n float64) string {
	switch {
	case n >= 99.95:
		return strconv.FormatFloat(n, 'f', 0, 64)
	case n >= 9.995:
		return strconv.FormatFloat(n, 'f', 1, 64)
	default:
		return strconv.FormatFloat(n, 'f', 2, 64)
	}
}

func microseconds(n float64) string {
	switch {
	case n >= 999.5e3:
		return digits(n/1e6) + "s"
	case n >= 999.5:
		return digits(n/1e3) + "ms"
	default:
		return digits(n) + "µs"
	}
}

func two(client, server float64) string { return amount(client) + "+" + amount(server) }

// SystemCalls writes reads or writes per call, unless the peer makes them in a way that the kernel
// does not count: then not even a byte per call has gone through those it does count.
func (r Result) SystemCalls(client, server float64) string {
	if max(r.Client.BytesOut, r.Server.BytesOut) < 1 {
		return "–"
	}
	return two(client, server)
}

func times(r ratio) string {
	if r.Median == 0 {
		return "–"
	}
	return digits(r.Median)
}

func share(r ratio) string {
	if r.Median == 0 {
		return "–"
	}
	return strconv.FormatFloat(r.Median*100, 'f', 0, 64) + "%"
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
