// SPDX-License-Identifier: Apache-2.0

// Package consul is a registry in the catalog of Consul. Servers are services of Consul, so
// Consul's UI, its API and its other clients see them.
//
//	r := consul.New("127.0.0.1:8500", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// A server registers with the Consul agent at that address, which should run on the same machine:
// the agent stores the service and its check, and the services of an agent that is gone disappear
// with it. The check has a time to live, and each announcement renews it. If the check is not
// renewed in time, the service is critical and clients no longer get it. Later Consul removes it.
// If an agent has lost its data, the server registers again.
//
// Clients watch the passing services of a name by blocking queries, including services that other
// programs registered. A service in maintenance mode is not passing. Consul answers with the whole
// list after each change. Therefore a service with thousands of instances that change all the time
// is expensive.
//
// The address, port, tags and weight of an instance are fields of Consul's own. The other fields
// are in Meta: group, version, zone, latitude, longitude, state, started, callRate and inflight
// under these names, and the instance's metadata under its own keys. Consul allows only letters,
// digits, hyphens and underscores in a key. Metadata with other keys is in the entry metadata, as
// JSON. Consul allows 64 entries of 512 bytes each, and refuses an instance with more. Consul does
// not distinguish names that differ only in case, but clients do.
//
// rpcx keeps its servers in Consul's key-value store. Registry.RPCX finds these instances, but
// yodel does not write them.
package consul

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Token is for Consul's access control. Servers need service:write, and key:read to read the
	// settings of operators. Clients need service:read and node:read. If a token is required and
	// the client has none, Consul reports that there are no instances.
	Token string
	// Datacenter is the data center in which clients look. Default: the agent's data center.
	// Servers always register in the agent's data center.
	Datacenter string
	// TLS is the configuration for TLS. Default: no TLS.
	TLS *tls.Config
	// Timeout limits how long a request waits for Consul. Default 5 s.
	Timeout time.Duration
	// Reconcile is how long a client waits for a change before it asks again. Default 1 min.
	Reconcile time.Duration
	// Logger logs services that have no address. Default slog.Default().
	Logger *slog.Logger
}

// A Registry is a registry in Consul. It may be used concurrently.
type Registry struct {
	opts      Options
	base      url.URL
	wrong     error // why the address cannot be used; nil if it can
	transport *http.Transport

	turns     chan struct{} // capacity atOnce: held by each query that waits for a change
	reads     chan struct{} // capacity readAtOnce: held by each other query
	following atomic.Int64  // how many queries there are

	mu         sync.Mutex
	registered map[string]*registered // by id
}

// registered is the state of a service that this process has registered with the agent.
type registered struct {
	turn chan struct{} // capacity 1: held while a request about the service is sent
	as   string        // the last definition that the agent accepted
	run  string        // the incarnation that was announced last
}

// New returns a registry in Consul. The agent at addr serves HTTP, or HTTPS if Options.TLS is set.
// New does not wait for a connection.
func New(addr string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{opts: *o, base: url.URL{Scheme: "http", Host: addr}, turns: make(chan struct{}, atOnce), reads: make(chan struct{}, readAtOnce), registered: make(map[string]*registered)}
	all, err := registry.Endpoints(addr)
	if err == nil && len(all) > 1 {
		err = errors.New("it takes one address, that of the agent")
	}
	r.base.Host, r.wrong = strings.TrimSpace(addr), err
	r.opts.Timeout = cmp.Or(max(o.Timeout, 0), 5*time.Second)
	r.opts.Reconcile = cmp.Or(max(o.Reconcile, 0), time.Minute)
	r.opts.Logger = o.Logger
	if o.TLS != nil {
		r.base.Scheme = "https"
	}
	r.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: r.opts.Timeout}).DialContext, TLSClientConfig: o.TLS,
		TLSHandshakeTimeout: r.opts.Timeout, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}
	return r
}

// Close closes the idle connections to Consul. Announced instances stay until their time to live
// has passed.
func (r *Registry) Close() error {
	r.transport.CloseIdleConnections()
	return nil
}

// leastRead is the time for which Announce waits at least for the settings of an instance that is
// announced already.
const leastRead = 200 * time.Millisecond

// Announce implements discovery.Registrar.
func (r *Registry) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	id := identity(service, in.Addr)
	known, err := r.turn(ctx, id)
	if err != nil {
		return err
	}
	defer func() { <-known.turn }()
	known.run = in.Incarnation
	pass := path("v1", "agent", "check", "pass", "service:"+id)
	accepted, reading := known.as, ctx
	if accepted != "" { // the agent passes a check without a leader, and reads no setting without one
		err = r.put(ctx, pass, nil)
		if _, refused := errors.AsType[*refusal](err); refused {
			accepted = "" // the agent does not know the check, because it has lost its data
		} else if err != nil {
			return err
		}
		reading, cancel = context.WithTimeout(ctx, max(ttl/10, leastRead)) // the checks of other services wait for it
		defer cancel()
	}
	if in, err = r.settled(reading, service, in); err != nil {
		return err
	}
	what, err := define(service, in, ttl)
	if err != nil {
		return fmt.Errorf("consul: %s: %w", in.Addr, err)
	}
	body, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("consul: %s: %w", in.Addr, err)
	}
	if accepted == string(body) {
		return nil
	}
	known.as = ""
	if err = r.put(ctx, path("v1", "agent", "service", "register"), body); err != nil {
		return err
	}
	// A restarted agent reports a service as passing only after a pass for its check.
	if err = r.put(ctx, pass, nil); err != nil {
		return err
	}
	known.as = string(body)
	return nil
}

// Withdraw implements discovery.Registrar. It leaves the record of another process that has
// announced itself at addr since.
func (r *Registry) Withdraw(ctx context.Context, service, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	id := identity(service, addr)
	known, err := r.turn(ctx, id)
	if err != nil {
		return err
	}
	defer func() { <-known.turn }()
	known.as = ""
	if other, err := r.ofAnother(ctx, id, known.run); other || err != nil {
		return err
	}
	err = r.put(ctx, path("v1", "agent", "service", "deregister", id), nil)
	if no, refused := errors.AsType[*refusal](err); refused && strings.HasPrefix(no.text, "Unknown service") {
		return nil
	}
	return err
}

// ofAnother reports whether the agent's record with an id has another incarnation than run.
func (r *Registry) ofAnother(ctx context.Context, id, run string) (bool, error) {
	if run == "" {
		return false, nil
	}
	at := path("v1", "agent", "service", id)
	resp, err := r.send(ctx, http.MethodGet, at, nil, nil)
	if no, refused := errors.AsType[*refusal](err); refused && no.code == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("consul: GET %s: %w", at, err)
	}
	defer resp.Body.Close()
	var found struct {
		Meta map[string]string `json:"Meta"`
	}
	if err = json.NewDecoder(resp.Body).Decode(&found); err != nil {
		return false, fmt.Errorf("consul: GET %s: %w", at, err)
	}
	other := found.Meta[metaRun]
	return other != "" && other != run, nil
}

// turn waits until no other request about a service is being sent, and returns the service's state.
func (r *Registry) turn(ctx context.Context, id string) (*registered, error) {
	r.mu.Lock()
	known := r.registered[id]
	if known == nil {
		known = &registered{turn: make(chan struct{}, 1)}
		r.registered[id] = known
	}
	r.mu.Unlock()
	select {
	case known.turn <- struct{}{}:
		return known, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("consul: %w", context.Cause(ctx))
	}
}

// path returns the path of a URL with these parts, escaped so that Consul decodes them unchanged.
func path(parts ...string) string {
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/" + strings.Join(parts, "/")
}

// A refusal is an answer of Consul with a status other than 200.
type refusal struct {
	code   int
	text   string
	header http.Header
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", r.code, http.StatusText(r.code), r.text)
}

// put sends a change to Consul.
func (r *Registry) put(ctx context.Context, path string, body []byte) error {
	resp, err := r.send(ctx, http.MethodPut, path, nil, body)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if err != nil {
		return fmt.Errorf("consul: PUT %s: %w", path, err)
	}
	return nil
}

// send sends a request. It returns a refusal if the status of the answer is not 200.
func (r *Registry) send(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	if r.wrong != nil {
		return nil, fmt.Errorf("the agent at %q: %w", r.base.Host, r.wrong)
	}
	at := r.base.String() + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// This header is not sent: it allows net/http to retry each request after a lost connection.
	req.Header["Idempotency-Key"] = nil
	if r.opts.Token != "" {
		req.Header.Set("X-Consul-Token", r.opts.Token)
	}
	resp, err := r.transport.RoundTrip(req)
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 500))
	resp.Body.Close()
	if err != nil {
		return nil, err
	}
	return nil, &refusal{resp.StatusCode, strings.TrimSpace(string(text)), resp.Header}
}
