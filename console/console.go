// SPDX-License-Identifier: Apache-2.0

// Package console is a web console for a fleet of yodel servers. A Console is an http.Handler: a
// program mounts it on a listener of its own, or a yodel server serves it on its own port.
//
//	c, err := console.New(registry, &console.Options{Environment: "staging"})
//	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{http.New(&http.Options{Handler: c})}})
//
// The console keeps no data about calls. It reads the registry and the built-in methods of the
// instances, which answer if ServerOptions.Diagnostics is set. docs/console.md describes its
// screens, roles and security.
package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/rules"
)

// Options changes how a console works. The zero value has sensible defaults.
type Options struct {
	// Client has the options of the clients that read the instances and make calls, for example a
	// Transport with TLS, or metadata with a token. Default: the defaults of yodel.NewClient.
	Client *yodel.ClientOptions
	// Environment names the fleet, for example "staging". In "PROD", also if it is written as
	// "prod", a call of a method that is not read-only has to be confirmed with the name of the
	// method. Default "dev".
	Environment string
	// ReadOnly refuses every change, whatever the role of the user. Default false.
	ReadOnly bool
	// URL is the address of the console in browsers, if it is not where the console listens: behind
	// a proxy, for example "https://ops.example/yodel/". The console answers for its host, takes
	// changes from its pages, and serves its path, which the proxy may leave out or not. Default
	// none: changes come from pages of the host that the request names.
	URL string
	// Proxies are the addresses of proxies whose X-Forwarded-For says where a request comes from,
	// for the audit log and the limit of bad logins. Default none: it comes from where the
	// connection does.
	Proxies []netip.Prefix
	// Hosts are the values of the Host header that the console answers, without the port. Other
	// values are refused, because a page elsewhere may have pointed its own name at the console.
	// Default "localhost", "127.0.0.1" and "::1", and always the host of URL.
	Hosts []string
	// Authenticate returns the user of a request, if the program has a login of its own, for
	// example by client certificates or a proxy. It is called for requests without a session and
	// without one of Tokens. A user without a role is refused. Default none.
	Authenticate func(r *http.Request) User
	// Tokens let programs in, which send them as Authorization: Bearer. Default none.
	Tokens map[string]User
	// Audit is the file to which every change is appended, as a line of JSON. When it has reached
	// 16 MiB, it is renamed to Audit.old. Default none: the newest 1000 entries are in memory.
	Audit string
	// Logger gets every change too. Default slog.Default().
	Logger *slog.Logger
}

// A Role says what a user may do.
type Role int

// Each role may do what the roles before it may.
const (
	NoRole   Role = iota // nothing
	Viewer               // read
	Operator             // call methods, change rules, drain instances
	Admin                // invite users
)

// String returns "viewer", "operator", "admin" or "none".
func (r Role) String() string {
	switch r {
	case Viewer:
		return "viewer"
	case Operator:
		return "operator"
	case Admin:
		return "admin"
	case NoRole:
	}
	return "none"
}

// A User is who has sent a request.
type User struct {
	Name string
	Role Role
}

// A Console serves the web console. It may be used concurrently.
type Console struct {
	source  fleet.Source
	opts    Options
	url     *url.URL // as Options.URL says, or nil
	doors   doors
	audit   *audit
	fleet   collector
	book    *rules.Book // nil if the registry keeps no rules
	kept    kept[records]
	broken  kept[[]fleet.BrokenSetting]
	setMu   sync.Mutex
	set     map[string]*kept[map[string]setting] // by service
	mux     *http.ServeMux
	started time.Time
	ctx     context.Context //nolint:containedctx // it ends the work of the console
	stop    context.CancelFunc
	taps    taps
	places  chan struct{} // one for each question that may be under way at a time
}

// New returns a console for the services of a registry, or of another source. O may be nil. If the
// source is a registry that keeps settings of operators or rules, operators can change them. Close
// releases what the console holds.
func New(source fleet.Source, o *Options) (*Console, error) {
	if source == nil {
		return nil, errors.New("console: no source is given")
	}
	c := &Console{source: source, started: time.Now(), places: make(chan struct{}, maxAsked)}
	if o != nil {
		c.opts = *o
	}
	opts := &c.opts
	if opts.Environment = cmp.Or(opts.Environment, "dev"); strings.EqualFold(opts.Environment, prod) {
		opts.Environment = prod
	}
	if len(opts.Hosts) == 0 {
		opts.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	if opts.URL != "" {
		at, err := parseURL(opts.URL)
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		c.url = at
		opts.Hosts = append(slices.Clip(opts.Hosts), at.Hostname())
	}
	for token, user := range opts.Tokens {
		if len(token) < minToken {
			return nil, fmt.Errorf("console: the token of %s has %d bytes, and needs %d: openssl rand -hex 32 makes one", user.Name, len(token), minToken)
		}
	}
	log, err := openAudit(opts.Audit, opts.Logger)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c.audit = log
	c.doors.init(opts.Tokens)
	opts.Tokens = nil // the console keeps their hashes only
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.fleet.init(c.ctx, c.open)
	if book, err := rules.Open(source); err == nil {
		c.book = book
	}
	c.routes()
	return c, nil
}

// Close ends what the console is doing, and waits for it. Requests that come later fail.
func (c *Console) Close() error {
	c.stop()
	c.fleet.close()
	return c.audit.close()
}

// routes says which function serves which path, and which role it needs.
func (c *Console) routes() {
	c.mux = http.NewServeMux()
	read := func(path string, role Role, f func(r *http.Request) (any, error)) {
		c.mux.Handle("GET /api/"+path, c.reading(role, f))
	}
	read("me", Viewer, c.me)
	read("pulse", Viewer, c.pulse)
	read("overview", Viewer, c.overview)
	read("service", Viewer, c.service)
	read("instance", Viewer, c.instance)
	read("graph", Viewer, c.graph)
	read("samples", Viewer, c.samples)
	read("methods", Viewer, c.methods)
	read("registry", Viewer, c.registry)
	read("audit", Viewer, c.audits)
	read("checks", Viewer, c.checks)
	c.mux.Handle("GET /api/tap", c.allowing(Operator, c.tap))
	c.mux.HandleFunc("POST /api/login", c.login)
	change := func(path string, role Role, f func(r *http.Request, user User) (any, error)) {
		c.mux.Handle("POST /api/"+path, c.changing(role, f))
	}
	c.mux.Handle("POST /api/logout", c.allowing(Viewer, c.logout))
	change("invite", Admin, c.invite)
	change("instance", Operator, c.setInstance)
	change("call", Operator, c.call)
	c.mux.Handle("POST /api/rules/preview", c.allowing(Operator, func(w http.ResponseWriter, r *http.Request, user User) {
		v, err := c.preview(r, user) // it changes nothing, so a read-only console has it too
		reply(w, r, v, err)
	}))
	c.ruleRoutes(read, change)
	c.mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, http.StatusNotFound, "the console has no "+r.Method+" "+r.URL.Path)
	})
	c.mux.HandleFunc("/", c.page)
}

// ServeHTTP serves a request. Every check that does not depend on the path is here.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	plain := isPlainPath(r.URL)
	redirect := c.rebase(r)
	switch {
	case c.ctx.Err() != nil:
		refuse(w, r, http.StatusServiceUnavailable, "the console is closed")
	case !slices.Contains(c.opts.Hosts, hostOf(r)):
		refuse(w, r, http.StatusMisdirectedRequest, "the console does not answer for this host: Options.Hosts and Options.URL (yodel console --url) say for which it does")
	case !plain:
		refuse(w, r, http.StatusBadRequest, "the path is malformed")
	case redirect != "":
		http.Redirect(w, r, redirect, http.StatusTemporaryRedirect)
	default:
		r.RemoteAddr = c.clientOf(r).String()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		c.mux.ServeHTTP(w, r)
	}
}
