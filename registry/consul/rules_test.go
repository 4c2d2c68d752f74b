// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/consul"
)

func TestConsulKeepsRules(t *testing.T) {
	governed.Book(t, consul.New(realserver.Consul(t).Addr, nil))
}
