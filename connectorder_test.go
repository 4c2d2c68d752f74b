// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"net/rpc"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
)

// CONNECT belongs to net/rpc, also if the Protocol of HTTP is listed before.
func TestDialHTTPReachesNetRPCBehindHTTP(t *testing.T) {
	addr := serve(t, newServer(t, &yodel.ServerOptions{
		Codecs: []yodel.Codec{gob.Codec}, Protocols: []yodel.Protocol{http.New(nil), netrpc.Protocol},
	}))
	c, err := rpc.DialHTTP("tcp", addr)
	must(t, err)
	defer c.Close()
	var reply Reply
	must(t, c.Call("Arith.Mul", &Args{6, 7}, &reply))
	if reply.C != 42 {
		t.Errorf("got %+v", reply)
	}
}
