// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/internal/unread"
	"github.com/yodel-rpc/yodel/registry/consul"
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

// root may do anything in a Consul that controls access. Others do not care.
const root = "5f0a1c2e-0000-4000-8000-000000000001"

// request sends one to Consul beside the registry, and decodes what it answers.
func request(t *testing.T, method, addr, path string, body, answer any) {
	t.Helper()
	text, isText := body.(string)
	if !isText {
		encoded, err := json.Marshal(body)
		must(t, err)
		text = string(encoded)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(text))
	must(t, err)
	req.Header.Set("X-Consul-Token", root)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %s", method, path, resp.Status, got)
	}
	if answer != nil {
		must(t, json.Unmarshal(got, answer))
	}
}

func newRegistry(t *testing.T, addr string, o *consul.Options) *consul.Registry {
	r := consul.New(addr, o)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func TestRegistry(t *testing.T) {
	s := realserver.Consul(t)
	p := realserver.Between(t, s.Addr)
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: newRegistry(t, p.Addr, nil), Another: newRegistry(t, p.Addr, nil),
		Service:   func(name string) discovery.Resolver { return newRegistry(t, p.Addr, nil).Service(name) },
		Late:      4 * time.Second, // an agent notices the end of a ttl up to 2 s later on a busy machine
		Instances: 300,             // an agent has those of one machine, and writes each to its disk
		Kill:      s.Kill, Restart: s.Restart, RestartEmpty: s.RestartEmpty, Stop: s.Stop, Continue: s.Continue, Slow: p.Slow,
		Expire: func() {
			var services map[string]any
			request(t, http.MethodGet, s.Addr, "/v1/agent/services", "", &services)
			for id := range services {
				request(t, http.MethodPut, s.Addr, "/v1/agent/service/deregister/"+url.PathEscape(id), "", nil)
			}
		},
	})
}

// A partition differs from a server that is stopped: the server lives, and checks end.
func TestAPartition(t *testing.T) {
	s := realserver.Consul(t)
	p := realserver.Between(t, s.Addr)
	o := &consul.Options{Reconcile: time.Second}
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: newRegistry(t, p.Addr, o),
		Service:   func(name string) discovery.Resolver { return newRegistry(t, p.Addr, o).Service(name) },
		Late:      4 * time.Second,
		Instances: 50, Stop: p.Cut, Continue: p.Heal,
	})
}

// An agent has the services of one machine, and writes each to its disk: the suite has some
// hundreds. A catalog has those of all.
func TestFiveThousandInstances(t *testing.T) {
	const n, atOnce = 5000, 50
	s := realserver.Consul(t)
	request(t, http.MethodPut, s.Addr, "/v1/catalog/register", map[string]any{"Node": "rack", "Address": "10.0.0.1"}, nil)
	began := time.Now()
	tell := func(verb string, from, to int) {
		var all []any
		for i := from; i < to; i++ {
			service := map[string]any{"ID": fmt.Sprint("shop-", i), "Service": "Shop", "Address": "10.0.0.1", "Port": 1 + i}
			all = append(all, map[string]any{"Service": map[string]any{"Verb": verb, "Node": "rack", "Service": service}})
		}
		request(t, http.MethodPut, s.Addr, "/v1/txn", all, nil)
	}
	for i := 0; i < n; i += atOnce {
		tell("set", i, i+atOnce)
	}
	told := time.Now()
	var seen, asked time.Time
	follow(t, newRegistry(t, s.Addr, nil).Service("Shop"), func(got []discovery.Instance) bool {
		if len(got) == n && seen.IsZero() {
			seen = time.Now()
			tell("delete", 0, 1)
			asked = time.Now()
		}
		return len(got) == n-1
	})
	t.Logf("%d instances registered in %v, seen by a new client in %v; one change among them in %v", n,
		told.Sub(began).Round(time.Millisecond), seen.Sub(told).Round(time.Millisecond), time.Since(asked).Round(time.Millisecond))
}

func TestTLS(t *testing.T) {
	p, secure := realserver.Secured(t, realserver.Consul(t).Addr)
	r, in := newRegistry(t, p.Addr, &consul.Options{TLS: secure}), discovery.Instance{Addr: "10.0.0.1:80"}
	must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
	reach(t, r.Service("Shop"), in)
}

// follow waits for an update that is right.
func follow(t *testing.T, r discovery.Resolver, right func([]discovery.Instance) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last []discovery.Instance
	err := r.Watch(ctx, func(instances []discovery.Instance) {
		last = instances
		if right(instances) {
			cancel()
		}
	})
	if err != nil || context.Cause(ctx) == context.DeadlineExceeded {
		t.Fatalf("got %d instances, of them %+v, %v", len(last), last[:min(len(last), 3)], err)
	}
}

func reach(t *testing.T, r discovery.Resolver, want ...discovery.Instance) {
	t.Helper()
	follow(t, r, func(got []discovery.Instance) bool {
		return len(got) == len(want) && (len(got) == 0 || reflect.DeepEqual(got, want))
	})
}

func TestServicesAreConsuls(t *testing.T) {
	s := realserver.Consul(t)
	r := newRegistry(t, s.Addr, nil)
	for weight := range 3 { // the first and the second one are the same
		must(t, r.Announce(t.Context(), "Shop", discovery.Instance{
			Addr: "10.0.0.1:8972", Weight: max(weight, 1) * 10, Group: "red", Tags: []string{"canary"},
			Metadata: yodel.Metadata{"team": "a", "group": "b", "a.b": "c"},
		}, time.Minute))
	}
	type service struct {
		Service, Address string
		Port             int
		Tags             []string
		Meta             map[string]string
		Weights          map[string]int
	}
	var got service
	request(t, http.MethodGet, s.Addr, "/v1/agent/service/Shop@10.0.0.1:8972", "", &got)
	want := service{
		"Shop", "10.0.0.1", 8972, []string{"canary"},
		map[string]string{"group": "red", "team": "a", "metadata": `{"a.b":"c","group":"b"}`},
		map[string]int{"Passing": 20, "Warning": 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// In maintenance it gets no calls.
	maintenance := func(on string) {
		request(t, http.MethodPut, s.Addr, "/v1/agent/service/maintenance/Shop@10.0.0.1:8972?enable="+on, "", nil)
	}
	number := func(n int) func([]discovery.Instance) bool {
		return func(got []discovery.Instance) bool { return len(got) == n }
	}
	follow(t, r.Service("Shop"), number(1))
	maintenance("true")
	follow(t, r.Service("Shop"), number(0))
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "10.0.0.1:8972", Weight: 20}, time.Minute))
	follow(t, r.Service("Shop"), number(0))
	maintenance("false")
	follow(t, r.Service("Shop"), number(1))
}

func TestServicesOfOthers(t *testing.T) {
	s := realserver.Consul(t)
	var told bytes.Buffer
	r := newRegistry(t, s.Addr, &consul.Options{Logger: slog.New(slog.NewTextHandler(&told, nil))})
	register := func(definition string) {
		request(t, http.MethodPut, s.Addr, "/v1/agent/service/register", definition, nil)
	}
	// the later one counts
	register(`{"ID": "0", "Name": "Shop", "Address": "10.0.0.2", "Port": 80, "Weights": {"Passing": 7, "Warning": 1}}`)
	register(`{"ID": "1", "Name": "Shop", "Port": 80}`)
	register(`{"ID": "2", "Name": "Shop", "Address": "10.0.0.2", "Port": 80, "Weights": {"Passing": 9, "Warning": 1}, "Meta": {"zone": "z", "weight": "heavy",
		"latitude": "NaN", "started": "yesterday", "metadata": "none", "team": "a"}}`)
	register(`{"ID": "3", "Name": "Shop"}`)
	// critical until it is passed
	register(`{"ID": "4", "Name": "Shop", "Address": "10.0.0.4", "Port": 80, "Check": {"TTL": "1m"}}`)
	register(`{"ID": "5", "Name": "shop", "Address": "10.0.0.5", "Port": 80}`)
	reach(t, r.Service("Shop"), discovery.Instance{
		Addr: "10.0.0.2:80", Weight: 9, Zone: "z", Metadata: yodel.Metadata{
			"weight": "heavy", "latitude": "NaN", "started": "yesterday", "metadata": "none", "team": "a",
		},
	}, discovery.Instance{Addr: "127.0.0.1:80"})
	reach(t, r.Service("shop"), discovery.Instance{Addr: "10.0.0.5:80"})
	reach(t, r.Service(".."))
	if !strings.Contains(told.String(), "record=3") || strings.Count(told.String(), "\n") != 1 {
		t.Errorf("told %s, want one line about service 3", told.String())
	}
}

// What rpcx's plugin writes: a key without the first slash, metadata as it is.
func TestRecordsOfRPCX(t *testing.T) {
	s := realserver.Consul(t)
	r := newRegistry(t, s.Addr, nil)
	found := r.RPCX("/rpcx_test", "Arith")
	reach(t, found)
	set := func(key, value string) { request(t, http.MethodPut, s.Addr, "/v1/kv/"+key, value, nil) }
	set("rpcx_test", "rpcx_path")
	set("rpcx_test/Arith", "Arith")
	set("rpcx_test/Arith/", "Arith")
	set("rpcx_test/Arith/tcp@10.0.0.1:8972", "weight=7&state=inactive")
	set("rpcx_test/Arith/tcp@10.0.0.2:8972", "")
	set("rpcx_test/Arithmetic/tcp@10.0.0.3:8972", "")
	one := discovery.Instance{Addr: "10.0.0.1:8972", Protocols: []string{"rpcx"}, Weight: 7, State: "inactive"}
	reach(t, found, one, discovery.Instance{Addr: "10.0.0.2:8972", Protocols: []string{"rpcx"}})
	request(t, http.MethodDelete, s.Addr, "/v1/kv/rpcx_test/Arith/tcp@10.0.0.2:8972", "", nil)
	reach(t, found, one)
}

// What rpcx's own library writes for a server of its own is found, and is gone with the server's
// session.
func TestAServerOfRPCX(t *testing.T) {
	s := realserver.Consul(t)
	theirs := realserver.RPCX(t, "consul", s.Addr, "/rpcx_test", "group=red&group=blue&weight=7&owner=anna")
	found := newRegistry(t, s.Addr, nil).RPCX("/rpcx_test", "Arith")
	reach(t, found, discovery.Instance{Addr: theirs.Addr, Protocols: []string{"rpcx"}, Group: "red,blue", Weight: 7, Metadata: yodel.Metadata{"owner": "anna"}})
	var sessions []struct{ ID string }
	request(t, http.MethodGet, s.Addr, "/v1/session/list", "", &sessions)
	if len(sessions) != 1 {
		t.Fatalf("%d sessions, want one of the server", len(sessions))
	}
	request(t, http.MethodPut, s.Addr, "/v1/session/destroy/"+sessions[0].ID, "", nil)
	reach(t, found)
}

func TestWhatConsulRefusesIsAnError(t *testing.T) {
	s := realserver.Consul(t)
	r := newRegistry(t, s.Addr, &consul.Options{Datacenter: "nowhere"})
	many := make(yodel.Metadata)
	for i := range 65 { // one more than Consul takes
		many[fmt.Sprint("key", i)] = "x"
	}
	err := r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "a:1", Metadata: many}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "400 Bad Request: Invalid Service Meta") {
		t.Errorf("got %v, want what Consul says", err)
	}
	for _, resolver := range []discovery.Resolver{r.Service("Shop"), r.RPCX("rpcx_test", "Shop")} {
		err = resolver.Watch(t.Context(), func(got []discovery.Instance) { t.Errorf("it said %v", got) })
		if err == nil || !strings.Contains(err.Error(), "No path to datacenter") {
			t.Errorf("got %v, want what Consul says", err)
		}
	}
}

func TestAccessControl(t *testing.T) {
	s := realserver.Consul(t, `acl { enabled = true
		default_policy = "deny"
		tokens { initial_management = "`+root+`"
			agent = "`+root+`" } }`)
	token := func(name, rules string) *consul.Registry {
		request(t, http.MethodPut, s.Addr, "/v1/acl/policy", map[string]string{"Name": name, "Rules": rules}, nil)
		var made struct{ SecretID string }
		request(t, http.MethodPut, s.Addr, "/v1/acl/token", map[string]any{"Policies": []any{map[string]string{"Name": name}}}, &made)
		return newRegistry(t, s.Addr, &consul.Options{Token: made.SecretID})
	}
	server := token("server", `service "Shop" { policy = "write" }`)
	client := token("client", `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`)
	nobody := newRegistry(t, s.Addr, nil)
	in := discovery.Instance{Addr: "10.0.0.1:80"}
	must(t, server.Announce(t.Context(), "Shop", in, time.Minute))
	must(t, server.Announce(t.Context(), "Shop", in, time.Minute))
	reach(t, client.Service("Shop"), in)
	for what, r := range map[string]*consul.Registry{"a client": client, "nobody": nobody} {
		if err := r.Announce(t.Context(), "Shop", in, time.Minute); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
			t.Errorf("%s announces: %v", what, err)
		}
		if err := r.Withdraw(t.Context(), "Shop", in.Addr); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
			t.Errorf("%s withdraws: %v", what, err)
		}
	}
	err := server.Service("Shop").Watch(t.Context(), func(got []discovery.Instance) { t.Errorf("it said %v", got) })
	if err == nil || !strings.Contains(err.Error(), "the token may not read what there is") { // the node, in this case
		t.Errorf("got %v, want an error", err)
	}
	must(t, server.Withdraw(t.Context(), "Shop", in.Addr))
}

// A script is a Consul that answers as it is told, for what a real one cannot be made to do.
type script struct {
	mu     sync.Mutex
	asked  []*http.Request
	answer func(n int, w http.ResponseWriter, req *http.Request)
}

func (s *script) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	n := len(s.asked)
	s.asked = append(s.asked, req)
	s.mu.Unlock()
	s.answer(n, w, req)
}

// lists answers a query with instances whose port is given.
func lists(w http.ResponseWriter, index string, port int) {
	if index != "" {
		w.Header().Set("X-Consul-Index", index)
	}
	_, _ = fmt.Fprintf(w, `[{"Service": {"ID": "1", "Service": "Shop", "Address": "a", "Port": %d}}]`, port)
}

func TestTokenDatacenterAndTLS(t *testing.T) {
	s := &script{answer: func(_ int, w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			lists(w, "1", 80)
		}
	}}
	server := httptest.NewTLSServer(s)
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	r := newRegistry(t, server.Listener.Addr().String(), &consul.Options{
		Token: "secret", Datacenter: "far", TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	})
	must(t, r.Announce(t.Context(), "Shop", discovery.Instance{Addr: "a:80"}, time.Minute))
	reach(t, r.Service("Shop"), discovery.Instance{Addr: "a:80"})
	must(t, r.Withdraw(t.Context(), "Shop", "a:80"))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, req := range s.asked {
		if req.Header.Get("X-Consul-Token") != "secret" {
			t.Errorf("%s %s came without the token", req.Method, req.URL)
		}
		want := "" // servers are in the datacenter of the agent, and so is what operators set for them
		if strings.HasPrefix(req.URL.Path, "/v1/health/") {
			want = "far"
		}
		if got := req.URL.Query().Get("dc"); got != want {
			t.Errorf("%s %s asks datacenter %q, want %q", req.Method, req.URL, got, want)
		}
	}
}

// A query is asked with the last index, and from the beginning when that went backwards or was not
// given.
func TestTheIndex(t *testing.T) {
	given := []string{"7", "9", "3", "4", "", "5", "6"}
	asked := []string{"", "7", "9", "", "4", "", "5"}
	s := &script{answer: func(n int, w http.ResponseWriter, req *http.Request) {
		if n >= len(given) {
			<-req.Context().Done()
			return
		}
		query := req.URL.Query()
		got := query.Get("index")
		if got != asked[n] || (got != "") != (query.Get("wait") == "60000ms") || (got != "") == query.Has("consistent") {
			t.Errorf("question %d is %s, want the index %q", n, req.URL, asked[n])
		}
		lists(w, given[n], n+1)
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	r := newRegistry(t, server.Listener.Addr().String(), nil)
	follow(t, r.Service("Shop"), func(got []discovery.Instance) bool {
		if got[0].Addr == "a:3" {
			t.Error("an answer from before the last one was used")
		}
		return got[0].Addr == fmt.Sprintf("a:%d", len(given))
	})
}

// An agent without a leader reads no settings, but passes checks.
func TestAnInstanceStaysWhileConsulHasNoLeader(t *testing.T) {
	s := &script{answer: func(n int, w http.ResponseWriter, req *http.Request) {
		switch {
		case !strings.HasPrefix(req.URL.Path, "/v1/kv/"):
		case n == 0:
			w.WriteHeader(http.StatusNotFound)
		default:
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
		}
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	r, in := newRegistry(t, server.Listener.Addr().String(), nil), discovery.Instance{Addr: "a:1"}
	must(t, r.Announce(t.Context(), "Shop", in, time.Minute))
	before := len(s.asked)
	if err := r.Announce(t.Context(), "Shop", in, time.Minute); err == nil || !strings.Contains(err.Error(), "No cluster leader") {
		t.Errorf("got %v, want what Consul says of the settings", err)
	}
	if got := s.asked[before].URL.Path; got != "/v1/agent/check/pass/service:Shop@a:1" {
		t.Errorf("the first request is %s, want a pass of the check", got)
	}
}

// The caller of Watch learns which records cannot be used.
func TestRecordsThatCannotBeUsedAreNamedToTheCallerOfWatch(t *testing.T) {
	server := httptest.NewServer(&script{answer: func(n int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("index") {
			<-r.Context().Done() // nothing changes
			return
		}
		w.Header().Set("X-Consul-Index", "1")
		if strings.HasPrefix(r.URL.Path, "/v1/kv/") {
			_, _ = w.Write([]byte(`[{"Key": "yodel-overrides/Shop/a:1", "Value": "ew=="}]`)) // {
			return
		}
		_, _ = w.Write([]byte(`[{"Service": {"ID": "torn", "Service": "Shop", "ModifyIndex": 1}}]`))
	}})
	defer server.Close()
	r := newRegistry(t, server.Listener.Addr().String(), nil)
	for resolver, want := range map[discovery.Resolver]string{r.Service("Shop"): "torn ", r.Overrides("Shop"): "yodel-overrides/Shop/a:1 a:1"} {
		var list unread.List
		ctx, cancel := context.WithCancel(unread.With(t.Context(), &list))
		_ = resolver.Watch(ctx, func([]discovery.Instance) {
			got := list.Records()
			if len(got) != 1 || got[0].Key+" "+got[0].Instance != want || got[0].Problem == "" {
				t.Errorf("got %+v, want %s", got, want)
			}
			cancel()
		})
		cancel()
	}
}

func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	for what, answer := range map[string]func(http.ResponseWriter){
		"no JSON":    func(w http.ResponseWriter) { w.Header().Set("X-Consul-Index", "1"); _, _ = w.Write([]byte("<html>")) },
		"half of it": func(w http.ResponseWriter) { _, _ = w.Write([]byte(`[{"Service": {}}`)) },
		"a redirection": func(w http.ResponseWriter) {
			w.Header().Set("Location", "/ui/")
			w.WriteHeader(http.StatusMovedPermanently)
		},
		"not found": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
	} {
		server := httptest.NewServer(&script{answer: func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w) }})
		r := newRegistry(t, server.Listener.Addr().String(), nil)
		for _, resolver := range []discovery.Resolver{r.Service("Shop"), r.RPCX("rpcx_test", "Shop")} {
			if err := resolver.Watch(t.Context(), func(got []discovery.Instance) { t.Errorf("%s: it said %v", what, got) }); err == nil {
				t.Errorf("%s: want an error", what)
			}
		}
		server.Close()
	}
}
