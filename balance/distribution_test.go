// SPDX-License-Identifier: Apache-2.0

//go:build !race

package balance_test

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
)

// The tables of docs/balancing.md: go test -v -run Distribution ./balance
//
// The race detector makes these many picks take minutes, and finds nothing in them: each test is
// one goroutine.

// tableOf prints a table when tests are verbose.
func tableOf(t *testing.T, header string, rows func(w io.Writer)) {
	t.Helper()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, header)
	rows(w)
	w.Flush()
	t.Logf("\n%s", b.String())
}

// Shares of 100,000 picks among endpoints of the weights 1, 2, 3 and 4.
func TestDistributionByWeight(t *testing.T) {
	const n = 100_000
	all := weighing(t, 1, 2, 3, 4)
	byWeight := func(i int) float64 { return float64(i+1) / 10 }
	evenly := func(int) float64 { return 0.25 }
	tableOf(t, "picks of\tweight 1\tweight 2\tweight 3\tweight 4\tmost off\t", func(w io.Writer) {
		for _, row := range []struct {
			policy

			share func(i int) float64
			off   float64 // of its share, at most; 0: as chance has it
		}{
			{policy{"Random", balance.Random}, evenly, 0},
			{policy{"RoundRobin", yodel.RoundRobin}, evenly, 0},
			{policy{"Weighted", balance.Weighted}, byWeight, 0},
			{policy{"Smooth", balance.Smooth}, byWeight, 0},
			{policy{"ActiveWeight", balance.ActiveWeight}, evenly, 0},
			{policy{"LeastLoaded", balance.LeastLoaded}, evenly, 0},
			{policy{"P2C", balance.P2C}, evenly, 0},
			{policy{"EWMA", balance.EWMA}, evenly, 0},
			{policy{"LowestLatency", balance.LowestLatency}, evenly, 0},
			{policy{"Nearest(52.5, 13.4)", balance.Nearest(52.5, 13.4)}, evenly, 0},
			{policy{`Zone("", Weighted)`, balance.Zone("", balance.Weighted)}, byWeight, 0},
			{policy{"Aperture(4, Nth(0, 1))", balance.Aperture(4, balance.Nth(0, 1))}, evenly, 0},
			{policy{"Ketama(ByKey)", balance.Ketama(balance.ByKey)}, byWeight, 0.25},
			{policy{"Bounded(1.25, ByKey)", balance.Bounded(1.25, balance.ByKey)}, byWeight, 0.25},
			{policy{"Maglev(ByKey)", balance.Maglev(balance.ByKey)}, byWeight, 0.03},
			{policy{"Jump(ByKey)", balance.Jump(balance.ByKey)}, evenly, 0.03},
		} {
			counts := picks(row.balance(all, nil), n)
			worst := 0.0
			fmt.Fprintf(w, "%s\t", row.name)
			for i, ep := range all {
				share := float64(counts[ep]) / n
				worst = max(worst, math.Abs(share/row.share(i)-1))
				fmt.Fprintf(w, "%.2f%%\t", 100*share)
			}
			fmt.Fprintf(w, "%.1f%%\t\n", 100*worst)
			if x := chiSquare(counts, all, row.share); row.off == 0 && x > certainlyFalse {
				t.Errorf("%s: the shares are not those expected: chi-square is %.0f", row.name, x)
			}
			if row.off > 0 && worst > row.off {
				t.Errorf("%s: a share is off by %.1f%%", row.name, 100*worst)
			}
		}
	})
}

// Keys that move when one of ten endpoints goes, and when a tenth comes.
func TestDistributionOfKeysThatMove(t *testing.T) {
	const n, keys = 10, 40_000
	f := newFleet(t, nil)
	all := f.become(instances(n)...)
	tableOf(t, "keys that move (10% is the least)\tthe last of 10 goes\tthe 5th of 10 goes\ta tenth comes\tto others than the tenth\tone of 10 is not ready\t", func(w io.Writer) {
		for _, p := range hashing {
			before := p.balance(all, nil)
			home := places(before, keys)
			lastGone := moved(home, places(p.balance(all[:n-1], before), keys))
			fifthGone := moved(home, places(p.balance(append(all[:4:4], all[5:]...), before), keys))
			nine := p.balance(all[:n-1], nil)
			was, is := places(nine, keys), places(p.balance(all, nine), keys)
			stray := 0
			for i, ep := range is {
				if ep != was[i] && ep != all[n-1] {
					stray++
				}
			}
			all[4].SetReady("test", false)
			unready := moved(home, places(before, keys))
			all[4].SetReady("test", true)
			joined := moved(was, is)
			fmt.Fprintf(w, "%s\t%.1f%%\t%.1f%%\t%.1f%%\t%.2f%%\t%.1f%%\t\n", p.name, lastGone, fifthGone, joined, float64(stray)*100/keys, unready)
			// A share may be larger than a tenth by what the shares of a ring of 160 points differ;
			// Maglev moves a few more.
			most, strays := 13.0, 0
			if strings.HasPrefix(p.name, "Maglev") {
				strays = keys * 2 / 100
			}
			if lastGone > most || joined > most || unready > most || stray > strays || fifthGone > most && !strings.HasPrefix(p.name, "Jump") {
				t.Errorf("%s: more keys move than have to", p.name)
			}
		}
	})
}

// Where the calls go of clients that see a part of the servers each.
func TestDistributionOfApertures(t *testing.T) {
	const servers, clients, each = 10, 25, 10_000
	all := numbered(t, servers)
	tableOf(t, "25 clients, 10 servers, apertures of 3\tin view of a client\tleast loaded server\tmost loaded server\t", func(w io.Writer) {
		for _, row := range []struct {
			name  string
			place func(i int) balance.Place
			exact bool
		}{
			{"Nth(i, 25)", func(i int) balance.Place { return balance.Nth(i, clients) }, true},
			{`Named("pod-i")`, func(i int) balance.Place { return balance.Named(fmt.Sprintf("pod-%d", i)) }, false},
		} {
			counts := make(map[*yodel.Endpoint]int)
			widest := 0
			for i := range clients {
				seen := picks(balance.Aperture(3, row.place(i))(all, nil), each)
				widest = max(widest, len(seen))
				for ep, n := range seen {
					counts[ep] += n
				}
			}
			least, most := math.MaxInt, 0
			for _, ep := range all {
				least, most = min(least, counts[ep]), max(most, counts[ep])
			}
			const mean = float64(clients*each) / servers
			fmt.Fprintf(w, "%s\tup to %d\t%.1f%% of the mean\t%.1f%%\t\n", row.name, widest, 100*float64(least)/mean, 100*float64(most)/mean)
			if x := chiSquare(counts, all, func(int) float64 { return 1.0 / servers }); row.exact && x > certainlyFalse {
				t.Errorf("%s: the servers are not loaded evenly: chi-square is %.0f", row.name, x)
			}
			if widest < 3 || widest > 5 || least == 0 {
				t.Errorf("%s: clients see up to %d servers; the least loaded one gets %d calls", row.name, widest, least)
			}
		}
	})
}

// How the calls of a zone spill over.
func TestDistributionOfZones(t *testing.T) {
	const n = 30_000
	for _, size := range []int{10, 100} { // counted, and estimated
		all := instances(2 * size)
		for i := range all {
			all[i].Zone = []string{"eu", "us"}[i%2]
		}
		eps := newFleet(t, nil).become(all...)
		tableOf(t, fmt.Sprintf("%d of %d endpoints are in the zone\tready there\tcalls that stay\t", size, 2*size), func(w io.Writer) {
			for _, ready := range []int{100, 80, 70, 50, 20, 0} {
				for i, ep := range eps {
					ep.SetReady("test", i%2 == 1 || i/2*100 < ready*size)
				}
				own := 0
				for ep, count := range picks(balance.Zone("eu", yodel.RoundRobin)(eps, nil), n) {
					if ep.Instance().Zone == "eu" {
						own += count
					}
				}
				stay := float64(own) / n
				fmt.Fprintf(w, "\t%d%%\t%.1f%%\t\n", ready, 100*stay)
				if want := min(1, 1.4*float64(ready)/100); math.Abs(stay-want) > 0.02 {
					t.Errorf("%d%% are ready and %.3f of the calls stay, want %.3f", ready, stay, want)
				}
			}
		})
	}
}

func TestBalancersByLoadAreEvenWhereAllIsEqual(t *testing.T) {
	for _, n := range []int{2, 7, 100} {
		all := withLoads(t, make([]int, n)...)
		for name, b := range byLoad {
			p := b(all, nil)
			wantShares(t, fmt.Sprintf("%s of %d", name, n), all, tally(p, 500*n), even(n)...)
			left := even(n)
			left[0] = 0
			wantShares(t, fmt.Sprintf("%s of %d but one", name, n), all, tally(p, 500*n, all[0]), left...)
		}
	}
}

func even(n int) []float64 {
	shares := make([]float64, n)
	for i := range shares {
		shares[i] = 1
	}
	return shares
}
