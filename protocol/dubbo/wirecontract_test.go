// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"testing"

	codec "github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	yodeltest.TestWire(t, yodeltest.Wire{Wire: Wire(codec.Codec, nil), Protocol: Protocol, Codec: codec.Codec})
}
