// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/conformance/fleet"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/zookeeper"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	governed.Child(opened)
	fleet.Follow(func(addr string) fleet.Client { return zookeeper.New(addr, nil) })
	yodeltest.VerifyNoLeaks(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const session = 2 * time.Second

// open returns a registry that is closed with the test.
func open(t testing.TB, addr string, o registry.Options) *zookeeper.Registry {
	t.Helper()
	r := zookeeper.New(addr, &zookeeper.Options{Options: o, Session: session})
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// suite runs the suite against a server. Whoever follows a service has a connection of its own.
func suite(t *testing.T, o registry.Options, trouble func(*yodeltest.Registry, *realserver.Server, *realserver.Proxy)) {
	t.Parallel()
	s := realserver.ZooKeeper(t)
	p := realserver.Between(t, s.Addr)
	r := yodeltest.Registry{
		Registrar: open(t, p.Addr, o), Another: open(t, p.Addr, o),
		Service: func(name string) discovery.Resolver { return open(t, p.Addr, o).Service(name) },
		Kill:    s.Kill, Restart: s.Restart, RestartEmpty: s.RestartEmpty, Slow: p.Slow,
		Expire: func() { // the server hears of nobody
			p.Cut()
			<-time.After(2 * session)
			p.Heal()
		},
	}
	trouble(&r, s, p)
	yodeltest.TestRegistry(t, r)
}

func TestRegistry(t *testing.T) {
	suite(t, registry.Options{}, func(r *yodeltest.Registry, s *realserver.Server, _ *realserver.Proxy) {
		r.Stop, r.Continue = s.Stop, s.Continue
	})
}

func TestRegistryInTheLayoutOfRPCXWithPartitions(t *testing.T) {
	o := registry.Options{Prefix: "/rpcx_test", Layout: registry.RPCX}
	suite(t, o, func(r *yodeltest.Registry, _ *realserver.Server, p *realserver.Proxy) {
		r.Stop, r.Continue = p.Cut, p.Heal
		r.Instances = 500 // the records of all layouts are read alike: TestRegistry has 5,000
	})
}

// find waits until a service has one instance.
func find(t *testing.T, r *zookeeper.Registry, service string, want discovery.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last []discovery.Instance
	err := r.Service(service).Watch(ctx, func(got []discovery.Instance) {
		if last = got; reflect.DeepEqual(last, []discovery.Instance{want}) {
			cancel()
		}
	})
	if err != nil || context.Cause(ctx) == context.DeadlineExceeded {
		t.Fatalf("got %v, %v, want %v", last, err, want)
	}
}

// A service that was announced with a password can be changed by nobody else, and read by all; and
// others may have theirs beside it.
func TestPasswordAndTLS(t *testing.T) {
	t.Parallel()
	p, secure := realserver.Secured(t, realserver.ZooKeeper(t).Addr)
	as := func(username, password string) *zookeeper.Registry {
		r := zookeeper.New(p.Addr, &zookeeper.Options{Session: session, Username: username, Password: password, TLS: secure})
		t.Cleanup(func() { must(t, r.Close()) })
		return r
	}
	owner, in := as("shop", "secret"), discovery.Instance{Addr: "10.0.0.1:1", Weight: 2}
	must(t, owner.Announce(t.Context(), "Shop", in, time.Minute))
	for who, r := range map[string]*zookeeper.Registry{"another password": as("shop", "wrong"), "nobody": as("", "")} {
		find(t, r, "Shop", in)
		if err := r.Announce(t.Context(), "Shop", discovery.Instance{Addr: in.Addr}, time.Minute); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("%s announces in its place: %v", who, err)
		}
		if err := r.Withdraw(t.Context(), "Shop", in.Addr); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("%s withdraws it: %v", who, err)
		}
		if err := r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.2:1"}, time.Minute); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("%s announces beside it: %v", who, err)
		}
		must(t, r.Announce(t.Context(), "Shop of "+who, in, time.Minute))
	}
	in.Weight = 3
	must(t, owner.Announce(t.Context(), "Shop", in, time.Minute))
	find(t, as("", ""), "Shop", in)
	must(t, owner.Withdraw(t.Context(), "Shop", in.Addr))
	plain := open(t, p.Addr, registry.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if plain.Announce(ctx, "Shop", in, time.Minute) == nil {
		t.Error("it is announced without TLS")
	}
}

// own returns a registry of its own for a test.
func own(t *testing.T) fleet.Registry {
	t.Helper()
	return fleet.Registry{Server: realserver.ZooKeeper(t), Open: func(t testing.TB, addr string, o registry.Options) fleet.Client {
		return open(t, addr, o)
	}}
}

func TestChaos(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	fleet.Chaos(t, own(t))
}

func TestRollingRestart(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	fleet.Roll(t, own(t))
}

func TestManyInstances(t *testing.T) { fleet.Many(t, own(t)) } // alone: it measures

func TestFleetsWithRPCX(t *testing.T) {
	t.Parallel()
	fleet.RPCX(t, own(t), "zookeeper")
}
