// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// HTTPProxy starts a proxy in front of the server at upstream: nginx, haproxy or caddy. It speaks
// HTTP/2 without TLS on both sides.
func HTTPProxy(t testing.TB, name, upstream string) *Server {
	t.Helper()
	p, known := httpProxies[name]
	if !known {
		t.Fatalf("there is no proxy %q", name)
	}
	return Start(t, Program{
		Name:    name,
		Install: "apt-get install --no-install-recommends " + p.debian,
		Find:    func() (string, error) { return look(name) },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			config := filepath.Join(folder, "config")
			if err := os.WriteFile(config, fmt.Appendf(nil, p.config, addr, upstream), 0o600); err != nil {
				return nil, err
			}
			c := exec.Command(found, p.args(folder, config)...)
			c.Env = append(os.Environ(), "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder) // for what Caddy stores
			return c, nil
		},
		Probe: greets,
	})
}

// An httpProxy is a program of Debian. Its config has the addresses of the proxy and of the server
// behind it.
type httpProxy struct {
	debian string // the package
	config string
	args   func(folder, config string) []string
}

var httpProxies = map[string]httpProxy{
	"nginx": {"nginx-light", nginxConfig, func(folder, config string) []string {
		return []string{"-p", folder, "-c", config, "-e", "stderr"}
	}},
	"haproxy": {"haproxy", haproxyConfig, func(_, config string) []string {
		return []string{"-db", "-f", config} // -db: in the foreground
	}},
	"caddy": {"caddy", caddyConfig, func(_, config string) []string {
		return []string{"run", "--config", config, "--adapter", "caddyfile"}
	}},
}

// nginxConfig has all paths in the folder of the server. Without a master process, the process that
// was started is the only one.
const nginxConfig = `
daemon off;
master_process off;
pid pid;
error_log stderr notice;
events { worker_connections 256; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	client_max_body_size 0;
	server {
		listen %s http2;
		location / { grpc_pass grpc://%s; }
	}
}
`

const haproxyConfig = `
global
	maxconn 256
defaults
	mode http
	timeout connect 10s
	timeout client 60s
	timeout server 60s
frontend clients
	bind %s proto h2
	default_backend servers
backend servers
	server one %s proto h2
`

const caddyConfig = `
{
	admin off
	auto_https off
	servers {
		protocols h1 h2 h2c
	}
}
http://%s {
	reverse_proxy h2c://%s {
		flush_interval -1
	}
}
`

// look returns the path of a program that Debian may have in a folder that is in the PATH of root
// only.
func look(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	return path, err
}

// greets is a probe for servers that speak HTTP/2 without TLS: the server answers the client's
// preface and empty settings with its own settings, of less than 256 bytes.
func greets(ctx context.Context, addr string) error {
	return Ask(ctx, addr, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00")
}
