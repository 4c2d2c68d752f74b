// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Consul starts a Consul agent that is also a server. Config is additional configuration in HCL.
// The program is large: see wantedLarge.
func Consul(t testing.TB, config ...string) *Server {
	t.Helper()
	wantedLarge(t, "consul")
	_, gossip, _ := net.SplitHostPort(FreeAddr(t)) // no client connects to these ports, but Consul listens on them
	_, rpc, _ := net.SplitHostPort(FreeAddr(t))
	return Start(t, Program{
		Name:    "Consul",
		Install: "nothing: Go builds it, and needs its modules for that",
		Find:    func() (string, error) { return Built("consul", "github.com/hashicorp/consul") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return exec.Command(found, "agent", "-server", "-bootstrap-expect", "1", "-data-dir", folder, "-bind", host, "-client", host,
				"-http-port", port, "-server-port", rpc, "-serf-lan-port", gossip, "-serf-wan-port", "-1", "-dns-port", "-1",
				"-grpc-port", "-1", "-grpc-tls-port", "-1", "-disable-host-node-id", "-log-level", "warn",
				"-hcl", strings.Join(append([]string{"performance { raft_multiplier = 1 }", "disable_update_check = true"}, config...), "\n")), nil
		},
		// Unlike other paths, this path answers only when there is a leader.
		Probe: func(ctx context.Context, addr string) error {
			return Get(ctx, "http://"+addr+"/v1/health/service/consul?consistent")
		},
		Within: time.Minute,
	})
}
