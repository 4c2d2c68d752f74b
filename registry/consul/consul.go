// SPDX-License-Identifier: Apache-2.0

// Package consul is a registry in the catalog of Consul: servers are services of Consul, which its
// UI, its API and its other clients see as such.
//
//	r := consul.New("127.0.0.1:8500", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []yodel.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// A server registers with the Consul agent at that address, which should be on its own machine: it
// is the agent that knows the service and its check, and an agent that has gone takes its services
// with it. The check has a time to live, which each announcement renews. When it was not renewed in
// time the service is critical, which is as good as gone, and later on Consul removes it. An agent
// that has lost its memory is told again.
//
// Clients follow the passing services of a name by blocking queries, also those that others
// registered. One that is in maintenance, as Consul calls it, is not among them. Consul answers
// with the whole list after each change: a service of thousands of instances that change all the
// time is dear.
//
// Address, port, tags and weight of an instance are Consul's own; the rest is in Meta: group,
// version, zone, latitude, longitude, state, started, callRate and inflight under these names, and
// the instance's metadata under its own ones. What Consul does not allow there, as it allows only
// letters, digits, hyphens and underscores in a key, is in the entry metadata, as JSON. Consul
// takes 64 entries of 512 bytes each, and refuses an instance with more. Consul does not tell names
// apart that differ only in case: clients do.
//
// Of rpcx, which keeps its servers in Consul's key-value store, instances can be found with
// Registry.RPCX. Yodel does not write there.
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
	"time"

	"github.com/yodel-rpc/yodel"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Token is for Consul's access control: servers need service:write, and key:read to learn what
	// operators have set; clients service:read and node:read. To a client that has no token at all,
	// and would need one, Consul says that there are no instances.
	Token string
	// Datacenter is where clients look. Default: that of the agent. Servers are always in that of
	// the agent.
	Datacenter string
	// TLS is how to connect. Default: without TLS.
	TLS *tls.Config
	// Timeout is how long Consul may take to answer. Default 5 s.
	Timeout time.Duration
	// Reconcile is how long a client waits for a change before it asks again. Default 1 min.
	Reconcile time.Duration
	// Logger is told of services that cannot be reached. Default slog.Default().
	Logger *slog.Logger
}

// A Registry is a registry in Consul. It may be used concurrently.
type Registry struct {
	opts      Options
	base      url.URL
	transport *http.Transport

	mu         sync.Mutex
	registered map[string]*registered // by id
}

// registered is what the agent was told of a service.
type registered struct {
	turn chan struct{} // capacity 1: the right to tell it something
	as   string        // the last definition that it took
}

// New returns a registry in the Consul whose agent serves HTTP, or with the option TLS HTTPS, at
// addr. It does not wait for a connection.
func New(addr string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{opts: *o, base: url.URL{Scheme: "http", Host: addr}, registered: make(map[string]*registered)}
	r.opts.Timeout = cmp.Or(max(o.Timeout, 0), 5*time.Second)
	r.opts.Reconcile = cmp.Or(max(o.Reconcile, 0), time.Minute)
	r.opts.Logger = cmp.Or(o.Logger, slog.Default())
	if o.TLS != nil {
		r.base.Scheme = "https"
	}
	r.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: r.opts.Timeout}).DialContext, TLSClientConfig: o.TLS,
		TLSHandshakeTimeout: r.opts.Timeout, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
	}
	return r
}

// Close closes the connections to Consul that nobody uses. What was announced stays until its time
// to live has passed.
func (r *Registry) Close() error {
	r.transport.CloseIdleConnections()
	return nil
}

// Announce implements yodel.Registrar.
func (r *Registry) Announce(ctx context.Context, service string, in yodel.Instance, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	in, err := r.settled(ctx, service, in)
	if err != nil {
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
	known, err := r.turn(ctx, what.ID)
	if err != nil {
		return err
	}
	defer func() { <-known.turn }()
	pass := path("v1", "agent", "check", "pass", "service:"+what.ID)
	if known.as == string(body) {
		err = r.put(ctx, pass, nil)
		if _, refused := errors.AsType[*refusal](err); !refused {
			return err
		}
		// It does not know the check: it has lost its memory.
	}
	known.as = ""
	if err = r.put(ctx, path("v1", "agent", "service", "register"), body); err != nil {
		return err
	}
	// An agent that starts again takes only what was passed once for passing.
	if err = r.put(ctx, pass, nil); err != nil {
		return err
	}
	known.as = string(body)
	return nil
}

// Withdraw implements yodel.Registrar.
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
	err = r.put(ctx, path("v1", "agent", "service", "deregister", id), nil)
	if no, refused := errors.AsType[*refusal](err); refused && strings.HasPrefix(no.text, "Unknown service") {
		return nil
	}
	return err
}

// turn waits for the turn to tell the agent about a service, and returns what it was told before.
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

// path returns the path of a URL whose parts, as Consul shall see them, are these.
func path(parts ...string) string {
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/" + strings.Join(parts, "/")
}

// A refusal is an answer of Consul that is none of success.
type refusal struct {
	code   int
	text   string
	header http.Header
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", r.code, http.StatusText(r.code), r.text)
}

// put asks for a change.
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

// send sends a request. What Consul refuses is an error.
func (r *Registry) send(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	at := r.base.String() + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// not sent: it tells net/http that each request may be sent again when a connection was lost
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
