// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
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
		seen := make(chan yodel.Instance, 1000)
		go func() {
			_ = r.Service("Shop").Watch(ctx, func(all []yodel.Instance) { // ctx ends it
				for _, in := range all {
					seen <- in
				}
			})
		}()
		// settled returns the record after a while in which the server announces itself many times.
		settled := func() (in yodel.Instance) {
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
		s.UpdateInstance(func(in *yodel.Instance) { in.Weight, in.State = 6, "active" })
		if in := settled(); in.State != "inactive" || in.Weight != 6 {
			t.Errorf("after a change by the server it is %+v, want inactive", in)
		}
		stop()
		_, stop = announcedShop(t, network, r, &log)
		defer stop()
		if in := settled(); in.State != "inactive" || in.Weight != 5 {
			t.Errorf("after a restart it is %+v, want inactive", in)
		}
		c := yodel.NewClient(yodel.Static("shop"), &yodel.ClientOptions{Transport: network})
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
func announcedShop(t *testing.T, network *mem.Network, r yodel.Registrar, log *strings.Builder) (*yodel.Server, func()) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []yodel.Registrar{r}, AnnounceEvery: time.Second, Instance: yodel.Instance{Weight: 5},
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
	in := yodel.Instance{Addr: "shop", Weight: 5, Started: time.Unix(1, 0).UTC()}
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

// Resolvers that are made of others say which service they resolve, if all of these are for one.
func TestResolversOfOthersNameTheService(t *testing.T) {
	r := memory.New(nil)
	shop, other := r.Service("Shop"), r.Service("Other")
	for name, test := range map[string]struct {
		resolver yodel.Resolver
		want     string
	}{
		"of a registry":     {shop, "Shop"},
		"snapshot":          {registry.Snapshot("unused", shop), "Shop"},
		"merged":            {registry.Merge(shop, r.Service("Shop")), "Shop"},
		"different":         {registry.Prefer(shop, other), ""},
		"one does not say":  {registry.Prefer(shop, yodel.Static("shop")), ""},
		"of nothing at all": {registry.Merge(), ""},
	} {
		named, ok := test.resolver.(interface{ ServiceName() string })
		if !ok || named.ServiceName() != test.want {
			t.Errorf("%s: want %q", name, test.want)
		}
	}
}

func TestServicesOfARegistry(t *testing.T) {
	r := memory.New(nil)
	for _, service := range []string{"shop.Pay", "shop.Cart", "a/b"} {
		must(t, r.Announce(t.Context(), service, yodel.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	}
	must(t, registry.Override(t.Context(), r, "shop.Cart", "10.0.0.1:1", "inactive", 0))
	names, err := r.Services(t.Context())
	must(t, err)
	if want := []string{"a/b", "shop.Cart", "shop.Pay"}; !slices.Equal(names, want) {
		t.Errorf("got the services %q, want %q", names, want)
	}
}
