// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"net"
	"os/exec"
	"os/user"
	"testing"
)

// Dnsmasq starts a DNS server that is responsible for the zone example. Hosts is the path of a file
// like /etc/hosts, which the server reads when it starts. Settings are further records like
// "srv-host=_arith._tcp.example,host.example,8972".
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
			self, err := user.Current() // the default user of dnsmasq may not be allowed to read the file
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
		Probe: listens,
	})
}
