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

// Nginx starts nginx as a proxy for gRPC in front of the server at upstream. It speaks HTTP/2
// without TLS on both sides.
func Nginx(t testing.TB, upstream string) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "nginx",
		Install: "apt-get install --no-install-recommends nginx-light",
		Find:    func() (string, error) { return look("nginx") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			config := filepath.Join(folder, "nginx.conf")
			if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, addr, upstream), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(found, "-p", folder, "-c", config, "-e", "stderr"), nil
		},
		Probe: greets,
	})
}

// nginxConfig has the addresses of nginx and of the server behind it. All paths are in the folder
// of the server. Without a master process, the process that was started is the only one.
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

// HAProxy starts HAProxy in front of the server at upstream. It speaks HTTP/2 without TLS on both
// sides.
func HAProxy(t testing.TB, upstream string) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "HAProxy",
		Install: "apt-get install --no-install-recommends haproxy",
		Find:    func() (string, error) { return look("haproxy") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			config := filepath.Join(folder, "haproxy.cfg")
			if err := os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, addr, upstream), 0o600); err != nil {
				return nil, err
			}
			return exec.Command(found, "-db", "-f", config), nil // -db: in the foreground
		},
		Probe: greets,
	})
}

// haproxyConfig has the addresses of HAProxy and of the server behind it.
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

// Caddy starts Caddy in front of the server at upstream. It speaks HTTP/2 without TLS on both sides.
func Caddy(t testing.TB, upstream string) *Server {
	t.Helper()
	return Start(t, Program{
		Name:    "Caddy",
		Install: "apt-get install --no-install-recommends caddy",
		Find:    func() (string, error) { return look("caddy") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			config := filepath.Join(folder, "Caddyfile")
			if err := os.WriteFile(config, fmt.Appendf(nil, caddyConfig, addr, upstream), 0o600); err != nil {
				return nil, err
			}
			c := exec.Command(found, "run", "--config", config, "--adapter", "caddyfile")
			c.Env = append(os.Environ(), "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder) // what it stores
			return c, nil
		},
		Probe: greets,
	})
}

// caddyConfig has the addresses of Caddy and of the server behind it.
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
