// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// TestAnOperatorsSettingsWin has a server that announces itself every second. An operator's
// settings win over the server's own, at once and for as long as they are there, also after a
// restart.
func TestAnOperatorsSettingsWin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, network := memory.New(nil), mem.New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := make(chan discovery.Instance, 1000)
		go func() {
			_ = r.Service("Shop").Watch(ctx, func(all []discovery.Instance) { // ctx ends it
				for _, in := range all {
					seen <- in
				}
			})
		}()
		// settled returns the record after a while in which the server announces itself many times.
		settled := func() (in discovery.Instance) {
			t.Helper()
			time.Sleep(30 * time.Second)
			synctest.Wait()
			for len(seen) > 0 {
				in = <-seen
			}
			return in
		}
		var log strings.Builder
		s, stop := announcedShop(t, network, r, &log)
		if in := settled(); in.State != "" || in.Weight != 5 {
			t.Fatalf("the server announces %+v", in)
		}
		if err := registry.Override(t.Context(), r, "Shop", "shop", "inactive", 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if in := <-seen; in.State != "inactive" || in.Weight != 5 {
			t.Errorf("at once it is %+v, want inactive with the server's weight", in)
		}
		s.UpdateInstance(func(in *discovery.Instance) { in.Weight, in.State = 6, "active" })
		if in := settled(); in.State != "inactive" || in.Weight != 6 {
			t.Errorf("after a change by the server it is %+v, want inactive", in)
		}
		stop()
		_, stop = announcedShop(t, network, r, &log)
		defer stop()
		if in := settled(); in.State != "inactive" || in.Weight != 5 {
			t.Errorf("after a restart it is %+v, want inactive", in)
		}
		c := yodel.NewClient(discovery.Static("shop"), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		info, err := inspect.Info.Call(t.Context(), c, &inspect.Empty{})
		if err != nil || len(info.Overrides) != 1 || info.Overrides[0].State != "inactive" || info.Overrides[0].Service != "Shop" || info.Overrides[0].Registry != "" {
			t.Errorf("Info shows %+v, %v", info.Overrides, err)
		}
		if err := registry.Override(t.Context(), r, "Shop", "shop", "", 0); err != nil {
			t.Fatal(err)
		}
		if in := settled(); in.State != "" || in.Weight != 5 {
			t.Errorf("without the setting it is %+v, want the server's own", in)
		}
		for _, want := range []string{"an operator has set the instance", "an operator's settings were removed"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, &log)
			}
		}
	})
}

// announcedShop serves a service Shop at "shop" and announces it every second.
func announcedShop(t *testing.T, network *mem.Network, r discovery.Registrar, log *strings.Builder) (*yodel.Server, func()) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r}, AnnounceEvery: time.Second, Instance: discovery.Instance{Weight: 5},
		Logger: slog.New(slog.NewTextHandler(log, nil)), Transport: network,
	})
	if err := s.Handle("Shop.Open", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe(ctx, "shop") }()
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ListenAndServe: %v", err)
		}
	}
}

func TestOverrideRefusesNonsense(t *testing.T) {
	r := memory.New(nil)
	for name, err := range map[string]error{
		"no address":      registry.Override(t.Context(), r, "Shop", "", "inactive", 0),
		"unknown state":   registry.Override(t.Context(), r, "Shop", "shop", "sleepy", 0),
		"negative weight": registry.Override(t.Context(), r, "Shop", "shop", "", -1),
		"no registry":     registry.Override(t.Context(), nil, "Shop", "shop", "inactive", 0),
	} {
		if err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// A lossyStore writes what it is given, and may say that it failed.
type lossyStore struct {
	values map[string][]byte
	fails  bool
}

func (s *lossyStore) Put(_ context.Context, key string, value []byte, _ time.Duration) error {
	s.values[key] = value
	if s.fails {
		return errSpeaker
	}
	return nil
}

func (s *lossyStore) Get(_ context.Context, key string) ([]byte, error) { return s.values[key], nil }

func (s *lossyStore) Delete(_ context.Context, key string) error {
	delete(s.values, key)
	return nil
}

func (s *lossyStore) Watch(ctx context.Context, _ string, _ *registry.View) error {
	<-ctx.Done()
	return nil
}

// A record that was written although the announcement failed is the server's own, and no edit of an
// operator.
func TestAFailedAnnouncementIsNoEdit(t *testing.T) {
	store := &lossyStore{values: make(map[string][]byte)}
	r := registry.New(store, nil)
	in := discovery.Instance{Addr: "shop", Weight: 5, Started: time.Unix(1, 0).UTC()}
	must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
	store.fails, in.State, in.Weight = true, "inactive", 1
	if err := r.Announce(t.Context(), "Shop", in, time.Minute); err == nil {
		t.Fatal("the announcement does not fail")
	}
	store.fails, in.State, in.Weight = false, "", 5
	must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
	for key, value := range store.values {
		if strings.Contains(key, "overrides") || strings.Contains(string(value), "inactive") {
			t.Errorf("%s is %s", key, value)
		}
	}
}

// An edit that is not a valid setting does not stop the announcements. Those that watch the
// settings learn what is wrong with it, until the operator removes it.
func TestAnEditThatIsNotValid(t *testing.T) {
	for edited, problem := range map[string]string{
		`{"addr":"shop","state":"disabled","started":"1970-01-01T00:00:01Z"}`: `the state "disabled" is neither "active" nor "inactive"`,
		`{"addr":"shop","weight":-3,"started":"1970-01-01T00:00:01Z"}`:        "the weight -3 is negative",
		`{"addr":"shop","state":`: "unexpected end of JSON input",
	} {
		store := &lossyStore{values: make(map[string][]byte)}
		r := registry.New(store, &registry.Options{Logger: slog.New(slog.DiscardHandler)})
		in := discovery.Instance{Addr: "shop", Weight: 5, Started: time.Unix(1, 0).UTC()}
		must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
		own := string(store.values["yodel/Shop/shop"])
		store.values["yodel/Shop/shop"] = []byte(edited)
		for range 3 {
			if err := r.Announce(t.Context(), "Shop", in, time.Minute); err != nil {
				t.Fatalf("after the edit %s: %v", edited, err)
			}
		}
		if now := string(store.values["yodel/Shop/shop"]); now != own {
			t.Errorf("after the edit %s the record is %s", edited, now)
		}
		set, err := registry.Settings.Instance("shop", store.values["yodel/Shop^overrides/shop"])
		if err == nil || set.Metadata["problem"] != problem || set.Addr != "shop" || set.State != "" || set.Weight != 0 {
			t.Errorf("after the edit %s the setting is %+v, %v", edited, set, err)
		}
		must(t, registry.Override(t.Context(), r, "Shop", "shop", "", 0))
		must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
		if len(store.values) != 1 {
			t.Errorf("after the setting was removed: %s", store.values)
		}
	}
}

// A record that a person has written without an address is the setting of the address in its name.
func TestASettingWithoutAnAddress(t *testing.T) {
	set, err := registry.Settings.Instance("10.0.0.1:1", []byte(`{"state":"inactive"}`))
	if want := (discovery.Instance{Addr: "10.0.0.1:1", State: "inactive"}); err != nil || !reflect.DeepEqual(set, want) {
		t.Errorf("got %+v, %v", set, err)
	}
}

// A server that may not store settings announces itself all the same, with the values of the edit.
func TestAnEditThatCannotBeStored(t *testing.T) {
	store := &readOnlySettings{lossyStore{values: make(map[string][]byte)}}
	r := registry.New(store, &registry.Options{Logger: slog.New(slog.DiscardHandler)})
	in := discovery.Instance{Addr: "shop", Weight: 5, Started: time.Unix(1, 0).UTC()}
	must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
	edited := in
	edited.State = "inactive"
	value, err := registry.JSON.Value(edited)
	must(t, err)
	store.values["yodel/Shop/shop"] = value
	for range 3 {
		must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
		if now := string(store.values["yodel/Shop/shop"]); now != string(value) {
			t.Errorf("the record is %s, want %s", now, value)
		}
	}
}

// readOnlySettings is a store that takes no settings of operators.
type readOnlySettings struct{ lossyStore }

func (s *readOnlySettings) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if strings.Contains(key, "^") {
		return errSpeaker
	}
	return s.lossyStore.Put(ctx, key, value, ttl)
}

// A server that ends leaves the record of the server that has taken its address over.
func TestWithdrawLeavesTheRecordOfAnother(t *testing.T) {
	for _, layout := range []registry.Layout{registry.JSON, registry.RPCX} {
		store := &lossyStore{values: make(map[string][]byte)}
		o := &registry.Options{Layout: layout}
		ours, theirs := registry.New(store, o), registry.New(store, o)
		must(t, ours.Announce(t.Context(), "Shop", discovery.Instance{Addr: "shop", Incarnation: "0a"}, time.Minute))
		must(t, theirs.Announce(t.Context(), "Shop", discovery.Instance{Addr: "shop", Incarnation: "0b"}, time.Minute))
		must(t, ours.Withdraw(t.Context(), "Shop", "shop"))
		if len(store.values) != 1 {
			t.Error("the record of the other server is gone")
		}
		must(t, theirs.Withdraw(t.Context(), "Shop", "shop"))
		if len(store.values) != 0 {
			t.Errorf("after its own withdrawal there is %s", store.values)
		}
	}
}

// Resolvers that are made of others say which service they resolve, if all of these are for one.
func TestResolversOfOthersNameTheService(t *testing.T) {
	r := memory.New(nil)
	shop, other := r.Service("Shop"), r.Service("Other")
	for name, test := range map[string]struct {
		resolver discovery.Resolver
		want     string
	}{
		"of a registry":     {shop, "Shop"},
		"snapshot":          {registry.Snapshot("unused", shop), "Shop"},
		"merged":            {registry.Merge(shop, r.Service("Shop")), "Shop"},
		"different":         {registry.Prefer(shop, other), ""},
		"one does not say":  {registry.Prefer(shop, discovery.Static("shop")), ""},
		"of nothing at all": {registry.Merge(), ""},
	} {
		if got := (yodel.Description{}).Over(test.resolver).Service; got != test.want {
			t.Errorf("%s: got the service %q, want %q", name, got, test.want)
		}
	}
}

func TestServicesOfARegistry(t *testing.T) {
	r := memory.New(nil)
	for _, service := range []string{"shop.Pay", "shop.Cart", "a/b"} {
		must(t, r.Announce(t.Context(), service, discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	}
	must(t, registry.Override(t.Context(), r, "shop.Cart", "10.0.0.1:1", "inactive", 0))
	names, err := r.Services(t.Context())
	must(t, err)
	if want := []string{"a/b", "shop.Cart", "shop.Pay"}; !slices.Equal(names, want) {
		t.Errorf("got the services %q, want %q", names, want)
	}
}
