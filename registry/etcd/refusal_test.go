// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/etcd"
)

// A registry that cannot be connected to says why, and a server of another kind is recognised.
func TestWhyThereIsNoConnection(t *testing.T) {
	for name, test := range map[string]struct {
		answer string // of what listens; "" if nothing does
		want   string
	}{
		"nothing listens":   {"", "it cannot be connected to: connection refused"},
		"a server of Redis": {"-ERR unknown command 'PRI', with args beginning with: '*'\r\n", "it cannot be connected to: this is not an etcd server ("},
		"a web server":      {"HTTP/1.1 400 Bad Request\r\n\r\n", "it cannot be connected to: this is not an etcd server ("},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if test.answer == "" {
				_ = l.Close()
			}
			go func() {
				for {
					nc, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer nc.Close()
						_, _ = nc.Read(make([]byte, 24))
						_, _ = nc.Write([]byte(test.answer))
						_, _ = nc.Read(make([]byte, 1<<10))
					}()
				}
			}()
			r := etcd.New(l.Addr().String(), &etcd.Options{Timeout: 300 * time.Millisecond})
			defer r.Close()
			resolver := r.Service("Shop")
			err = resolver.Watch(t.Context(), func([]discovery.Instance) {})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if got, want := fmt.Sprint(resolver), fmt.Sprintf(`service "Shop" in etcd at %s (keys yodel/Shop/…)`, l.Addr()); got != want {
				t.Errorf("the resolver is called %s, want %s", got, want)
			}
		})
	}
}

// The error of a call says in its one line why the registry cannot be reached, whatever else is
// long.
func TestTheErrorOfACallHasTheReason(t *testing.T) {
	r := etcd.New("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", &etcd.Options{Timeout: 100 * time.Millisecond})
	defer r.Close()
	c := yodel.NewClient(r.Service("bank.example.Accounts"), &yodel.ClientOptions{DialTimeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	defer c.Close()
	for id, limit := range map[string]time.Duration{"YDL1005": 2 * time.Second, "YDL1201": time.Minute} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := yodel.Method[string, string]("bank.example.Accounts.Transfer").Call(ctx, c, new(string))
		if said := fmt.Sprint(err); !strings.Contains(said, "it cannot be connected to: connection refused") || !strings.HasSuffix(said, "["+id+"]") {
			t.Errorf("got %s", said)
		}
	}
}

// The services of a registry can be listed, whatever the number of their instances.
func TestServicesAreListed(t *testing.T) {
	r := open(t, realserver.Etcd(t).Addr, nil)
	for i := range 230 { // more than are read at once
		must(t, r.Announce(t.Context(), "Many", discovery.Instance{Addr: fmt.Sprintf("127.0.0.1:%d", i+1)}, time.Minute))
	}
	for _, name := range []string{"A/B", "Orders"} {
		must(t, r.Announce(t.Context(), name, discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute))
	}
	lister := yodel.Description{}.Over(r.Service("Order"))
	asked, known, err := lister.Services(t.Context())
	if got := strings.Join(known, " "); err != nil || asked != "Order" || got != "A/B Many Orders" {
		t.Errorf("got %q, %s, %v", asked, got, err)
	}
}
