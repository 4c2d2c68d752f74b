// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/internal/dubborecord"
)

// A Dubbo is the registry of programs that use Apache Dubbo, in Nacos. It finds providers of Dubbo,
// and makes a yodel server known to consumers of Dubbo, which call it with package protocol/dubbo,
// or by triple with package protocol/http.
//
//	r := nacos.NewDubbo("10.0.0.1:8848", "greeter", nil)
//	defer r.Close()
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:     []yodel.Codec{hessian2.Codec},
//		Protocols:  []yodel.Protocol{dubbo.Protocol},
//		Registrars: []discovery.Registrar{r},
//	})
//	err := server.RegisterName("com.acme.Greeter", Greeter{})
//
// A service has the name of its Java interface. Its version and its group are those of the
// instance. Each service is announced per interface, and the application with all services of an
// address is announced with its metadata in Nacos, as dubbo-java 3 does by default with the
// metadata type remote. The records have the load of an instance in neither form, because a
// consumer begins anew with a provider whose record has changed. All methods may be called
// concurrently.
//
// Nacos has one record of an address in a service. If a server serves both the protocol dubbo and
// triple, that record is for the protocol dubbo, and consumers find triple only per application.
type Dubbo struct {
	registry    *Registry
	application string
	turn        chan struct{} // capacity 1: held by the goroutine that announces or withdraws

	// The providers that were announced, by address and service. Guarded by turn.
	announced map[string]map[string]*dubboProvider
}

// A dubboProvider is a provider that was announced.
type dubboProvider struct {
	*dubborecord.Provider
	id  url.Values // of its record
	ttl time.Duration
}

// NewDubbo returns the registry of Dubbo in the Nacos servers at these addresses, as New describes
// them. Application is the name under which servers are announced. Options.Group is that of the
// registry in Dubbo, and not that of a service. With authentication, the user needs the permission
// to change configurations, and with version 3 of the API the role of an administrator.
func NewDubbo(servers, application string, o *Options) *Dubbo {
	return &Dubbo{
		registry: New(servers, o), application: application, turn: make(chan struct{}, 1), announced: make(map[string]map[string]*dubboProvider),
	}
}

// Close closes the idle connections to Nacos. Announced records stay until their time to live has
// passed.
func (d *Dubbo) Close() error { return d.registry.Close() }

// String names the registry in logs.
func (d *Dubbo) String() string { return "Dubbo in " + d.registry.String() }

// alone calls do while no other goroutine announces or withdraws.
func (d *Dubbo) alone(ctx context.Context, do func() error) error {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
		return do()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// providers is the category of providers.
const providers = "providers"

// plain replaces the separator of inner classes of Java, as Dubbo does.
func plain(name string) string { return strings.ReplaceAll(name, "$", "___") }

// serviceOf returns the name in Nacos of the service that a key means.
func serviceOf(k dubborecord.Key) string {
	return plain(strings.Join([]string{providers, k.Interface, k.Version, k.Group}, ":"))
}

// Announce implements discovery.Registrar.
func (d *Dubbo) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	p, err := dubborecord.NewProvider(d.application, service, in)
	if err != nil {
		return fmt.Errorf("announce %s to Dubbo: %w", service, err)
	}
	id, record, err := d.recordOf(p, ttl)
	if err != nil {
		return err
	}
	return d.alone(ctx, func() error {
		of := d.announced[in.Addr]
		if of == nil {
			of = make(map[string]*dubboProvider)
			d.announced[in.Addr] = of
		}
		if before := of[service]; before != nil && before.id.Encode() != id.Encode() { // of another version or group
			if err := d.registry.drop(ctx, before.id); err != nil {
				return err
			}
		}
		of[service] = &dubboProvider{p, id, ttl}
		if err := d.registry.keep(ctx, id, record); err != nil {
			return err
		}
		return d.announceApplication(ctx, in.Addr, p, ttl)
	})
}

// recordOf returns the record of a provider, and what identifies it.
func (d *Dubbo) recordOf(p *dubborecord.Provider, ttl time.Duration) (id, record url.Values, err error) {
	all, err := p.Records()
	if err != nil {
		return nil, nil, err
	}
	md := maps.Clone(all[0].Parameters)
	md["category"], md["protocol"], md["path"] = providers, all[0].Protocol, p.Key.Interface
	id = d.registry.identify(serviceOf(p.Key), p.Instance.Addr)
	record = maps.Clone(id)
	return id, record, setMetadata(record, md, ttl)
}

// announceApplication announces the application at an address. Latest is nil if a provider was
// withdrawn.
func (d *Dubbo) announceApplication(ctx context.Context, addr string, latest *dubborecord.Provider, ttl time.Duration) error {
	of := d.announced[addr]
	all := make([]*dubborecord.Provider, 0, len(of))
	for _, service := range slices.Sorted(maps.Keys(of)) {
		all = append(all, of[service].Provider)
	}
	a, err := dubborecord.NewApplication(all)
	if err != nil {
		return err
	}
	about, err := a.Metadata()
	if err != nil {
		return err
	}
	err = d.change(ctx, a.Revision, a.Name, func(before string) (string, bool) { return string(about), before != string(about) })
	if err != nil {
		return err
	}
	if latest != nil {
		if err = d.change(ctx, dubboMapping, plain(latest.Key.Interface), d.addMapping); err != nil {
			return err
		}
	}
	md, err := a.InstanceMetadata()
	if err != nil {
		return err
	}
	id := d.registry.identify(d.application, addr)
	record := maps.Clone(id)
	if err = setMetadata(record, md, ttl); err != nil {
		return err
	}
	return d.registry.keep(ctx, id, record)
}

// dubboMapping is the group of the configurations that have the applications of each interface.
const dubboMapping = "mapping"

// addMapping adds the application to those that serve an interface. It reports false if it is one
// of them already.
func (d *Dubbo) addMapping(before string) (string, bool) {
	all := applications(before)
	if slices.Contains(all, d.application) {
		return "", false
	}
	return strings.Join(append(all, d.application), ","), true
}

// applications returns the applications in the mapping of an interface.
func applications(mapping string) []string {
	return strings.FieldsFunc(mapping, func(r rune) bool { return r == ',' })
}

// change publishes a configuration, and waits until Nacos returns it. To gets the content and
// returns the next one, or reports false if nothing is to be changed.
func (d *Dubbo) change(ctx context.Context, group, id string, to func(before string) (string, bool)) error {
	for published := false; ; published = true {
		before, err := d.registry.readConfiguration(ctx, group, id)
		if err != nil {
			return err
		}
		content, changes := to(before)
		if !changes {
			return nil
		}
		if !published {
			if err = d.registry.publishConfiguration(ctx, group, id, before, content); err != nil {
				return err
			}
		}
		if !pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

// Withdraw implements discovery.Registrar.
func (d *Dubbo) Withdraw(ctx context.Context, service, addr string) error {
	return d.alone(ctx, func() error {
		of := d.announced[addr]
		p := of[service]
		if p == nil {
			return nil
		}
		if err := d.registry.drop(ctx, p.id); err != nil {
			return err
		}
		delete(of, service)
		var err error
		if len(of) > 0 {
			err = d.announceApplication(ctx, addr, nil, p.ttl)
		} else if err = d.registry.drop(ctx, d.registry.identify(d.application, addr)); err == nil {
			delete(d.announced, addr)
		}
		if err != nil {
			of[service] = p // for another attempt
		}
		return err
	})
}

// Service returns a resolver for the providers of a service, by interface and by application. Its
// name is that of the interface, or names a group and a version too: com.acme.Greeter,
// blue/com.acme.Greeter:1.0.0. A name without them means any group and any version. Then the
// resolver lists the services of Nacos, for which version 3 of the API needs the role of an
// administrator if Nacos has authentication.
//
// An instance has the protocol "dubbo", or "grpc" for triple, and a server of yodel also its own
// ones. Instance.Metadata has the parameters of the provider's URL. Instance.Weight is that of
// Dubbo, which is usually 100. A provider whose weight in Nacos is 0 is inactive. Rules that change
// or route providers are ignored. If the metadata of an application are not in Nacos, because its
// metadata type is not remote, the resolver assumes that all of its ports serve all interfaces that
// are mapped to it, without a version or a group.
func (d *Dubbo) Service(name string) discovery.Resolver {
	return &dubboService{d, name, dubborecord.ParseKey(name)}
}
