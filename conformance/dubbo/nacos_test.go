// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/registry/nacos"
)

// Consumers and providers of dubbo-java and yodel find each other in Nacos, per interface and per
// application.
func TestNacos(t *testing.T) {
	needsJava(t)
	server := realserver.Nacos(t)
	r := nacos.NewDubbo(server.Addr, "yodel-provider", &nacos.Options{Every: 100 * time.Millisecond})
	t.Cleanup(func() { _ = r.Close() })
	for _, step := range []string{"FORCE_INTERFACE", "FORCE_APPLICATION"} {
		t.Run("consumer "+step, func(t *testing.T) {
			addr, g := serve(t, r)
			found(t, r, greeter, addr)
			checkOutcomes(t, realserver.Dubbo(t, "consumer", server.DubboURL(), "dubbo", step).Outcomes(), g)
		})
	}
	// Nacos has one record of a server in an interface, which is for the protocol dubbo if the
	// server serves that too.
	t.Run("triple FORCE_INTERFACE", func(t *testing.T) { nacosTriple(t, r, server.DubboURL(), "FORCE_INTERFACE", http.New(nil)) })
	t.Run("triple FORCE_APPLICATION", func(t *testing.T) {
		nacosTriple(t, r, server.DubboURL(), "FORCE_APPLICATION", dubbo.Protocol, http.New(nil))
	})
	for _, mode := range registerModes {
		t.Run("provider "+mode, func(t *testing.T) { javaProvider(t, r, server.DubboURL(), mode) })
	}
}

// nacosTriple has a consumer call a server over triple.
func nacosTriple(t *testing.T, r *nacos.Dubbo, registry, step string, protocols ...yodel.Protocol) {
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{hessian2.Codec, protobuf.Codec}, Protocols: protocols, Registrars: []discovery.Registrar{r},
		Instance: discovery.Instance{Version: version, Group: group},
	})
	if err := s.Handle("com.acme.Texts.upper", upper); err != nil {
		t.Fatal(err)
	}
	found(t, r, texts, listen(t, s))
	if got := realserver.Dubbo(t, "consumer", registry, "tri", step).Outcomes()["upper java"]; got != "JAVA" {
		t.Errorf("got %q", got)
	}
}
