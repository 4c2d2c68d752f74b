// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// TestMistakes makes a user's mistakes on the shop. Each has its exit code and a line that helps.
func TestMistakes(t *testing.T) {
	folder := startShop(t)
	addr := strings.Fields(run(t, folder, "ls", "shop.Cart", "-o", "name").out)[0]
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"call shop.Cart", exitUsage, "yodel ls shop.Cart"},
		{"call shop.Cart --at " + addr, exitUsage, "yodel ls shop.Cart"},
		{"call shop.Cart/Get --kind bogus", exitUsage, "unary, feed, upload, duplex"},
		{"call shop.Cart/Get --timeout 0", exitUsage, "--timeout cannot be 0s"},
		{"call shop.Cart/Get --repeat -1", exitUsage, "--repeat cannot be -1"},
		{"call shop.Cart/Get --deadline -1s", exitUsage, "--deadline cannot be -1s"},
		{`call shop.Cart/Add {"sku":"tea","qyt":3}`, exitUsage, "did you mean   qty"},
		{`call shop.Cart/Add {"SKU":"tea","qty":1}`, exitOK, ""},
		{"call shop.Cart/" + strings.Repeat("x", 5000), exitFailed, "…"},
		{"ls shop.Cart/Add", exitUsage, "yodel describe shop.Cart/Add"},
		{"top -n -1", exitUsage, "--count cannot be -1"},
		{"tap --rate -1", exitUsage, "--rate cannot be -1"},
		{"bench shop.Cart/Get --rate -1", exitUsage, "--rate cannot be -1"},
		{"samples --side neither", exitUsage, "client or server"},
		{"ls --at 127.0.0.1", exitUsage, "--at 127.0.0.1:PORT"},
		{"ls --at 127.0.0.1:99999", exitUsage, "0 to 65535"},
		{"ls --at http://" + addr, exitUsage, "--at " + addr},
		{"ls --ca /no/such/file", exitUsage, "--ca: open"},
		{"ls --cert mistakes_test.go", exitUsage, "--cert and --key: "},
		{"ls --ca mistakes_test.go", exitUsage, "no certificate in PEM"},
		{"help clal", exitUsage, "yodel call"},
		{"sl", exitUsage, "did you mean   yodel ls"},
		{"rule weihgt", exitUsage, "did you mean   yodel rule weight"},
		{"rule weihgt", exitUsage, "commands       yodel help rule"},
		{"ls --json", exitUsage, "did you mean   -o json"},
		{"samples --ndjson", exitUsage, "did you mean   -o ndjson"},
		{"weight shop.Cart " + addr + " -3", exitUsage, "-3 is taken for a flag"},
		{"call shop.Cart/Get -0.5", exitUsage, "-- -0.5"},
		{"weight shop.Cart " + addr + " -- -3", exitUsage, "no number from 0 on"},
		{"doctor --at 127.0.0.1:1", exitUnreachable, ""},
	} {
		r := run(t, folder, strings.Split(test.args, " ")...)
		if r.code != test.code || !strings.Contains(r.err, test.want) {
			t.Errorf("yodel %.80s: exit code %d, %s%s", test.args, r.code, r.out, r.err)
		}
		if len(r.err) > 2000 {
			t.Errorf("yodel %.80s: it prints %d bytes", test.args, len(r.err))
		}
	}
	if r := run(t, folder, "ls", "--at", "127.0.0.1:1"); strings.Count(r.err, "127.0.0.1:1") != 1 {
		t.Errorf("an address that refuses connections: %s", r.err)
	}
	if r := run(t, folder, "samples", "--limit", "1000", "-o", "name"); strings.Contains(r.out, "yodel/") {
		t.Errorf("the samples have calls of the command itself: %s", r.out)
	}
}

// TestProgramsCanRead decodes what commands print with -o json when there is nothing to list.
func TestProgramsCanRead(t *testing.T) {
	folder := startShop(t)
	for _, args := range []string{
		"version", "samples shop.Stock --failed", "events shop.Stock", "rule ls", "rule history shop.Cart", "ctx", "help", "help rule", "doctor", "top -n 1",
	} {
		r := run(t, folder, append(strings.Fields(args), "-o", "json")...)
		var value any
		if err := json.Unmarshal([]byte(r.out), &value); err != nil || value == nil {
			t.Errorf("yodel %s: %v, %s%s", args, err, r.out, r.err)
		}
	}
	var tree helpTopic
	if err := json.Unmarshal([]byte(run(t, folder, "help", "--json").out), &tree); err != nil || len(tree.Commands) < 20 || len(tree.Flags) < 10 {
		t.Errorf("help --json has %d commands and %d flags, %v", len(tree.Commands), len(tree.Flags), err)
	}
}

// TestBenchWithoutReplies measures a server that stops answering. Each caller has one call without
// a reply, and with a deadline it goes on.
func TestBenchWithoutReplies(t *testing.T) {
	var calls atomic.Int32
	addr := serveEcho(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "cli.Echo.Say" && calls.Add(1) > 20 {
				<-ctx.Done()
				return ctx.Err()
			}
			return next(ctx, call)
		}
	}}})
	bench := func(args ...string) (failed uint64, r result) {
		args = append([]string{"--at", addr, "bench", "cli.Echo/Say", `"x"`, "-c", "4", "-d", "300ms", "--timeout", "200ms", "--no-save", "-o", "json"}, args...)
		r = yodelWith(t.Context(), nil, map[string]string{}, args...)
		var out benchResult
		_ = json.Unmarshal([]byte(r.out), &out) // there is none if the warm-up fails
		return out.Codes["deadline_exceeded"], r
	}
	if failed, r := bench("--warm-up", "0s"); r.code != exitOK || failed != 4 {
		t.Errorf("%d calls have failed, exit code %d, %s%s", failed, r.code, r.out, r.err)
	}
	if failed, r := bench("--warm-up", "0s", "--deadline", "20ms"); r.code != exitOK || failed <= 4 {
		t.Errorf("with a deadline, %d calls have failed, exit code %d, %s%s", failed, r.code, r.out, r.err)
	}
	if _, r := bench("--warm-up", "10ms"); r.code != exitFailed || !strings.Contains(r.err, "no reply within 200ms") {
		t.Errorf("in the warm-up: exit code %d, %s%s", r.code, r.out, r.err)
	}
}

// A rule for a service that does not exist acts on nothing, which its author should learn.
func TestRuleOfAMisspeltService(t *testing.T) {
	folder := startShop(t)
	for service, want := range map[string]string{
		"shop.Stokc": ` stop service: there is no service shop.Stokc; did you mean "shop.Stock"? [YDL-R026]`,
		"shop.Stock": "",
	} {
		r := run(t, folder, "rule", "disable", service, "--method", "Count", "--expires", "1m", "--reason", "a test", "--dry-run")
		if warned := strings.Contains(r.err, "stop service"); r.code != exitOK || warned != (want != "") || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, %s", service, r.code, r.err)
		}
	}
}

// TestWatch runs each command that has --watch until it has printed twice.
func TestWatch(t *testing.T) {
	folder := startShop(t)
	if r := run(t, folder, "rule", "disable", "shop.Stock", "--method", "None", "--id", "x", "--reason", "a test", "--force"); r.code != exitOK {
		t.Fatal(r.err)
	}
	objects := map[string]string{"describe": "shop.Cart", "rule get": "shop.Stock x", "rule history": "shop.Stock", "rule explain": "shop.Stock"}
	watched := 0
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			each(sub)
		}
		name := strings.TrimPrefix(c.CommandPath(), "yodel ")
		if c.Annotations["tag"] != reads || name == "tap" || name == "top" { // which go on by themselves
			return
		}
		watched++
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		out := &twice{done: cancel}
		a := &app{in: strings.NewReader(""), out: out, err: io.Discard, env: func(name string) string { return map[string]string{"YODEL_REGISTRY": "file:" + folder}[name] }}
		if code := a.run(ctx, append(strings.Fields(name+" "+objects[name]), "--watch", "--every", "10ms", "-o", "yaml")); code != exitInterrupted || out.writes < 2 {
			t.Errorf("yodel %s --watch printed %d times, exit code %d", name, out.writes, code)
		}
	}
	each(new(app).root())
	if watched < 9 {
		t.Errorf("only %d commands read", watched)
	}
}

// twice is an output that calls done when it is written to for the second time.
type twice struct {
	writes int
	done   func()
}

func (w *twice) Write(b []byte) (int, error) {
	if w.writes++; w.writes == 2 {
		w.done()
	}
	return len(b), nil
}

// TestCheat prints the examples of all commands, which the help of each has before its usage.
func TestCheat(t *testing.T) {
	folder := startShop(t)
	sheet := run(t, folder, "cheat")
	var count func(c *cobra.Command)
	count = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			if c.Name() != "cheat" && !strings.Contains(sheet.out, strings.TrimSpace(line)) {
				t.Errorf("yodel cheat lacks %q", line)
			}
		}
		for _, sub := range c.Commands() {
			count(sub)
		}
	}
	count(new(app).root())
	if r := run(t, folder, "cheat", "rule", "limit", "-o", "name"); strings.Count(r.out, "\n") != 1 || !strings.Contains(r.out, "yodel rule limit") {
		t.Errorf("yodel cheat rule limit: %s%s", r.out, r.err)
	}
	help := run(t, folder, "help", "bench").out
	if examples, usage := strings.Index(help, "yodel bench shop.Cart/Get -c"), strings.Index(help, "Usage:"); examples < 0 || usage < examples || strings.Count(help, "-c 50 -d 10s") != 1 {
		t.Errorf("the help does not begin with examples:\n%s", help)
	}
}

// TestTLSOnOneSide calls a server with TLS without it, and a server without TLS with it. The
// command names the flags to give or to leave out.
func TestTLSOnOneSide(t *testing.T) {
	certificate, ca := selfSigned(t)
	secure := serveEcho(t, &yodel.ServerOptions{
		Transport: &tls.Transport{Server: &stdtls.Config{Certificates: []stdtls.Certificate{certificate}, MinVersion: stdtls.VersionTLS12}},
	})
	plain := serveEcho(t, &yodel.ServerOptions{})
	yodel := func(args ...string) result { return yodelWith(t.Context(), nil, map[string]string{}, args...) }
	if r := yodel("--at", secure, "--ca", ca, "call", "cli.Echo/Say", `"hello"`); r.code != exitOK || r.out != `"hello"`+"\n" {
		t.Errorf("with the authority: exit code %d, %s%s", r.code, r.out, r.err)
	}
	for _, command := range []string{"ls", "doctor", "top -n 1", "call cli.Echo/Say"} {
		r := yodel(append(strings.Fields(command), "--at", secure)...)
		if r.code != exitUnreachable || !strings.Contains(r.out+r.err, secure+" speaks TLS: give --ca FILE") {
			t.Errorf("%s without TLS: exit code %d, %s%s", command, r.code, r.out, r.err)
		}
		r = yodel(append(strings.Fields(command), "--at", plain, "--ca", ca)...)
		if r.code != exitUnreachable || !strings.Contains(r.out+r.err, plain+" does not speak TLS: leave out") {
			t.Errorf("%s with TLS: exit code %d, %s%s", command, r.code, r.out, r.err)
		}
	}
	if r := yodel("--at", secure, "--tls", "ls"); r.code != exitUnreachable || !strings.Contains(r.err, "YDL1108") || strings.Contains(r.err, "leave out") {
		t.Errorf("with an authority that is not trusted: exit code %d, %s", r.code, r.err)
	}
}

// TestSilentServer: a server that accepts connections and says nothing cannot be reached.
func TestSilentServer(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, command := range []string{"ls", "doctor", "call x.Y/Z", "bench x.Y/Z", "samples"} {
		r := yodelWith(t.Context(), nil, map[string]string{}, append(strings.Fields(command), "--at", l.Addr().String(), "--timeout", "200ms")...)
		if r.code != exitUnreachable || !strings.Contains(r.out+r.err, "YDL1005") {
			t.Errorf("%s: exit code %d, %s%s", command, r.code, r.out, r.err)
		}
	}
}

// TestRelayedErrors: a server that was reached and passes on that a service behind it has no
// instance is a call that failed, over every protocol.
func TestRelayedErrors(t *testing.T) {
	folder := startShop(t)
	addr := strings.TrimSpace(run(t, folder, "ls", "shop.Stock", "-o", "name").out)
	if r := run(t, folder, "disable", "shop.Stock", addr, "--force"); r.code != exitOK {
		t.Fatal(r.err)
	}
	until(t, "the carts have no stock", func() bool {
		return strings.Contains(run(t, folder, "call", "shop.Cart/Add", `{"sku":"tea","qty":2}`).err, "YDL1001")
	})
	const whole, hidden = "shop.Stock.Reserve", "hidden error" // callers over HTTP do not see errors of calls
	for wire, want := range map[string]string{
		"native": whole, "grpc": hidden, "grpc-web": hidden, "connect": hidden, "http": hidden, "jsonrpc": whole, "rpcx": whole,
	} {
		r := run(t, folder, "call", "shop.Cart/Add", `{"sku":"tea","qty":2}`, "--wire", wire)
		if r.code != exitFailed || !strings.Contains(r.err, want) {
			t.Errorf("over %s: exit code %d, %s", wire, r.code, r.err)
		}
	}
	if r := run(t, folder, "call", "shop.Stock/Reserve"); r.code != exitUnreachable || !strings.Contains(r.err, "YDL1001") {
		t.Errorf("the service itself: exit code %d, %s", r.code, r.err)
	}
}

// TestProjectFile finds a fleet by the yodel.toml above the working directory.
func TestProjectFile(t *testing.T) {
	folder := startShop(t)
	root := filepath.Dir(folder)
	below := filepath.Join(root, "cmd", "web")
	if err := os.MkdirAll(below, 0o750); err != nil {
		t.Fatal(err)
	}
	t.Chdir(below)
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(root, "yodel.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir()}
	yodel := func(args ...string) result { return yodelWith(t.Context(), strings.NewReader(""), env, args...) }
	write("registry = \"file:.yodel\"\nguarded = true\n")
	addr := strings.Fields(yodel("ls", "shop.Cart", "-o", "name").out)
	if len(addr) != 2 {
		t.Fatalf("got the instances %q", addr)
	}
	if r := yodel("disable", "shop.Cart", addr[0]); r.code != exitUsage || !strings.Contains(r.err, "guarded") {
		t.Errorf("a change in a guarded project: exit code %d, %s%s", r.code, r.out, r.err)
	}
	yodel("ctx", "add", "empty", "--registry", "file:"+t.TempDir())
	if r := yodel("ls", "-o", "name"); !strings.Contains(r.out, "shop.Cart") {
		t.Errorf("the project comes before the chosen context: %s%s", r.out, r.err)
	}
	if r := yodel("ls", "-o", "name", "--context", "empty"); strings.Contains(r.out, "shop.Cart") {
		t.Errorf("a named context comes before the project: %s%s", r.out, r.err)
	}
	write("at = [\"" + addr[0] + "\"]\n")
	if r := yodel("ls", "-o", "name"); r.out != "shop.Cart\n" {
		t.Errorf("with an address: %s%s", r.out, r.err)
	}
	write("context = \"nowhere\"\n")
	if r := yodel("ls"); r.code != exitUsage || !strings.Contains(r.err, "nowhere") {
		t.Errorf("an unknown context: exit code %d, %s", r.code, r.err)
	}
	for text, want := range map[string]string{
		"regitsry = \"file:x\"":               "did you mean   registry",
		"registry = \"file:x\"\nat = [\"x\"]": "exclude each other",
		"registry =":                          "cannot be read",
	} {
		write(text)
		if r := yodel("ls"); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%q: exit code %d, %s", text, r.code, r.err)
		}
	}
}

// serveEcho starts a server with cli.Echo, and returns its address.
func serveEcho(t *testing.T, o *yodel.ServerOptions) string {
	t.Helper()
	o.Logger, o.Diagnostics = silence(), true
	s := yodel.NewServer(o)
	yodel.Method[string, string]("cli.Echo.Say").Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	return serve(t, s, o.Transport)
}

// serve runs a server until the test ends, and returns its address.
func serve(t *testing.T, s *yodel.Server, transport yodel.Transport) string {
	t.Helper()
	listen := func(addr string) (net.Listener, error) { return (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr) }
	if transport != nil {
		listen = transport.Listen
	}
	l, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		<-served
	})
	return l.Addr().String()
}

// selfSigned returns a certificate for 127.0.0.1, and the path of its authority in PEM.
func selfSigned(t *testing.T) (stdtls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "loopback"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return stdtls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}
