// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
)

// A Target is something that yodel promises of itself, next to the others.
type Target struct {
	Number int    // the same for those that belong together
	What   string // a phrase: "100 callers: throughput / best Go peer"
	Want   float64
	AtMost bool // otherwise at least
	Of     func(*Report) (ratio, bool)
	Check  bool // part of -check
}

// yodel is the peer that has to meet the targets. Its variants are the same with middleware and
// observers, without polling, and for the clients of other frameworks.
const (
	yodel       = "yodel"
	yodelChain  = "yodel-chain"
	yodelStill  = "yodel-still"
	yodelWires  = "yodel-wires"
	yodelActors = "yodel-actors"
)

// Ways of saying what a target is about.
func against(others func(PeerInfo) bool, scenario string, f figure) func(*Report) (ratio, bool) {
	return func(r *Report) (ratio, bool) { return r.ratio(scenario, yodel, f, false, others) }
}

func againstLeast(others func(PeerInfo) bool, scenario string, f figure) func(*Report) (ratio, bool) {
	return func(r *Report) (ratio, bool) { return r.ratio(scenario, yodel, f, true, others) }
}

func itself(scenario string, f figure) func(*Report) (ratio, bool) {
	return func(r *Report) (ratio, bool) {
		var values []float64
		for _, run := range r.faultless(scenario)[yodel] {
			values = append(values, f(run))
		}
		return ratio{Spread: spreadOf(values)}, len(values) > 0
	}
}

func itselfOnly(p PeerInfo) bool { return p.Key == yodel }

// chainCost is the CPU time of a call with the full chain, next to one without in the same round
// and over the same servers.
func chainCost(scenario string) func(*Report) (ratio, bool) {
	return func(r *Report) (ratio, bool) { return r.ratio(scenario, yodelChain, cpu, true, itselfOnly) }
}

// pollingCost is the CPU time of a call next to one without polling in the same round.
func pollingCost(r *Report) (ratio, bool) {
	return r.ratio("rare-100", yodel, cpu, true, named(yodelStill))
}

func stillRate(r *Report) (ratio, bool) { return r.ratio("closed-1", yodelStill, rate, false, goPeers) }

// ofPeak is throughput with so many callers as a share of that in the same round with as many
// callers as are best for the median. A peak for each round would be the one with the most luck.
func ofPeak(scenario string) func(*Report) (ratio, bool) {
	return func(r *Report) (ratio, bool) {
		peak, most := "", 0.0
		for _, n := range callerCounts {
			if s, ok := r.spread(closedName(n), yodel, rate); ok && s.Median > most {
				peak, most = closedName(n), s.Median
			}
		}
		var shares []float64
		for _, run := range r.faultless(scenario)[yodel] {
			for _, best := range r.faultless(peak)[yodel] {
				if best.Round == run.Round {
					shares = append(shares, run.Rate/best.Rate)
				}
			}
		}
		s, _ := r.scenario(peak)
		return ratio{spreadOf(shares), s.Title}, len(shares) > 0
	}
}

// systemCalls are the reads or writes per call of the side that makes most of them.
func systemCalls(r Result) float64 {
	return perCall(r, max(r.Client.Reads, r.Client.Writes, r.Server.Reads, r.Server.Writes))
}

// memoryPerConnection is how much more memory the server has with 10,000 connections than with one,
// in KiB of each.
func memoryPerConnection(r *Report, peer string) (ratio, bool) {
	memory := func(run Result) float64 { return run.Server.Memory }
	one, ok1 := r.spread("idle-1", peer, memory)
	many, ok2 := r.spread("idle-10000", peer, memory)
	of := func(bytes float64) float64 { return (bytes - one.Median) / 9999 / 1024 }
	return ratio{Spread: Spread{of(many.Median), of(many.Min), of(many.Max)}}, ok1 && ok2
}

func idleMemory(r *Report) (ratio, bool) { return memoryPerConnection(r, yodel) }

// leastIdleMemory compares with the better of two peers.
func leastIdleMemory(r *Report) (ratio, bool) {
	mine, ok := memoryPerConnection(r, yodel)
	best, who := 0.0, ""
	for _, p := range r.Peers {
		if m, ok := memoryPerConnection(r, p.Key); ok && named("grpc-go", "rpcx")(p) && m.Median > 0 && (who == "" || m.Median < best) {
			best, who = m.Median, p.Name
		}
	}
	if !ok || who == "" {
		return ratio{}, false
	}
	return ratio{Spread{mine.Median / best, mine.Min / best, mine.Max / best}, who}, true
}

var callerCounts = []int{1, 10, 100, 500, 1000, 2000, 5000}

func closedName(callers int) string { return fmt.Sprintf("closed-%d", callers) }

// targets are the promises that this command can judge.
func targets() []Target {
	list := []Target{}
	for _, c := range []struct {
		callers int
		want    float64
	}{{10, 1.3}, {100, 1.9}, {500, 2.2}, {1000, 2.2}, {2000, 2.2}, {5000, 1.8}} {
		name, check := closedName(c.callers), c.callers == 100 || c.callers == 1000
		what := fmt.Sprintf("%d callers: ", c.callers)
		list = append(list,
			Target{Number: 1, What: what + "throughput / best Go peer", Want: c.want, Of: against(goPeers, name, rate), Check: check},
			Target{Number: 1, What: what + "p50 / lowest of all peers", Want: 1, AtMost: true, Of: againstLeast(allPeers, name, p50), Check: check},
			Target{Number: 1, What: what + "p99 / lowest of all peers", Want: 1, AtMost: true, Of: againstLeast(allPeers, name, p99), Check: check},
			Target{Number: 1, What: what + "CPU per call / lowest of the Go peers", Want: 0.6, AtMost: true, Of: againstLeast(goPeers, name, cpu), Check: check},
		)
	}
	list = append(list,
		Target{Number: 1, What: "100 callers: reads or writes per call and side", Want: 0.15, AtMost: true, Of: itself("closed-100", systemCalls), Check: true},
		Target{Number: 1, What: "1000 callers: reads or writes per call and side", Want: 0.06, AtMost: true, Of: itself("closed-1000", systemCalls), Check: true},
		Target{Number: 2, What: "1 caller: throughput / best Go peer", Want: 2, Of: against(goPeers, "closed-1", rate)},
		Target{Number: 2, What: "1 caller without polling: throughput / best Go peer", Want: 1.2, Of: stillRate},
		Target{Number: 2, What: "100 calls a second: CPU per call / without polling", Want: 1.1, AtMost: true, Of: pollingCost},
		Target{Number: 2, What: "1 caller: p50 / raw TCP ping-pong's", Want: 1, AtMost: true, Of: againstLeast(ceilings, "closed-1", p50)},
		Target{Number: 3, What: "asynchronous, 128 bytes: million calls a second", Want: 2.5, Of: itself("async-echo", func(r Result) float64 { return r.Rate / 1e6 }), Check: true},
		Target{Number: 3, What: "asynchronous, 128 bytes: throughput / raw ceiling", Want: 0.25, Of: against(ceilings, "async-echo", rate), Check: true},
		Target{Number: 3, What: "asynchronous, 128 bytes: throughput / best Go peer", Want: 10, Of: against(goPeers, "async-echo", rate), Check: true},
		Target{Number: 3, What: "asynchronous, protobuf: throughput / best Go peer", Want: 2.5, Of: against(goPeers, "async-message", rate)},
		Target{Number: 4, What: "2000 callers: share of the peak throughput", Want: 0.9, Of: ofPeak("closed-2000")},
		Target{Number: 4, What: "5000 callers: share of the peak throughput", Want: 0.55, Of: ofPeak("closed-5000")},
		Target{Number: 4, What: "5000 callers: longest latency in ms", Want: 500, AtMost: true, Of: itself("closed-5000", func(r Result) float64 { return longest(r) / 1e3 })},
		Target{Number: 6, What: "64 KiB: throughput / raw copy", Want: 0.8, Of: against(ceilings, "large-64k", rate)},
		Target{Number: 6, What: "1 MiB: throughput / raw copy", Want: 0.8, Of: against(ceilings, "large-1m", rate)},
		Target{Number: 6, What: "16 MiB: throughput / raw copy", Want: 0.8, Of: against(ceilings, "large-16m", rate)},
		Target{Number: 6, What: "128 bytes beside calls of 1 MiB: p99 in ms", Want: 10, AtMost: true, Of: itself("mixed", func(r Result) float64 { return p99(r) / 1e3 })},
		Target{Number: 7, What: "KiB of the server's memory per idle connection", Want: 8, AtMost: true, Of: idleMemory},
		Target{Number: 7, What: "memory per idle connection / the lower of grpc-go and rpcx", Want: 1, AtMost: true, Of: leastIdleMemory},
		Target{Number: 8, What: "server streaming: messages a second / grpc-go", Want: 5, Of: against(named("grpc-go"), "stream", rate)},
		Target{Number: 9, What: "full chain, 100 callers: CPU per call / without it", Want: 1.05, AtMost: true, Of: chainCost("chain-100")},
		Target{Number: 9, What: "full chain, 1000 callers: CPU per call / without it", Want: 1.05, AtMost: true, Of: chainCost("chain-1000")},
	)
	list = append(list, actorTargets()...)
	for _, codec := range []string{"gob", "json", "msgpack"} {
		for _, callers := range []string{"1", "100"} {
			name := "plain-" + codec + "-" + callers
			s, _ := (&Report{Scenarios: scenarios}).scenario(name)
			list = append(list, Target{Number: 10, What: s.Title + ": throughput / the better of net/rpc and rpcx", Want: 1, Of: against(goPeers, name, rate)})
		}
	}
	return list
}

// actorTarget is the number of the first target of actors.
const actorTarget = 11

// The figures of actors, next to those of protoactor-go.
func actorTargets() []Target {
	protoactor := named("actors-protoactor")
	with := func(scenario string, f figure, least bool) func(*Report) (ratio, bool) {
		return func(r *Report) (ratio, bool) { return r.ratio(scenario, yodelActors, f, least, protoactor) }
	}
	list := []Target{{Number: actorTarget, What: "messages to actors of another process, 10 senders: thousands a second", Want: 100, Of: func(r *Report) (ratio, bool) {
		s, ok := r.spread("actor-send-10", yodelActors, func(run Result) float64 { return run.Rate / 1e3 })
		return ratio{Spread: s}, ok
	}}}
	for _, name := range []string{"actor-send-1", "actor-send-10", "actor-ask-1", "actor-ask-100"} {
		s, _ := (&Report{Scenarios: scenarios}).scenario(name)
		list = append(list,
			Target{Number: actorTarget, What: s.Title + ": throughput", Want: 1, Of: with(name, rate, false)},
			Target{Number: actorTarget, What: s.Title + ": CPU", Want: 1, AtMost: true, Of: with(name, cpu, true)})
	}
	return append(list,
		Target{Number: actorTarget + 1, What: "bytes of memory for each of a million idle actors", Want: 1000, AtMost: true, Of: func(r *Report) (ratio, bool) {
			return memoryPerActor(r, yodelActors)
		}},
		Target{Number: actorTarget + 1, What: "memory of an idle actor", Want: 1, AtMost: true, Of: func(r *Report) (ratio, bool) {
			mine, ok1 := memoryPerActor(r, yodelActors)
			other, ok2 := memoryPerActor(r, "actors-protoactor")
			if !ok1 || !ok2 {
				return ratio{}, false
			}
			by := other.Median
			return ratio{Spread{mine.Median / by, mine.Min / by, mine.Max / by}, r.nameOf("actors-protoactor")}, true
		}})
}

// memoryPerActor is how many more bytes of memory a process has with a million actors than with
// one, for each of them.
func memoryPerActor(r *Report, peer string) (ratio, bool) {
	memory := func(run Result) float64 { return run.Client.Memory }
	one, ok1 := r.spread("actor-idle-1", peer, memory)
	many, ok2 := r.spread("actor-idle-1m", peer, memory)
	of := func(bytes float64) float64 { return (bytes - one.Median) / (millionActors - 1) }
	return ratio{Spread: Spread{of(many.Median), of(many.Min), of(many.Max)}}, ok1 && ok2
}

// A Verdict is a target with what was measured.
type Verdict struct {
	Target

	Got      ratio
	Measured bool
}

func (r *Report) verdicts() []Verdict {
	var all []Verdict
	for _, t := range targets() {
		got, ok := t.Of(r)
		all = append(all, Verdict{Target: t, Got: got, Measured: ok})
	}
	return all
}

// Met says whether the target is met with some tolerance: 0.1 forgives a tenth.
func (v Verdict) Met(tolerance float64) bool {
	switch {
	case !v.Measured:
		return false
	case v.AtMost:
		return v.Got.Median <= v.Want*(1+tolerance)
	default:
		return v.Got.Median >= v.Want*(1-tolerance)
	}
}

// Wanted is the bound as people write it.
func (v Verdict) Wanted() string {
	if v.AtMost {
		return "≤ " + digits(v.Want)
	}
	return "≥ " + digits(v.Want)
}

// Judgement is a word on it.
func (v Verdict) Judgement(tolerance float64) string {
	switch {
	case !v.Measured:
		return "not measured"
	case v.Met(0):
		return "met"
	case v.Met(tolerance):
		return "nearly met"
	default:
		return "NOT MET"
	}
}

// checkTolerance is by how much -check lets a target be missed: a machine has bad minutes.
const checkTolerance = 0.1

// What -check measures. Its asynchronous scenario needs the ceiling and only those that can call
// so.
var (
	checkPeers = []string{yodel, "raw", "rpcx", "grpc-go", "kitex", "arpc"}
	checkWith  = map[string][]string{
		"closed-100":  {yodel, "rpcx", "grpc-go", "kitex", "arpc"},
		"closed-1000": {yodel, "rpcx", "grpc-go", "kitex", "arpc"},
		"async-echo":  {yodel, "raw", "rpcx", "arpc"},
	}
)

func checkScenarios() []Scenario {
	var checked []Scenario
	for _, s := range scenarios {
		if s.Peers = checkWith[s.Name]; s.Peers != nil {
			checked = append(checked, s)
		}
	}
	return checked
}

// check prints a line for each ratio that -check is about. The error is that of a target missed by
// more than a tenth.
func (r *Report) check(out io.Writer) error {
	var missed []error
	fmt.Fprintln(out)
	for _, v := range r.verdicts() {
		if !v.Check {
			continue
		}
		against := ""
		if v.Got.Against != "" {
			against = " (" + v.Got.Against + ")"
		}
		fmt.Fprintf(out, "target %d  %-64s %6s [%s–%s]  wanted %s: %s\n", v.Number, v.What+against,
			digits(v.Got.Median), digits(v.Got.Min), digits(v.Got.Max), v.Wanted(), v.Judgement(checkTolerance))
		if !v.Met(checkTolerance) {
			missed = append(missed, fmt.Errorf("target %d is missed by more than a tenth: %s", v.Number, v.What))
		}
	}
	return errors.Join(missed...)
}
