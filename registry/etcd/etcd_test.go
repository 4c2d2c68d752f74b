// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/fleet"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/etcd"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	fleet.Follow(func(addr string) fleet.Client { return etcd.New(addr, nil) })
	yodeltest.VerifyNoLeaks(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open returns a registry that is closed with the test.
func open(t testing.TB, addr string, o *etcd.Options) *etcd.Registry {
	t.Helper()
	r := etcd.New(addr, o)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// expire revokes all leases, as if they had ended.
func expire(t *testing.T, addr string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	must(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	all, err := c.Leases(ctx)
	must(t, err)
	for _, lease := range all.Leases {
		_, err = c.Revoke(ctx, lease.ID)
		must(t, err)
	}
}

// suite runs the suite against a server. Whoever follows a service has a connection of its own.
func suite(t *testing.T, o *etcd.Options, trouble func(*yodeltest.Registry, *realserver.Server, *realserver.Proxy)) {
	t.Parallel()
	s := realserver.Etcd(t)
	p := realserver.Between(t, s.Addr)
	r := yodeltest.Registry{
		Registrar: open(t, p.Addr, o),
		Service:   func(name string) yodel.Resolver { return open(t, p.Addr, o).Service(name) },
		Kill:      s.Kill, Restart: s.Restart, RestartEmpty: s.RestartEmpty,
		Slow: p.Slow, Expire: func() { expire(t, s.Addr) },
	}
	trouble(&r, s, p)
	yodeltest.TestRegistry(t, r)
}

func TestRegistry(t *testing.T) {
	suite(t, nil, func(r *yodeltest.Registry, s *realserver.Server, _ *realserver.Proxy) {
		r.Stop, r.Continue = s.Stop, s.Continue
	})
}

func TestRegistryInTheLayoutOfRPCXWithPartitions(t *testing.T) {
	o := &etcd.Options{Options: registry.Options{Prefix: "/rpcx_test", Layout: registry.RPCX}}
	suite(t, o, func(r *yodeltest.Registry, _ *realserver.Server, p *realserver.Proxy) {
		r.Stop, r.Continue = p.Cut, p.Heal
	})
}

// own returns a registry of its own for a test.
func own(t *testing.T) fleet.Registry {
	t.Helper()
	return fleet.Registry{Server: realserver.Etcd(t), Open: func(t testing.TB, addr string, o registry.Options) fleet.Client {
		return open(t, addr, &etcd.Options{Options: o})
	}}
}

func TestChaos(t *testing.T) {
	t.Parallel()
	fleet.Chaos(t, own(t))
}

func TestRollingRestart(t *testing.T) {
	t.Parallel()
	fleet.Roll(t, own(t))
}

func TestManyInstances(t *testing.T) { fleet.Many(t, own(t)) } // alone: it measures

func TestFleetsWithRPCX(t *testing.T) {
	t.Parallel()
	fleet.RPCX(t, own(t), "etcd")
}
