// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
)

// Registries name instances in any order, and clients have seen others come and go.
func TestClientsAgreeWhateverTheySawBefore(t *testing.T) {
	for _, p := range hashing {
		t.Run(p.name, func(t *testing.T) {
			const keys = 5000
			f := newFleet(t, nil)
			all := instances(40)
			for i := range all {
				all[i].Weight = 1 + i%3
			}
			eps := f.become(all...)
			others := numbered(t, 60)
			want := places(p.balance(eps, nil), keys)
			r := rand.New(rand.NewPCG(1, 2))
			var picker yodel.Picker
			for range 30 {
				some := append(slices.Clone(eps), others[40:]...)
				r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
				picker = p.balance(some[:r.IntN(len(some))], picker)
			}
			r.Shuffle(len(eps), func(i, j int) { eps[i], eps[j] = eps[j], eps[i] })
			if n := moved(want, places(p.balance(eps, picker), keys)); n > 0 {
				t.Errorf("%.2f%% of the keys are elsewhere than in a client that begins now", n)
			}
		})
	}
}

// An instance that comes back at the same address has a new endpoint, and its old keys.
func TestKeysComeBackWithTheAddress(t *testing.T) {
	for _, p := range hashing {
		first, second := numbered(t, 10), numbered(t, 10)
		before := p.balance(first, nil)
		mixed := append(first[:7:7], second[7:]...)
		after := p.balance(mixed, before)
		for i := range 2000 {
			a, b := before.Pick(keyed(i)), after.Pick(keyed(i))
			if a.Addr() != b.Addr() || !slices.Contains(mixed, b) {
				t.Fatalf("%s: key %d went from %s to %s", p.name, i, a.Addr(), b.Addr())
			}
		}
	}
}

// A call that avoids the endpoint of its key goes to one other, the same in each client, and the
// keys of one endpoint spread over the others.
func TestAvoidedKeysGoToTheSameOther(t *testing.T) {
	for _, p := range hashing {
		all := numbered(t, 10)
		one, two := p.balance(all, nil), p.balance(slices.Clone(all), nil)
		heirs := make(map[*yodel.Endpoint]int)
		for i := range 20_000 {
			call := keyed(i)
			home := one.Pick(call)
			call.Attempts().Avoid(home)
			heir := one.Pick(call)
			for range 3 {
				if one.Pick(call) != heir || two.Pick(call) != heir {
					t.Fatalf("%s: key %d goes to several endpoints when %s is avoided", p.name, i, home.Addr())
				}
			}
			if home == all[0] {
				heirs[heir]++
			}
			for _, ep := range all[2:] { // nearly everybody
				call.Attempts().Avoid(ep)
			}
			if a, b := one.Pick(call), two.Pick(call); a != b {
				t.Fatalf("%s: key %d goes to %v and %v when nearly all are avoided", p.name, i, a, b)
			}
		}
		if len(heirs) != 9 {
			t.Errorf("%s: the keys of one endpoint go to %d others, want 9", p.name, len(heirs))
		}
	}
}

// A new weight moves no more keys than twice what the shares change by, and the new shares are
// right at once.
func TestWeightsThatChangeMoveTheirShare(t *testing.T) {
	for _, p := range []policy{hashing[0], hashing[2]} {
		const n, keys = 10, 50_000
		f := newFleet(t, nil)
		records := instances(n)
		for i := range records {
			records[i].Weight = 100
		}
		all := f.become(records...)
		before := p.balance(all, nil)
		home := places(before, keys)
		records[3].Weight = 50
		after := p.balance(f.become(records...), before)
		// It had 10% and has 5.3%; the others have what it lost.
		if m := moved(home, places(after, keys)); m < 3 || m > 11 {
			t.Errorf("%s: half the weight moves %.1f%% of the keys, want 4.7%% to twice that", p.name, m)
		}
		if share := 100 * float64(picks(after, keys)[all[3]]) / keys; math.Abs(share-100.0*50/950) > 1.5 {
			t.Errorf("%s: half the weight has %.1f%% of the keys, want about 5.3%%", p.name, share)
		}
		again := p.balance(f.become(records...), after)
		if again != after {
			t.Errorf("%s: a change that does not matter makes a new picker", p.name)
		}
	}
}

// A fleet of a stateful set is numbered from 0; the tenth comes after the ninth.
func TestJumpCountsAsPeopleDo(t *testing.T) {
	f := newFleet(t, nil)
	records := instances(11)
	for i := range records {
		records[i].Addr = fmt.Sprintf("cart-%d.cart:8972", i)
	}
	all := f.become(records...)
	jump := balance.Jump(balance.ByKey)
	const keys = 20_000
	was, is := places(jump(all[:10], nil), keys), places(jump(all, nil), keys)
	for i := range was {
		if was[i] != is[i] && is[i] != all[10] {
			t.Fatalf("a key moved from %s to %s when cart-10 came", was[i].Addr(), is[i].Addr())
		}
	}
	if m := moved(was, is); m < 8 || m > 10.5 {
		t.Errorf("%.1f%% of the keys moved to the eleventh, want 9.1%%", m)
	}
}

func TestByMethodAndByKey(t *testing.T) {
	a, b := &yodel.Call{Method: "A", Key: "k"}, &yodel.Call{Method: "B", Key: "k"}
	if balance.ByMethod(a) == balance.ByMethod(b) || balance.ByKey(a) != balance.ByKey(b) {
		t.Error("ByMethod goes by the key, or ByKey by the method")
	}
	all := numbered(t, 5)
	seen := picks(noKey{balance.Ketama(balance.ByKey)(all, nil)}, 1000)
	if len(seen) != 5 {
		t.Errorf("calls without a key go to %d of 5 endpoints", len(seen))
	}
}

// A noKey forgets the keys of calls.
type noKey struct{ yodel.Picker }

func (p noKey) Pick(*yodel.Call) *yodel.Endpoint { return p.Picker.Pick(&yodel.Call{Method: "A"}) }

type inner struct {
	City string
	At   time.Time
}

type order struct {
	ID     int64
	Name   string
	Bytes  []byte
	Sum    [4]byte
	Ratio  float64
	Lines  []inner
	Next   *order
	Any    any
	Flags  map[string]bool
	hidden int
	inner
}

func orders() *order {
	return &order{
		ID: 7, Name: "seven", Bytes: []byte("bytes"), Sum: [4]byte{1, 2, 3, 4}, Ratio: 0.5,
		Lines: []inner{{"Ulm", time.Unix(5, 6)}, {City: "Bonn"}}, Next: &order{ID: 8}, Any: "any",
		Flags: map[string]bool{"a": true, "b": false, "c": true}, hidden: 1, inner: inner{City: "Kiel"},
	}
}

func TestByArgsTellsArgumentsApart(t *testing.T) {
	hash := func(args any) uint64 { return balance.ByArgs(&yodel.Call{Method: "Order.Get", Args: args}) }
	want := hash(orders())
	for range 20 { // the order of a map is another one each time
		if hash(orders()) != want {
			t.Fatal("equal arguments have two hashes")
		}
	}
	seen := map[uint64]string{want: "nothing"}
	for name, change := range map[string]func(o *order){
		"a number":           func(o *order) { o.ID++ },
		"a string":           func(o *order) { o.Name += "!" },
		"bytes":              func(o *order) { o.Bytes[0]++ },
		"an array":           func(o *order) { o.Sum[3]++ },
		"a fraction":         func(o *order) { o.Ratio = 0.25 },
		"an element":         func(o *order) { o.Lines[1].City = "Köln" },
		"a time":             func(o *order) { o.Lines[0].At = time.Unix(5, 7) },
		"the number of them": func(o *order) { o.Lines = o.Lines[:1] },
		"what is pointed to": func(o *order) { o.Next.ID++ },
		"a nil pointer":      func(o *order) { o.Next = nil },
		"what it contains":   func(o *order) { o.Any = "else" },
		"a map's value":      func(o *order) { o.Flags["b"] = true },
		"a map's key":        func(o *order) { delete(o.Flags, "a"); o.Flags["d"] = true },
		"an embedded field":  func(o *order) { o.City = "Hof" },
	} {
		o := orders()
		change(o)
		h := hash(o)
		if other, ok := seen[h]; ok {
			t.Errorf("%s changed and %s changed have the same hash", name, other)
		}
		seen[h] = name
	}
	o := orders()
	o.hidden++
	o.Lines[0].At = o.Lines[0].At.In(time.FixedZone("east", 3600))
	if hash(o) != want {
		t.Error("a field that is not sent, or the zone of a time, counts")
	}
	n, s := 5, "five"
	if hash(yodel.Values{5, "five"}) == hash(yodel.Values{"five", 5}) || hash(&n) == hash(&s) || hash(nil) == hash(&n) {
		t.Error("values of different types have the same hash")
	}
}

func TestByArgsAllocatesNothing(t *testing.T) {
	o := orders()
	o.Flags = nil
	n, s := 5, "five"
	for _, args := range []any{o, &n, &s, &[]byte{1, 2}, yodel.Values{1, "two", 3.0}, nil} {
		call := &yodel.Call{Method: "Order.Get", Args: args}
		if n := testing.AllocsPerRun(200, func() { balance.ByArgs(call) }); n >= 1 {
			t.Errorf("%T: %v allocations", args, n)
		}
	}
}

// What points to itself cannot be sent, and must not hold the caller up before the codec says so.
func TestByArgsEnds(t *testing.T) {
	loop := &order{}
	loop.Next = loop
	var list []any
	list = append(list, nil, nil)
	list[0], list[1] = list, list
	m := map[string]any{}
	m["a"], m["b"] = m, m
	for _, args := range []any{loop, list, m, make([]int, 1<<20)} {
		balance.ByArgs(&yodel.Call{Args: args})
	}
}

func BenchmarkByArgs(b *testing.B) {
	n := 5
	call := &yodel.Call{Method: "Order.Get", Args: &n}
	b.Run("number", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			balance.ByArgs(call)
		}
	})
	o := orders()
	o.Flags = nil
	struc := &yodel.Call{Method: "Order.Get", Args: o}
	b.Run("struct", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			balance.ByArgs(struc)
		}
	})
}

// All calls have one key. No endpoint gets more calls than load allows. The other calls go to the
// same other endpoints each time, and the first endpoint gets calls again when it has room.
func TestBoundedSpillsAPopularKey(t *testing.T) {
	const n, load = 10, 1.25
	b := balance.Bounded(load, balance.ByKey)
	f := newFleetOn(t, newWorks(t), b)
	all := f.become(instances(n)...)
	picker := b(all, nil)
	home := picker.Pick(keyed(1))
	work := newWorkload(t, f)
	for total := 1; total <= 60; total++ {
		work.add(nil, keyed(1).Key)
		most := int(math.Ceil(load * float64(total) / n))
		for _, ep := range all {
			if ep.Inflight() > most {
				t.Fatalf("with %d calls in all %s works on %d, want at most %d", total, ep.Addr(), ep.Inflight(), most)
			}
		}
	}
	if most := int(math.Ceil(load * 60 / n)); home.Inflight() != most {
		t.Errorf("the endpoint of the key works on %d calls, and may on %d", home.Inflight(), most)
	}
	if n := moved(places(balance.Ketama(balance.ByKey)(all, nil), 2000), places(picker, 2000)); n == 0 {
		t.Error("no key gives way")
	}
}

// With many endpoints the number of calls is an estimate, which follows.
func TestBoundedFollowsTheLoadOfManyEndpoints(t *testing.T) {
	const n = 100
	b := balance.Bounded(1.25, balance.ByKey)
	f := newFleetOn(t, newWorks(t), b)
	all := f.become(instances(n)...)
	connect(t, f.client)
	picker := b(all, nil)
	home := picker.Pick(keyed(1))
	work := newWorkload(t, f)
	work.add(home, "")
	work.add(home, "") // of 3 calls, 1 is its share
	for range 2000 {
		picker.Pick(keyed(2))
	}
	if ep := picker.Pick(keyed(1)); ep == home {
		t.Error("an endpoint that works on all calls gets one more")
	}
	for range 2 * n { // so many that 2 are no more than a share
		work.add(all[rand.IntN(n)], "")
	}
	for range 2000 {
		picker.Pick(keyed(2))
	}
	most := 0 // ceil(1.25 * 203 / 100) is 3
	for i := range 20_000 {
		most = max(most, picker.Pick(keyed(i)).Inflight())
	}
	if most != 2 {
		t.Errorf("with 202 calls on 100 endpoints one that works on %d gets one more, want 2 at most", most)
	}
}

// Calls go on while a tenth server comes: none fails, and no more keys go elsewhere than its share.
func TestATenthServerUnderLoad(t *testing.T) {
	// four callers are no load that has to spill
	roomy := policy{"Bounded(20, ByKey)", balance.Bounded(20, balance.ByKey)}
	for _, p := range []policy{hashing[0], roomy, hashing[2], hashing[3]} {
		t.Run(p.name, func(t *testing.T) {
			const n, keys, callers = 10, 1000, 4
			f := newFleetOn(t, newWorks(t), p.balance)
			records := instances(n)
			f.become(records[:n-1]...)
			connect(t, f.client)
			came := make(chan struct{})
			var was, is [keys]string // written by one caller each
			var wg, first sync.WaitGroup
			first.Add(callers)
			for c := range callers {
				wg.Go(func() {
					begun := sync.OnceFunc(first.Done)
					defer begun()
					for i := 0; ; i++ {
						last := closed(came) // before this round
						for key := c; key < keys; key += callers {
							in, out := 0, 0
							call := &yodel.Call{Method: string(pass), Args: &in, Reply: &out, Key: keyed(key).Key}
							if err := f.client.Do(t.Context(), call); err != nil {
								t.Errorf("a call failed: %v", err)
								return
							}
							if i == 0 {
								was[key] = call.Endpoint.Addr()
							}
							is[key] = call.Endpoint.Addr()
						}
						begun()
						if last {
							return
						}
					}
				})
			}
			first.Wait()
			f.become(records...)
			connect(t, f.client) // until then its keys go to others
			close(came)
			wg.Wait()
			moved, stray := 0, 0
			for i := range keys {
				if was[i] != is[i] {
					moved++
					if is[i] != records[n-1].Addr {
						stray++
					}
				}
			}
			t.Logf("%.1f%% of the keys went elsewhere, %.1f%% to others than the tenth", 100*float64(moved)/keys, 100*float64(stray)/keys)
			if moved == 0 || moved > keys*14/100 || stray > keys*2/100 {
				t.Errorf("%d of %d keys went elsewhere, %d to others than the tenth", moved, keys, stray)
			}
		})
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// moved returns how many of a hundred places are not the same.
func moved(a, b []*yodel.Endpoint) float64 {
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return 100 * float64(n) / float64(len(a))
}
