// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	stdtls "crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// A service whose instances tell the console nothing is not idle: the console says why it knows
// nothing.
func TestConsoleSaysWhyInstancesAreNotRead(t *testing.T) {
	wrong := func(context.Context, string, string) (context.Context, error) { return nil, errors.New("wrong") }
	both := selfSigned(t)
	pair, err := stdtls.X509KeyPair(both, both)
	must(t, err)
	for name, test := range map[string]struct {
		server yodel.ServerOptions
		state  string
		want   string
	}{
		"each call is checked":                     {yodel.ServerOptions{Diagnostics: true, Middleware: []yodel.Middleware{auth.Check(wrong)}}, "unknown", "token refused"},
		"each call is checked, but for its health": {yodel.ServerOptions{Diagnostics: true, Middleware: []yodel.Middleware{auth.Check(wrong, "yodel.Health")}}, "unknown", "token refused"},
		"each connection is checked": {yodel.ServerOptions{Diagnostics: true, Connect: auth.Conn(func(context.Context, *yodel.Peer, string) error { return errors.New("wrong") })},
			"unknown", "token refused"},
		"no diagnostics": {yodel.ServerOptions{}, "unknown", "ServerOptions.Diagnostics is not set"},
		"TLS": {yodel.ServerOptions{Diagnostics: true, Transport: &tls.Transport{Server: &stdtls.Config{Certificates: []stdtls.Certificate{pair}}}},
			"down", "TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shop{registry: memory.New(nil)}
			o := test.server
			o.Registrars, o.Logger = []discovery.Registrar{s.registry}, slog.New(slog.DiscardHandler)
			server := yodel.NewServer(&o)
			must(t, server.Handle("Vault.Open", func(in string) (string, error) { return in, nil }))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			ctx, stop := context.WithCancel(context.Background())
			s.running.Go(func() { _ = server.Serve(ctx, l) })
			t.Cleanup(func() { stop(); s.running.Wait() })
			announced(t, s.registry.Service("Vault"), 1)
			base := serveConsole(t, newConsole(t, s, &Options{Tokens: map[string]User{adminToken: {"ci", Viewer}}}))
			header := map[string]string{"Authorization": "Bearer " + adminToken}
			_, _, text := request{path: "/services/Vault", header: header}.send(t, base)
			_, _, list := request{path: "/services", header: header}.send(t, base)
			_, _, all := request{path: "/api/overview", header: header}.send(t, base)
			if !strings.Contains(text, test.want) || strings.Contains(text+list, "idle") || !strings.Contains(all, `"state":"`+test.state+`"`) || !strings.Contains(all, `"rate":null`) {
				t.Errorf("got\n%s\n%s\n%s", text, list, all)
			}
		})
	}
}
