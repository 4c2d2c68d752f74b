// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/dns"
)

const Double yodel.Method[int, int] = "Arith.Double"

// A client follows the addresses of a name, for example those of a headless Service in Kubernetes.
func ExampleHost() { //nolint:testableexamples // it needs the name in DNS
	c := yodel.NewClient(dns.Host("arith.example:8972", nil), nil)
	defer c.Close()
	reply, err := Double.Call(context.Background(), c, new(21))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*reply)
}

// A client follows SRV records, which have the ports and the weights of the instances too.
func ExampleService() { //nolint:testableexamples // it needs the records in DNS
	c := yodel.NewClient(dns.Service("_arith._tcp.example", nil), nil)
	defer c.Close()
	reply, err := Double.Call(context.Background(), c, new(21))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*reply)
}
