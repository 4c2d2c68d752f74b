// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/fleet"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/etcd"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	governed.Child(opened)
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
		Registrar: open(t, p.Addr, o), Another: open(t, p.Addr, o),
		Service: func(name string) discovery.Resolver { return open(t, p.Addr, o).Service(name) },
		Kill:    s.Kill, Restart: s.Restart, RestartEmpty: s.RestartEmpty,
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
		r.Instances = 500 // the records of all layouts are read alike: TestRegistry has 5,000
	})
}

// find waits until a service has one instance, or Watch fails.
func find(t *testing.T, r *etcd.Registry, service, addr string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := r.Service(service).Watch(ctx, func(got []discovery.Instance) {
		if len(got) == 1 && got[0].Addr == addr {
			cancel()
		}
	})
	if err == nil && context.Cause(ctx) == context.DeadlineExceeded {
		t.Fatalf("%s is not found", addr)
	}
	return err
}

// A user of etcd's own who may write below one prefix and read there, and no more, is enough; and
// there is TLS with certificates for both sides.
func TestUsersAndTLS(t *testing.T) {
	t.Parallel()
	p, secure := realserver.Secured(t, realserver.Etcd(t).Addr)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Addr}, TLS: secure, Logger: zap.NewNop()})
	must(t, err)
	defer admin.Close()
	did := func(_ any, err error) { t.Helper(); must(t, err) }
	did(admin.RoleAdd(t.Context(), "root"))
	did(admin.UserAdd(t.Context(), "root", "root"))
	did(admin.UserGrantRole(t.Context(), "root", "root"))
	did(admin.RoleAdd(t.Context(), "shop"))
	did(admin.RoleGrantPermission(t.Context(), "shop", "shop/", clientv3.GetPrefixRangeEnd("shop/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	did(admin.UserAdd(t.Context(), "shop", "secret"))
	did(admin.UserGrantRole(t.Context(), "shop", "shop"))
	did(admin.AuthEnable(t.Context()))
	in := discovery.Instance{Addr: "10.0.0.1:1"}
	r := open(t, p.Addr, &etcd.Options{Options: registry.Options{Prefix: "shop"}, Username: "shop", Password: "secret", TLS: secure})
	for range 2 { // made, and kept alive
		must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
	}
	must(t, find(t, r, "Shop", in.Addr))
	must(t, r.Withdraw(t.Context(), "Shop", in.Addr))
	for who, o := range map[string]*etcd.Options{
		"nobody":                      {Options: registry.Options{Prefix: "shop"}, TLS: secure},
		"somebody without a password": {Options: registry.Options{Prefix: "shop"}, Username: "shop", Password: "wrong", TLS: secure},
		"somebody elsewhere":          {Username: "shop", Password: "secret", TLS: secure},
		"somebody without TLS":        {Options: registry.Options{Prefix: "shop"}, Username: "shop", Password: "secret", Timeout: time.Second},
	} {
		r := open(t, p.Addr, o)
		if r.Announce(t.Context(), "Shop", in, time.Minute) == nil {
			t.Errorf("%s may announce", who)
		}
		if find(t, r, "Shop", in.Addr) == nil {
			t.Errorf("%s may watch", who)
		}
	}
}

// handled returns how often a server has handled a method.
func handled(t *testing.T, addr, method string) (n int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	must(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, count, _ := strings.Cut(lines.Text(), "} ")
		if strings.HasPrefix(name, "grpc_server_started_total") && strings.Contains(name, `grpc_method="`+method+`"`) {
			_, err = fmt.Sscan(count, &n)
			must(t, err)
		}
	}
	return n
}

// A login is the dearest thing that etcd does, so that servers must not log in each time they are
// announced; and one that etcd has forgotten does not keep them from being announced.
func TestALoginIsForManyAnnouncements(t *testing.T) {
	t.Parallel()
	s := realserver.Etcd(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop()})
	must(t, err)
	defer admin.Close()
	did := func(_ any, err error) { t.Helper(); must(t, err) }
	did(admin.UserAdd(t.Context(), "root", "root"))
	did(admin.UserGrantRole(t.Context(), "root", "root"))
	did(admin.AuthEnable(t.Context()))
	r := open(t, s.Addr, &etcd.Options{Username: "root", Password: "root"})
	announce := func(times int) (logins int) {
		t.Helper()
		before := handled(t, s.Addr, "Authenticate")
		for i := range times {
			must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1", Weight: i}, time.Minute))
		}
		return handled(t, s.Addr, "Authenticate") - before
	}
	if n := announce(20); n < 1 || n > 2 { // one for the client, one for the first stream
		t.Errorf("logged in %d times", n)
	}
	s.Kill()
	s.Restart() // it has forgotten the tokens
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for err = r.Announce(ctx, "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute); err != nil && ctx.Err() == nil; {
		err = r.Announce(ctx, "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute)
	}
	must(t, err)
	if n := announce(20); n > 0 {
		t.Errorf("logged in %d times again", n)
	}
}

// A server or a client that logs in starts while etcd is down, or does not know its user yet, and
// works when it can.
func TestAUserWhoComesBeforeEtcd(t *testing.T) {
	t.Parallel()
	s := realserver.Etcd(t)
	s.Kill()
	began := time.Now()
	r := open(t, s.Addr, &etcd.Options{Username: "root", Password: "secret"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r.Announce(ctx, "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute) == nil {
		t.Error("it is announced without a server")
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v to say so", took)
	}
	s.Restart()
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop()})
	must(t, err)
	defer admin.Close()
	did := func(_ any, err error) { t.Helper(); must(t, err) }
	did(admin.UserAdd(t.Context(), "root", "other"))
	did(admin.UserGrantRole(t.Context(), "root", "root"))
	did(admin.AuthEnable(t.Context()))
	if r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute) == nil {
		t.Error("it is announced with a wrong password")
	}
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "root", Password: "other", Logger: zap.NewNop()})
	must(t, err)
	defer root.Close()
	did(root.UserChangePassword(t.Context(), "root", "secret"))
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	must(t, find(t, r, "Shop", "10.0.0.1:1"))
}

// own returns a registry of its own for a test.
func own(t *testing.T) fleet.Registry {
	t.Helper()
	return fleet.Registry{Server: realserver.Etcd(t), Open: func(t testing.TB, addr string, o registry.Options) fleet.Client {
		return open(t, addr, &etcd.Options{Options: o})
	}}
}

// A call of a client that does not know any instances yet says why.
func TestNobodyThereIsAReason(t *testing.T) {
	addr := realserver.FreeAddr(t)
	r := etcd.New(addr, nil)
	defer r.Close()
	c := yodel.NewClient(r.Service("Nobody"), nil)
	defer c.Close()
	err := c.Call(t.Context(), "Nobody.Home", &struct{}{}, nil)
	if want := fmt.Sprintf("it failed: etcd at %q", addr); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want that %s", err, want)
	}
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
	fleet.RPCX(t, own(t), "etcd")
}
