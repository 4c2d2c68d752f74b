// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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

// carryOut runs the plan until it is done or ctx is, and adds what it finds to the report. after is
// called with each scenario after its last round, also with those that ctx has cut short, if
// anything of them was measured.
//
// The rounds of a group follow each other. In each, its scenarios follow each other, and in each of
// these every peer has its turn, each round beginning with another one: what is compared has run
// within seconds, or in a group within a minute or two, and nobody always behind the same.
func (p *plan) carryOut(ctx context.Context, r *Report, show *progress, after func(Scenario)) {
	show.begin(p.runs())
	for _, group := range p.groups() {
		if ctx.Err() != nil {
			return
		}
		for round := 1; round <= p.rounds; round++ {
			for _, s := range group {
				p.round(ctx, r, s, round, show)
				if len(group) > 1 && ctx.Err() == nil { // its table is far away
					show.note(r.standing(s.Name, round, p.rounds))
				}
			}
		}
		show.clear()
		for _, s := range group {
			if slices.ContainsFunc(r.Results, func(run Result) bool { return run.Scenario == s.Name }) {
				r.Scenarios = append(r.Scenarios, s)
				after(s)
			}
		}
	}
}

// groups are the scenarios that somebody takes part in, those of one group together.
func (p *plan) groups() (all [][]Scenario) {
	last := ""
	for _, s := range p.scenarios {
		switch {
		case len(p.able(s)) == 0:
			continue
		case s.Group != "" && s.Group == last:
			all[len(all)-1] = append(all[len(all)-1], s)
		default:
			all = append(all, []Scenario{s})
		}
		last = s.Group
	}
	return all
}

// able are the programs that take part in a scenario. There are none if its client was not built.
func (p *plan) able(s Scenario) []program {
	if p.client(s) == nil && s.Client != "" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.programs), func(peer program) bool { return !s.takes(peer) })
}

// client returns the program that makes the calls of a scenario. It is nil if each peer calls
// itself, or if the client was not built.
func (p *plan) client(s Scenario) *program {
	i := slices.IndexFunc(p.programs, func(p program) bool { return p.key == s.Client })
	if i < 0 {
		return nil
	}
	return &p.programs[i]
}

// round gives every peer its turn.
func (p *plan) round(ctx context.Context, r *Report, s Scenario, round int, show *progress) {
	able := p.able(s)
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

// turn is one peer's turn in one round.
func (p *plan) turn(ctx context.Context, r *Report, s Scenario, peer program, round int, show *progress) {
	t := p.timing
	t.measure = max(t.measure, s.Measure)
	if peer.kind == kindJava {
		t.warmup = max(t.warmup, p.jvmWarmup)
		t.patience *= 3 // a JVM on a busy machine takes a while to start
	}
	if n := len(peer.layouts); n > 0 {
		peer.argv = []string{peer.layouts[(round-1)%n]}
	}
	peer.client = p.client(s)
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
		n += p.rounds * len(p.able(s))
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

// standing is a round of a scenario in a line: who was how fast.
func (r *Report) standing(scenario string, round, of int) string {
	runs := slices.DeleteFunc(slices.Clone(r.Results), func(run Result) bool {
		return run.Scenario != scenario || run.Round != round || run.Calls == 0
	})
	slices.SortStableFunc(runs, func(a, b Result) int { return cmp.Compare(b.Rate, a.Rate) })
	var said []string
	for _, run := range runs {
		said = append(said, r.nameOf(run.Peer)+" "+amount(run.Rate))
	}
	return fmt.Sprintf("%s, round %d of %d, calls/s: %s", scenario, round, of, strings.Join(said, ", "))
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
