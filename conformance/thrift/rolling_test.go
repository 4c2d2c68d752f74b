// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"testing"

	apache "github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	protocol "github.com/yodel-rpc/yodel/protocol/thrift"

	"github.com/yodel-rpc/yodel/conformance/rolling"
	"github.com/yodel-rpc/yodel/conformance/thrift/gen/thrifttest"
	"github.com/yodel-rpc/yodel/conformance/thrift/service"
)

const rollingStruct yodel.Method[service.Xtruct, service.Xtruct] = "ThriftTest.TestStruct"

// serveRolling returns a server whose method answers with the answer to the call.
func serveRolling(o *yodel.ServerOptions, execute rolling.Execute) (*yodel.Server, error) {
	o.Codecs = []yodel.Codec{codec.Codec, codec.Compact}
	o.Protocols = []yodel.Protocol{protocol.New(&protocol.Options{Service: "ThriftTest"})}
	s := yodel.NewServer(o)
	rollingStruct.Handle(s, func(_ context.Context, in *service.Xtruct) (*service.Xtruct, error) {
		return &service.Xtruct{StringThing: execute(in.I64Thing), I64Thing: in.I64Thing}, nil
	})
	return s, nil
}

// An apacheConn is a generated client with a connection of its own.
type apacheConn struct {
	*thrifttest.ThriftTestClient
	transport apache.TTransport
}

func (c apacheConn) Call(ctx context.Context, id int64) (string, error) {
	out, err := c.TestStruct(ctx, &thrifttest.Xtruct{I64Thing: id})
	if err != nil {
		return "", err
	}
	return out.StringThing, nil
}

func (c apacheConn) Close() error { return c.transport.Close() }

// rollingPlan has callers with the binary protocol, buffered and framed.
var rollingPlan = rolling.Plan{Kind: "thrift", Dial: func(t testing.TB, addrs []string, caller int) rolling.Call {
	v := variant{framed: caller/2%2 == 1, compact: caller/4%2 == 1}
	return rolling.Turns(t, addrs, caller, func(_ context.Context, addr string) (rolling.Conn, error) {
		config := v.config(new(certificates))
		transport, err := v.transports(config).GetTransport(apache.NewTSocketConf(addr, config))
		if err != nil {
			return nil, err
		}
		if err = transport.Open(); err != nil {
			return nil, err
		}
		p := v.protocols(config).GetProtocol(transport)
		return apacheConn{thrifttest.NewThriftTestClient(apache.NewTStandardClient(p, p)), transport}, nil
	})
}}

// What servers have executed for unchanged clients of Apache Thrift has its reply while the servers
// are replaced one after the other.
func TestRollingRestarts(t *testing.T) {
	t.Attr("rerun", "never")
	t.Run("drain", func(t *testing.T) { rolling.Run(t, rollingPlan) })
	t.Run("handover", func(t *testing.T) {
		p := rollingPlan
		p.Handover = true
		rolling.Run(t, p)
	})
}

// Servers that do not drain lose calls, and the test notices it.
func TestRollingRestartsWithoutADrain(t *testing.T) {
	t.Attr("rerun", "never")
	rolling.Control(t, rollingPlan)
}
