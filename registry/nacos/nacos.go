// SPDX-License-Identifier: Apache-2.0

// Package nacos is a registry in Nacos, by its Open API over HTTP.
//
//	r := nacos.New("10.0.0.1:8848", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// It uses only the standard library; the SDK of Nacos needs 259 modules. The price is that Nacos
// does not report changes over HTTP. A client polls every two seconds, and each answer contains the
// whole service, with 400 bytes for each instance.
//
// Records are ephemeral instances in the format of the SDK, and a heartbeat keeps them alive.
// Nacos's console shows their address, weight and metadata, and other clients of Nacos can call
// them. Clients of yodel also find instances that other programs have registered. Fields of
// discovery.Instance for which Nacos has no field, such as version, zone and group, are in the
// metadata. All metadata of an instance together may have 1,024 bytes. An inactive instance has
// weight 0, so that Nacos's own clients do not call it either. Nacos checks every 5 s for records
// whose time to live has passed, and loses all records when it is restarted. Rules
// and the settings of operators are in configurations of Nacos, which it stores.
package nacos

import (
	"cmp"
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Namespace, Group and Cluster select the services in Nacos: the id of a namespace, a group of
	// services, and a cluster of each service's instances. Default "public", "DEFAULT_GROUP" and
	// "DEFAULT".
	Namespace, Group, Cluster string
	// Username and Password are for Nacos's authentication. Default: no authentication.
	Username, Password string
	// TLS is the configuration for servers whose address begins with https://. Default: the
	// defaults of net/http.
	TLS *tls.Config
	// Every is the approximate interval at which clients poll. Default 2 s.
	Every time.Duration
	// Timeout is how long a request waits for a server before it is sent to the next one. Default 5
	// s.
	Timeout time.Duration
	// V1 selects version 1 of the API, for Nacos servers before version 3.
	V1 bool
}

// A Registry is a registry in Nacos. It may be used concurrently.
type Registry struct {
	opts    Options
	servers []string // their URLs
	wrong   error    // why these cannot be used; nil if they can
	http    *http.Client
	session chan session // of the one session; empty while a request uses it

	mu        sync.Mutex
	preferred int               // the server to which the next request is sent first
	written   map[string]string // the last parameters that Nacos accepted for a record
	runs      map[string]string // the incarnations that were announced last, by record
}

// publicNamespace is the id of the usual namespace.
const publicNamespace = "public"

// connections is how many connections a server has at most. A console polls all services, and Nacos
// resets connections beyond its backlog.
const connections = 32

// New returns a registry in the Nacos servers at these addresses, separated by commas. Each is
// HOST:PORT or a URL.
func New(servers string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{opts: *o, session: make(chan session, 1), written: make(map[string]string), runs: make(map[string]string)}
	r.session <- session{}
	opts := &r.opts
	opts.Namespace = cmp.Or(opts.Namespace, publicNamespace)
	opts.Group = cmp.Or(opts.Group, "DEFAULT_GROUP")
	opts.Cluster = cmp.Or(opts.Cluster, "DEFAULT")
	opts.Every = defaults.Positive(opts.Every, 2*time.Second)
	opts.Timeout = cmp.Or(max(opts.Timeout, 0), 5*time.Second)
	all, err := registry.Endpoints(servers, "http", "https")
	r.wrong = err
	for _, server := range all {
		server = strings.TrimSuffix(server, "/")
		if !strings.Contains(server, "://") {
			server = "http://" + server
		}
		r.servers = append(r.servers, server)
	}
	r.http = &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: opts.TLS.Clone(), MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
		MaxConnsPerHost: connections,
	}}
	return r
}

// Close closes the idle connections to Nacos. Announced records stay until their time to live has
// passed.
func (r *Registry) Close() error {
	r.http.CloseIdleConnections()
	return nil
}

// Announce implements discovery.Registrar. If Nacos already has the record with the same content,
// Announce sends a heartbeat only. A new registration would look like a change to other clients.
func (r *Registry) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	in, err := r.settled(ctx, service, in)
	if err != nil {
		return err
	}
	about, err := r.describe(service, in, ttl)
	if err != nil {
		return err
	}
	id := r.identify(service, in.Addr)
	r.mu.Lock()
	r.runs[id.Encode()] = in.Incarnation
	r.mu.Unlock()
	return r.keep(ctx, id, about)
}

// keep registers the record that id identifies, or sends a heartbeat for it. About are all of its
// parameters.
func (r *Registry) keep(ctx context.Context, id, about url.Values) error {
	key, text := id.Encode(), about.Encode()
	if r.swap(key, "") == text { // the record's state is unknown until Nacos answers
		known, err := r.beat(ctx, id)
		if err != nil {
			return err
		}
		if known {
			r.swap(key, text)
			return nil
		}
	}
	err := r.register(ctx, about)
	if err == nil {
		r.swap(key, text)
	}
	return err
}

// Withdraw implements discovery.Registrar. It leaves the record of another process that has
// announced itself at addr since.
func (r *Registry) Withdraw(ctx context.Context, service, addr string) error {
	id := r.identify(service, addr)
	if fits(id, nil) != nil {
		return nil // Announce does not announce it either
	}
	r.mu.Lock()
	run := r.runs[id.Encode()]
	r.mu.Unlock()
	if run != "" {
		answer, err := r.list(ctx, service, r.opts.Cluster)
		if err != nil {
			return err
		}
		hosts, err := r.hosts(answer)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			if other := h.instance(); other.Addr == addr && other.Incarnation != "" && other.Incarnation != run {
				return nil
			}
		}
	}
	if err := r.drop(ctx, id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, id.Encode())
	return nil
}

// drop removes the record that id identifies.
func (r *Registry) drop(ctx context.Context, id url.Values) error {
	r.swap(id.Encode(), "")
	return r.deregister(ctx, id)
}

// swap sets the parameters that Nacos accepted for a record, and returns the previous ones.
func (r *Registry) swap(key, text string) (before string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.written[key]
	if text == "" {
		delete(r.written, key)
	} else {
		r.written[key] = text
	}
	return before
}

// identify returns the parameters that identify the record of an address.
func (r *Registry) identify(service, addr string) url.Values {
	q := r.about(service)
	ip, port, _ := split(addr)
	q.Set("ip", ip)
	q.Set("port", port)
	q.Set("clusterName", r.opts.Cluster)
	q.Set("ephemeral", "true")
	return q
}

// about returns the parameters that identify a service.
func (r *Registry) about(service string) url.Values {
	return url.Values{"namespaceId": {r.opts.Namespace}, "groupName": {r.opts.Group}, "serviceName": {escape(service)}}
}

// escape replaces the characters in a name that Nacos does not allow, such as Chinese letters, and
// the separator between a group and a service.
func escape(name string) string { return strings.ReplaceAll(url.PathEscape(name), "@@", "%40%40") }
