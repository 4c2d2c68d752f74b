// SPDX-License-Identifier: Apache-2.0

// Command canary sends a share of the calls to a new version of a service, raises the share while
// everything runs, and takes it back.
//
//	go run ./examples/canary
//
// It prints:
//
//	5 % for the canary     v1 190, v2 10
//	testers                v1 0, v2 200
//	50 % for the canary    v1 100, v2 100
//	rolled back            v1 200, v2 0
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// version returns the version of the instance that was called.
const version yodel.Method[struct{}, string] = "Shop.Version"

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	r := memory.New(nil) // or etcd.New("10.0.0.1:2379", nil), consul.New("127.0.0.1:8500", nil) …
	stable, err := serve(ctx, r, "v1", 19)
	if err != nil {
		return err
	}
	canary, err := serve(ctx, r, "v2", 1)
	if err != nil {
		return err
	}

	// region clients
	// Calls follow the weights of the instances: the canary announces 1, and the other instance 19.
	customers := yodel.NewClient(r.Service("Shop"), &yodel.ClientOptions{Balancer: balance.Smooth})
	// Testers call the new version alone.
	testers := yodel.NewClient(r.Service("Shop"), &yodel.ClientOptions{
		Balancer: balance.Version("v2", balance.Smooth),
	})
	// endregion clients
	if err := follow(ctx, customers, 1); err != nil {
		return err
	}
	if err := follow(ctx, testers, 20); err != nil {
		return err
	}
	if err := count(ctx, "5 % for the canary", customers); err != nil {
		return err
	}
	if err := count(ctx, "testers", testers); err != nil {
		return err
	}

	// region ramp
	// A weight that an operator sets wins over what the instance announces.
	err = registry.Override(ctx, r, "Shop", canary.addr, "", 19)
	// endregion ramp
	if err != nil {
		return err
	}
	if err := follow(ctx, customers, 10); err != nil {
		return err
	}
	if err := count(ctx, "50 % for the canary", customers); err != nil {
		return err
	}

	// region rollback
	// An inactive instance gets no new calls. Those that it has accepted finish.
	err = registry.Override(ctx, r, "Shop", canary.addr, "inactive", 0)
	// endregion rollback
	if err != nil {
		return err
	}
	if err := follow(ctx, customers, 0); err != nil {
		return err
	}
	if err := count(ctx, "rolled back", customers); err != nil {
		return err
	}

	testers.Close()
	customers.Close()
	if err := canary.stop(); err != nil {
		return err
	}
	return stable.stop()
}

// An instance of the service is running.
type instance struct {
	addr string
	stop func() error
}

// serve starts an instance.
func serve(ctx context.Context, r *registry.Registry, name string, weight int) (*instance, error) {
	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r},
		Instance:   discovery.Instance{Version: name, Weight: weight},
	})
	// endregion server
	version.Handle(s, func(context.Context, *struct{}) (*string, error) { return &name, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	return &instance{l.Addr().String(), func() error { cancel(); return <-served }}, nil
}

// follow waits until the canary gets share of 20 calls, twice in a row. Before that, the client
// learns of the instances and their weights, and connects; calls can fail meanwhile.
func follow(ctx context.Context, c *yodel.Client, share int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for row := 0; row < 2; {
		calls, err := versions(ctx, c, 20)
		if err == nil && calls["v2"] == share {
			row++
			continue
		}
		row = 0
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("the canary gets %d of 20 calls, not %d: %w", calls["v2"], share, cmp.Or(err, ctx.Err()))
		}
	}
	return nil
}

// versions makes n calls, and returns how many went to each version.
func versions(ctx context.Context, c *yodel.Client, n int) (map[string]int, error) {
	calls := map[string]int{}
	for range n {
		name, err := version.Call(ctx, c, &struct{}{})
		if err != nil {
			return nil, err
		}
		calls[*name]++
	}
	return calls, nil
}

// count makes 200 calls and prints how many went to each version.
func count(ctx context.Context, what string, c *yodel.Client) error {
	calls, err := versions(ctx, c, 200)
	if err != nil {
		return err
	}
	fmt.Printf("%-22s v1 %d, v2 %d\n", what, calls["v1"], calls["v2"])
	return nil
}
