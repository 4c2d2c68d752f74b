// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
	"github.com/yodel-rpc/yodel/registry"
)

// A desk is a store whose watches hand over their views, and end when told.
type desk struct {
	views  chan *registry.View
	fail   chan error
	puts   []string
	prefix string
}

func newDesk() *desk { return &desk{views: make(chan *registry.View, 1000), fail: make(chan error)} }

func (d *desk) Put(_ context.Context, key string, value []byte, ttl time.Duration) error {
	d.puts = append(d.puts, fmt.Sprintf("%s=%s for %v", key, value, ttl))
	return nil
}

func (d *desk) Get(context.Context, string) ([]byte, error) { return nil, nil }

func (d *desk) Delete(_ context.Context, key string) error {
	d.puts = append(d.puts, key+" deleted")
	return nil
}

func (d *desk) Watch(ctx context.Context, prefix string, view *registry.View) error {
	d.prefix = prefix
	d.views <- view
	select {
	case err := <-d.fail:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

const shop = "yodel/Shop/"

func record(addr string) []byte { return fmt.Appendf(nil, `{"addr":%q}`, addr) }

// viewing runs a test with the view of a service in fake time.
func viewing(t *testing.T, o *registry.Options, test func(t *testing.T, v *registry.View, l *listener)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		l := listen(t, registry.New(d, o).Service("Shop"))
		test(t, <-d.views, l)
		must(t, l.stop())
	})
}

func settle() { time.Sleep(time.Second) }

func TestViewTellsOfEveryKindOfChange(t *testing.T) {
	viewing(t, nil, func(t *testing.T, v *registry.View, l *listener) {
		v.Put(shop+"early", record("early")) // nothing is known yet: half a set would be taken for all
		v.Delete(shop + "early")
		settle()
		wantHeard(t, l, nil)
		v.Replace(nil)
		settle()
		wantHeard(t, l, sets{{}})
		v.Replace(map[string][]byte{shop + "a": record("a"), shop + "b": record("b")})
		settle()
		wantHeard(t, l, sets{{"a", "b"}})
		v.Put(shop+"c", record("c"))
		settle()
		wantHeard(t, l, sets{{"a", "b", "c"}})
		v.Delete(shop + "a")
		settle()
		wantHeard(t, l, sets{{"b", "c"}})
		v.Replace(map[string][]byte{shop + "c": record("c2")})
		settle()
		wantHeard(t, l, sets{{"c2"}})
		v.Replace(map[string][]byte{})
		settle()
		wantHeard(t, l, sets{{}})
	})
}

func TestViewIsSilentWhenNothingChanges(t *testing.T) {
	viewing(t, nil, func(t *testing.T, v *registry.View, l *listener) {
		all := map[string][]byte{shop + "a": record("a"), shop + "b": record("b")}
		v.Replace(all)
		settle()
		wantHeard(t, l, sets{{"a", "b"}})
		v.Replace(all)
		v.Put(shop+"a", record("a"))
		v.Delete(shop + "c")
		settle()
		wantHeard(t, l, nil)
	})
}

func TestViewKeepsNothingOfItsCaller(t *testing.T) {
	viewing(t, nil, func(t *testing.T, v *registry.View, l *listener) {
		value := record("a")
		v.Replace(map[string][]byte{shop + "a": value})
		copy(value, "broken")
		settle()
		wantHeard(t, l, sets{{"a"}})
		other := record("b")
		v.Put(shop+"b", other)
		copy(other, "broken")
		settle()
		wantHeard(t, l, sets{{"a", "b"}})
		v.Put(shop+"a", record("a")) // is what it was, and no change
		v.Put(shop+"b", record("b"))
		settle()
		wantHeard(t, l, nil)
	})
}

func TestManyChangesAreFewUpdates(t *testing.T) {
	viewing(t, nil, func(t *testing.T, v *registry.View, l *listener) {
		v.Replace(nil)
		settle()
		l.heard()
		began := time.Now()
		for i := range 1000 { // in a second
			time.Sleep(time.Millisecond)
			v.Put(shop+"a", record(fmt.Sprint(i)))
			if i == 0 {
				synctest.Wait()
				if got := l.heard(); len(got) != 1 {
					t.Errorf("a change after silence is %d updates, want one at once", len(got))
				}
			}
		}
		took := time.Since(began)
		settle()
		said := l.heard()
		if n := int(took / (20 * time.Millisecond)); len(said) > n+1 || len(said) < n/2 {
			t.Errorf("1,000 changes in %v were %d updates, want about %d", took, len(said), n)
		}
		if last := said[len(said)-1]; last[0] != "999" {
			t.Errorf("the last update is %q", last)
		}
	})
}

func TestASlowClientIsToldLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		updates := 0
		go func() {
			ended <- registry.New(d, nil).Service("Shop").Watch(ctx, func([]discovery.Instance) {
				updates++
				time.Sleep(100 * time.Millisecond)
			})
		}()
		v := <-d.views
		v.Replace(nil)
		for i := range 1000 {
			v.Put(shop+"a", record(fmt.Sprint(i)))
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		must(t, <-ended)
		if updates < 15 || updates > 21 { // in 10 s; a fifth of the time
			t.Errorf("there were %d updates of 100 ms in 10 s, want about 20", updates)
		}
	})
}

func TestBrokenRecordsAreLeftOutAndSaidOnce(t *testing.T) {
	var log bytes.Buffer
	o := &registry.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	viewing(t, o, func(t *testing.T, v *registry.View, l *listener) {
		all := map[string][]byte{shop + "a": record("a"), shop + "bad": []byte("?")}
		for range 3 {
			v.Replace(all)
			v.Put(shop+"bad", []byte("?"))
		}
		settle()
		wantHeard(t, l, sets{{"a"}})
		v.Put(shop+"bad", record("b"))
		settle()
		wantHeard(t, l, sets{{"a", "b"}})
		v.Put(shop+"a", nil)
		settle()
		wantHeard(t, l, sets{{"b"}})
		if got := strings.Count(log.String(), "record=yodel/Shop/bad"); got != 1 {
			t.Errorf("it was said %d times, want once:\n%s", got, &log)
		}
	})
}

// The caller of Watch learns which records cannot be read, also through a resolver that combines
// others. It learns that they have gone, or can be read again.
func TestBrokenRecordsAreNamedToTheCallerOfWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shops, rpcx := newDesk(), newDesk()
		var list unread.List
		ctx, cancel := context.WithCancel(unread.With(t.Context(), &list))
		ended := make(chan error, 1)
		go func() {
			both := registry.Merge(registry.New(shops, nil).Service("Shop"), registry.New(rpcx, &registry.Options{Layout: registry.RPCX, Prefix: "rpcx"}).Service("Shop"))
			ended <- both.Watch(ctx, func([]discovery.Instance) {})
		}()
		v, w := <-shops.views, <-rpcx.views
		want := func(keys ...string) {
			t.Helper()
			settle()
			var got []string
			for _, r := range list.Records() {
				if got = append(got, r.Key+" "+r.Instance); r.Problem == "" {
					t.Errorf("%s has no reason", r.Key)
				}
			}
			if !slices.Equal(got, keys) {
				t.Errorf("got %q, want %q", got, keys)
			}
		}
		v.Replace(map[string][]byte{shop + "a": record("a"), shop + "torn": []byte(`{"addr":`), shop + "no addr": []byte("{}")})
		w.Replace(map[string][]byte{"rpcx/Shop/tcp@b": []byte("weight=heavy")})
		want("rpcx/Shop/tcp@b b", shop+"no addr ", shop+"torn ")
		v.Put(shop+"torn", record("c"))
		w.Delete("rpcx/Shop/tcp@b")
		want(shop + "no addr ")
		v.Delete(shop + "no addr")
		want()
		cancel()
		must(t, <-ended)
	})
}

func TestAStoreThatFailsIsAnErrorOfWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		l := listen(t, registry.New(d, nil).Service("Shop"))
		(<-d.views).Replace(map[string][]byte{shop + "a": record("a")})
		settle()
		broken := errors.New("the store failed")
		d.fail <- broken
		if err := <-l.ended; !errors.Is(err, broken) {
			t.Errorf("got %v, want the error of the store", err)
		}
		wantHeard(t, l, sets{{"a"}})
	})
}

func TestEverythingIsReadAgainNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		l := listen(t, registry.New(d, &registry.Options{Reconcile: time.Minute}).Service("Shop"))
		time.Sleep(10 * time.Minute)
		must(t, l.stop())
		if n := len(d.views); n < 10 || n > 14 {
			t.Errorf("the store was watched %d times in 10 minutes, want once in at most one", n)
		}
	})
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			o          *registry.Options
			prefix, is string
		}{
			{nil, "yodel/A%2FB/", `yodel/A%2FB/10.0.0.1:1={"addr":"10.0.0.1:1"} for 1m0s`},
			{&registry.Options{Prefix: "/rpcx/", Layout: registry.RPCX}, "/rpcx/A%2FB/", "/rpcx/A%2FB/tcp@10.0.0.1:1=protocol=yodel for 1m0s"},
		} {
			d := newDesk()
			r := registry.New(d, test.o)
			must(t, r.Announce(t.Context(), "A/B", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
			must(t, r.Withdraw(t.Context(), "A/B", "10.0.0.1:1"))
			l := listen(t, r.Service("A/B"))
			<-d.views
			must(t, l.stop())
			key, _, _ := strings.Cut(test.is, "=")
			if d.puts[0] != test.is || d.puts[1] != key+" deleted" || d.prefix != test.prefix {
				t.Errorf("got %q below %q, want %q below %q", d.puts, d.prefix, test.is, test.prefix)
			}
		}
	})
}
