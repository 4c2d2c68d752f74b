// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
)

// garbage is what stands in a folder or a registry beside records of instances, and is taken for
// addresses.
var garbage = []string{
	"", " ", "tcp@10.0.0.1:8972", "tcp@127.0.0.1", "localhost", "127.0.0.1", ":", ":0x50", "::1:80", "[::1", "host:port:more", "http://127.0.0.1:80/",
	"a,b", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:http!", "README.md", ".hidden", "instance.json.tmp", "ä:1",
	"\x00:1", "%zz:1", "host name:80", "*:80", "unix:/tmp/x", "{}", "null", "127.0.0.1:1",
}

func TestNamesThatAreNoAddressesCostNoCall(t *testing.T) {
	var addrs []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- yodel.NewServer(nil).Serve(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			<-served
		})
		addrs = append(addrs, l.Addr().String())
	}
	byKey := func(c *yodel.Call) uint64 { return uint64(len(c.Key)) * 1e9 }
	for name, b := range map[string]yodel.Balancer{
		"RoundRobin": yodel.RoundRobin, "Random": balance.Random, "Weighted": balance.Weighted, "Smooth": balance.Smooth, "LeastLoaded": balance.LeastLoaded,
		"ActiveWeight": balance.ActiveWeight, "P2C": balance.P2C, "EWMA": balance.EWMA, "LowestLatency": balance.LowestLatency, "Sticky": balance.Sticky,
		"Ketama": balance.Ketama(byKey), "Maglev": balance.Maglev(byKey), "Jump": balance.Jump(byKey), "Bounded": balance.Bounded(1.25, byKey),
		"Aperture": balance.Aperture(3, balance.Named("me")), "Nearest": balance.Nearest(52.5, 13.4), "Zone": balance.Zone("eu", balance.Random),
		"Panic": balance.Panic(0.5, balance.Random), "SlowStart": balance.SlowStart(time.Second, balance.Random), "Any": retry.Any,
	} {
		t.Run(name, func(t *testing.T) {
			r := make(addresses, 1)
			c := yodel.NewClient(r, &yodel.ClientOptions{Balancer: b, Logger: slog.New(slog.DiscardHandler)})
			defer c.Close()
			for round := range 2 { // begun with garbage, and when it comes
				for _, set := range [][]string{append(append([]string(nil), garbage...), addrs...), addrs} {
					r <- set
					for i := range 200 {
						call := &yodel.Call{Method: string(inspect.Ping), Args: &struct{}{}, Key: fmt.Sprint(i, round)}
						if err := c.Do(t.Context(), call); err != nil {
							t.Fatalf("round %d, call %d: %v", round, i, err)
						}
					}
				}
			}
		})
	}
}

// An addresses is a resolver that is told which addresses there are.
type addresses chan []string

func (r addresses) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case addrs := <-r:
			all := make([]discovery.Instance, len(addrs))
			for i, addr := range addrs {
				all[i].Addr = addr
			}
			update(all)
		case <-ctx.Done():
			return nil
		}
	}
}
