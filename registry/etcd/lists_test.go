// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/etcd"
)

// fill writes records with a client of etcd, many at once.
func fill(t *testing.T, addr string, records iter.Seq[governed.Record]) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	must(t, err)
	defer c.Close()
	batches := make(chan []clientv3.Op)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for ops := range batches {
				if _, err := c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var ops []clientv3.Op
	for r := range records {
		if ops = append(ops, clientv3.OpPut(r.Key, r.Value)); len(ops) == 128 { // the most that etcd takes at once
			batches <- ops
			ops = nil
		}
	}
	if len(ops) > 0 {
		batches <- ops
	}
	close(batches)
	wg.Wait()
}

// The history of a service's rules is much larger than the service.
func TestListsAreComplete(t *testing.T) {
	s := realserver.Etcd(t)
	fill(t, s.Addr, governed.Foreign())
	fill(t, s.Addr, governed.Records(t))
	governed.Lists(t, open(t, s.Addr, nil))
}

// A role that lacks a permission learns which one. With the documented permissions, a server is
// announced.
func TestThePermissionThatLacks(t *testing.T) {
	s := realserver.Etcd(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop()})
	must(t, err)
	defer admin.Close()
	ctx := t.Context()
	for _, name := range []string{"root", "shop"} {
		_, err = admin.RoleAdd(ctx, name)
		must(t, err)
		_, err = admin.UserAdd(ctx, name, "secret")
		must(t, err)
		_, err = admin.UserGrantRole(ctx, name, name)
		must(t, err)
	}
	grant := func(c *clientv3.Client, prefix string, what clientv3.PermissionType) {
		_, err := c.RoleGrantPermission(ctx, "shop", prefix, clientv3.GetPrefixRangeEnd(prefix), what)
		must(t, err)
	}
	_, err = admin.AuthEnable(ctx)
	must(t, err)
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "root", Password: "secret", Logger: zap.NewNop()})
	must(t, err)
	defer root.Close()
	r := open(t, s.Addr, &etcd.Options{Username: "shop", Password: "secret"})
	announce := func() error {
		return r.Announce(ctx, "Shop", discovery.Instance{Addr: "10.0.0.1:1", Incarnation: "0a"}, time.Minute)
	}
	denied := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.HasSuffix(err.Error(), `the user "shop" needs the permission `+want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	denied(announce(), "read for the prefix yodel/Shop^")
	grant(root, "yodel/Shop^", clientv3.PermissionType(clientv3.PermRead))
	denied(announce(), "readwrite for the prefix yodel/Shop/")
	grant(root, "yodel/Shop/", clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, announce())
	must(t, announce())
	denied(r.Writable(ctx), "readwrite for the prefix yodel/")
	must(t, r.Withdraw(ctx, "Shop", "10.0.0.1:1"))
}

// The endpoints of a cluster may have spaces around them. A wrong one is named at the first use.
func TestTheListOfEndpoints(t *testing.T) {
	s := realserver.Etcd(t)
	closed := realserver.FreeAddr(t)
	r := open(t, " "+closed+" , "+s.Addr+" ", nil)
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	began := time.Now()
	wrong := open(t, s.Addr+",tcp://"+s.Addr, nil)
	err := wrong.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), `the scheme "tcp" is not one of http, https, unix, unixs`) || time.Since(began) > 4*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	down := open(t, closed, &etcd.Options{Timeout: time.Second})
	err = down.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("of a server that is down: %v", err)
	}
}
