// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// A Report is all that was measured: what -json writes and -from reads.
type Report struct {
	Date      time.Time  `json:"date"`
	Command   string     `json:"command"`
	Machine   Machine    `json:"machine"`
	Rounds    int        `json:"rounds"`
	WarmupMS  int64      `json:"warmup_ms"`
	MeasureMS int64      `json:"measure_ms"`
	Peers     []PeerInfo `json:"peers"`
	Scenarios []Scenario `json:"scenarios"` // in the order in which they ran
	Results   []Result   `json:"results"`
}

// A PeerInfo says what a peer is, in its own words.
type PeerInfo struct {
	Key     string `json:"key"`  // its folder, or its name in peers.json: what -peers selects by
	Kind    Kind   `json:"kind"` // what it counts as
	Name    string `json:"name"` // in tables
	Version string `json:"version"`
	Setup   string `json:"setup"`
}

// A Kind is what a peer counts as in ratios.
type Kind string

// The kinds. The best Go peer is the best of kindGo: neither yodel itself, in whatever setup, nor
// the ceiling is a peer in that sense.
const (
	kindYodel   Kind = "yodel"
	kindVariant Kind = "variant" // yodel in another setup, to be compared with itself
	kindCeiling Kind = "ceiling"
	kindGo      Kind = "go"
	kindJava    Kind = "java"
)

// A Result is one run: one scenario, one peer, one round.
type Result struct {
	Scenario string `json:"scenario"`
	Peer     string `json:"peer"`
	Round    int    `json:"round"` // from 1

	// Cannot says why the peer does not take part in the scenario, Problem what went wrong. There
	// are no figures with either.
	Cannot  string `json:"cannot,omitempty"`
	Problem string `json:"problem,omitempty"`
	// Note is something odd that leaves the figures valid.
	Note string `json:"note,omitempty"`

	Calls      float64 `json:"calls"` // of a stream: messages
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	Late       int64   `json:"late"`
	Rate       float64 `json:"rate"` // calls a second
	// calls a second beside those: all other figures but those of the processes are without them
	Beside  float64 `json:"beside,omitempty"`
	Latency Latency `json:"latency_us"`
	Client  Side    `json:"client"`
	Server  Side    `json:"server"`
	Wire    float64 `json:"wire_bytes"` // over loopback, both ways, headers included
	Packets float64 `json:"packets"`    // likewise
}

// A Latency is in microseconds. Of several client processes it is the least minimum, the greatest
// maximum, and the mean of the rest.
type Latency struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// A Side is what the processes of one side used during the measurement; memory is that of all of
// them at its end.
type Side struct {
	CPU      float64 `json:"cpu_seconds"`
	Reads    float64 `json:"reads"`
	Writes   float64 `json:"writes"`
	BytesIn  float64 `json:"bytes_in"`
	BytesOut float64 `json:"bytes_out"`
	Mallocs  float64 `json:"mallocs"`
	Bytes    float64 `json:"malloc_bytes"`
	GCs      float64 `json:"gcs"`
	Memory   float64 `json:"memory"`
	Peak     float64 `json:"memory_peak"`
}

// A Spread is what several rounds have shown.
type Spread struct{ Median, Min, Max float64 }

// spreadOf is the spread of values; without any it is zero.
func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1]}
}

// A figure is something that can be said of a run.
type figure func(Result) float64

// Figures that ratios and targets are made of.
func rate(r Result) float64    { return r.Rate }
func p50(r Result) float64     { return r.Latency.P50 }
func p99(r Result) float64     { return r.Latency.P99 }
func longest(r Result) float64 { return r.Latency.Max }

// Processor time, in microseconds a call.
func cpu(r Result) float64       { return perCall(r, r.Client.CPU+r.Server.CPU) * 1e6 }
func serverCPU(r Result) float64 { return perCall(r, r.Server.CPU) * 1e6 }

// perCall divides; a run without calls has used nothing per call.
func perCall(r Result, n float64) float64 {
	if r.Calls == 0 {
		return 0
	}
	return n / r.Calls
}

// good are the runs of a scenario that have figures, by peer.
func (r *Report) good(scenario string) map[string][]Result {
	runs := make(map[string][]Result)
	for _, run := range r.Results {
		if run.Scenario == scenario && run.Problem == "" && run.Cannot == "" && run.Calls > 0 {
			runs[run.Peer] = append(runs[run.Peer], run)
		}
	}
	return runs
}

// faultless are those of the good runs in which no call has failed. Promises are judged by them
// alone.
func (r *Report) faultless(scenario string) map[string][]Result {
	runs := r.good(scenario)
	for peer := range runs {
		runs[peer] = slices.DeleteFunc(runs[peer], func(run Result) bool { return run.Errors > 0 })
	}
	return runs
}

// spread is the spread of a figure over a peer's rounds. It is false without any.
func (r *Report) spread(scenario, peer string, f figure) (Spread, bool) {
	var values []float64
	for _, run := range r.good(scenario)[peer] {
		values = append(values, f(run))
	}
	return spreadOf(values), len(values) > 0
}

// A ratio compares a peer's figure with the best of others in the same round, and says over the
// rounds how that went.
type ratio struct {
	Spread
	Against string // who was the best of the others most often
}

// ratio divides, round by round, the figure of peer by the best of the same round among the peers
// that others admits; best is the greatest, or with least the least. Runs with errors have no part
// in it, whoever's they are. It is false if there is no round with both.
func (r *Report) ratio(scenario, peer string, f figure, least bool, others func(PeerInfo) bool) (ratio, bool) {
	runs := r.faultless(scenario)
	wins := make(map[string]int)
	var values []float64
	for _, mine := range runs[peer] {
		best, who := 0.0, ""
		for _, p := range r.Peers {
			if p.Key == peer || !others(p) {
				continue
			}
			for _, run := range runs[p.Key] {
				if v := f(run); run.Round == mine.Round && v > 0 && (who == "" || (v < best) == least) {
					best, who = v, p.Key
				}
			}
		}
		if who != "" {
			values = append(values, f(mine)/best)
			wins[who]++
		}
	}
	against := ""
	for _, p := range r.Peers { // in order, so that equals are always reported alike
		if wins[p.Key] > wins[against] {
			against = p.Key
		}
	}
	return ratio{spreadOf(values), r.nameOf(against)}, len(values) > 0
}

// The others that a figure is compared with.
func goPeers(p PeerInfo) bool  { return p.Kind == kindGo }
func allPeers(p PeerInfo) bool { return p.Kind == kindGo || p.Kind == kindJava }
func ceilings(p PeerInfo) bool { return p.Kind == kindCeiling }
func named(keys ...string) func(PeerInfo) bool {
	return func(p PeerInfo) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return selects(k, p.Key) })
	}
}

// peer is the peer with the key.
func (r *Report) peer(key string) PeerInfo {
	for _, p := range r.Peers {
		if p.Key == key {
			return p
		}
	}
	return PeerInfo{Key: key, Name: key}
}

func (r *Report) nameOf(key string) string { return cmp.Or(r.peer(key).Name, key) }

// scenario is the scenario with the name, if it ran.
func (r *Report) scenario(name string) (Scenario, bool) {
	i := slices.IndexFunc(r.Scenarios, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return Scenario{}, false
	}
	return r.Scenarios[i], true
}

// failures are the sentences about all that went wrong, each once.
func (r *Report) failures() []string {
	var said []string
	for _, run := range r.Results {
		text := run.Problem
		if text == "" && run.Errors > 0 {
			text = fmt.Sprintf("%d calls failed, the first: %s", run.Errors, run.FirstError)
		}
		if text != "" {
			said = append(said, fmt.Sprintf("%s, round %d, %s: %s", run.Scenario, run.Round, r.nameOf(run.Peer), text))
		}
	}
	return said
}

func (r *Report) write(file string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func readReport(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(r.Scenarios) == 0 {
		return nil, fmt.Errorf("%s has no results: -json has not written it, or nothing was measured", file)
	}
	return &r, nil
}
