// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
)

// In each cycle the counts are those of the weights, and a heavy endpoint does not come in a row.
func TestSmoothIsExactAndSmooth(t *testing.T) {
	all := weighing(t, 5, 1, 1)
	p := balance.Smooth(all, nil)
	for range 100 {
		counts := make(map[*yodel.Endpoint]int)
		for range 7 {
			counts[p.Pick(&yodel.Call{})]++
		}
		if counts[all[0]] != 5 || counts[all[1]] != 1 || counts[all[2]] != 1 {
			t.Fatalf("a cycle has %d, %d and %d", counts[all[0]], counts[all[1]], counts[all[2]])
		}
	}
	all = weighing(t, 300, 100, 200) // the divisor does not count
	p = balance.Smooth(all, nil)
	heavy := 0
	for range 600 {
		if p.Pick(&yodel.Call{}) != all[0] {
			heavy = 0
		} else if heavy++; heavy > 2 {
			t.Fatal("half of the picks come three in a row")
		}
	}
}

// Frequent changes do not favour the first endpoints.
func TestSmoothGoesOnAfterAChange(t *testing.T) {
	all := weighing(t, 1, 2, 3)
	var p yodel.Picker
	counts := make(map[*yodel.Endpoint]int)
	for range 600 {
		p = balance.Smooth(all, p)
		counts[p.Pick(&yodel.Call{})]++
	}
	for i, ep := range all {
		if counts[ep] != 100*(i+1) {
			t.Errorf("weight %d was picked %d times of 600", i+1, counts[ep])
		}
	}
}

// The turns of one that is avoided go to the others, by their weights.
func TestWeightsHoldAmongThoseThatAreLeft(t *testing.T) {
	for _, p := range []policy{{"Weighted", balance.Weighted}, {"Smooth", balance.Smooth}} {
		all := weighing(t, 1, 7, 2, 3, 4)
		picker := p.balance(all, nil)
		all[1].SetReady("test", false)
		counts := picks(picker, 100_000)
		if x := chiSquare(counts, all, func(i int) float64 { return []float64{0.1, 1e-9, 0.2, 0.3, 0.4}[i] }); x > certainlyFalse {
			t.Errorf("%s: chi-square is %.0f: %v", p.name, x, counts)
		}
	}
}

// Weights may be anything, and change while calls are made.
func TestWeightsOfAnySize(t *testing.T) {
	for _, p := range policies {
		var picker yodel.Picker
		f := newFleet(t, nil)
		for _, weights := range [][]int{{0, 0, 0}, {-5, 1 << 31, 1}, {1, 1 << 62, 1 << 62}, {1, 999_983, 10}, {65_521, 65_519, 32_749}} {
			records := instances(len(weights))
			for i, w := range weights {
				records[i].Weight = w
			}
			picker = p.balance(f.become(records...), picker)
			for i := range 50 {
				if picker.Pick(keyed(i)) == nil {
					t.Fatalf("%s: nobody is picked with the weights %d", p.name, weights)
				}
			}
		}
	}
}

func TestNewWeightsCountAtOnce(t *testing.T) {
	for _, p := range []policy{{"Weighted", balance.Weighted}, {"Smooth", balance.Smooth}, hashing[2]} {
		f := newFleet(t, nil)
		records := instances(2)
		first := p.balance(f.become(records...), nil)
		records[0].Weight = 9
		all := f.become(records...)
		if n := picks(p.balance(all, first), 10_000)[all[0]]; n < 8700 || n > 9300 {
			t.Errorf("%s: 9 of 10 were to be picked, and %d of 10000 were", p.name, n)
		}
	}
}

func TestActiveWeightTakesWhoWorksLeast(t *testing.T) {
	f := newFleetOn(t, newWorks(t), balance.ActiveWeight)
	all := f.become(instances(8)...)
	work := newWorkload(t, f)
	for range 40 {
		work.add(nil, "")
	}
	for _, ep := range all {
		if ep.Inflight() != 5 {
			t.Errorf("%s works on %d calls of 40", ep.Addr(), ep.Inflight())
		}
	}
	for i, ep := range all {
		if i != 6 {
			work.add(ep, "")
		}
	}
	if n := picks(balance.ActiveWeight(all, nil), 100)[all[6]]; n != 100 {
		t.Errorf("the one that works on fewest gets %d calls of 100", n)
	}
}

func TestStickyStaysUntilItsEndpointIsNotReady(t *testing.T) {
	all := numbered(t, 6)
	p := balance.Sticky(all, nil)
	held := p.Pick(keyed(0))
	tried := keyed(1)
	tried.Attempts().Avoid(held)
	if p.Pick(tried) == held || p.Pick(keyed(2)) != held {
		t.Error("a call that tried the endpoint takes others along, or does not go elsewhere")
	}
	p = balance.Sticky(append(slices.Clone(all[3:]), all[:3]...), p)
	if p.Pick(keyed(3)) != held {
		t.Error("it does not stay when the set changes")
	}
	held.SetReady("test", false)
	next := p.Pick(keyed(4))
	held.SetReady("test", true)
	if next == held || len(picks(p, 100)) != 1 || p.Pick(keyed(5)) != next {
		t.Error("it does not stay with the next one")
	}
	rest := slices.DeleteFunc(slices.Clone(all), func(ep *yodel.Endpoint) bool { return ep == next })
	p = balance.Sticky(rest, p)
	if seen := picks(p, 100); len(seen) != 1 || seen[next] > 0 {
		t.Error("it does not go elsewhere when its endpoint has gone")
	}
	started := make(map[*yodel.Endpoint]int)
	for range 200 {
		started[balance.Sticky(all, nil).Pick(keyed(0))]++
	}
	if len(started) != len(all) {
		t.Errorf("200 clients begin at %d of %d endpoints", len(started), len(all))
	}
}

func TestNearest(t *testing.T) {
	at := func(addr string, lat, lon float64) discovery.Instance {
		return discovery.Instance{Addr: addr, Latitude: lat, Longitude: lon}
	}
	all := newFleet(t, nil).become(
		at("nowhere", 0, 0), at("sydney", -33.87, 151.21), at("paris 1", 48.857, 2.352), at("hamburg", 53.55, 9.99),
		at("paris 2", 48.858, 2.353), at("auckland", -36.85, 174.76))
	p := balance.Nearest(52.52, 13.40)(all, nil) // Berlin
	var avoided []string
	for _, want := range [][]string{{"hamburg"}, {"paris 1", "paris 2"}, {"sydney"}, {"auckland"}, {"nowhere"}} {
		call := keyed(1)
		for _, ep := range all {
			if slices.Contains(avoided, ep.Addr()) {
				call.Attempts().Avoid(ep)
			}
		}
		seen := make(map[string]int)
		for range 1000 {
			seen[p.Pick(call).Addr()]++
		}
		for _, addr := range want {
			if seen[addr] < 1000/len(want)*4/5 {
				t.Errorf("without %v, %s is picked %d times of 1000: %v", avoided, addr, seen[addr], seen)
			}
		}
		avoided = append(avoided, want...)
	}
	dateLine := newFleet(t, nil).become(at("fiji", -17.7, 178.0), at("hawaii", 21.3, -157.8))
	if ep := balance.Nearest(-13.8, -171.8)(dateLine, nil).Pick(keyed(1)); ep.Addr() != "fiji" {
		t.Errorf("from Samoa the nearest is %s", ep.Addr())
	}
}

// A large zone is not counted for each call, and what becomes of it is noticed all the same.
func TestZoneNoticesWhatBecomesOfIt(t *testing.T) {
	records := instances(200)
	for i := range records {
		records[i].Zone = []string{"eu", "us"}[i%2]
	}
	all := newFleet(t, nil).become(records...)
	p := balance.Zone("eu", balance.Random)(all, nil)
	stay := func() (n int) {
		for ep, count := range picks(p, 10_000) {
			if ep.Instance().Zone == "eu" {
				n += count
			}
		}
		return n
	}
	for _, step := range []struct{ ready, least, most int }{{100, 10_000, 10_000}, {30, 3800, 4600}, {0, 0, 0}, {100, 10_000, 10_000}} {
		for i, ep := range all {
			ep.SetReady("test", i%2 == 1 || i/2 < step.ready)
		}
		picks(p, 2000)
		if n := stay(); n < step.least || n > step.most {
			t.Errorf("%d%% of the zone are ready, and %d of 10000 calls stay", step.ready, n)
		}
	}
	for _, ep := range all {
		ep.SetReady("test", ep.Instance().Zone == "eu")
	}
	if n := stay(); n != 10_000 {
		t.Errorf("nobody else is ready, and %d of 10000 calls stay", n)
	}
}

// All servers get the same load, and a client sees few.
func TestAperturesKeepToTheirPart(t *testing.T) {
	all := numbered(t, 100)
	p := balance.Aperture(10, balance.Nth(3, 7))(all, nil)
	seen := picks(p, 20_000)
	if len(seen) < 10 || len(seen) > 16 {
		t.Errorf("a client of 7 sees %d of 100 servers", len(seen))
	}
	call := keyed(1)
	for ep := range seen {
		call.Attempts().Avoid(ep)
	}
	beyond := p.Pick(call)
	if beyond == nil || p.Pick(call) != beyond {
		t.Error("beyond its view it does not take the next on the ring")
	}
	small := balance.Aperture(10, balance.Named("a"))(all[:4], nil)
	if n := len(picks(small, 1000)); n != 4 {
		t.Errorf("of fewer servers than it may see it sees %d", n)
	}
	nameless := make(map[*yodel.Endpoint]int)
	for range 200 {
		nameless[balance.Aperture(1, balance.Named(""))(all[:10], nil).Pick(keyed(1))]++
	}
	if len(nameless) != 10 {
		t.Errorf("200 clients without a name see %d of 10 servers", len(nameless))
	}
	one := balance.Aperture(0, balance.Nth(-3, 0))(all, nil)
	if n := len(picks(one, 1000)); n == 0 {
		t.Error("nobody is seen")
	}
}

func TestFilters(t *testing.T) {
	all := newFleet(t, nil).become(
		discovery.Instance{Addr: "a", Group: "checkout, canary", Version: "1"},
		discovery.Instance{Addr: "b", Group: "checkout", Version: "2", Tags: []string{"ssd", "gpu"}},
		discovery.Instance{Addr: "c", Version: "2", Tags: []string{"gpu"}, Weight: 3})
	for _, one := range []struct {
		name    string
		balance yodel.Balancer
		want    string
		why     string
	}{
		{"group", balance.Group("checkout", balance.Random), "a b", ""},
		{"group with a space", balance.Group("canary", balance.Random), "a", ""},
		{"no group", balance.Group("", balance.Random), "c", ""},
		{"version", balance.Version("2", balance.Smooth), "b c", ""},
		{"tag", balance.Tag("ssd", balance.Random), "b", ""},
		{"all", balance.Version("2", balance.Tag("gpu", balance.Group("checkout", balance.Random))), "b", ""},
		{"where", balance.Where(func(in discovery.Instance) bool { return in.Weight > 1 }, balance.Random), "c", ""},
		{"no such group", balance.Group("chekout", balance.Random), "", `none of them has the group "chekout"; they have ["" "canary" "checkout"]`},
		{"no such version", balance.Version("3", balance.Ketama(balance.ByKey)), "", `none of them has the version "3"; they have ["1" "2"]`},
		{"none with both", balance.Version("1", balance.Tag("gpu", balance.Random)), "", `none of them has the tag "gpu"; they have []`},
		{"nowhere", balance.Where(func(discovery.Instance) bool { return false }, balance.Random), "", "Where keeps none of them"},
	} {
		t.Run(one.name, func(t *testing.T) {
			p := one.balance(all, nil)
			var seen []string
			for ep := range picks(p, 500) {
				if ep != nil {
					seen = append(seen, ep.Addr())
				}
			}
			slices.Sort(seen)
			if got := strings.Join(seen, " "); got != one.want {
				t.Errorf("picked are %q, want %q", got, one.want)
			}
			if why, ok := p.(fmt.Stringer); one.why != "" && (!ok || why.String() != one.why) {
				t.Errorf("why nobody is picked: %v, want %q", p, one.why)
			}
		})
	}
}

// What does not pass gets no call even when nobody else is there, and what a balancer knew is not
// lost when nobody passes for a while.
func TestFiltersKeepTheirBalancersState(t *testing.T) {
	f := newFleet(t, nil)
	b := balance.Group("blue", balance.Version("1", balance.Sticky))
	records := instances(6)
	for i := range records {
		records[i].Group, records[i].Version = "blue", "1"
	}
	p := b(f.become(records...), nil)
	held := p.Pick(keyed(1))
	p = b(f.become(records...), p)
	if p.Pick(keyed(1)) != held {
		t.Error("a filter forgets its balancer's picker")
	}
	for i := range records {
		records[i].Group = "green"
	}
	all := f.become(records...)
	p = b(all, p)
	for _, ep := range all {
		ep.SetReady("test", false)
	}
	if ep := p.Pick(keyed(1)); ep != nil {
		t.Errorf("%s does not pass the filter and is picked", ep.Addr())
	}
	for i := range records {
		records[i].Group = "blue"
	}
	for _, ep := range all {
		ep.SetReady("test", true)
	}
	if p = b(f.become(records...), p); p.Pick(keyed(1)) == nil {
		t.Error("nobody is picked when they pass again")
	}
}

// A filter that nobody passes fails calls before they are sent, so that whoever made a mistake
// learns of it at once.
func TestACallThatNobodyPassesForFails(t *testing.T) {
	f := newFleet(t, balance.Version("3", balance.Random))
	f.become(instances(3)...)
	_, err := pass.Call(t.Context(), f.client, new(int))
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || e.ID != "YDL1002" || !e.NotProcessed || !strings.Contains(e.Message, "3 instances are known") || !strings.Contains(e.Message, `none of them has the version "3"`) {
		t.Errorf("the call ended with %v", err)
	}
}

func TestZoneHandsOnWhatItsBalancerLearns(t *testing.T) {
	all := newFleet(t, nil).become(
		discovery.Instance{Addr: "a", Zone: "eu"}, discovery.Instance{Addr: "b", Zone: "eu"},
		discovery.Instance{Addr: "c", Zone: "us", Group: "canary"}, discovery.Instance{Addr: "d", Zone: "us", Group: "canary"})
	if _, ok := balance.Zone("eu", balance.Random)(all, nil).(balance.Learner); ok {
		t.Error("it wants to learn, and Random does not")
	}
	b := balance.Zone("eu", balance.EWMA)
	p, ok := b(all, b(all[:1], nil)).(balance.Learner)
	if !ok {
		t.Fatal("it does not want to learn, and EWMA does")
	}
	for i, ep := range all { // those of both sides
		p.Ended(ep, []time.Duration{hour, 1, hour, 1}[i], nil)
	}
	wantShares(t, "after slow replies", all, tally(p, 100), 0, 1, 0, 0)
	for _, ep := range all[:2] {
		ep.SetReady("test", false)
	}
	wantShares(t, "elsewhere", all, tally(p, 100), 0, 0, 0, 1)
	if _, ok := balance.Zone("eu", balance.Group("canary", balance.EWMA))(all, nil).(balance.Learner); !ok {
		t.Error("it does not want to learn when a filter leaves nobody in the zone")
	}
}

// A resolver of one's own may say anything: strconv.ParseFloat reads "NaN" and "Inf".
func TestNearestOfPlacesThatAreNoneOnEarth(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	all := newFleet(t, nil).become(
		discovery.Instance{Addr: "no latitude", Latitude: nan, Longitude: 13.4}, discovery.Instance{Addr: "no longitude", Latitude: 52.5, Longitude: nan},
		discovery.Instance{Addr: "far", Latitude: 52.5, Longitude: inf}, discovery.Instance{Addr: "auckland", Latitude: -36.85, Longitude: 174.76})
	wantShares(t, "from Berlin", all, tally(balance.Nearest(52.52, 13.4)(all, nil), 100), 0, 0, 0, 1)
	wantShares(t, "from nowhere", all, tally(balance.Nearest(nan, inf)(all, nil), 4000), 1, 1, 1, 1)
}

// With two in view there is always a choice.
func TestAnApertureComparesTwo(t *testing.T) {
	b := balance.Aperture(2, balance.Nth(0, 1))
	f := newFleetOn(t, newWorks(t), b)
	all := f.become(instances(2)...)
	connect(t, f.client)
	newWorkload(t, f).add(all[0], "")
	if n := picks(b(all, nil), 4000)[all[0]]; n > 400 { // one of 32 when the second draw is the first again, and again
		t.Errorf("the busier one of two gets %d calls of 4000", n)
	}
}

// chiSquare says how far counts are from the shares that are expected. For up to 10 endpoints that
// are picked by chance alone it is above certainlyFalse once in 10^16 runs.
func chiSquare(counts map[*yodel.Endpoint]int, all []*yodel.Endpoint, share func(i int) float64) float64 {
	picks := 0
	for _, n := range counts {
		picks += n
	}
	sum := 0.0
	for i, ep := range all {
		want := share(i) * float64(picks)
		sum += (float64(counts[ep]) - want) * (float64(counts[ep]) - want) / want
	}
	return sum
}

const certainlyFalse = 100
