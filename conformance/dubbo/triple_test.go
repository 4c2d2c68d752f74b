// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// texts is the name of the service in the registry.
const texts = group + "/com.acme.Texts:" + version

// upper implements the method of com.acme.Texts.
func upper(_ context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	if in.GetValue() == "" {
		return nil, yodel.Errorf(yodel.InvalidArgument, "no text")
	}
	return wrapperspb.String(strings.ToUpper(in.GetValue())), nil
}

// Consumers of dubbo-java and of dubbo-go find a yodel server in ZooKeeper and call it over triple.
func TestTripleConsumers(t *testing.T) {
	zk := realserver.ZooKeeper(t)
	r := registryAt(t, zk.Addr)
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}, Registrars: []discovery.Registrar{r},
		Instance: discovery.Instance{Version: version, Group: group},
	})
	if err := s.Handle("com.acme.Texts.upper", upper); err != nil {
		t.Fatal(err)
	}
	addr := listen(t, s)
	found(t, r, texts, addr)
	for name, outcomes := range map[string]map[string]string{
		"java interface":   realserver.Dubbo(t, "consumer", "zookeeper://"+zk.Addr, "tri", "FORCE_INTERFACE").Outcomes(),
		"java application": realserver.Dubbo(t, "consumer", "zookeeper://"+zk.Addr, "tri", "FORCE_APPLICATION").Outcomes(),
		"go interface":     realserver.DubboGo(t, "consumer", zk.Addr, "tri", "interface").Outcomes(),
		"go application":   realserver.DubboGo(t, "consumer", zk.Addr, "tri", "service").Outcomes(),
	} {
		text := "java"
		if strings.HasPrefix(name, "go") {
			text = "go"
		}
		if got := outcomes["upper "+text]; got != strings.ToUpper(text) {
			t.Errorf("%s: got %q", name, got)
		}
		if got := outcomes["upper "]; !strings.Contains(got, "no text") {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
}

// A yodel client calls providers of dubbo-java and of dubbo-go over triple.
func TestTripleProviders(t *testing.T) {
	zk := realserver.ZooKeeper(t)
	r := registryAt(t, zk.Addr)
	for name, start := range map[string]func(t *testing.T, port string) *realserver.Peer{
		"java": func(t *testing.T, port string) *realserver.Peer {
			t.Helper()
			return realserver.Dubbo(t, "provider", "zookeeper://"+zk.Addr, "tri", port)
		},
		"go": func(t *testing.T, port string) *realserver.Peer {
			t.Helper()
			return realserver.DubboGo(t, "provider", zk.Addr, "tri", "interface", port)
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr := realserver.FreeAddr(t)
			_, port, _ := net.SplitHostPort(addr) // it is one of this host
			start(t, port).Ready()
			in := found(t, r, texts, addr)
			c := yodel.NewClient(discovery.Static("grpc://"+in.Addr), &yodel.ClientOptions{Codec: protobuf.Codec, Wires: []yodel.Wire{grpc.Wire}})
			defer c.Close()
			// Triple selects the version and the group by metadata.
			call := func(text string) (string, error) {
				reply := new(wrapperspb.StringValue)
				err := c.Do(t.Context(), &yodel.Call{
					Method: "com.acme.Texts.upper", Args: wrapperspb.String(text), Reply: reply,
					Metadata: yodel.Metadata{"tri-service-version": version, "tri-service-group": group},
				})
				return reply.GetValue(), err
			}
			if got, err := call("yodel"); err != nil || got != "YODEL" {
				t.Errorf("got %q, %v", got, err)
			}
			if _, err := call(""); err == nil || !strings.Contains(err.Error(), "no text") {
				t.Errorf("got %v", err)
			}
		})
	}
}
