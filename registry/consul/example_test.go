// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/consul"
)

const Double yodel.Method[int, int] = "Arith.Double"

// A server announces its services in Consul when it listens. It withdraws them when it
// shuts down.
func Example_server() { //nolint:testableexamples // it needs Consul
	r := consul.New("127.0.0.1:8500", nil) // the agent on this machine
	defer r.Close()
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r},
		Instance:   discovery.Instance{Version: "v2", Weight: 2},
	})
	Double.Handle(s, func(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil })
	if err := s.ListenAndServe(context.Background(), ":8972"); err != nil {
		fmt.Println(err)
	}
}

// A client in another program follows the service there.
func Example_client() { //nolint:testableexamples // it needs Consul
	r := consul.New("127.0.0.1:8500", nil)
	defer r.Close()
	c := yodel.NewClient(r.Service("Arith"), nil)
	defer c.Close()
	reply, err := Double.Call(context.Background(), c, new(21))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*reply)
}
