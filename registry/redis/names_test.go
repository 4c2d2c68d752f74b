// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/redis"
)

// The error of a registry that is given the address of another server says so.
func TestAnotherServerIsRecognised(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Read(make([]byte, 1<<10))
			_ = nc.Close() // as etcd does
		}
	}()
	r := newRegistry(t, l.Addr().String(), &redis.Options{Timeout: time.Second})
	resolver := r.Service("Shop")
	err = resolver.Watch(t.Context(), func([]discovery.Instance) {})
	want := fmt.Sprintf("redis at %s: subscribe to yodel/Shop: EOF (the server ended the connection without an answer: is it a Redis server?)", l.Addr())
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got, want := fmt.Sprint(resolver), fmt.Sprintf(`service "Shop" in Redis at %s (keys yodel/Shop/…)`, l.Addr()); got != want {
		t.Errorf("the resolver is called %s, want %s", got, want)
	}
}

// The services of a registry can be listed.
func TestServicesAreListed(t *testing.T) {
	r := newRegistry(t, realserver.Redis(t).Addr, nil)
	for _, name := range []string{"Many", "A/B", "Orders"} {
		for port := range 3 {
			must(t, r.Announce(t.Context(), name, discovery.Instance{Addr: fmt.Sprintf("127.0.0.1:%d", port+1)}, time.Minute))
		}
	}
	lister := yodel.Description{}.Over(r.Service("Order"))
	asked, known, err := lister.Services(t.Context())
	if got := strings.Join(known, " "); err != nil || asked != "Order" || got != "A/B Many Orders" {
		t.Errorf("got %q, %s, %v", asked, got, err)
	}
}
