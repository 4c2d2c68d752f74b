// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"net"
	"os/exec"
	"os/user"
	"testing"
)

// Dnsmasq starts a DNS server that knows all of the zone example: the hosts in a file like
// /etc/hosts, read when it starts, and what settings like
// "srv-host=_arith._tcp.example,host.example,8972" say.
func Dnsmasq(t testing.TB, hosts string, settings ...string) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "dnsmasq",
		Install: "apt-get install --no-install-recommends dnsmasq-base",
		Find:    func() (string, error) { return exec.LookPath("dnsmasq") },
		Command: func(found, addr, _ string) (*exec.Cmd, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			self, err := user.Current() // it becomes somebody else by default, who may not read the file
			if err != nil {
				return nil, err
			}
			args := []string{
				"--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=" + self.Username, "--port=" + port,
				"--listen-address=" + host, "--bind-interfaces", "--no-resolv", "--no-hosts", "--local=/example/", "--addn-hosts=" + hosts,
			}
			for _, setting := range settings {
				args = append(args, "--"+setting)
			}
			return exec.Command(found, args...), nil
		},
		Probe: func(ctx context.Context, addr string) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
	})
}
