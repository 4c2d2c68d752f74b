// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/registry/file"
)

// A registryCase is a registry to test the commands with.
type registryCase struct {
	name     string
	url      func(t *testing.T) string
	settings bool // whether the registry keeps operators' settings
	rules    bool // whether it keeps rules for certain
}

var registryCases = []registryCase{
	{name: "etcd", url: func(t *testing.T) string { return "etcd://" + realserver.Etcd(t).Addr }, settings: true, rules: true},
	{name: "redis", url: func(t *testing.T) string { return "redis://" + realserver.Redis(t).Addr }, settings: true, rules: true},
	{name: "zookeeper", url: func(t *testing.T) string { return "zookeeper://" + realserver.ZooKeeper(t).Addr }, settings: true, rules: true},
	{name: "consul", url: func(t *testing.T) string { return "consul://" + realserver.Consul(t).Addr }, settings: true, rules: true},
	{name: "nacos", url: func(t *testing.T) string { return "nacos://" + realserver.Nacos(t).Addr }, settings: true, rules: true},
	{name: "kubernetes", url: kubernetesURL, settings: true, rules: true},
	{name: "mdns", url: func(t *testing.T) string { return "mdns:" + loopbackInterface(t) }},
	{name: "file", url: func(t *testing.T) string { return "file:" + t.TempDir() }, settings: true, rules: true},
}

// kubernetesURL starts a real API server.
func kubernetesURL(t *testing.T) string {
	s := realserver.Kubernetes(t)
	folder := t.TempDir()
	q := url.Values{"server": {"https://" + s.Addr}, "token-file": {filepath.Join(folder, "token")}, "ca-file": {filepath.Join(folder, "ca")}}
	for name, text := range map[string]string{"token": s.Token, "ca": string(s.CA)} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "kubernetes://default?" + q.Encode()
}

// loopbackInterface returns the name of the interface for multicast on this machine.
func loopbackInterface(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(in net.Interface) bool { return in.Flags&net.FlagLoopback != 0 })
	if i < 0 {
		t.Fatal("there is no loopback interface")
	}
	return all[i].Name
}

// TestRegistries runs the commands on a fleet of two instances in each registry, by its URL. The
// servers are real ones. The calls are native, by gRPC and by HTTP.
func TestRegistries(t *testing.T) {
	t.Parallel()
	for _, r := range registryCases {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel() // they mostly wait for the servers of registries
			at := r.url(t)
			addrs := []string{announced(t, at), announced(t, at)}
			yodel := func(args ...string) result {
				return yodelWith(t.Context(), strings.NewReader(""), map[string]string{"YODEL_REGISTRY": at, "YODEL_AUTHOR": "ann"}, args...)
			}
			up := func(n int) func() bool {
				return func() bool {
					var rows []serviceRow
					return json.Unmarshal([]byte(yodel("ls", "-o", "json").out), &rows) == nil &&
						slices.ContainsFunc(rows, func(s serviceRow) bool { return s.Name == "cli.Echo" && s.Up == n })
				}
			}
			until(t, "ls lists the service with two instances", up(2))
			slices.Sort(addrs)
			if out := yodel("ls", "cli.Echo", "-o", "name"); out.out != strings.Join(addrs, "\n")+"\n" {
				t.Errorf("ls SERVICE: %s%s, want %q", out.out, out.err, addrs)
			}
			if out := yodel("ls", "cli.Ecko"); out.code != exitFailed || !strings.Contains(out.err, "did you mean   cli.Echo") {
				t.Errorf("a service that does not exist: exit code %d, %s", out.code, out.err)
			}
			for _, wire := range []string{"native", "grpc", "http"} {
				if out := yodel("call", "cli.Echo/Say", `"hello"`, "--wire", wire); out.out != `"hello"`+"\n" {
					t.Errorf("call over %s: %s%s", wire, out.out, out.err)
				}
			}
			if out := yodel("call", "cli.Echo/Say", `"hello"`); out.out != `"hello"`+"\n" {
				t.Errorf("call as the registry says: %s%s", out.out, out.err)
			}
			if out := yodel("describe", "cli.Echo/Say"); !strings.HasPrefix(out.out, "cli.Echo/Say(string) string") {
				t.Errorf("describe: %s%s", out.out, out.err)
			}
			if out := yodel("top", "-n", "1", "--by", "instances", "-o", "name"); strings.Count(out.out, "cli.Echo@") != 2 {
				t.Errorf("top: %s%s", out.out, out.err)
			}
			if out := yodel("doctor", "cli.Echo"); out.code != exitOK || !strings.Contains(out.out, "no problems") {
				t.Errorf("doctor: exit code %d, %s%s", out.code, out.out, out.err)
			}
			if out := yodel("bench", "cli.Echo/Say", `"x"`, "-d", "50ms", "--warm-up", "10ms", "--no-save", "-o", "json"); out.code != exitOK {
				t.Errorf("bench: exit code %d, %s%s", out.code, out.out, out.err)
			}
			consoleOf(t, r, at, addrs)
			operateIn(t, r, yodel, up, addrs[0])
		})
	}
}

// consoleOf shows a fleet in the console.
func consoleOf(t *testing.T, r registryCase, at string, addrs []string) {
	t.Helper()
	s := openConsole(t, map[string]string{"YODEL_REGISTRY": at})
	as := s.login(t)
	until(t, "the console shows the instances", func() bool {
		_, body, _ := s.ask(t, "GET", "/services/cli.Echo", "", as)
		return strings.Contains(body, "2 of 2 instances") && strings.Contains(body, addrs[0]) && strings.Contains(body, addrs[1])
	})
	if _, body, _ := s.ask(t, "GET", "/api/me", "", as); r.rules != strings.Contains(body, `"rules":true`) {
		t.Errorf("the console says %s", body)
	}
	if code := s.end(); code != exitOK {
		t.Errorf("the console: exit code %d, %s", code, s.errs)
	}
}

// operateIn takes an instance out of service and back, and writes a rule, if the registry keeps
// them. Otherwise the command says that it does not.
func operateIn(t *testing.T, r registryCase, yodel func(args ...string) result, up func(n int) func() bool, addr string) {
	t.Helper()
	if !r.settings {
		for _, command := range []string{"drain", "disable", "enable"} {
			if out := yodel(command, "cli.Echo", addr); out.code != exitUsage || !strings.Contains(out.err, "keeps no settings of operators") {
				t.Errorf("%s: exit code %d, %s%s", command, out.code, out.out, out.err)
			}
		}
	} else {
		if out := yodel("disable", "cli.Echo", addr, "--force"); out.code != exitOK || !strings.Contains(out.out, "no setting → inactive") {
			t.Errorf("disable: exit code %d, %s%s", out.code, out.out, out.err)
		}
		until(t, "the disabled instance is not up", up(1))
		if out := yodel("weight", "cli.Echo", addr, "3"); out.code != exitOK || !strings.Contains(out.out, "inactive, weight 3") {
			t.Errorf("weight: exit code %d, %s%s", out.code, out.out, out.err)
		}
		if out := yodel("enable", "cli.Echo", addr); out.code != exitOK {
			t.Errorf("enable: exit code %d, %s%s", out.code, out.out, out.err)
		}
		until(t, "the enabled instance is up", up(2))
		if out := yodel("drain", "cli.Echo", addr, "--force"); out.code != exitOK || !strings.Contains(out.out, addr+" is idle") {
			t.Errorf("drain: exit code %d, %s%s", out.code, out.out, out.err)
		}
	}
	if r.rules {
		if out := yodel("rule", "set", `{"service":"cli.Echo","id":"late","timeout":{"after":"1s"}}`, "--expires", "1h", "--reason", "test"); out.code != exitOK {
			t.Errorf("rule set: exit code %d, %s%s", out.code, out.out, out.err)
		}
		if out := yodel("rule", "ls"); !strings.Contains(out.out, "late  timeout  active  in 59m") {
			t.Errorf("rule ls: %s%s", out.out, out.err)
		}
	}
}

// TestDoctorOfAReplica reads an empty replica, to which no server can announce itself.
func TestDoctorOfAReplica(t *testing.T) {
	primary, replica := realserver.Redis(t), realserver.Redis(t)
	host, port, err := net.SplitHostPort(primary.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := realserver.Ask(t.Context(), replica.Addr, "REPLICAOF "+host+" "+port+"\r\n", "+OK\r\n"); err != nil {
		t.Fatal(err)
	}
	doctor := func(addr string) result {
		return yodelWith(t.Context(), strings.NewReader(""), map[string]string{"YODEL_REGISTRY": "redis://" + addr}, "doctor")
	}
	if out := doctor(primary.Addr); out.code != exitOK || !strings.Contains(out.out, "found nothing to check") {
		t.Errorf("of the primary: exit code %d, %s%s", out.code, out.out, out.err)
	}
	if out := doctor(replica.Addr); out.code != exitCheck || !strings.Contains(out.out, "takes no writes") || !strings.Contains(out.out, "READONLY") {
		t.Errorf("of the replica: exit code %d, %s%s", out.code, out.out, out.err)
	}
}

// TestASettingThatCannotBeRead has a setting that a person has written with a state that does not
// exist. The commands name it, and enable removes it.
func TestASettingThatCannotBeRead(t *testing.T) {
	folder := t.TempDir()
	addr := announced(t, "file:"+folder)
	yodel := func(args ...string) result {
		return yodelWith(t.Context(), strings.NewReader(""), map[string]string{"YODEL_REGISTRY": "file:" + folder}, args...)
	}
	until(t, "the instance is listed", func() bool { return strings.Contains(yodel("ls").out, "cli.Echo") })
	settings := file.New(folder, nil)
	if err := settings.Keep(t.Context(), "cli.Echo", "overrides", addr, []byte(`{"state":"disabled"}`)); err != nil {
		t.Fatal(err)
	}
	const problem = `the setting of an operator cannot be read: the state "disabled" is neither "active" nor "inactive"`
	until(t, "ls names the setting", func() bool { return strings.Contains(yodel("ls").out, problem) })
	if out := yodel("ls", "cli.Echo"); !strings.Contains(out.out, " up ") || !strings.Contains(out.out, problem) {
		t.Errorf("ls of the service: %s%s", out.out, out.err)
	}
	if out := yodel("doctor"); !strings.Contains(out.out, problem) || !strings.Contains(out.out, "yodel enable cli.Echo "+addr) {
		t.Errorf("doctor: %s%s", out.out, out.err)
	}
	if out := yodel("enable", "cli.Echo", addr); out.code != exitOK || !strings.Contains(out.out, "a setting that cannot be read") {
		t.Errorf("enable: exit code %d, %s%s", out.code, out.out, out.err)
	}
	until(t, "ls has no problem", func() bool { return !strings.Contains(yodel("ls").out, "cannot be read") })
}

// TestDNS reads and calls a server by a name in DNS.
func TestDNS(t *testing.T) {
	_, port, err := net.SplitHostPort(serveEcho(t, &yodel.ServerOptions{Protocols: []yodel.Protocol{http.New(nil)}}))
	if err != nil {
		t.Fatal(err)
	}
	at := "dns://localhost:" + port
	yodel := func(args ...string) result {
		return yodelWith(t.Context(), strings.NewReader(""), map[string]string{"YODEL_REGISTRY": at}, args...)
	}
	if out := yodel("ls", "-o", "name"); out.out != "cli.Echo\n" {
		t.Errorf("ls: %s%s", out.out, out.err)
	}
	for _, wire := range []string{"native", "grpc", "http"} {
		if out := yodel("call", "cli.Echo/Say", `"hello"`, "--wire", wire); out.out != `"hello"`+"\n" {
			t.Errorf("call over %s: %s%s", wire, out.out, out.err)
		}
	}
	if out := yodel("call", "cli.Echo/Say", `"hello"`); out.out != `"hello"`+"\n" {
		t.Errorf("call as the server speaks: %s%s", out.out, out.err)
	}
	if out := yodel("drain", "cli.Echo", "localhost:"+port); out.code != exitUsage || !strings.Contains(out.err, "need a registry") {
		t.Errorf("drain: exit code %d, %s%s", out.code, out.out, out.err)
	}
}

// TestNamesOfRegistriesHaveNoSecrets lists contexts with a secret in each place of a URL.
func TestNamesOfRegistriesHaveNoSecrets(t *testing.T) {
	for url, want := range map[string]string{
		"redis://:SECRET@h:6379/app?db=2":        "redis://h:6379/app?db=2",
		"etcd://ann:SECRET@h:2379,i:2379/prod":   "etcd://h:2379,i:2379/prod",
		"etcd://h:2379/prod":                     "etcd://h:2379/prod",
		"consul://h:8500?token=SECRET&dc=a":      "consul://h:8500?dc=a",
		"consul://h:8500?token=SEC@RET&dc=a":     "consul:…",
		"nacos://h:8848?accessToken=SECRET":      "nacos://h:8848",
		"redis://:a/SECRET@h:6379":               "redis:…",
		"redis://:SECRET/a@h:6379":               "redis:…",
		"redis://:SECRET?a@h:6379":               "redis:…",
		"redis://:SECRET%zz@h:6379":              "redis:…",
		"file:/var/shop?prefix=p":                "file:/var/shop?prefix=p",
		"file:///var/shop":                       "file:/var/shop",
		"file://localhost/var/shop":              "file:/var/shop",
		"mdns:lo":                                "mdns:lo",
		"kubernetes://shop?token-file=/run/mine": "kubernetes://shop",
	} {
		config := t.TempDir()
		text, err := json.Marshal(contexts{Contexts: map[string]profile{"one": {Registry: url}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(config, "yodel"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(config, "yodel", "contexts.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		r := yodelWith(t.Context(), nil, map[string]string{"XDG_CONFIG_HOME": config}, "ctx", "-o", "json")
		var rows []profile
		if err := json.Unmarshal([]byte(r.out), &rows); err != nil || len(rows) != 1 || rows[0].Registry != want || strings.Contains(r.out+r.err, "SECRET") {
			t.Errorf("%s is shown as %s%s, %v", url, r.out, r.err, err)
		}
		r = yodelWith(t.Context(), nil, map[string]string{"XDG_CONFIG_HOME": config}, "ctx")
		if !strings.Contains(r.out, " "+want+" ") {
			t.Errorf("%s is shown as %s%s", url, r.out, r.err)
		}
	}
}

// announced starts a server that announces itself in a registry, and returns its address.
func announced(t *testing.T, at string) string {
	t.Helper()
	target := &target{client: &yodel.ClientOptions{}, close: func() error { return nil }}
	if err := target.open(t.Context(), at, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.close() })
	registrar, ok := target.registry.(discovery.Registrar)
	if !ok {
		t.Fatalf("%T is no registrar", target.registry)
	}
	return serveEcho(t, &yodel.ServerOptions{Registrars: []discovery.Registrar{registrar}, Protocols: []yodel.Protocol{http.New(nil)}})
}
