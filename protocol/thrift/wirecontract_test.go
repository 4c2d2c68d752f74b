// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestWireKeepsTheContract(t *testing.T) {
	const service = "Test"
	for name, o := range map[string]thrift.WireOptions{
		"framed":      {Service: service},
		"unframed":    {Service: service, Unframed: true},
		"concurrent":  {Service: service, Concurrent: true},
		"multiplexed": {Multiplexed: true},
	} {
		for _, c := range []yodel.Codec{codec.Codec, codec.Compact} {
			t.Run(name+"/"+c.Name(), func(t *testing.T) {
				protocol := thrift.New(&thrift.Options{Service: service, Concurrent: o.Concurrent})
				yodeltest.TestWire(t, yodeltest.Wire{Wire: thrift.Wire(c, &o), Protocol: protocol, Codec: c, ReadsWhole: o.Unframed})
			})
		}
	}
}
