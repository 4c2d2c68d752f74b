// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	for name, wire := range map[string]yodel.Wire{"2.0": jsonrpc.Wire(yodel.JSON), "1.0": jsonrpc.Wire1(yodel.JSON)} {
		t.Run(name, func(t *testing.T) {
			yodeltest.TestWire(t, yodeltest.Wire{Wire: wire, Protocol: jsonrpc.Protocol, ReadsWhole: true})
		})
	}
}
