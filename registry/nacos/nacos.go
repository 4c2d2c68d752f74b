// SPDX-License-Identifier: Apache-2.0

// Package nacos is a registry in Nacos, by its Open API over HTTP.
//
//	r := nacos.New("10.0.0.1:8848", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []yodel.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// It uses the standard library alone; the SDK of Nacos needs 259 modules. What that costs is that
// Nacos tells nobody of a change over HTTP: a client asks again every two seconds, and is sent the
// whole service, 400 bytes for each instance.
//
// Records are ephemeral instances that a heartbeat keeps alive, as the SDK writes them: Nacos's
// console shows their address, weight and metadata, other clients of Nacos can call them, and what
// others have registered can be resolved. The fields of yodel.Instance for which Nacos has no field
// of its own are metadata: version, zone, group and so on; all metadata together may have 1,024
// bytes. An inactive instance has weight 0, which Nacos's own clients do not call either. Nacos
// looks for records whose time to live has passed every 5 s, and forgets all when it is restarted.
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

	"github.com/yodel-rpc/yodel"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Namespace, Group and Cluster are where in Nacos services are: the id of a namespace, a group
	// of services, a cluster of the instances of each. Default "public", "DEFAULT_GROUP" and
	// "DEFAULT".
	Namespace, Group, Cluster string
	// Username and Password are for Nacos's authentication. Default none.
	Username, Password string
	// TLS is how to connect to servers with https:// before their address. Default: as the system
	// does.
	TLS *tls.Config
	// Every is how often, about, clients ask for what has changed. Default 2 s.
	Every time.Duration
	// Timeout is how long a server may take to answer before another one is asked. Default 5 s.
	Timeout time.Duration
	// V1 makes it use version 1 of the API, the one that Nacos had before version 3.
	V1 bool
}

// A Registry is a registry in Nacos. It may be used concurrently.
type Registry struct {
	opts    Options
	servers []string // their URLs
	http    *http.Client
	session chan session // of one, which who uses it takes out

	mu        sync.Mutex
	preferred int               // the server that answered last
	written   map[record]string // what Nacos was told of a record last
}

// A record is one of a service and an address.
type record struct{ service, addr string }

// forever is the longest duration of an option, a hundred years: sums of two such durations do not
// overflow.
const forever = 100 * 365 * 24 * time.Hour

// New returns a registry in the Nacos servers at these addresses, separated by commas. Each is
// HOST:PORT or a URL.
func New(servers string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{opts: *o, session: make(chan session, 1), written: make(map[record]string)}
	r.session <- session{}
	opts := &r.opts
	opts.Namespace = cmp.Or(opts.Namespace, "public")
	opts.Group = cmp.Or(opts.Group, "DEFAULT_GROUP")
	opts.Cluster = cmp.Or(opts.Cluster, "DEFAULT")
	opts.Every = min(cmp.Or(max(opts.Every, 0), 2*time.Second), forever)
	opts.Timeout = cmp.Or(max(opts.Timeout, 0), 5*time.Second)
	for server := range strings.SplitSeq(servers, ",") {
		server = strings.TrimSuffix(strings.TrimSpace(server), "/")
		if !strings.Contains(server, "://") {
			server = "http://" + server
		}
		r.servers = append(r.servers, server)
	}
	r.http = &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: opts.TLS.Clone(), MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}}
	return r
}

// Close closes the connections to Nacos that are idle. What was announced stays until its time to
// live has passed.
func (r *Registry) Close() error {
	r.http.CloseIdleConnections()
	return nil
}

// Announce implements yodel.Registrar. A record that Nacos knows as it is gets a heartbeat: that is
// no news for other clients, while registering it again would be.
func (r *Registry) Announce(ctx context.Context, service string, in yodel.Instance, ttl time.Duration) error {
	about, err := r.describe(service, in, ttl)
	if err != nil {
		return err
	}
	key, text := record{service, in.Addr}, about.Encode()
	if r.swap(key, "") == text { // nothing is known of it until Nacos has answered
		known, err := r.beat(ctx, service, in.Addr)
		if err != nil {
			return err
		}
		if known {
			r.swap(key, text)
			return nil
		}
	}
	if err = r.register(ctx, about); err == nil {
		r.swap(key, text)
	}
	return err
}

// Withdraw implements yodel.Registrar.
func (r *Registry) Withdraw(ctx context.Context, service, addr string) error {
	r.swap(record{service, addr}, "")
	return r.deregister(ctx, r.identify(service, addr))
}

// swap notes what Nacos was told of a record, and returns what it was told before.
func (r *Registry) swap(key record, text string) (before string) {
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

// identify returns the parameters of a request about the record of an address.
func (r *Registry) identify(service, addr string) url.Values {
	q := r.about(service)
	ip, port, _ := split(addr)
	q.Set("ip", ip)
	q.Set("port", port)
	q.Set("clusterName", r.opts.Cluster)
	q.Set("ephemeral", "true")
	return q
}

// about returns the parameters of a request about a service.
func (r *Registry) about(service string) url.Values {
	return url.Values{"namespaceId": {r.opts.Namespace}, "groupName": {r.opts.Group}, "serviceName": {escape(service)}}
}

// escape makes of a name one without the characters that Nacos refuses, and without those between
// its groups and services.
func escape(name string) string { return strings.ReplaceAll(url.PathEscape(name), "@@", "%40%40") }
