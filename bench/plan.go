// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A plan is what shall be measured.
type plan struct {
	programs  []program
	scenarios []Scenario
	rounds    int
	timing    timing
	jvmWarmup time.Duration // instead of timing.warmup: just-in-time compilers need longer
}

// carryOut runs the plan until it is done or ctx is, and adds what it finds to the report. after is called with the
// report after the last round of each scenario, also of the one that ctx has cut short.
//
// A scenario's rounds follow each other, and in each round every peer has its turn, each round beginning with another
// one: peers that are compared with each other have run within seconds of each other, and none always behind the same.
func (p *plan) carryOut(ctx context.Context, r *Report, show *progress, after func(Scenario)) {
	show.begin(p.runs())
	for _, s := range p.scenarios {
		able := slices.DeleteFunc(slices.Clone(p.programs), func(peer program) bool { return !s.takes(peer) })
		if len(able) == 0 || ctx.Err() != nil {
			continue
		}
		r.Scenarios = append(r.Scenarios, s)
		for round := 1; round <= p.rounds && ctx.Err() == nil; round++ {
			for i := range able {
				peer := able[(i+round-1)%len(able)]
				if ctx.Err() != nil || r.cannot(s.Name, peer.key) {
					show.skip()
					continue
				}
				show.now(fmt.Sprintf("%s  round %d of %d  %s", s.Name, round, p.rounds, peer.key))
				p.turn(ctx, r, s, peer, round, show)
			}
		}
		show.clear()
		after(s)
	}
}

// turn is one peer's turn in one round.
func (p *plan) turn(ctx context.Context, r *Report, s Scenario, peer program, round int, show *progress) {
	t := p.timing
	if peer.kind == kindJava {
		t.warmup = max(t.warmup, p.jvmWarmup)
	}
	result, info := fight(ctx, peer, s, t)
	if ctx.Err() != nil { // nothing that an interrupt has broken is the peer's fault
		return
	}
	result.Round = round
	r.learn(info)
	r.Results = append(r.Results, result)
	show.done(summary(r, result))
}

// runs is how many there will be at most.
func (p *plan) runs() int {
	n := 0
	for _, s := range p.scenarios {
		for _, peer := range p.programs {
			if s.takes(peer) {
				n += p.rounds
			}
		}
	}
	return n
}

// learn takes in what a peer has said of itself.
func (r *Report) learn(info PeerInfo) {
	i := slices.IndexFunc(r.Peers, func(p PeerInfo) bool { return p.Key == info.Key })
	switch {
	case i < 0:
		r.Peers = append(r.Peers, info)
	case info.Name != "": // otherwise it did not get so far
		r.Peers[i] = info
	}
}

// cannot says whether a peer has declined a scenario.
func (r *Report) cannot(scenario, peer string) bool {
	return slices.ContainsFunc(r.Results, func(run Result) bool {
		return run.Scenario == scenario && run.Peer == peer && run.Cannot != ""
	})
}

// summary is a run in a line.
func summary(r *Report, run Result) string {
	head := fmt.Sprintf("%-18s %d  %-16s ", run.Scenario, run.Round, r.nameOf(run.Peer))
	switch {
	case run.Cannot != "":
		return head + "declines: " + run.Cannot
	case run.Problem != "":
		return head + "FAILED: " + run.Problem
	}
	text := head + fmt.Sprintf("%10s/s  p99 %s", amount(run.Rate), microseconds(run.Latency.P99))
	if run.Errors > 0 {
		text += fmt.Sprintf("  %d ERRORS: %s", run.Errors, run.FirstError)
	}
	if run.Note != "" {
		text += "  (" + run.Note + ")"
	}
	return text
}
