// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestDistinct(t *testing.T) {
	in := func(addr, state string, weight int) discovery.Instance {
		return discovery.Instance{Addr: addr, State: state, Weight: weight}
	}
	all := []discovery.Instance{in("a", "inactive", 1), in("b", "", 2), in("a", "", 3), in("b", "inactive", 4), in("a", "", 5), in("c", "inactive", 6), in("c", "inactive", 7)}
	before := slices.Clone(all)
	want := []discovery.Instance{in("a", "", 3), in("b", "", 2), in("c", "inactive", 6)}
	if got := registry.Distinct(all); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(all, before) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMergeIsTheUnion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSpeaker(), newSpeaker()
		l := listen(t, registry.Merge(a, b))
		a.say <- []discovery.Instance{{Addr: "1", Zone: "of a"}, {Addr: "2"}}
		synctest.Wait()
		wantHeard(t, l, nil) // the other one may speak in a moment
		b.say <- []discovery.Instance{{Addr: "3"}, {Addr: "1", Zone: "of b"}}
		synctest.Wait()
		l.mu.Lock()
		if want := []discovery.Instance{{Addr: "1", Zone: "of a"}, {Addr: "2"}, {Addr: "3"}}; len(l.said) != 1 || !reflect.DeepEqual(l.said[0], want) {
			t.Errorf("it said %v, want %v", l.said, want)
		}
		l.mu.Unlock()
		l.heard()
		a.fail <- errSpeaker
		settle()
		wantHeard(t, l, nil) // what it said stays
		b.say <- at("4")
		settle()
		wantHeard(t, l, sets{{"1", "2", "4"}})
		a.say <- at("5") // it is asked again
		settle()
		wantHeard(t, l, sets{{"5", "4"}})
		b.say <- nil
		settle()
		wantHeard(t, l, sets{{"5"}})
		must(t, l.stop())
	})
}

func TestMergeDoesNotWaitForOneThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSpeaker(), newSpeaker()
		b.fail <- errSpeaker
		a.say <- at("1")
		l := listen(t, registry.Merge(b, a))
		time.Sleep(499 * time.Millisecond)
		wantHeard(t, l, nil)
		time.Sleep(2 * time.Millisecond)
		wantHeard(t, l, sets{{"1"}})
		must(t, l.stop())
	})
}

func TestMergeSaysNothingWhenNobodyDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, registry.Merge(newSpeaker(), newSpeaker()))
		time.Sleep(time.Hour)
		wantHeard(t, l, nil) // an empty set would say that there is nobody
		must(t, l.stop())
	})
}

func TestOneThatFailsIsAskedAgainWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, other := &failing{}, newSpeaker()
		other.say <- at("1")
		l := listen(t, registry.Merge(s, other))
		time.Sleep(time.Minute)
		must(t, l.stop())
		if s.times < 30 || s.times > 80 {
			t.Errorf("it was asked %d times in a minute, want once in 1 to 2 s", s.times)
		}
	})
}

// A client tells its caller why there is no instance.
func TestWhenAllFailThatIsTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, several := range []func(...discovery.Resolver) discovery.Resolver{registry.Merge, registry.Prefer} {
			l := listen(t, several(&failing{}, newSpeaker()))
			settle()
			wantHeard(t, l, nil) // the other one may speak yet
			must(t, l.stop())
			l = listen(t, several(&failing{}, &failing{}))
			if err := <-l.ended; !errors.Is(err, errSpeaker) {
				t.Errorf("got %v, want what is wrong with them", err)
			}
			wantHeard(t, l, nil)
		}
	})
}

func TestPreferTakesTheFirstWithActiveOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := newSpeaker(), newSpeaker()
		l := listen(t, registry.Prefer(near, far))
		near.say <- at("n1")
		far.say <- at("f1")
		steps := []struct {
			who  *speaker
			says []discovery.Instance
			want []string
		}{
			{near, at("n2"), []string{"n2"}},
			{far, at("f2"), []string{"n2"}},
			{near, nil, []string{"f2"}},
			{near, []discovery.Instance{{Addr: "n3", State: "inactive"}}, []string{"f2"}},
			{near, []discovery.Instance{{Addr: "n3", State: "inactive"}, {Addr: "n4"}}, []string{"n3", "n4"}},
			{near, []discovery.Instance{{Addr: "n5", State: "inactive"}}, []string{"f2"}},
			{far, []discovery.Instance{{Addr: "f3", State: "inactive"}}, []string{"n5", "f3"}},
			{far, nil, []string{"n5"}},
			{near, nil, []string{}},
		}
		settle()
		if said := l.heard(); len(said) == 0 || said[len(said)-1][0] != "n1" { // twice, when the two speak at once
			t.Errorf("it said %q, want n1", said)
		}
		for _, step := range steps {
			step.who.say <- step.says
			settle()
			wantHeard(t, l, sets{step.want})
		}
		must(t, l.stop())
	})
}

func TestSeveralOfNoneIsAnError(t *testing.T) {
	for _, r := range []discovery.Resolver{registry.Merge(), registry.Prefer()} {
		if err := r.Watch(t.Context(), func([]discovery.Instance) {}); err == nil {
			t.Error("want an error: it would say nothing for ever")
		}
	}
}

func TestSeveralKeepTheContract(t *testing.T) {
	for name, several := range map[string]func(...discovery.Resolver) discovery.Resolver{"Merge": registry.Merge, "Prefer": registry.Prefer} {
		t.Run(name, func(t *testing.T) {
			s := newShelf()
			yodeltest.TestResolver(t, several(s, discovery.Static()), s.set, nil)
		})
	}
}
