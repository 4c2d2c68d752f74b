// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/rules"
)

// opened opens a registry for a process of the tests of rules, which lasts as long as the process.
// Addr is the address of the API server, and a folder with its certificate and a token.
func opened(addr string) rules.Registry { return New(optionsIn(addr)) }

func optionsIn(addr string) *Options {
	host, folder, _ := strings.Cut(addr, " ")
	authority, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(authority) {
		panic(fmt.Sprint("no certificate in ", folder, ": ", err))
	}
	return &Options{
		Server: "https://" + host, TokenFile: filepath.Join(folder, "token"), Timeout: 5 * time.Second,
		TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
}

// ruled checks that the registry keeps rules, and that processes follow them.
func ruled(t *testing.T, server *realserver.KubernetesServer) {
	folder := t.TempDir()
	for name, text := range map[string]string{"token": server.Token, "ca.crt": string(server.CA)} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	ours := func(addr string) rules.Registry { return open(t, optionsIn(addr)) }
	addr := server.Addr + " " + folder
	r := open(t, optionsIn(addr))
	governed.Book(t, r)
	must(t, r.Announce(t.Context(), "Listed", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
	if all, err := r.KeptServices(t.Context(), "rules"); err != nil || strings.Contains(strings.Join(all, " "), "Listed") {
		t.Errorf("the services with rules are %q, %v", all, err)
	}
	if all, err := r.Services(t.Context()); err != nil || !strings.Contains(strings.Join(all, " "), "Listed") || strings.Contains(strings.Join(all, " "), "^") {
		t.Errorf("the services are %q, %v", all, err)
	}
	governed.Restarts(t, governed.Registry{Addr: addr, Restart: server.Restart, Open: ours})
}
