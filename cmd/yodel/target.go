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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
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
	name   string // for people, without secrets
	source fleet.Source
	// registry is what the registry's package has made, for operators' settings and rules; nil
	// without a registry.
	registry any
	close    func() error
	client   *yodel.ClientOptions
	guarded  bool // changes ask for confirmation
}

// target opens the fleet that the flags, the context or the environment name.
func (a *app) target(ctx context.Context) (*target, error) {
	chosen, err := a.choose()
	if err != nil {
		return nil, err
	}
	client, err := a.clientOptions(&chosen)
	if err != nil {
		return nil, err
	}
	t := &target{client: client, guarded: chosen.Guarded, close: func() error { return nil }}
	if len(chosen.At) > 0 {
		t.name, t.source = strings.Join(chosen.At, ","), fleet.Addresses(client, chosen.At...)
		return t, nil
	}
	return t, t.open(ctx, chosen.Registry, a.o.timeout)
}

// choose returns the context to use.
func (a *app) choose() (profile, error) {
	var p profile
	name := cmp.Or(a.o.context, a.env("YODEL_CONTEXT"))
	known, err := a.loadContexts()
	if err != nil {
		return p, err
	}
	if name == "" && len(a.o.at) == 0 && a.o.registry == "" && a.env("YODEL_REGISTRY") == "" {
		name = known.Current
	}
	if name != "" {
		var ok bool
		if p, ok = known.Contexts[name]; !ok {
			return p, known.unknown(name)
		}
	}
	switch {
	case len(a.o.at) > 0:
		p.At, p.Registry = a.o.at, ""
	case a.o.registry != "":
		p.Registry, p.At = a.o.registry, nil
	case name == "":
		p.Registry = a.env("YODEL_REGISTRY")
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

// developerFolder returns the folder .yodel of a yodel dev, in the working directory or above it.
func developerFolder() (string, bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		folder := filepath.Join(dir, devFolder)
		if info, err := os.Stat(filepath.Join(folder, "yodel")); err == nil && info.IsDir() {
			return folder, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// clientOptions returns the options of all clients of a command.
func (a *app) clientOptions(p *profile) (*yodel.ClientOptions, error) {
	o := &yodel.ClientOptions{DialTimeout: a.o.timeout, Logger: slog.New(slog.DiscardHandler), SlowAfter: -1}
	if token := cmp.Or(a.o.token, a.env("YODEL_TOKEN")); token != "" {
		o.ConnMetadata = yodel.Metadata{"authorization": "Bearer " + token}
	}
	ca, cert, key := cmp.Or(a.o.ca, p.CA), cmp.Or(a.o.cert, p.Cert), cmp.Or(a.o.key, p.Key)
	if !a.o.tls && !p.TLS && ca == "" && cert == "" {
		return o, nil
	}
	config := &stdtls.Config{MinVersion: stdtls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca) //nolint:gosec // the user names the file
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificates", ca)
		}
	}
	if cert != "" {
		pair, err := stdtls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []stdtls.Certificate{pair}
	}
	o.Transport = &tls.Transport{Client: config}
	return o, nil
}

// A place is a parsed URL of a registry. It may have several hosts.
type place struct {
	scheme, hosts, user, password, path string
	query                               url.Values
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
	p.hosts, p.path, _ = strings.Cut(rest, "/")
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
	t.name = p.scheme + "://" + p.hosts + p.path
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
		common.Prefix = p.query.Get("prefix")
		r := kubernetes.New(&kubernetes.Options{ //nolint:contextcheck // it connects later
			Options: common, Namespace: p.hosts, Server: p.query.Get("server"), TokenFile: p.query.Get("token-file"), Timeout: timeout,
		})
		t.use(r, r.Close)
	case "mdns":
		var interfaces []string
		if p.path != "" {
			interfaces = strings.Split(p.path, ",")
		}
		r := mdns.New(&mdns.Options{Interfaces: interfaces, Logger: common.Logger})
		t.use(r, r.Close)
	case "file":
		t.name = "file:" + p.path
		common.Prefix = p.query.Get("prefix")
		t.use(file.New(p.path, &common), nil)
	case "dns":
		return t.lookUp(ctx, p.hosts, timeout)
	default:
		f := faultf(exitUsage, "there is no registry %q", p.scheme)
		if near := nearest(p.scheme, schemes); near != "" {
			f.addf("did you mean", "%s://", near)
		}
		return f.with("registries", "%s", strings.Join(schemes, ", "))
	}
	return nil
}

// resolving is what all registries can do.
type resolving interface {
	Service(name string) yodel.Resolver
}

// use makes r the registry of the target.
func (t *target) use(r resolving, end func() error) {
	t.registry = r
	if end != nil {
		t.close = end
	}
	source, ok := r.(fleet.Source)
	if !ok {
		source = unlisted{r, t.name}
	}
	t.source = source
}

// unlisted is a registry that cannot list its services.
type unlisted struct {
	resolving

	name string
}

// Services implements fleet.Source.
func (u unlisted) Services(context.Context) ([]string, error) {
	return nil, faultf(exitUsage, "%s does not list its services", u.name).with("try", "yodel ls SERVICE")
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
	err := r.Watch(ctx, func(instances []yodel.Instance) {
		for _, in := range instances {
			addrs = append(addrs, in.Addr)
		}
		cancel()
	})
	if len(addrs) == 0 {
		return faultf(exitUnreachable, "DNS names no instance of %s: %v", name, cmp.Or(err, errors.New("the name does not exist")))
	}
	slices.Sort(addrs)
	t.source = fleet.Addresses(t.client, slices.Compact(addrs)...)
	return nil
}

// fleet opens the fleet for reading. The caller calls done.
func (a *app) fleet(ctx context.Context) (f *fleet.Fleet, t *target, done func(), err error) {
	t, err = a.target(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	f = fleet.New(t.source, &fleet.Options{Timeout: min(a.o.timeout, time.Second), Client: t.client})
	return f, t, func() { f.Close(); _ = t.close() }, nil
}

// unreachable returns the fault of a fleet that cannot be read.
func (t *target) unreachable(err error) error {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	f := faultf(exitUnreachable, "%s cannot be read: %v", t.name, err)
	if strings.HasPrefix(t.name, "file:") && errors.Is(err, os.ErrNotExist) {
		return f.with("next", "start a server that announces itself there, or: yodel dev --demo")
	}
	return f.with("next", "yodel doctor")
}
