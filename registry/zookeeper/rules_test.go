// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/zookeeper"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules, which lasts as long as the process.
func opened(addr string) rules.Registry { return zookeeper.New(addr, nil) }

// holds is how many services make before-end announces here.
const holds = 10_000

func TestListsAreComplete(t *testing.T) {
	governed.Announced(t, open(t, realserver.ZooKeeper(t).Addr, registry.Options{}), holds, nil)
}

func TestZooKeeperKeepsRules(t *testing.T) {
	s := realserver.ZooKeeper(t)
	ours := func(addr string) rules.Registry { return open(t, addr, registry.Options{}) }
	governed.Book(t, ours(s.Addr))
	governed.Restarts(t, governed.Registry{Addr: s.Addr, Restart: s.Restart, Open: ours})
}
