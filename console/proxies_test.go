// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// proxied starts a proxy, with TLS for browsers, in front of consoles. The verbs of a config are
// the address of the proxy, a PEM file with its certificate and key, how the first console is
// reached, and the address of the second one.
func proxied(t *testing.T, name, install, config string, args func(path string) []string, consoles ...any) *realserver.Server {
	t.Helper()
	return realserver.Start(t, realserver.Program{
		Name: name, Install: install,
		Find: func() (string, error) {
			path, err := exec.LookPath(name)
			if err != nil {
				path, err = exec.LookPath("/usr/sbin/" + name)
			}
			return path, err
		},
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			certificate, path := filepath.Join(folder, "server.pem"), filepath.Join(folder, "config")
			must(t, os.WriteFile(certificate, selfSigned(t), 0o600))
			must(t, os.WriteFile(path, fmt.Appendf(nil, config, append([]any{addr, certificate}, consoles...)...), 0o600))
			return exec.Command(found, args(path)...), nil
		},
		Probe: func(ctx context.Context, addr string) error {
			d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
			conn, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	})
}

// selfSigned returns a certificate for loopback, and its key, as PEM.
func selfSigned(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxy"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// nginxOf is nginx with its defaults: it buffers replies, speaks HTTP/1.0 to the console, and sends
// it the console's address as Host. The first console is found below /staging/, the second, which
// gets the path as it is, below /prod/.
const nginxOf = `
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
	server {
		listen %[1]s ssl;
		ssl_certificate %[2]s;
		ssl_certificate_key %[2]s;
		%[3]s
		location /prod/ { proxy_pass http://%[4]s; }
	}
}
`

const haproxyOf = `
global
	maxconn 256
defaults
	mode http
	timeout connect 10s
	timeout client 60s
	timeout server 60s
frontend browsers
	bind %[1]s ssl crt %[2]s
	use_backend prod if { path_beg /prod/ }
	default_backend staging
%[3]s
backend prod
	server one %[4]s
`

// documented returns a configuration that docs/console.md shows, with the address of a console.
func documented(t *testing.T, language, console string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/console.md")
	must(t, err)
	_, block, ok := strings.Cut(string(page), "```"+language+"\n")
	block, _, _ = strings.Cut(block, "```")
	if !ok || strings.Count(block, "127.0.0.1:7080") != 1 {
		t.Fatalf("docs/console.md has no configuration in %s of a console at 127.0.0.1:7080", language)
	}
	return strings.Replace(block, "127.0.0.1:7080", console, 1)
}

// The proxies that the tests know, each as a function that starts it in front of two consoles.
var proxies = map[string]func(t *testing.T, staging, prod string) *realserver.Server{
	"nginx": func(t *testing.T, staging, prod string) *realserver.Server {
		return proxied(t, "nginx", "apt-get install --no-install-recommends nginx-light", nginxOf,
			func(path string) []string { return []string{"-p", filepath.Dir(path), "-c", path, "-e", "stderr"} }, documented(t, "nginx", staging), prod)
	},
	"haproxy": func(t *testing.T, staging, prod string) *realserver.Server {
		return proxied(t, "haproxy", "apt-get install --no-install-recommends haproxy", haproxyOf,
			func(path string) []string { return []string{"-db", "-f", path} }, documented(t, "haproxy", staging), prod)
	},
}

// listening returns a server that is not started yet, and its address.
func listening(t *testing.T) (*httptest.Server, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return server, server.Listener.Addr().String()
}

// serveOn serves a console on a server that listens, until the test ends.
func serveOn(t *testing.T, server *httptest.Server, c *Console) {
	t.Helper()
	server.Config.Handler = c
	server.Start()
	t.Cleanup(func() {
		must(t, c.Close())
		server.CloseClientConnections()
		server.Close()
	})
}

// Two consoles are behind a proxy that ends TLS, below two paths of one host. A user is logged in
// to both. The cookie of one does not reach the other, and is for TLS only. Live shows at once what
// it watches, although no call ends.
func TestBrowserBehindAProxy(t *testing.T) {
	for name, start := range proxies {
		t.Run(name, func(t *testing.T) {
			b, s := newBrowser(t), newShop(t)
			b.do("Security.setIgnoreCertificateErrors", map[string]any{"ignore": true}, nil)
			one, oneAddr := listening(t)
			two, twoAddr := listening(t)
			at := "https://" + start(t, oneAddr, twoAddr).Addr
			loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			staging := newConsole(t, s, &Options{URL: at + "/staging/", Environment: "staging", Proxies: loopback})
			prod := newConsole(t, s, &Options{URL: at + "/prod/", Environment: "PROD"})
			serveOn(t, one, staging)
			serveOn(t, two, prod)

			b.enter(staging, at+"/staging", "Stock")
			b.enter(prod, at+"/prod", "Stock")
			b.open(at+"/staging/services/Stock", "staging")
			b.open(at+"/prod/services/Stock", "PROD")
			b.open(at+"/staging/services/Stock", "staging")
			b.waitFor("Calls per second")

			var jar struct {
				Cookies []struct {
					Name, Path string
					Secure     bool
				}
			}
			b.do("Network.getCookies", map[string]any{"urls": []string{at + "/staging/api/me", at + "/prod/api/me"}}, &jar)
			paths := map[string]string{}
			for _, cookie := range jar.Cookies {
				paths[cookie.Path] = cookie.Name
				if !cookie.Secure {
					t.Errorf("the cookie of %s is not for TLS only", cookie.Path)
				}
			}
			if want := []string{"/prod/", "/staging/"}; !slices.Equal(slices.Sorted(maps.Keys(paths)), want) || paths["/prod/"] == paths["/staging/"] {
				t.Errorf("the cookies by path are %v, want two of different names in %v", paths, want)
			}

			began := time.Now()
			b.open(at+"/staging/live?service=Mail", "Watching 1 instance") // nobody calls Mail
			if took := time.Since(began); took > heartbeat/2 {
				t.Errorf("Live showed what it watches after %v: the proxy has kept it back", took)
			}
			b.check("live")

			b.click("#logout")
			b.waitFor("You are not logged in")
			b.do("Network.getCookies", map[string]any{"urls": []string{at + "/staging/api/me"}}, &jar)
			if len(jar.Cookies) != 0 {
				t.Errorf("after the logout the browser has %v", jar.Cookies)
			}
			b.mu.Lock()
			b.faults = nil // the status 401
			b.mu.Unlock()
			b.open(at+"/prod/services", "Stock")
			b.check("the other console")
			if entries, _ := staging.audit.list(); entries[0].From != "127.0.0.1" {
				t.Errorf("the audit log says that the user is at %s", entries[0].From)
			}
		})
	}
}

// Without the address that browsers use, nginx makes the console refuse logins. The refusal says
// what to set.
func TestBrowserBehindAProxyThatTheConsoleDoesNotKnow(t *testing.T) {
	b := newBrowser(t)
	b.do("Security.setIgnoreCertificateErrors", map[string]any{"ignore": true}, nil)
	one, oneAddr := listening(t)
	two, twoAddr := listening(t)
	two.Close()
	at := "https://" + proxies["nginx"](t, oneAddr, twoAddr).Addr
	c := newConsole(t, &shop{registry: memory.New(nil)}, nil)
	serveOn(t, one, c)
	b.open(at+"/staging"+c.LoginLink(User{"ann", Admin}), "Options.URL")
	b.waitFor(at)
}

// A console behind a proxy answers for the host of its address, and for the path of its address
// whether the proxy leaves that out or not.
func TestConsoleHasAnAddress(t *testing.T) {
	c := newConsole(t, newShop(t), &Options{URL: "https://ops.example:443/team/yodel", Tokens: map[string]User{adminToken: {"ci", Viewer}}})
	base := serveConsole(t, c)
	for _, ask := range []struct {
		path, host string
		status     int
	}{
		{"/api/me", "ops.example", http.StatusOK},
		{"/team/yodel/api/me", "ops.example", http.StatusOK},
		{"/team/yodel/services/Stock", "OPS.example", http.StatusOK},
		{"/team/yodel", "ops.example", http.StatusTemporaryRedirect},
		{"/team/yodelay/api/me", "ops.example", http.StatusNotFound},
		{"/team/yodel//api/me", "ops.example", http.StatusBadRequest},
		{"/api/me", "127.0.0.1", http.StatusOK},
		{"/api/me", "evil.example", http.StatusMisdirectedRequest},
	} {
		status, header, body := request{path: ask.path, header: map[string]string{"Host": ask.host, "Authorization": "Bearer " + adminToken}}.send(t, base)
		if status != ask.status || status == http.StatusTemporaryRedirect && header.Get("Location") != "/team/yodel/" {
			t.Errorf("%s of %s: got %d %v, %s; want %d", ask.path, ask.host, status, header["Location"], body, ask.status)
		}
	}
	login := func(origin, body string) (int, string) {
		_, token, _ := strings.Cut(c.LoginLink(User{"ann", Viewer}), "#login=")
		status, header, _ := request{
			method: "POST", path: "/api/login", body: fmt.Sprintf(`{"token":%q%s}`, token, body), header: map[string]string{"Content-Type": "application/json", "Origin": origin},
		}.send(t, base)
		return status, header.Get("Set-Cookie")
	}
	for _, origin := range []string{"http://ops.example", "https://ops.example:8443", "https://evil.example", "https://ops.example.evil", "null", ""} {
		if status, _ := login(origin, ""); status != http.StatusForbidden {
			t.Errorf("a login from %q: got %d, want 403", origin, status)
		}
	}
	for origin, secure := range map[string]bool{"https://ops.example": true, base: false} {
		status, cookie := login(origin, `,"path":"/team/yodel/"`)
		if status != http.StatusOK || strings.Contains(cookie, "; Secure") != secure || !strings.Contains(cookie, "; Path=/team/yodel/;") {
			t.Errorf("a login from %s: got %d, cookie %q", origin, status, cookie)
		}
	}
	for _, path := range []string{"evil", "/a/../b/", "/;Domain=x/", "/a\n/", "//x/", "/a"} {
		if status, cookie := login(base, fmt.Sprintf(`,"path":%q`, path)); status != http.StatusBadRequest || cookie != "" {
			t.Errorf("a login with the path %q: got %d, cookie %q", path, status, cookie)
		}
	}
	for _, bad := range []string{"ops.example", "ftp://ops.example", "https://", "https://ops.example/?x", "https://ops.example/#x", "https://ann@ops.example/", "https://ops.example/a//b", "/yodel/"} {
		if _, err := New(memory.New(nil), &Options{URL: bad}); err == nil {
			t.Errorf("New takes the URL %q", bad)
		}
	}
}

// The audit log has the client behind the proxies that the console knows, and believes no header of
// anyone else.
func TestAuditLogHasTheClientBehindAProxy(t *testing.T) {
	for name, test := range map[string]struct {
		proxies, forwarded string
		want               string
	}{
		"no proxy is known":      {"", "203.0.113.7", "127.0.0.1"},
		"another proxy is known": {"10.0.0.0/8", "203.0.113.7", "127.0.0.1"},
		"one proxy":              {"127.0.0.1/32", "203.0.113.7", "203.0.113.7"},
		"the client has forged":  {"127.0.0.1/32", "198.51.100.1, 203.0.113.7", "203.0.113.7"},
		"two proxies":            {"127.0.0.0/8,10.0.0.0/8", "203.0.113.7, 10.1.2.3", "203.0.113.7"},
		"with ports":             {"127.0.0.1/32", "[2001:db8::7]:4711", "2001:db8::7"},
		"nonsense":               {"127.0.0.1/32", "203.0.113.7, nonsense", "127.0.0.1"},
		"nothing":                {"127.0.0.1/32", "", "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &Options{Logger: slog.New(slog.DiscardHandler)}
			for p := range strings.SplitSeq(test.proxies, ",") {
				if p != "" {
					o.Proxies = append(o.Proxies, netip.MustParsePrefix(p))
				}
			}
			c, err := New(memory.New(nil), o)
			must(t, err)
			base := serveConsole(t, c)
			_, token, _ := strings.Cut(c.LoginLink(User{"ann", Viewer}), "#login=")
			status, _, _ := request{
				method: "POST", path: "/api/login", body: fmt.Sprintf(`{"token":%q}`, token),
				header: map[string]string{"Content-Type": "application/json", "Origin": base, "X-Forwarded-For": test.forwarded},
			}.send(t, base)
			entries, _ := c.audit.list()
			if status != http.StatusOK || len(entries) != 1 || entries[0].From != test.want {
				line, _ := json.Marshal(entries) // it has texts only
				t.Errorf("got %d and %s, want a login from %s", status, line, test.want)
			}
		})
	}
}
