// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"net"
	"os/exec"
	"testing"
)

// Redis starts a Redis server that writes every change to disk.
func Redis(t testing.TB) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "Redis",
		Install: "apt-get install --no-install-recommends redis-server",
		Find:    func() (string, error) { return exec.LookPath("redis-server") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return exec.Command(found, "--bind", host, "--port", port, "--dir", folder, "--appendonly", "yes", "--save", ""), nil
		},
		Probe: func(ctx context.Context, addr string) error { return Ask(ctx, addr, "PING\r\n", "+PONG\r\n") },
	})
}
