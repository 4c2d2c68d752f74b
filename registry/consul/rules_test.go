// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/consul"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules.
func opened(addr string) rules.Registry { return consul.New(addr, nil) }

func TestConsulKeepsRules(t *testing.T) {
	s := realserver.Consul(t)
	governed.Book(t, opened(s.Addr))
	governed.Restarts(t, governed.Registry{Addr: s.Addr, Restart: s.Restart, Open: opened})
}
