// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A policy is a balancer with its name.
type policy struct {
	name    string
	balance yodel.Balancer
}

// hashing are the policies of consistent hashing, by key.
var hashing = []policy{
	{"Ketama(ByKey)", balance.Ketama(balance.ByKey)},
	{"Bounded(1.25, ByKey)", balance.Bounded(1.25, balance.ByKey)},
	{"Maglev(ByKey)", balance.Maglev(balance.ByKey)},
	{"Jump(ByKey)", balance.Jump(balance.ByKey)},
}

// policies are those of this package that need nothing of a call but what the caller says, and of
// an instance nothing but its record.
var policies = append([]policy{
	{"Random", balance.Random},
	{"Weighted", balance.Weighted},
	{"Smooth", balance.Smooth},
	{"ActiveWeight", balance.ActiveWeight},
	{"Sticky", balance.Sticky},
	{"Nearest(52.5, 13.4)", balance.Nearest(52.5, 13.4)},
	{`Zone("", Random)`, balance.Zone("", balance.Random)},
	{`Zone("eu", Smooth)`, balance.Zone("eu", balance.Smooth)},
	{"Aperture(3, Nth(1, 5))", balance.Aperture(3, balance.Nth(1, 5))},
	{`Aperture(2, Named("pod"))`, balance.Aperture(2, balance.Named("pod"))},
	{`Group("", Smooth)`, balance.Group("", balance.Smooth)},
	{`Version("", Weighted)`, balance.Version("", balance.Weighted)},
}, hashing...)

func TestAllKeepTheContract(t *testing.T) {
	for _, p := range policies {
		t.Run(p.name, func(t *testing.T) { yodeltest.TestBalancer(t, p.balance) })
	}
}

// A pick is on the path of every call, in fleets of any size, and also when some of it is avoided.
func TestPicksAllocateNothing(t *testing.T) {
	all := numbered(t, 100)
	call := keyed(1)
	call.Attempts().Avoid(all[7])
	all[3].SetReady("test", false)
	for _, p := range policies {
		picker := p.balance(all, nil)
		if n := testing.AllocsPerRun(200, func() { picker.Pick(call) }); n >= 1 {
			t.Errorf("%s: %v allocations", p.name, n)
		}
	}
}

// Endpoints come, go, weigh more and less and are not ready, while calls are made: a pick is of the
// set that its picker was made for, and there is one.
func TestPicksAreRightWhileEverythingChanges(t *testing.T) {
	for _, p := range policies {
		t.Run(p.name, func(t *testing.T) { churn(t, p.balance) })
	}
}

func churn(t *testing.T, b yodel.Balancer) {
	t.Helper()
	f := newFleet(t, nil)
	all := instances(48)
	var picker yodel.Picker
	for round := range 40 {
		for i := range all {
			all[i].Weight = (i*round)%7 + 1
		}
		// Clients go on looking for endpoints that a registry does not name any more, which are not
		// ready then: these are all named.
		endpoints := f.become(all...)[:1+(round*29)%len(all)]
		picker = b(endpoints, picker)
		known := make(map[*yodel.Endpoint]bool)
		for i, ep := range endpoints {
			known[ep] = true
			ep.SetReady("test", (i+round)%3 != 0 || i == 1)
		}
		var wg sync.WaitGroup
		faults := make(chan error, 4)
		for g := range cap(faults) {
			wg.Go(func() {
				for i := range 50 {
					call := keyed(50*g + i)
					call.Attempts().Avoid(endpoints[i%len(endpoints)])
					ep := picker.Pick(call)
					if ep != nil && (!known[ep] || call.Attempts().Avoids(ep)) {
						faults <- fmt.Errorf("round %d: %s was picked", round, ep.Addr())
						return
					}
					free := false
					for _, other := range endpoints {
						free = free || !call.Attempts().Avoids(other)
					}
					if free != (ep != nil) {
						faults <- fmt.Errorf("round %d: one can be picked: %v, and was: %v", round, free, ep != nil)
						return
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-faults:
			t.Fatal(err)
		default:
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 5000} {
		all := numbered(b, n)
		for _, p := range policies {
			picker := p.balance(all, nil)
			b.Run(fmt.Sprintf("%s/%d", p.name, n), func(b *testing.B) {
				call := keyed(1)
				b.ReportAllocs()
				for b.Loop() {
					picker.Pick(call)
				}
			})
		}
	}
}

func BenchmarkPickOnAllProcessors(b *testing.B) {
	all := numbered(b, 10)
	for _, p := range policies {
		picker := p.balance(all, nil)
		b.Run(p.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				call := keyed(1)
				for pb.Next() {
					picker.Pick(call)
				}
			})
		})
	}
}

// What a change costs: of nothing that a balancer looks at, of one endpoint of 5,000, and when all
// are new.
func BenchmarkChange(b *testing.B) {
	const n = 5000
	weights := make([]int, n)
	for i := range weights {
		weights[i] = 1 + i%100
	}
	all := weighing(b, weights...)
	for _, p := range policies {
		first := p.balance(all, nil)
		b.Run(p.name+"/nothing", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.balance(all, first)
			}
		})
		b.Run(p.name+"/one", func(b *testing.B) {
			b.ReportAllocs()
			last := first
			for i := 0; b.Loop(); i++ {
				last = p.balance(all[:n-1+i%2], last)
			}
		})
		b.Run(p.name+"/all", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.balance(all, nil)
			}
		})
	}
}
