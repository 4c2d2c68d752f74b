// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
)

func TestZooKeeperKeepsRules(t *testing.T) {
	governed.Book(t, open(t, realserver.ZooKeeper(t).Addr, registry.Options{}))
}
