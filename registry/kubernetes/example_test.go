// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/kubernetes"
)

const Double yodel.Method[int, int] = "Arith.Double"

// A client in the cluster follows the pods of a Service. The servers need no registrar for this,
// because Kubernetes registers and withdraws their pods.
func ExampleService() { //nolint:testableexamples // it needs Kubernetes
	c := yodel.NewClient(kubernetes.Service("shop/arith:yodel", nil), nil) // NAMESPACE/NAME:PORT
	defer c.Close()
	reply, err := Double.Call(context.Background(), c, new(21))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*reply)
}

// A server that has no Service, for example outside of the cluster, announces itself. Clients
// follow it with Registry.Service.
func ExampleNew() { //nolint:testableexamples // it needs Kubernetes
	r := kubernetes.New(&kubernetes.Options{Namespace: "shop"})
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
	Double.Handle(s, func(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil })
	if err := s.ListenAndServe(context.Background(), ":8972"); err != nil {
		fmt.Println(err)
	}
}
