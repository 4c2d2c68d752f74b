// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	stdtls "crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

// loginLink is the link that the command prints, with its address and its token.
var loginLink = regexp.MustCompile(`(https?://[^ ]+)/#login=(\w+)`)

// A served is a console that runs.
type served struct {
	base, token string // as its link has them
	out, errs   *buffer
	end         func() int // as Ctrl-C does; it returns the exit code
}

// openConsole runs yodel console until it has printed its link.
func openConsole(t *testing.T, env map[string]string, args ...string) *served {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &served{out: new(buffer), errs: new(buffer)}
	ended := make(chan int, 1)
	a := &app{in: strings.NewReader(""), out: s.out, err: s.errs, env: func(name string) string { return env[name] }}
	go func() { ended <- a.run(ctx, append([]string{"console", "--listen", "127.0.0.1:0"}, args...)) }()
	code := -1
	s.end = func() int {
		if stop(); code < 0 {
			code = await.Value(t, ended, "the end of the console")
		}
		return code
	}
	t.Cleanup(func() { s.end() })
	until(t, "the console prints its link", func() bool {
		select {
		case code = <-ended:
			t.Fatalf("yodel console %v: exit code %d\n%s%s", args, code, s.out, s.errs)
		default:
		}
		return strings.Contains(s.out.String(), "Ctrl-C")
	})
	link := loginLink.FindStringSubmatch(s.out.String())
	if link == nil {
		t.Fatalf("yodel console prints\n%s", s.out)
	}
	s.base, s.token = link[1], link[2]
	return s
}

// ask sends a request to a console, and returns the status, the body and the header of the reply.
func (s *served) ask(t *testing.T, method, path, body string, header map[string]string) (int, string, http.Header) {
	t.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &stdtls.Config{InsecureSkipVerify: true},
	}}
	r, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	at := loginLink.FindStringSubmatch(s.base + "/#login=x")[1]
	r.Header.Set("Origin", strings.Join(strings.SplitN(at, "/", 4)[:3], "/"))
	for k, v := range header {
		r.Header.Set(k, v)
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

// login opens the link, and returns the header of later requests.
func (s *served) login(t *testing.T) map[string]string {
	t.Helper()
	status, body, got := s.ask(t, "POST", "/api/login", fmt.Sprintf(`{"token":%q}`, s.token), nil)
	if status != http.StatusOK {
		t.Fatalf("login: %d %s", status, body)
	}
	cookie, _, _ := strings.Cut(got.Get("Set-Cookie"), ";")
	return map[string]string{"Cookie": cookie}
}

// listed starts an instance of cli.Echo, and returns the folder of the registry that lists it.
func listed(t *testing.T) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), ".yodel")
	announced(t, "file:"+folder)
	until(t, "the instance is up", func() bool { return run(t, folder, "ls", "cli.Echo").code == exitOK })
	return folder
}

// TestConsole serves the console of a registry: it shows the fleet, and ends as Ctrl-C ends it.
func TestConsole(t *testing.T) {
	folder := listed(t)
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "YODEL_AUTHOR": "ann"}
	if r := yodelWith(t.Context(), nil, env, "ctx", "add", "live", "--registry", "file:"+folder); r.code != exitOK {
		t.Fatal(r.err)
	}
	audit, users := filepath.Join(t.TempDir(), "audit.ndjson"), filepath.Join(t.TempDir(), "users")
	const token = "0123456789-0123456789-0123456789-robot"
	if err := os.WriteFile(users, []byte("# programs\n\nrobot viewer "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openConsole(t, env, "--audit", audit, "--users", users, "--role", "operator")
	for _, want := range []string{"console of file:" + folder, "1 service\n", "logs ann in as operator", "logged on stderr and in " + audit} {
		if !strings.Contains(s.out.String(), want) {
			t.Errorf("the banner lacks %q:\n%s", want, s.out)
		}
	}
	as := s.login(t)
	until(t, "the console shows the service as up", func() bool {
		_, body, _ := s.ask(t, "GET", "/services/cli.Echo", "", as)
		return strings.Contains(body, "cli.Echo: ") && strings.Contains(body, " up ")
	})
	if _, body, _ := s.ask(t, "GET", "/api/me", "", as); !strings.Contains(body, `"environment":"live"`) || !strings.Contains(body, `"role":"operator"`) || !strings.Contains(body, `"rules":true`) {
		t.Errorf("the user is %s", body)
	}
	if _, body, _ := s.ask(t, "GET", "/api/me", "", map[string]string{"Authorization": "Bearer " + token}); !strings.Contains(body, `"user":"robot"`) {
		t.Errorf("the program is %s", body)
	}
	if text, err := os.ReadFile(audit); err != nil || !strings.Contains(string(text), `"action":"login"`) {
		t.Errorf("the audit log is %s, %v", text, err)
	}
	if !strings.Contains(s.errs.String(), "action=login") || strings.Contains(s.errs.String(), s.token) {
		t.Errorf("stderr has\n%s", s.errs)
	}
	if code := s.end(); code != exitOK || strings.Contains(s.errs.String(), "level=ERROR") {
		t.Errorf("exit code %d\n%s", code, s.errs)
	}
}

// TestConsoleOfFixedAddresses: without a registry the console shows the servers of --at, and calls
// them with the token of the command.
func TestConsoleOfFixedAddresses(t *testing.T) {
	folder := serveGuarded(t, guards["each call"]())
	var addrs []string
	until(t, "the server is announced", func() bool {
		addrs = strings.Fields(run(t, folder, "ls", "Vault", "-o", "name").out)
		return len(addrs) == 1
	})
	s := openConsole(t, map[string]string{"YODEL_TOKEN": sesame}, "--at", addrs[0], "--read-only")
	as := s.login(t)
	until(t, "the console shows the service as up", func() bool {
		_, body, _ := s.ask(t, "GET", "/services/Vault", "", as)
		return strings.Contains(body, " up ") && !strings.Contains(body, "refused")
	})
	if _, body, _ := s.ask(t, "GET", "/api/registry", "", as); !strings.Contains(body, fmt.Sprintf(`"name":%q`, addrs[0])) {
		t.Errorf("the screen Registry has %s", body)
	}
	_, body, _ := s.ask(t, "GET", "/api/me", "", as)
	csrf := regexp.MustCompile(`"csrf":"(\w+)"`).FindStringSubmatch(body)
	if csrf == nil || !strings.Contains(s.out.String(), "read-only") {
		t.Fatalf("got %s, and the banner\n%s", body, s.out)
	}
	as["X-Yodel-Csrf"] = csrf[1]
	if status, body, _ := s.ask(t, "POST", "/api/call", `{"service":"Vault","method":"Vault.Open","args":["x"]}`, as); status != http.StatusForbidden || !strings.Contains(body, "read-only") {
		t.Errorf("a call: got %d %s", status, body)
	}
}

// TestConsoleWithTLS: the console has the certificate of --listen-cert, and answers for the URL of
// a proxy in front of it.
func TestConsoleWithTLS(t *testing.T) {
	folder := listed(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	both := slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
	file := filepath.Join(t.TempDir(), "server.pem")
	if err := os.WriteFile(file, both, 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"YODEL_REGISTRY": "file:" + folder}
	s := openConsole(t, env, "--listen-cert", file)
	if !strings.HasPrefix(s.base, "https://") {
		t.Fatalf("the link is at %s", s.base)
	}
	if status, _, got := s.ask(t, "POST", "/api/login", fmt.Sprintf(`{"token":%q}`, s.token), nil); status != http.StatusOK || !strings.Contains(got.Get("Set-Cookie"), "; Secure") {
		t.Errorf("login: %d, %v", status, got)
	}
	// Other machines can reach this one, with TLS.
	s = openConsole(t, env, "--listen", "0.0.0.0:0", "--listen-cert", file, "--url", "https://ops.example/yodel")
	if s.base != "https://ops.example/yodel" {
		t.Errorf("the link is at %s", s.base)
	}
}

// TestConsoleRefusesToStart checks the reasons for which the console does not start, and that it
// says them.
func TestConsoleRefusesToStart(t *testing.T) {
	folder := listed(t)
	users := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(users, []byte("robot viewer short-s3cret\nann boss x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("robot viewer short-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--listen 0.0.0.0:0", exitUsage, "without TLS"},
		{"--listen :0", exitUsage, "--no-tls"},
		{"--listen [::]:0", exitUsage, "--listen-cert FILE"},
		{"--listen 192.0.2.1:0", exitUsage, "without TLS"},
		{"--listen 127.0.0.1", exitUsage, "missing port"},
		{"--listen 192.0.2.1:0 --no-tls", exitFailed, "cannot listen"},
		{"--listen " + taken.Addr().String(), exitFailed, "in use"},
		{"--listen-key x", exitUsage, "--listen-key needs --listen-cert"},
		{"--listen-cert x --no-tls", exitUsage, "exclude each other"},
		{"--listen-cert /nowhere/x", exitUsage, "/nowhere/x"},
		{"--url ops.example", exitUsage, "https://ops.example/yodel/"},
		{"--proxy everything", exitUsage, "10.0.0.0/8"},
		{"--role boss", exitUsage, "viewer, operator, admin"},
		{"--users " + users, exitUsage, "line 2"},
		{"--users " + short, exitUsage, "the token of robot"},
		{"--users /nowhere/x", exitUsage, "/nowhere/x"},
		{"--audit /nowhere/x", exitUsage, "/nowhere/x"},
		{"--registry redis://127.0.0.1:1", exitUnreachable, "redis://127.0.0.1:1 cannot be read"},
		{"--registry file:" + filepath.Join(folder, "none"), exitUnreachable, "yodel dev --demo"},
		{"--at 127.0.0.1:1", exitUnreachable, "127.0.0.1:1"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // a console that starts goes on until Ctrl-C
		env := map[string]string{"YODEL_REGISTRY": "file:" + folder}
		r := yodelWith(ctx, nil, env, append([]string{"console"}, strings.Fields(test.args)...)...)
		cancel()
		if r.code != test.code || !strings.Contains(r.err, test.want) || strings.Contains(r.err, "s3cret") || r.out != "" {
			t.Errorf("yodel console %s: exit code %d, want %d and %q:\n%s%s", test.args, r.code, test.code, test.want, r.out, r.err)
		}
	}
}

// TestConsoleEndsByCtrlC: a page that watches calls does not keep the process, and is told.
func TestConsoleEndsByCtrlC(t *testing.T) {
	folder := listed(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := program(ctx, folder, "console", "--listen", "127.0.0.1:0", "--registry", "file:"+folder)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := new(served)
	for scanner := bufio.NewScanner(out); s.base == "" && scanner.Scan(); {
		if link := loginLink.FindStringSubmatch(scanner.Text()); link != nil {
			s.base, s.token = link[1], link[2]
		}
	}
	as := s.login(t)
	until(t, "the console knows the service", func() bool {
		_, body, _ := s.ask(t, "GET", "/services", "", as)
		return strings.Contains(body, "cli.Echo")
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/api/tap?service=cli.Echo", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", as["Cookie"])
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	watch, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil || watch.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", watch, err)
	}
	defer watch.Body.Close()
	began := time.Now()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	last, err := io.ReadAll(watch.Body)
	if err != nil || !strings.Contains(string(last), "event: end") {
		t.Errorf("the page that watches got %q, %v", last, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it ended after %v", took)
	}
}

// TestConsoleOfEtcd is for a registry that is another program. When that dies, the console says so
// and goes on.
func TestConsoleOfEtcd(t *testing.T) {
	server := realserver.Etcd(t)
	at := "etcd://" + server.Addr
	announced(t, at)
	s := openConsole(t, map[string]string{"YODEL_REGISTRY": at})
	as := s.login(t)
	until(t, "the console shows the service", func() bool {
		_, body, _ := s.ask(t, "GET", "/services", "", as)
		return strings.Contains(body, "cli.Echo")
	})
	server.Kill()
	until(t, "the console says that the registry does not answer", func() bool {
		_, body, _ := s.ask(t, "GET", "/services", "", as)
		return strings.Contains(body, "The registry does not answer: 1 service that it named before")
	})
	if code := s.end(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, s.errs)
	}
}
