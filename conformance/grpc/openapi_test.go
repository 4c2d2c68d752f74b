// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"encoding/json"
	"io"
	std "net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// OpenAPI has the messages of a service that generated code registers.
func TestOpenAPI(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec, protobuf.JSON}, Protocols: []yodel.Protocol{http.New(&http.Options{OpenAPI: "/openapi.json"})}})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), interop.NewTestServer())
	r, err := std.NewRequestWithContext(t.Context(), std.MethodGet, "http://"+start(t, s)+"/openapi.json", nil)
	must(t, err)
	client := std.Client{Transport: new(std.Transport)}
	defer client.CloseIdleConnections()
	reply, err := client.Do(r)
	must(t, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	must(t, err)
	var all struct {
		Paths map[string]map[string]json.RawMessage
	}
	must(t, json.Unmarshal(body, &all))
	for path, want := range map[string]string{
		"/grpc.testing.TestService/UnaryCall":           `"responseType":{"type":"string"}`,
		"/grpc.testing.TestService/StreamingOutputCall": `"intervalUs":{"type":"integer"}`,
	} {
		if got := string(all.Paths[path]["post"]); !strings.Contains(got, want) {
			t.Errorf("%s has no %s: %.500s", path, want, got)
		}
	}
}
