// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"net/http"
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/consul"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules.
func opened(addr string) rules.Registry { return consul.New(addr, nil) }

// holds is how many services make before-end registers here.
const holds = 10_000

// An agent has the services of one machine, and writes each to its disk. Most services of a catalog
// are those of other agents, here of a hundred: 10,000 services of one take Consul 6 minutes.
func TestListsAreComplete(t *testing.T) {
	s := realserver.Consul(t)
	governed.Announced(t, consul.New(s.Addr, nil), holds, func(service string) error {
		request(t, http.MethodPut, s.Addr, "/v1/catalog/register", map[string]any{
			"Node": "other-" + service[len(service)-2:], "Address": "127.0.0.1", "Service": map[string]any{"ID": service, "Service": service, "Address": "127.0.0.1", "Port": 1},
		}, nil)
		return nil
	})
}

func TestConsulKeepsRules(t *testing.T) {
	s := realserver.Consul(t)
	governed.Book(t, opened(s.Addr))
	governed.Restarts(t, governed.Registry{Addr: s.Addr, Restart: s.Restart, Open: opened})
}
