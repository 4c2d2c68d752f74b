// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

// TestRegistries reads and calls a fleet through each registry, by its URL. The servers are real
// ones.
func TestRegistries(t *testing.T) {
	for _, r := range []struct {
		name  string
		url   func(t *testing.T) string
		lists bool // whether the registry lists its services
	}{
		{"etcd", func(t *testing.T) string { return "etcd://" + realserver.Etcd(t).Addr }, true},
		{"redis", func(t *testing.T) string { return "redis://" + realserver.Redis(t).Addr }, true},
		{"zookeeper", func(t *testing.T) string { return "zookeeper://" + realserver.ZooKeeper(t).Addr }, true},
		{"consul", func(t *testing.T) string { return "consul://" + realserver.Consul(t).Addr }, true},
		{"nacos", func(t *testing.T) string { return "nacos://" + realserver.Nacos(t).Addr }, false},
		{"file", func(t *testing.T) string { return "file:" + t.TempDir() }, true},
	} {
		t.Run(r.name, func(t *testing.T) {
			url := r.url(t)
			announced(t, url)
			yodel := func(args ...string) result {
				return yodelWith(t.Context(), strings.NewReader(""), map[string]string{"YODEL_REGISTRY": url}, args...)
			}
			until(t, "the instance is found", func() bool { return yodel("ls", "cli.Echo", "-o", "name").code == exitOK })
			if out := yodel("ls", "-o", "json"); r.lists {
				var rows []serviceRow
				if err := json.Unmarshal([]byte(out.out), &rows); err != nil || !slices.ContainsFunc(rows, func(s serviceRow) bool { return s.Name == "cli.Echo" && s.Up == 1 }) {
					t.Errorf("ls: %s%s", out.out, out.err)
				}
			} else if out.code != exitUsage || !strings.Contains(out.err, "yodel ls SERVICE") {
				t.Errorf("ls: exit code %d, %s", out.code, out.err)
			}
			if out := yodel("call", "cli.Echo/Say", `"hello"`); out.out != `"hello"`+"\n" {
				t.Errorf("call: %s%s", out.out, out.err)
			}
			if out := yodel("describe", "cli.Echo/Say"); !strings.HasPrefix(out.out, "cli.Echo/Say(string) string") {
				t.Errorf("describe: %s%s", out.out, out.err)
			}
		})
	}
}

// announced starts a server that announces itself in a registry.
func announced(t *testing.T, url string) {
	t.Helper()
	target := &target{client: &yodel.ClientOptions{}, close: func() error { return nil }}
	if err := target.open(t.Context(), url, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	registrar, ok := target.registry.(yodel.Registrar)
	if !ok {
		t.Fatalf("%T is no registrar", target.registry)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []yodel.Registrar{registrar}, Diagnostics: true, Logger: silence()})
	yodel.Method[string, string]("cli.Echo.Say").Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		<-served
		_ = target.close()
	})
}
