// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/nacos"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	governed.Child(opened)
	yodeltest.VerifyNoLeaks(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect returns a registry that is closed with the test.
func connect(t *testing.T, servers string, o nacos.Options) *nacos.Registry {
	t.Helper()
	o.Every = 100 * time.Millisecond
	r := nacos.New(servers, &o)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// A recorder remembers what was announced, for a test that withdraws it behind the back of whoever
// did.
type recorder struct {
	*nacos.Registry

	mu    sync.Mutex
	known map[[2]string]bool
}

func (r *recorder) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	r.mu.Lock()
	r.known[[2]string{service, in.Addr}] = true
	r.mu.Unlock()
	return r.Registry.Announce(ctx, service, in, ttl)
}

func (r *recorder) Withdraw(ctx context.Context, service, addr string) error {
	r.mu.Lock()
	delete(r.known, [2]string{service, addr})
	r.mu.Unlock()
	return r.Registry.Withdraw(ctx, service, addr)
}

func (r *recorder) expire(t *testing.T, by *nacos.Registry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for record := range r.known {
		must(t, by.Withdraw(t.Context(), record[0], record[1]))
	}
}

// TestServer tests what one server can show. Each start of Nacos takes 15 to 27 s of a processor.
func TestServer(t *testing.T) { //nolint:tparallel // its parts trouble one server in turn
	t.Parallel()
	server := realserver.Nacos(t)
	if files, err := filepath.Glob(filepath.Join(server.Folder, "tmp", "tomcat*")); err != nil || len(files) == 0 {
		t.Errorf("it keeps its temporary files elsewhere, where they stay: %v", err)
	}
	network := realserver.Between(t, server.Addr)
	r := &recorder{Registry: connect(t, network.Addr, nacos.Options{}), known: make(map[[2]string]bool)}
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: r, Another: connect(t, network.Addr, nacos.Options{}),
		Service: func(name string) discovery.Resolver { return connect(t, network.Addr, nacos.Options{}).Service(name) },
		Late:    8 * time.Second, // it looks every 5 s
		// no Restart: it keeps no ephemeral instance when it ends
		Kill: server.Kill, RestartEmpty: server.RestartEmpty,
		Stop: server.Stop, Continue: server.Continue, Slow: network.Slow,
		Expire: func() { r.expire(t, connect(t, server.Addr, nacos.Options{})) },
	})
	t.Run("TLS", func(t *testing.T) {
		p, secure := realserver.Secured(t, server.Addr)
		r, in := connect(t, "https://"+p.Addr, nacos.Options{TLS: secure}), discovery.Instance{Addr: "10.0.0.1:1"}
		must(t, r.Announce(t.Context(), "Secured", in, time.Minute))
		want(t, r.Service("Secured"), in)
	})
	t.Run("partition", func(t *testing.T) { partition(t, server.Addr) })
	t.Run("version 1", func(t *testing.T) { versions(t, server.Addr) })
	t.Run("console", func(t *testing.T) { console(t, server.Addr) })
	t.Run("others", func(t *testing.T) { others(t, server.Addr) })
	t.Run("several servers", func(t *testing.T) {
		r := connect(t, realserver.FreeAddr(t)+", http://"+server.Addr+"/", nacos.Options{})
		must(t, r.Announce(t.Context(), "Several", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
		want(t, r.Service("Several"), discovery.Instance{Addr: "10.0.0.1:1"})
	})
	t.Run("Dubbo, version 3", func(t *testing.T) { testDubbo(t, server.Addr, nacos.Options{}) })
	t.Run("Dubbo, version 1", func(t *testing.T) { testDubbo(t, server.Addr, nacos.Options{V1: true, Group: "others"}) })
	t.Run("services", func(t *testing.T) { services(t, server.Addr) })
	t.Run("rules", func(t *testing.T) { keepsRules(t, server) })
}

// partition tries what differs from a server that is stopped: the server lives, and records expire.
func partition(t *testing.T, addr string) {
	p := realserver.Between(t, addr)
	o := nacos.Options{Timeout: 3 * time.Second} // Nacos takes up to 2 s to return a change
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: connect(t, p.Addr, o),
		Service:   func(name string) discovery.Resolver { return connect(t, p.Addr, o).Service(name) },
		Late:      8 * time.Second, Instances: 50, Stop: p.Cut, Continue: p.Heal,
	})
}

// want waits until a service has these instances.
func want(t *testing.T, r discovery.Resolver, instances ...discovery.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last []discovery.Instance
	var right bool
	err := r.Watch(ctx, func(got []discovery.Instance) {
		last = got
		if right = len(got) == len(instances) && (len(got) == 0 || reflect.DeepEqual(got, instances)); right {
			cancel()
		}
	})
	if err != nil || !right {
		t.Fatalf("got %+v, %v, want %+v", last, err, instances)
	}
}

// versions has one side speak version 1 of the API and the other one version 3.
func versions(t *testing.T, addr string) {
	in := discovery.Instance{Addr: "10.0.0.1:8972", Weight: 3, Version: "v2", Metadata: yodel.Metadata{"owner": "Zoë"}}
	for _, first := range []bool{false, true} {
		service := fmt.Sprintf("Versions/%v", first)
		writer, reader := connect(t, addr, nacos.Options{V1: first}), connect(t, addr, nacos.Options{V1: !first})
		for range 2 { // registered, and kept alive
			must(t, writer.Announce(t.Context(), service, in, time.Minute))
		}
		want(t, reader.Service(service), in)
		must(t, reader.Withdraw(t.Context(), service, in.Addr))
		want(t, writer.Service(service))
		must(t, writer.Announce(t.Context(), service, in, time.Minute)) // its heartbeat finds nothing
		want(t, reader.Service(service), in)
		must(t, writer.Withdraw(t.Context(), service, in.Addr))
		want(t, writer.Service(service))
	}
}

// listed returns what Nacos lists of a service.
func listed(t *testing.T, addr string, q url.Values) []map[string]any {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://" + addr + "/nacos/v3/client/ns/instance/list?" + q.Encode())
	must(t, err)
	defer resp.Body.Close()
	var answer struct{ Data []map[string]any }
	must(t, json.NewDecoder(resp.Body).Decode(&answer))
	return answer.Data
}

// console checks that people and other clients of Nacos see what an instance is.
func console(t *testing.T, addr string) {
	r := connect(t, addr, nacos.Options{Namespace: "shop", Group: "trade", Cluster: "zurich"})
	active := discovery.Instance{Addr: "10.0.0.1:8972", Weight: 7, Version: "v2", Zone: "eu-1a"}
	resting := discovery.Instance{Addr: "10.0.0.2:8972", Weight: 5, State: "inactive"}
	must(t, r.Announce(t.Context(), "Arith", active, time.Minute))
	must(t, r.Announce(t.Context(), "Arith", resting, time.Minute))
	want(t, r.Service("Arith"), active, resting)
	q := url.Values{"namespaceId": {"shop"}, "groupName": {"trade"}, "clusterName": {"zurich"}, "serviceName": {"Arith"}}
	weights := make(map[any]any)
	for _, instance := range listed(t, addr, q) {
		weights[instance["ip"]] = instance["weight"]
		md := instance["metadata"].(map[string]any)
		if instance["ip"] == "10.0.0.1" && (md["version"] != "v2" || md["zone"] != "eu-1a") {
			t.Errorf("the metadata is %v", md)
		}
	}
	if want := (map[any]any{"10.0.0.1": 7.0, "10.0.0.2": 0.0}); !reflect.DeepEqual(weights, want) {
		t.Errorf("the weights are %v, want %v", weights, want)
	}
	err := r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "10.0.0.3:1", Metadata: yodel.Metadata{"long": strings.Repeat("x", 2000)}}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "1024") {
		t.Errorf("got %v, want that the metadata is too long", err)
	}
}

// others checks that what other clients of Nacos have registered can be called.
func others(t *testing.T, addr string) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, q := range []url.Values{
		{"ip": {"10.0.0.1"}, "port": {"80"}, "weight": {"2.5"}, "metadata": {`{"version":"1.0","latitude":"north","side":"provider"}`}},
		{"ip": {"10.0.0.2"}, "port": {"80"}},
		{"ip": {"10.0.0.3"}, "port": {"80"}, "weight": {"0"}},
		{"ip": {"10.0.0.4"}, "port": {"80"}, "enabled": {"false"}},
	} {
		q.Set("serviceName", "Others")
		resp, err := (&http.Client{Transport: transport}).PostForm("http://"+addr+"/nacos/v3/client/ns/instance", q)
		must(t, err)
		resp.Body.Close()
	}
	want(t, connect(t, addr, nacos.Options{}).Service("Others"),
		discovery.Instance{Addr: "10.0.0.1:80", Weight: 3, Version: "1.0", Metadata: yodel.Metadata{"latitude": "north", "side": "provider"}},
		discovery.Instance{Addr: "10.0.0.2:80"}, discovery.Instance{Addr: "10.0.0.3:80", State: "inactive"})
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	server := realserver.Nacos(t, "nacos.core.auth.enabled=true", "nacos.core.auth.admin.enabled=true")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).PostForm("http://"+server.Addr+"/nacos/v3/auth/user/admin", url.Values{"password": {"secret"}})
	must(t, err)
	resp.Body.Close()
	in := discovery.Instance{Addr: "10.0.0.1:1"}
	r := connect(t, server.Addr, nacos.Options{Username: "nacos", Password: "secret"})
	late := time.After(time.Minute)
	for err = r.Announce(t.Context(), "Secret", in, time.Minute); err != nil; err = r.Announce(t.Context(), "Secret", in, time.Minute) {
		select { // it reads its users every 15 s
		case <-time.After(200 * time.Millisecond):
		case <-late:
			t.Fatal(err)
		}
	}
	want(t, r.Service("Secret"), in)
	d, provider := openDubbo(t, server.Addr, "secret", nacos.Options{Username: "nacos", Password: "secret"}), in
	provider.Protocols = []string{"dubbo"}
	must(t, d.Announce(t.Context(), "a.Secret", provider, time.Minute))
	want(t, d.Service("a.Secret"), provider)
	if err = openDubbo(t, server.Addr, "secret", nacos.Options{}).Announce(t.Context(), "a.Secret", provider, time.Minute); err == nil {
		t.Error("a server of Dubbo may announce itself without a password")
	}
	for _, o := range []nacos.Options{{}, {Username: "nacos", Password: "wrong"}, {Username: "nobody", Password: "secret"}} {
		if err = connect(t, server.Addr, o).Announce(t.Context(), "Secret", in, time.Minute); err == nil {
			t.Errorf("%+v may announce", o)
		}
	}
}

// What an error says may be read by anybody who reads logs.
func TestErrorsNameNoPassword(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer server.Close()
	at := strings.Replace(server.URL, "://", "://proxy:secret@", 1)
	r := connect(t, at, nacos.Options{})
	in := discovery.Instance{Addr: "10.0.0.1:1"}
	for _, err := range []error{
		r.Announce(t.Context(), "Arith", in, time.Minute), r.Withdraw(t.Context(), "Arith", in.Addr),
		r.Service("Arith").Watch(t.Context(), func([]discovery.Instance) {}),
	} {
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), server.Listener.Addr().String()) {
			t.Errorf("got %v, want where it was refused, and no password", err)
		}
	}
}

// Nacos answers 500 to a withdrawal while it removes the record by itself, and then knows it no
// more. An error that stays is returned.
func TestAWithdrawalThatMeetsTheEndOfTheRecord(t *testing.T) {
	for failures, fails := range map[int64]bool{0: false, 1: false, 2: true} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodDelete && asked.Add(1) <= failures {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			io.WriteString(w, `{"code":0,"message":"success","data":"ok"}`)
		}))
		defer server.Close()
		if err := connect(t, server.URL, nacos.Options{}).Withdraw(t.Context(), "Arith", "10.0.0.1:1"); (err != nil) != fails {
			t.Errorf("after %d failures: got %v", failures, err)
		}
	}
}

// TestTokensAreReplaced is about what takes hours with a real server.
func TestTokensAreReplaced(t *testing.T) {
	var logins, valid atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasSuffix(req.URL.Path, "/login"):
			n := logins.Add(1)
			valid.Store(n)
			fmt.Fprintf(w, `{"accessToken":"%d","tokenTtl":%d}`, n, map[bool]int{true: 0, false: 3600}[n == 1])
		case req.Header.Get("Authorization") != fmt.Sprint("Bearer ", valid.Load()):
			w.WriteHeader(http.StatusForbidden)
		case strings.Contains(req.URL.Path, "/cs/"): // the settings of operators
			io.WriteString(w, `{"code":0,"message":"success","data":{"content":"{}"}}`)
		default:
			io.WriteString(w, `{"code":0,"message":"success","data":"ok"}`)
		}
	}))
	defer server.Close()
	r := connect(t, server.URL, nacos.Options{Username: "nacos", Password: "secret"})
	for i, logged := range []int64{2, 2, 2, 3, 3} { // the first token ends at once, in the same announcement, and the server forgets one
		if i == 3 {
			valid.Store(-1)
		}
		must(t, r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
		if logins.Load() != logged {
			t.Errorf("call %d: logged in %d times, want %d", i, logins.Load(), logged)
		}
	}
}
