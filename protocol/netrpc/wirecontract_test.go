// SPDX-License-Identifier: Apache-2.0

package netrpc_test

import (
	"net/rpc"
	"testing"

	"github.com/yodel-rpc/yodel"
	gobcodec "github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	for name, wire := range map[string]yodel.Wire{"": netrpc.Wire(gobcodec.Codec), "HTTP": netrpc.WireHTTP(gobcodec.Codec, rpc.DefaultRPCPath)} {
		t.Run(name, func(t *testing.T) {
			yodeltest.TestWire(t, yodeltest.Wire{Wire: wire, Protocol: netrpc.Protocol, Codec: gobcodec.Codec})
		})
	}
}
