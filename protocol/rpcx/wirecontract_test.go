// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	for name, wire := range map[string]yodel.Wire{"": Wire(yodel.JSON), "HTTP": WireWith(yodel.JSON, &WireOptions{Path: defaultPath})} {
		t.Run(name, func(t *testing.T) { yodeltest.TestWire(t, yodeltest.Wire{Wire: wire, Protocol: Protocol}) })
	}
}
