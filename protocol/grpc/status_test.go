// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	std "net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/grpc"
)

// The status of gRPC wins over that of HTTP. Dubbo-java sends both in one response.
func TestStatusOfHTTP(t *testing.T) {
	for name, test := range map[string]struct {
		media, status string
		code          yodel.Code
		text          string
	}{
		"both":           {"application/grpc+json", "5", yodel.NotFound, "no text"},
		"that of HTTP":   {"application/grpc+json", "", yodel.Unavailable, "503"},
		"another media":  {"text/html", "5", yodel.Unavailable, "503"},
		"contradictions": {"application/grpc+json", "0", yodel.Unimplemented, "no reply"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(std.HandlerFunc(func(w std.ResponseWriter, _ *std.Request) {
				w.Header().Set("Content-Type", test.media)
				if test.status != "" {
					w.Header().Set("Grpc-Status", test.status)
					w.Header().Set("Grpc-Message", "no text")
				}
				w.WriteHeader(std.StatusServiceUnavailable)
			}))
			server.Config.Protocols = new(std.Protocols)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			defer server.Close()
			c := yodel.NewClient(discovery.Static("grpc://"+server.Listener.Addr().String()), &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}})
			defer c.Close()
			if _, err := double.Call(t.Context(), c, new(21)); yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.code, test.text)
			}
		})
	}
}
