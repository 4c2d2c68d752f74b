// SPDX-License-Identifier: Apache-2.0

package connect_test

import (
	"context"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/conformance/rolling"
	served "github.com/yodel-rpc/yodel/protocol/http"
)

const rollingWork yodel.Method[wrapperspb.Int64Value, wrapperspb.StringValue] = "rolling.Work/Do"

// serveRolling returns a server whose method answers with the answer to the call.
func serveRolling(o *yodel.ServerOptions, execute rolling.Execute) (*yodel.Server, error) {
	o.Codecs = []yodel.Codec{protobuf.Codec}
	o.Protocols = []yodel.Protocol{served.New(nil)}
	s := yodel.NewServer(o)
	rollingWork.Handle(s, func(_ context.Context, id *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
		return wrapperspb.String(execute(id.Value)), nil
	})
	return s, nil
}

// A goConn is a client of connect-go with connections to one server.
type goConn struct {
	client *connect.Client[wrapperspb.Int64Value, wrapperspb.StringValue]
	http   *http.Client
}

func (c goConn) Call(ctx context.Context, id int64) (string, error) {
	reply, err := c.client.CallUnary(ctx, connect.NewRequest(wrapperspb.Int64(id)))
	if err != nil {
		return "", err
	}
	return reply.Msg.Value, nil
}

func (c goConn) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// rollingPlan has clients of connect-go with one of its protocols, over HTTP/1 or HTTP/2.
func rollingPlan(http1 bool, options ...connect.ClientOption) rolling.Plan {
	return rolling.Plan{Kind: "connect", Dial: func(t testing.TB, addrs []string, caller int) rolling.Call {
		return rolling.Turns(t, addrs, caller, func(_ context.Context, addr string) (rolling.Conn, error) {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(http1)
			protocols.SetUnencryptedHTTP2(!http1)
			c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
			return goConn{connect.NewClient[wrapperspb.Int64Value, wrapperspb.StringValue](c, "http://"+addr+"/"+string(rollingWork), options...), c}, nil
		})
	}}
}

// rollingPlans are those for the protocols of connect-go. The short form has one over each version
// of HTTP.
var rollingPlans = map[string]struct {
	rolling.Plan

	long bool
}{
	"Connect":          {Plan: rollingPlan(false)},
	"gRPC":             {rollingPlan(false, connect.WithGRPC()), true},
	"gRPC-Web":         {rollingPlan(false, connect.WithGRPCWeb()), true},
	"Connect, HTTP 1":  {Plan: rollingPlan(true)},
	"gRPC-Web, HTTP 1": {rollingPlan(true, connect.WithGRPCWeb()), true},
}

// What servers have executed for unchanged clients of connect-go has its reply while the servers
// are replaced one after the other.
func TestRollingRestarts(t *testing.T) {
	t.Attr("rerun", "never")
	for name, p := range rollingPlans {
		t.Run(name, func(t *testing.T) {
			if p.long && !rolling.Long() {
				t.Skip("in the short form one protocol over each version of HTTP will do")
			}
			rolling.Run(t, p.Plan)
		})
	}
}

// Servers that do not drain lose calls, and the test notices it.
func TestRollingRestartsWithoutADrain(t *testing.T) {
	t.Attr("rerun", "never")
	for name, p := range rollingPlans {
		t.Run(name, func(t *testing.T) {
			if p.long && !rolling.Long() {
				t.Skip("as above")
			}
			rolling.Control(t, p.Plan)
		})
	}
}
