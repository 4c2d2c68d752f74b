// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	for _, wire := range []yodel.Wire{grpc.Wire, grpc.Web, grpc.Web1} {
		t.Run(wire.Name(), func(t *testing.T) { yodeltest.TestWire(t, yodeltest.Wire{Wire: wire, Protocol: http.New(nil)}) })
	}
}
