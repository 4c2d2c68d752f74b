// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestRegistry(t *testing.T) {
	t.Parallel()
	r := memory.New(nil)
	yodeltest.TestRegistry(t, yodeltest.Registry{Registrar: r, Service: r.Service})
}

func TestRegistryInTheLayoutOfRPCX(t *testing.T) {
	t.Parallel()
	r := memory.New(&registry.Options{Prefix: "rpcx_test", Layout: registry.RPCX})
	yodeltest.TestRegistry(t, yodeltest.Registry{Registrar: r, Service: r.Service})
}
