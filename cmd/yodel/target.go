// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/consul"
	"github.com/yodel-rpc/yodel/registry/dns"
	"github.com/yodel-rpc/yodel/registry/etcd"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/registry/kubernetes"
	"github.com/yodel-rpc/yodel/registry/mdns"
	"github.com/yodel-rpc/yodel/registry/nacos"
	"github.com/yodel-rpc/yodel/registry/redis"
	"github.com/yodel-rpc/yodel/registry/zookeeper"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// A target is the fleet that a command works on.
type target struct {
	name    string // for people, without secrets
	context string // the name of the context, or ""
	source  fleet.Source
	addrs   []string // of the servers, without a registry
	// registry is what the registry's package has made, for operators' settings and rules; nil
	// without a registry.
	registry any
	close    func() error
	client   *yodel.ClientOptions
	guarded  bool // changes ask for confirmation
}

// openTarget opens the fleet that the flags, the context or the environment name.
func (a *app) openTarget(ctx context.Context) (*target, error) {
	chosen, err := a.choose()
	if err != nil {
		return nil, err
	}
	client, err := a.clientOptions(&chosen)
	if err != nil {
		return nil, err
	}
	t := &target{context: chosen.name, client: client, guarded: chosen.Guarded, close: func() error { return nil }}
	a.target = t
	if len(chosen.At) > 0 {
		for i := range chosen.At {
			chosen.At[i] = strings.TrimSpace(chosen.At[i])
			if err := checkAddress(chosen.At[i]); err != nil {
				return nil, err
			}
		}
		t.name, t.addrs, t.source = strings.Join(chosen.At, ","), chosen.At, fleet.Addresses(client, chosen.At...)
		return t, nil
	}
	return t, t.open(ctx, chosen.Registry, a.o.timeout)
}

// checkAddress refuses what is no HOST:PORT.
func checkAddress(addr string) error {
	_, bare, scheme := strings.Cut(addr, "://")
	if !scheme {
		bare = addr
	}
	_, port, err := net.SplitHostPort(bare)
	number, bad := strconv.Atoi(port)
	switch {
	case scheme:
		return faultf(exitUsage, "--at %s: an address has no scheme", addr).
			with("try", "--at %s", strings.TrimRight(bare, "/")).with("", "--registry is for the URL of a registry, --wire for a protocol")
	case err != nil:
		return faultf(exitUsage, "--at %s: %s", addr, cmp.Or(problemOf(err), err.Error())).with("try", "--at %s:PORT", strings.Trim(addr, ":"))
	case bad == nil && (number < 0 || number > 65535):
		return faultf(exitUsage, "--at %s: ports go from 0 to 65535", addr)
	}
	return nil
}

// problemOf returns what is wrong with an address, without the address.
func problemOf(err error) string {
	if e, ok := errors.AsType[*net.AddrError](err); ok {
		return e.Err
	}
	return ""
}

// hintTLS returns a line that helps if a server could not be reached because one side uses TLS and
// the other side does not.
func (a *app) hintTLS(ctx context.Context, e *yodel.Error) [][2]string {
	const handshakeID = "YDL1108" // the TLS handshake failed
	addr := a.addressOf(e)
	switch {
	case addr == "":
		return nil
	case a.target.client.Transport != nil && e.ID == handshakeID && !speaksTLS(ctx, addr):
		return [][2]string{{"next", addr + " does not speak TLS: leave out --tls, --ca and --cert"}}
	case a.target.client.Transport == nil && e.AboutConnection() && speaksTLS(ctx, addr):
		return [][2]string{{"next", addr + " speaks TLS: give --ca FILE with its authority, or --tls if this machine trusts it"}}
	}
	return nil
}

// addressOf returns the address of the server that a call did not reach, or "".
func (a *app) addressOf(e *yodel.Error) string {
	if r := e.Report; r != nil && len(r.Attempts) > 0 {
		return r.Attempts[len(r.Attempts)-1].Addr
	}
	if a.target != nil && len(a.target.addrs) > 0 {
		return a.target.addrs[0]
	}
	return ""
}

// speaksTLS reports whether a server at addr answers a TLS handshake. Nothing but the handshake is
// sent to it.
func speaksTLS(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	d := stdtls.Dialer{Config: &stdtls.Config{InsecureSkipVerify: true, MinVersion: stdtls.VersionTLS12}} //nolint:gosec // no data follows
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		// A server that wants a certificate of the client speaks TLS too.
		_, alert := errors.AsType[stdtls.AlertError](err)
		return alert
	}
	_ = c.Close()
	return true
}

// choose returns the context to use.
func (a *app) choose() (profile, error) {
	known, err := a.loadContexts()
	if err != nil {
		return profile{}, err
	}
	p, err := a.chosen(known)
	if err != nil {
		return p, err
	}
	switch {
	case len(a.o.at) > 0:
		p.At, p.Registry, p.name = a.o.at, "", ""
	case a.o.registry != "":
		p.Registry, p.At, p.name = a.o.registry, nil, ""
	}
	if p.Registry == "" && len(p.At) == 0 {
		folder, ok := developerFolder()
		if !ok {
			return p, faultf(exitUsage, "no fleet is chosen").
				with("try", "yodel dev --demo       a fleet to try things with, in this folder").
				with("or", "yodel --registry etcd://127.0.0.1:2379 ls       yodel --at 127.0.0.1:8972 ls").
				with("or", "yodel ctx add prod --registry …")
		}
		p.Registry = "file:" + folder
	}
	return p, nil
}

// chosen returns the context that is named first: by --context, YODEL_CONTEXT, YODEL_REGISTRY,
// yodel.toml, or yodel ctx. The flags --at and --registry make the last three moot.
func (a *app) chosen(known *contexts) (profile, error) {
	named := func(name string) (profile, error) {
		p, ok := known.Contexts[name]
		if !ok {
			return p, known.unknown(name)
		}
		p.name = name
		return p, nil
	}
	if name := cmp.Or(a.o.context, a.env("YODEL_CONTEXT")); name != "" {
		return named(name)
	}
	if len(a.o.at) > 0 || a.o.registry != "" {
		return profile{}, nil
	}
	if url := a.env("YODEL_REGISTRY"); url != "" {
		return profile{Registry: url}, nil
	}
	of, path, err := loadProject()
	switch {
	case err != nil:
		return profile{}, err
	case of.Context != "":
		return named(of.Context)
	case path != "":
		return profile{Registry: of.Registry, At: of.At, TLS: of.TLS, CA: of.CA, Cert: of.Cert, Key: of.Key, Guarded: of.Guarded}, nil
	case known.Current != "":
		return named(known.Current)
	}
	return profile{}, nil
}

// developerFolder returns the folder .yodel of a yodel dev, in the working directory or above it.
func developerFolder() (string, bool) {
	dir, ok := above(filepath.Join(devFolder, "yodel"), os.FileInfo.IsDir)
	return filepath.Join(dir, devFolder), ok
}

// clientOptions returns the options of all clients of a command.
func (a *app) clientOptions(p *profile) (_ *yodel.ClientOptions, err error) {
	o := &yodel.ClientOptions{DialTimeout: a.o.timeout, Logger: slog.New(slog.DiscardHandler), SlowAfter: -1}
	if token := cmp.Or(a.o.token, a.env("YODEL_TOKEN")); token != "" {
		// Servers check the token of the connection (auth.Conn) or that of each call (auth.Check).
		token = "Bearer " + strings.TrimPrefix(token, "Bearer ")
		o.ConnMetadata, o.Middleware = auth.ConnToken(token), []yodel.Middleware{auth.Token(token)}
	}
	ca, cert, key := cmp.Or(a.o.ca, p.CA), cmp.Or(a.o.cert, p.Cert), cmp.Or(a.o.key, p.Key)
	if key != "" && cert == "" {
		return nil, faultf(exitUsage, "--key needs --cert")
	}
	if !a.o.tls && !p.TLS && ca == "" && cert == "" {
		return o, nil
	}
	config := &stdtls.Config{MinVersion: stdtls.VersionTLS12}
	if ca != "" {
		if config.RootCAs, err = authorities(ca); err != nil {
			return nil, faultf(exitUsage, "--ca: %v", err)
		}
	}
	if cert != "" {
		pair, err := stdtls.LoadX509KeyPair(cert, cmp.Or(key, cert)) // a file may have both
		if err != nil {
			return nil, faultf(exitUsage, "--cert and --key: %v", err)
		}
		config.Certificates = []stdtls.Certificate{pair}
	}
	o.Transport = &tls.Transport{Client: config}
	return o, nil
}

// authorities returns the certificates in a file.
func authorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return roots, nil
}

// A place is a parsed URL of a registry. It may have several hosts.
type place struct {
	scheme, hosts, user, password, path string
	query                               url.Values
	unclear                             bool // an @ is where no user name is: a secret may be anywhere
}

// String returns the URL without the user name, the password and tokens.
func (p *place) String() string {
	if p.unclear {
		return p.scheme + ":…"
	}
	said := p.scheme + ":" + p.path
	if p.hosts != "" {
		said = strings.TrimSuffix(p.scheme+"://"+p.hosts+"/"+p.path, "/")
	}
	plain := make(url.Values)
	for key, values := range p.query {
		if slices.Contains([]string{"layout", "prefix", "db", "dc", "namespace", "group", "v"}, key) {
			plain[key] = values
		}
	}
	if len(plain) > 0 {
		said += "?" + plain.Encode()
	}
	return said
}

// parsePlace parses the URL of a registry.
func parsePlace(text string) (p place, err error) {
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok {
		return p, faultf(exitUsage, "the registry %q is no URL", text).with("try", "etcd://%s, or file:%s", text, text)
	}
	p.scheme = scheme
	rest, query, _ := strings.Cut(rest, "?")
	if p.query, err = url.ParseQuery(query); err != nil {
		return p, faultf(exitUsage, "the registry %s:…: %v", scheme, err)
	}
	rest, slashes := strings.CutPrefix(rest, "//")
	if !slashes {
		p.path = rest
		return p, nil
	}
	defer func() { p.unclear = strings.Contains(p.hosts+p.path+query, "@") }()
	p.hosts, p.path, _ = strings.Cut(rest, "/")
	if scheme == "file" {
		if p.hosts != "" && p.hosts != "localhost" {
			return p, faultf(exitUsage, "the registry %q is a folder of another host", text).with("try", "file:%s", rest)
		}
		p.hosts, p.path = "", "/"+p.path
		return p, nil
	}
	if i := strings.LastIndexByte(p.hosts, '@'); i >= 0 {
		var user string
		user, p.hosts = p.hosts[:i], p.hosts[i+1:]
		p.user, p.password, _ = strings.Cut(user, ":")
		for _, part := range []*string{&p.user, &p.password} {
			if *part, err = url.PathUnescape(*part); err != nil {
				return p, faultf(exitUsage, "the registry %s://…: the user name or the password is not escaped", scheme)
			}
		}
	}
	return p, nil
}

// schemes are the schemes of registries.
var schemes = []string{"etcd", "zookeeper", "consul", "redis", "nacos", "kubernetes", "file", "mdns", "dns"}

// open opens a registry.
func (t *target) open(ctx context.Context, text string, timeout time.Duration) error {
	p, err := parsePlace(text)
	if err != nil {
		return err
	}
	t.name = p.String()
	common := registry.Options{Prefix: p.path, Logger: slog.New(slog.DiscardHandler)}
	if p.query.Get("layout") == "rpcx" {
		common.Layout = registry.RPCX
	}
	switch p.scheme {
	case "etcd":
		r := etcd.New(p.hosts, &etcd.Options{Options: common, Username: p.user, Password: p.password, Timeout: timeout})
		t.use(r, r.Close)
	case "zookeeper":
		r := zookeeper.New(p.hosts, &zookeeper.Options{Options: common, Username: p.user, Password: p.password})
		t.use(r, r.Close)
	case "redis":
		db, _ := strconv.Atoi(p.query.Get("db")) // 0 is the default
		r := redis.New(p.hosts, &redis.Options{Options: common, Username: p.user, Password: p.password, DB: db, Timeout: timeout})
		t.use(r, r.Close)
	case "consul":
		r := consul.New(p.hosts, &consul.Options{Token: p.query.Get("token"), Datacenter: p.query.Get("dc"), Timeout: timeout, Logger: common.Logger})
		t.use(r, r.Close)
	case "nacos":
		r := nacos.New(p.hosts, &nacos.Options{
			Username: p.user, Password: p.password, Namespace: p.query.Get("namespace"), Group: p.query.Get("group"), Timeout: timeout,
			V1: p.query.Get("v") == "1",
		})
		t.use(r, r.Close)
	case "kubernetes":
		return t.openKubernetes(&p, common, timeout) //nolint:contextcheck // it connects later
	case "mdns":
		var interfaces []string
		if p.path != "" {
			interfaces = strings.Split(p.path, ",")
		}
		r := mdns.New(&mdns.Options{Interfaces: interfaces, Logger: common.Logger})
		t.use(r, r.Close)
	case "file":
		common.Prefix = p.query.Get("prefix")
		t.use(file.New(p.path, &common), nil)
	case "dns":
		return t.lookUp(ctx, p.hosts, timeout)
	default:
		f := faultf(exitUsage, "there is no registry %q", p.scheme)
		if near := similar(p.scheme, schemes); near != "" {
			f.addf("did you mean", "%s://", near)
		}
		return f.with("registries", "%s", strings.Join(schemes, ", "))
	}
	return nil
}

// openKubernetes opens the registry in a Kubernetes API server.
func (t *target) openKubernetes(p *place, common registry.Options, timeout time.Duration) error {
	common.Prefix = p.query.Get("prefix")
	o := &kubernetes.Options{
		Options: common, Namespace: p.hosts, Server: p.query.Get("server"), TokenFile: p.query.Get("token-file"), Timeout: timeout,
	}
	if ca := p.query.Get("ca-file"); ca != "" {
		roots, err := authorities(ca)
		if err != nil {
			return faultf(exitUsage, "ca-file: %v", err)
		}
		o.TLS = &stdtls.Config{RootCAs: roots, MinVersion: stdtls.VersionTLS12}
	}
	r := kubernetes.New(o)
	t.use(r, r.Close)
	return nil
}

// use makes r the registry of the target.
func (t *target) use(r fleet.Source, end func() error) {
	t.registry, t.source = r, r
	if end != nil {
		t.close = end
	}
}

// lookUp resolves a name of DNS once. The fleet is the servers at its addresses.
func (t *target) lookUp(ctx context.Context, name string, timeout time.Duration) error {
	r := dns.Host(name, nil)
	if strings.HasPrefix(name, "_") {
		r = dns.Service(name, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var addrs []string
	err := r.Watch(ctx, func(instances []discovery.Instance) {
		for _, in := range instances {
			addrs = append(addrs, in.Addr)
		}
		cancel()
	})
	if len(addrs) == 0 {
		return faultf(exitUnreachable, "DNS names no instance of %s: %v", name, cmp.Or(err, errors.New("the name does not exist")))
	}
	slices.Sort(addrs)
	t.addrs = slices.Compact(addrs)
	t.source = fleet.Addresses(t.client, t.addrs...)
	return nil
}

// fleet opens the fleet for reading. The caller calls done.
func (a *app) fleet(ctx context.Context) (f *fleet.Fleet, t *target, done func(), err error) {
	t, err = a.openTarget(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	limit := a.o.timeout
	if !a.o.patient {
		limit = min(limit, time.Second)
	}
	o := &fleet.Options{Timeout: limit, SourceTimeout: a.o.timeout, Client: t.client}
	if book, err := t.book(); err == nil {
		o.Rules = book.Rulings
	}
	wipe := func() {}
	if a.errTTY {
		o.Progress, wipe = a.asking()
	}
	f = fleet.New(t.source, o)
	return f, t, func() { wipe(); f.Close(); _ = t.close() }, nil
}

// asking returns a function that shows, in one line, how many instances of a fleet were asked, from
// a second after its first call on. Wipe removes the line.
func (a *app) asking() (progress func(asked, all int), wipe func()) {
	const quiet, every = time.Second, 100 * time.Millisecond
	var mu sync.Mutex
	var due time.Time
	shown := false
	wipe = func() {
		if shown {
			a.control(a.err, "\r\x1b[K")
			shown = false
		}
	}
	progress = func(asked, all int) {
		mu.Lock()
		defer mu.Unlock()
		switch now := time.Now(); {
		case asked == all:
			wipe()
			due = time.Time{}
		case due.IsZero():
			due = now.Add(quiet)
		case now.After(due):
			wipe()
			a.sayf("asked %d of %d instances", asked, all)
			due, shown = now.Add(every), true
		}
	}
	return progress, func() {
		mu.Lock()
		defer mu.Unlock()
		wipe()
	}
}

// unreachable returns the fault of a fleet that cannot be read.
func (t *target) unreachable(err error) error {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if e, ok := errors.AsType[*yodel.Error](err); ok && t.registry == nil {
		return e // it names the server
	}
	f := faultf(exitUnreachable, "%s cannot be read: %v", t.name, err)
	if strings.HasPrefix(t.name, "file:") && errors.Is(err, os.ErrNotExist) {
		return f.with("next", "start a server that announces itself there, or: yodel dev --demo")
	}
	return f.with("next", "yodel doctor")
}
