// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/registry/file"
)

// sesame is the token that serveGuarded accepts.
const sesame = "open-sesame"

// serveGuarded announces a server in a folder that serves only callers with the token.
func serveGuarded(t *testing.T, o *yodel.ServerOptions) (folder string) {
	t.Helper()
	folder = t.TempDir()
	o.Registrars = []discovery.Registrar{file.New(folder, nil)}
	o.Protocols = []yodel.Protocol{http.New(nil)}
	o.Diagnostics, o.Logger = true, slog.New(slog.DiscardHandler)
	s := yodel.NewServer(o)
	yodel.Method[string, string]("Vault.Open").Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := await.Value(t, served, "the end of the server"); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	until(t, "the server is announced", func() bool { return strings.Contains(run(t, folder, "ls").out, "Vault") })
	return folder
}

// guards are the two ways in which a server checks tokens.
var guards = map[string]func() *yodel.ServerOptions{
	"each call": func() *yodel.ServerOptions {
		return &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(func(_ context.Context, _, token string) (context.Context, error) {
			if token != sesame {
				return nil, errors.New("wrong")
			}
			return nil, nil
		})}}
	},
	"each connection": func() *yodel.ServerOptions {
		return &yodel.ServerOptions{Connect: auth.Conn(func(_ context.Context, _ *yodel.Peer, token string) error {
			if token != sesame {
				return errors.New("wrong")
			}
			return nil
		})}
	},
	"each call, but for yodel.Health": func() *yodel.ServerOptions {
		return &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(func(_ context.Context, _, token string) (context.Context, error) {
			if token != sesame {
				return nil, yodel.Errorf(yodel.Unauthenticated, "wrong")
			}
			return nil, nil
		}, "yodel.Health")}}
	},
}

func TestTheTokenReachesServers(t *testing.T) {
	for name, options := range guards {
		t.Run(name, func(t *testing.T) {
			folder := serveGuarded(t, options())
			for _, command := range []string{
				`call Vault/Open "x"`, `bench Vault/Open "x" --duration 100ms --warm-up 10ms --save ` + filepath.Join(t.TempDir(), "result.json"),
				"describe Vault/Open", "top --count 1", "samples", "doctor Vault",
			} {
				r := run(t, folder, append([]string{"--token", sesame}, strings.Fields(command)...)...)
				if r.code != exitOK || strings.Contains(r.out+r.err, "refused") || strings.Contains(r.out, "shares no statistics") {
					t.Errorf("yodel %s: exit code %d\n%s%s", command, r.code, r.out, r.err)
				}
			}
			if r := run(t, folder, "--token", "Bearer "+sesame, "ls", "Vault"); !strings.Contains(r.out, "Vault/Open") || !strings.Contains(r.out, " up ") {
				t.Errorf("got %s%s", r.out, r.err)
			}
			// A connection of gRPC has no metadata, so only tokens of calls can be checked.
			if r := run(t, folder, "--token", sesame, "--wire", "grpc", "call", "Vault/Open", `"x"`); name != "each connection" && r.code != exitOK {
				t.Errorf("over gRPC: exit code %d\n%s%s", r.code, r.out, r.err)
			}
		})
	}
}

// A command says that servers refuse its token. It does not show their services as idle.
func TestARefusedTokenIsSaid(t *testing.T) {
	for name, options := range guards {
		t.Run(name, func(t *testing.T) {
			folder := serveGuarded(t, options())
			for _, flags := range [][]string{nil, {"--token", "guess"}} {
				for command, code := range map[string]int{
					"ls": exitOK, "ls Vault": exitOK, "ls --unhealthy": exitOK, "top --count 1": exitOK, "top --count 1 --by instances": exitOK, "doctor": exitOK,
				} {
					r := run(t, folder, append(flags, strings.Fields(command)...)...)
					if r.code != code || !strings.Contains(r.out, "token refused") || strings.Contains(r.out, "idle") {
						t.Errorf("yodel %v %s: exit code %d\n%s%s", flags, command, r.code, r.out, r.err)
					}
				}
				for _, command := range []string{"samples", "tap"} {
					if r := run(t, folder, append(flags, command)...); r.code != exitFailed || !strings.Contains(r.err, "YDL310") || !strings.Contains(r.err, "no instance shows") {
						t.Errorf("yodel %v %s: exit code %d\n%s%s", flags, command, r.code, r.out, r.err)
					}
				}
			}
		})
	}
}
