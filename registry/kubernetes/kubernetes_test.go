// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
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

// options are those to reach a server at an address.
func options(t *testing.T, s *realserver.KubernetesServer, addr string) *Options {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte(s.Token+"\n"), 0o600))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CA)
	return &Options{
		Server: "https://" + addr, TokenFile: token, Timeout: 5 * time.Second,
		TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
}

// open returns a registry that is closed with the test.
func open(t *testing.T, o *Options) *Registry {
	t.Helper()
	r := New(o)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// An admin does what Kubernetes itself does, and what people do.
type admin struct {
	*api
	t *testing.T
}

func newAdmin(t *testing.T, o *Options) admin {
	t.Helper()
	a, err := connect(o)
	must(t, err)
	t.Cleanup(a.close)
	return admin{a, t}
}

func (a admin) apply(s slice) {
	a.t.Helper()
	s.APIVersion, s.Kind = "discovery.k8s.io/v1", "EndpointSlice"
	must(a.t, a.do(context.Background(), request{
		method: http.MethodPatch, path: path("default", s.Metadata.Name), body: s, kind: "application/apply-patch+yaml",
		query: url.Values{"fieldManager": {"test"}, "force": {"true"}},
	}, nil))
}

// remove deletes the slices with a label.
func (a admin) remove(selector string) {
	a.t.Helper()
	must(a.t, a.do(context.Background(), request{method: http.MethodDelete, path: path("default", ""), query: url.Values{"labelSelector": {selector}}}, nil))
}

func (a admin) slices(selector string) []slice {
	a.t.Helper()
	var all list
	must(a.t, a.do(context.Background(), request{method: http.MethodGet, path: path("default", ""), query: url.Values{"labelSelector": {selector}}}, &all))
	return all.Items
}

const managed = "endpointslice.kubernetes.io/managed-by=yodel"

func TestRegistry(t *testing.T) {
	server := realserver.Kubernetes(t)
	network := realserver.Between(t, server.Addr)
	through, direct := options(t, server, network.Addr), options(t, server, server.Addr)
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: open(t, through), Another: open(t, through),
		Service: func(name string) discovery.Resolver { return open(t, through).Service(name) },
		Kill:    server.Kill, Restart: server.Restart, RestartEmpty: server.RestartEmpty,
		Stop: server.Stop, Continue: server.Continue, Slow: network.Slow,
		Expire: func() { newAdmin(t, direct).remove(managed) },
	})
	t.Run("partition", func(t *testing.T) { partition(t, server) })
	t.Run("dead", func(t *testing.T) { dead(t, direct) })
	t.Run("readable", func(t *testing.T) { readable(t, direct) })
	t.Run("token", func(t *testing.T) { token(t, server, direct) })
	t.Run("service", func(t *testing.T) { services(t, direct) })
	t.Run("rules", func(t *testing.T) { ruled(t, server) })
	t.Run("contract", func(t *testing.T) { contract(t, direct, server.Kill) })
}

// partition tries what differs from a server that is stopped: the server lives, and its watches
// end.
func partition(t *testing.T, server *realserver.KubernetesServer) {
	network := realserver.Between(t, server.Addr)
	o := options(t, server, network.Addr)
	o.Timeout = time.Second
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: open(t, o),
		Service:   func(name string) discovery.Resolver { return open(t, o).Service(name) },
		Instances: 50, Stop: network.Cut, Continue: network.Heal,
	})
}

// dead checks that clients delete what nobody keeps alive, and nothing else.
func dead(t *testing.T, o *Options) {
	a, r := newAdmin(t, o), open(t, o)
	a.remove(managed)
	must(t, r.Announce(t.Context(), "Dead", discovery.Instance{Addr: "10.0.0.1:1"}, time.Second))
	must(t, r.Announce(t.Context(), "Dead", discovery.Instance{Addr: "10.0.0.2:1"}, time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- r.Service("Dead").Watch(ctx, func([]discovery.Instance) {}) }()
	for len(a.slices(managed)) > 1 && ctx.Err() == nil {
		<-time.After(100 * time.Millisecond)
	}
	<-time.After(time.Second) // in which it might delete the other one
	if left := a.slices(managed); len(left) != 1 || left[0].Metadata.Annotations[annotationKey] != "yodel/Dead/10.0.0.2:1" {
		t.Errorf("what is left is %+v", left)
	}
	cancel()
	must(t, <-ended)
}

// readable checks that people see what an instance is.
func readable(t *testing.T, o *Options) {
	a := newAdmin(t, o)
	a.remove(managed)
	must(t, open(t, o).Announce(t.Context(), "Shop.Arith", discovery.Instance{Addr: "10.0.0.1:8972", Weight: 2}, time.Minute))
	all := a.slices(managed)
	if len(all) != 1 {
		t.Fatalf("got %+v, want one slice", all)
	}
	one := all[0]
	if !strings.HasPrefix(one.Metadata.Name, "yodel-shop-arith-10-0-0-1-8972-") || one.Endpoints[0].Addresses[0] != "10.0.0.1" || one.Ports[0].Port != 8972 {
		t.Errorf("got %+v", one)
	}
	if want := `{"addr":"10.0.0.1:8972","weight":2}`; one.Metadata.Annotations[annotationValue] != want {
		t.Errorf("got %s, want %s", one.Metadata.Annotations[annotationValue], want)
	}
}

// token checks that a token is read again, and that what the server says of a wrong one is told.
func token(t *testing.T, server *realserver.KubernetesServer, o *Options) {
	r := open(t, o)
	must(t, os.WriteFile(o.TokenFile, []byte("old"), 0o600))
	err := r.Announce(t.Context(), "Token", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute)
	if !is(err, http.StatusUnauthorized) {
		t.Errorf("got %v, want that it is not authorized", err)
	}
	err = Service("arith", o).Watch(t.Context(), func([]discovery.Instance) { t.Error("it says something") })
	if !is(err, http.StatusUnauthorized) {
		t.Errorf("got %v, want that it is not authorized", err)
	}
	must(t, os.WriteFile(o.TokenFile, []byte(server.Token), 0o600))
	must(t, r.Announce(t.Context(), "Token", discovery.Instance{Addr: "10.0.0.1:1"}, time.Minute))
}

func yes() *bool { return new(true) }
func no() *bool  { return new(false) }

// part returns a slice of the Service arith.
func part(name, addressType string, number int, endpoints ...endpoint) slice {
	return slice{
		Metadata:    metadata{Name: name, Labels: map[string]string{labelService: "arith", labelVersion: "v2", labelWeight: "3"}},
		AddressType: addressType, Endpoints: endpoints, Ports: []port{{"metrics", 9090}, {"yodel", number}},
	}
}

// pod returns an endpoint for a pod.
func pod(name, addr string, c conditions) endpoint {
	e := endpoint{Addresses: []string{addr}, Conditions: c, Zone: "eu-1a", NodeName: "node-1"}
	e.TargetRef.Name, e.TargetRef.UID = name, "uid-"+name
	return e
}

// instance returns what pod is.
func instance(name, addr, state string) discovery.Instance {
	return discovery.Instance{
		Addr: addr, Version: "v2", Weight: 3, Zone: "eu-1a", State: state, Metadata: yodel.Metadata{"pod": name, "node": "node-1"},
	}
}

// services follows a Service as its pods come and go.
func services(t *testing.T, o *Options) {
	a := newAdmin(t, o)
	said := make(chan []discovery.Instance, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Service("default/arith:yodel", o).Watch(ctx, func(all []discovery.Instance) { said <- all })
	}()
	want := func(want ...discovery.Instance) {
		t.Helper()
		late := time.After(20 * time.Second)
		for got := []discovery.Instance(nil); ; {
			select {
			case got = <-said:
			case <-late:
				t.Fatalf("got %+v, want %+v", got, want)
			}
			if len(got) == len(want) && (len(got) == 0 || reflect.DeepEqual(got, want)) {
				return
			}
		}
	}
	want()
	a.apply(part("arith-1", "IPv4", 8972, pod("a", "10.1.0.1", conditions{Ready: yes()}), pod("b", "10.1.0.2", conditions{Ready: no()})))
	want(instance("a", "10.1.0.1:8972", ""))
	a.apply(part("arith-2", "IPv4", 8973, pod("c", "10.1.0.3", conditions{})))
	want(instance("a", "10.1.0.1:8972", ""), instance("c", "10.1.0.3:8973", ""))
	a.apply(part("arith-1", "IPv4", 8972, pod("a", "10.1.0.1", conditions{Ready: no(), Terminating: true}), pod("b", "10.1.0.2", conditions{Ready: yes()})))
	want(instance("a", "10.1.0.1:8972", "inactive"), instance("b", "10.1.0.2:8972", ""), instance("c", "10.1.0.3:8973", ""))
	a.apply(part("arith-6", "IPv6", 8972, pod("b", "fd00::2", conditions{Ready: yes()}), pod("d", "fd00::4", conditions{Ready: yes()})))
	a.apply(part("arith-1", "IPv4", 8972, pod("b", "10.1.0.2", conditions{Ready: yes()})))
	want(instance("b", "10.1.0.2:8972", ""), instance("c", "10.1.0.3:8973", ""), instance("d", "[fd00::4]:8972", ""))
	a.remove(labelService + "=arith")
	want()
	cancel()
	must(t, <-ended)
}

// contract runs the suite for resolvers. Kubernetes refuses addresses on loopback, except as if
// they were names.
func contract(t *testing.T, o *Options, fail func()) {
	a := newAdmin(t, o)
	known := make(map[string]bool)
	set := func(instances []discovery.Instance) {
		names := make(map[string]bool)
		for _, in := range instances {
			at := netip.MustParseAddrPort(in.Addr)
			name := fmt.Sprintf("arith-%d", at.Port())
			names[name] = true
			a.apply(part(name, "FQDN", int(at.Port()), endpoint{Addresses: []string{at.Addr().String()}}))
		}
		for name := range known {
			if !names[name] {
				must(t, a.do(context.Background(), request{method: http.MethodDelete, path: path("default", name)}, nil))
			}
		}
		known = names
	}
	yodeltest.TestResolver(t, Service("arith:yodel", o), set, fail)
}

func TestPorts(t *testing.T) {
	one := []port{{"", 8972}}
	two := []port{{"metrics", 9090}, {"yodel", 8972}}
	for _, test := range []struct {
		wanted string
		ports  []port
		want   int
	}{
		{"", one, 8972}, {"8972", one, 8972}, {"yodel", one, 0}, {"", two, 0}, {"yodel", two, 8972}, {"9090", two, 9090}, {"1", two, 0},
		{"8972", nil, 8972}, {"yodel", nil, 0}, {"", nil, 0}, {"yodel", []port{{"yodel", 0}}, 0},
	} {
		s := service{name: "arith", port: test.wanted}
		got, err := s.number(slice{Ports: test.ports, Endpoints: []endpoint{{}}})
		if got != test.want || (err == nil) != (test.want > 0) {
			t.Errorf("port %q of %v: got %d, %v, want %d", test.wanted, test.ports, got, err, test.want)
		}
	}
	if _, err := (&service{name: "arith", port: "yodel"}).instances([]slice{{}}); err != nil {
		t.Errorf("a Service without pods: %v", err)
	}
}

func TestAPodInTwoSlices(t *testing.T) {
	s := &service{name: "arith", port: "yodel"}
	ending := pod("a", "10.1.0.1", conditions{Terminating: true})
	got, err := s.instances([]slice{
		part("x", "IPv4", 1, ending), part("y", "IPv4", 1, pod("a", "10.1.0.1", conditions{})), part("z", "IPv4", 1, ending),
	})
	if want := []discovery.Instance{instance("a", "10.1.0.1:1", "")}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// A pod has the address of one that terminates, as a pod with the network of its host has. The pod
// that is ready counts, in whatever order the two are listed.
func TestAPodAtTheAddressOfAnother(t *testing.T) {
	s := &service{name: "arith", port: "yodel"}
	var both []endpoint
	var want []discovery.Instance
	for i := range 32 {
		addr := fmt.Sprintf("10.1.0.%d", 10+i)
		ready, ending := pod(fmt.Sprint("new-", i), addr, conditions{}), pod(fmt.Sprint("old-", i), addr, conditions{Terminating: true})
		if i%2 == 0 {
			ready, ending = pod(fmt.Sprint("old-", i), addr, conditions{}), pod(fmt.Sprint("new-", i), addr, conditions{Terminating: true})
		}
		both = append(both, ending, ready)
		want = append(want, instance(ready.TargetRef.Name, addr+":1", ""))
	}
	got, err := s.instances([]slice{part("x", "IPv4", 1, both...)})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// A record of which nobody can say how long it lives is dead, and hurts no client.
func TestTimesToLiveThatNobodyCanMean(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "": 0, "soon": 0, "-2h": 0, "2562047h": longest,
	} {
		one := slice{Metadata: metadata{Annotations: map[string]string{annotationTTL: text}}}
		if got, end := one.ttl(), time.Until(later(one)); got != want || end < want-time.Minute || end > 2*want+time.Minute {
			t.Errorf("%q: it lives for %v, and is deleted after %v", text, got, end)
		}
	}
}

// TestInCluster is about a process in a pod.
func TestInCluster(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":%q}}]}`, req.URL.Path+" "+req.Header.Get("Authorization"))
	}))
	defer server.Close()
	host, number, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err = connectFrom(nil, "nowhere"); err == nil || !strings.Contains(err.Error(), "no cluster") {
		t.Errorf("got %v, want that there is no cluster", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", number)
	folder := t.TempDir()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for name, text := range map[string]string{"namespace": "shop", "token": "first\n", "ca.crt": authority} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	a, err := connectFrom(nil, folder)
	must(t, err)
	defer a.close()
	for _, token := range []string{"first", "second"} {
		must(t, os.WriteFile(filepath.Join(folder, "token"), []byte(token), 0o600))
		var all list
		must(t, a.do(t.Context(), request{method: http.MethodGet, path: path(a.Namespace, "")}, &all))
		if want := "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices Bearer " + token; all.Items[0].Metadata.Name != want {
			t.Errorf("got %s, want %s", all.Items[0].Metadata.Name, want)
		}
	}
}

// TestAWatchGoesOn checks what happens when a watch ends, and when the server has forgotten where
// it was, which takes a real one minutes.
func TestAWatchGoesOn(t *testing.T) {
	var asked atomic.Int64
	lists := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		lists <- q.Get("watch") + q.Get("resourceVersion")
		if !q.Has("watch") {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"%d"},"items":[]}`, 100*asked.Add(1))
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-time.After(shortest):
		case <-req.Context().Done():
			return
		}
		switch q.Get("resourceVersion") {
		case "100":
			io.WriteString(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"150"}}}`)
		case "150":
			io.WriteString(w, `{"type":"ERROR","object":{"code":410,"message":"too old"}}`)
		default:
			<-req.Context().Done()
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Service("a/b", &Options{Server: server.URL, Options: registry.Options{Reconcile: time.Hour}}).Watch(ctx, func([]discovery.Instance) {})
	}()
	for _, want := range []string{"", "true100", "true150", "", "true200"} {
		if got := <-lists; got != want {
			t.Errorf("got request %q, want %q", got, want)
		}
	}
	cancel()
	must(t, <-ended)
}
