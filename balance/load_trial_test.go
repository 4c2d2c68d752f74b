// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// What the tests of the balancers that look at load and time have in common.

// A roll is a resolver with these instances.
type roll []discovery.Instance

func (r roll) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	update(r)
	<-ctx.Done()
	return nil
}

// enrolled returns the endpoints of these instances, which no call reaches. All are ready.
func enrolled(t testing.TB, instances ...discovery.Instance) []*yodel.Endpoint {
	t.Helper()
	got := make(chan []*yodel.Endpoint, 1)
	c := yodel.NewClient(roll(instances), &yodel.ClientOptions{
		Transport: nowhere{},
		Balancer: func(all []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
			got <- all
			return yodel.RoundRobin(all, last)
		},
	})
	t.Cleanup(c.Close)
	return <-got
}

// withLoads returns endpoints of which the registry says that so many calls are in flight there.
func withLoads(t testing.TB, loads ...int) []*yodel.Endpoint {
	t.Helper()
	instances := make([]discovery.Instance, len(loads))
	for i, n := range loads {
		instances[i] = discovery.Instance{Addr: fmt.Sprintf("nobody:%d", i+1), Inflight: n}
	}
	return enrolled(t, instances...)
}

// tally counts which endpoints n calls get that avoid some.
func tally(p yodel.Picker, n int, avoid ...*yodel.Endpoint) map[*yodel.Endpoint]int {
	counts := make(map[*yodel.Endpoint]int)
	for range n {
		call := &yodel.Call{}
		for _, ep := range avoid {
			call.Attempts().Avoid(ep)
		}
		counts[p.Pick(call)]++
	}
	return counts
}

// wantShares checks that the counts are as the shares say, each endpoint's being that at its index:
// by chi-square, which is wrong in one of a billion tests. Those with a share of 0 must not be
// picked at all.
func wantShares(t *testing.T, what string, all []*yodel.Endpoint, counts map[*yodel.Endpoint]int, shares ...float64) {
	t.Helper()
	total, sum := 0, 0.0
	for _, n := range counts {
		total += n
	}
	for _, share := range shares {
		sum += share
	}
	chi, degrees, seen := 0.0, -1, 0
	for i, ep := range all {
		seen += counts[ep]
		expected := float64(total) * shares[i] / sum
		if expected == 0 {
			if counts[ep] > 0 {
				t.Errorf("%s: %s was picked %d times of %d, want never", what, ep.Addr(), counts[ep], total)
			}
			continue
		}
		d := float64(counts[ep]) - expected
		chi += d * d / expected
		degrees++
	}
	if seen != total {
		t.Errorf("%s: %d of %d picks were none of the endpoints", what, total-seen, total)
	}
	if degrees < 1 {
		return
	}
	k, z := float64(degrees), 6.0 // Wilson and Hilferty: the normal quantile of 1e-9
	if limit := k * math.Pow(1-2/(9*k)+z*math.Sqrt(2/(9*k)), 3); chi > limit {
		t.Errorf("%s: chi-square %.1f with %d degrees of freedom, want at most %.1f", what, chi, degrees, limit)
		for i, ep := range all {
			t.Logf("%s: %d picks, expected %.0f", ep.Addr(), counts[ep], float64(total)*shares[i]/sum)
		}
	}
}

// byLoad is the balancers that look at load and time.
var byLoad = map[string]yodel.Balancer{
	"LeastLoaded":   balance.LeastLoaded,
	"P2C":           balance.P2C,
	"EWMA":          balance.EWMA,
	"LowestLatency": balance.LowestLatency,
	"SlowStart":     balance.SlowStart(hour, balance.P2C),
	"Panic":         balance.Panic(0.5, yodel.RoundRobin),
	"Zone":          balance.Zone("", balance.EWMA),
	"all around":    balance.Panic(0.5, balance.SlowStart(hour, balance.EWMA)),
}

func TestBalancersByLoadKeepTheContract(t *testing.T) {
	for name, b := range byLoad {
		t.Run(name, func(t *testing.T) { yodeltest.TestBalancer(t, b) })
	}
}

func TestPicksByLoadAllocateNothing(t *testing.T) {
	for _, n := range []int{3, 100} {
		all := withLoads(t, make([]int, n)...)
		for name, b := range byLoad {
			p, call := b(all, nil), &yodel.Call{}
			ended, _ := p.(balance.Learner)
			allocs := testing.AllocsPerRun(1000, func() {
				ep := p.Pick(call)
				if ended != nil {
					ended.Ended(ep, 1000, nil)
				}
			})
			if allocs >= 0.5 { // what else the process does counts too
				t.Errorf("%s of %d: a pick makes %v allocations", name, n, allocs)
			}
		}
	}
}

func BenchmarkPicksByLoad(b *testing.B) {
	for _, n := range []int{3, 30, 1000} {
		all := withLoads(b, make([]int, n)...)
		for name, balancer := range byLoad {
			b.Run(fmt.Sprintf("%s-%d", name, n), func(b *testing.B) {
				p := balancer(all, nil)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for call := (&yodel.Call{}); pb.Next(); {
						p.Pick(call)
					}
				})
			})
		}
	}
}
