// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	std "net/http"
	"net/http/httptest"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/grpc"
)

// A listed resolver has one instance.
type listed discovery.Instance

func (l listed) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	update([]discovery.Instance{discovery.Instance(l)})
	<-ctx.Done()
	return nil
}

// The authority of requests is the metadata "authority" of the instance, with a port or without, or
// its address.
func TestAuthority(t *testing.T) {
	hosts := make(chan string, 1)
	server := httptest.NewUnstartedServer(std.HandlerFunc(func(_ std.ResponseWriter, r *std.Request) { hosts <- r.Host }))
	server.Config.Protocols = new(std.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	addr := server.Listener.Addr().String()
	for authority, want := range map[string]string{"": addr, "shop.example": "shop.example", "shop.example:81": "shop.example:81"} {
		instance := listed{Addr: addr, Protocols: []string{"grpc"}, Metadata: map[string]string{"authority": authority}}
		c := yodel.NewClient(instance, &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}})
		_, err := double.Call(t.Context(), c, new(21))
		if err == nil {
			t.Error("an empty response is a reply")
		}
		select {
		case got := <-hosts:
			if got != want {
				t.Errorf("%q: the server sees the authority %q", authority, got)
			}
		default:
			t.Errorf("%q: no request has come: %v", authority, err)
		}
		c.Close()
	}
}
