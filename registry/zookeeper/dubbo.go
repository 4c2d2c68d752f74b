// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/internal/dubborecord"
)

// The nodes of Dubbo.
const (
	dubboRoot     = "/dubbo"
	dubboServices = "/services"
	dubboMapping  = dubboRoot + "/mapping/" // the applications that serve an interface
)

// dubboMetadata are the folders with the metadata of applications, by their revisions: that of
// dubbo-java and that of dubbo-go.
var dubboMetadata = []string{dubboRoot + "/metadata/", dubboRoot + "/"}

// A Dubbo is the registry of programs that use Apache Dubbo, in ZooKeeper. It finds providers of
// Dubbo, and makes a yodel server known to consumers of Dubbo, which call it with package
// protocol/dubbo, or by triple with package protocol/http.
//
//	r := zookeeper.NewDubbo("10.0.0.1:2181", "greeter", nil)
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
// address is announced with its metadata in ZooKeeper, as dubbo-java 3 does by default with the
// metadata type remote. The records have the load of an instance in neither form, because a
// consumer begins anew with a provider whose record has changed. All methods may be called
// concurrently.
type Dubbo struct {
	store       *store
	application string
	turn        chan struct{} // capacity 1: held by the goroutine that announces or withdraws

	// The providers that were announced, by address and service, and the nodes of each. Guarded by
	// turn.
	announced map[string]map[string]*dubboProvider
}

// A dubboProvider is a provider that was announced.
type dubboProvider struct {
	*dubborecord.Provider
	nodes []string
	ttl   time.Duration
}

// NewDubbo returns the registry of Dubbo in the ZooKeeper ensemble at these servers, separated by
// commas. Application is the name under which servers are announced. Of the options, Prefix, Layout
// and Reconcile have no effect.
func NewDubbo(servers, application string, o *Options) *Dubbo {
	if o == nil {
		o = &Options{}
	}
	return &Dubbo{
		store: newStore(servers, *o), application: application, turn: make(chan struct{}, 1), announced: make(map[string]map[string]*dubboProvider),
	}
}

// Close ends the sessions, and so withdraws the announced records.
func (d *Dubbo) Close() error {
	d.store.close()
	return nil
}

// String names the registry in logs.
func (d *Dubbo) String() string { return "Dubbo in " + d.store.String() }

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

// Announce implements discovery.Registrar.
func (d *Dubbo) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
	p, err := dubborecord.NewProvider(d.application, service, in)
	if err != nil {
		return fmt.Errorf("announce %s to Dubbo: %w", service, err)
	}
	urls, err := p.URLs()
	if err != nil {
		return err
	}
	nodes := make([]string, len(urls))
	for i, u := range urls {
		nodes[i] = providersOf(p.Key.Interface) + "/" + url.QueryEscape(u)
	}
	return d.alone(ctx, func() error {
		of := d.announced[in.Addr]
		if of == nil {
			of = make(map[string]*dubboProvider)
			d.announced[in.Addr] = of
		}
		before := of[service]
		of[service] = &dubboProvider{p, nodes, ttl}
		if before != nil {
			for _, node := range before.nodes {
				if !slices.Contains(nodes, node) {
					if err := d.store.remove(ctx, node); err != nil {
						of[service].nodes = append(slices.Clip(nodes), node) // the next call removes it
						return err
					}
				}
			}
		}
		for _, node := range nodes {
			if err := d.store.put(ctx, node, nil, ttl); err != nil {
				return err
			}
		}
		return d.announceApplication(ctx, in.Addr, p, ttl)
	})
}

// providersOf returns the node of the providers of an interface.
func providersOf(name string) string { return dubboRoot + "/" + name + "/providers" }

// announceApplication announces the application at an address. Latest is nil if a provider was
// withdrawn.
func (d *Dubbo) announceApplication(ctx context.Context, addr string, latest *dubborecord.Provider, ttl time.Duration) error {
	of := d.announced[addr]
	providers := make([]*dubborecord.Provider, 0, len(of))
	for _, service := range slices.Sorted(maps.Keys(of)) {
		providers = append(providers, of[service].Provider)
	}
	a, err := dubborecord.NewApplication(providers)
	if err != nil {
		return err
	}
	about, err := a.Metadata()
	if err != nil {
		return err
	}
	for _, folder := range dubboMetadata {
		if err = d.store.put(ctx, folder+a.Name+"/"+a.Revision, about, 0); err != nil {
			return err
		}
	}
	if latest != nil {
		if err = d.addMapping(ctx, latest.Key.Interface); err != nil {
			return err
		}
	}
	value, err := applicationInstance(a)
	if err != nil {
		return err
	}
	return d.store.put(ctx, d.instanceNode(addr), value, ttl)
}

func (d *Dubbo) instanceNode(addr string) string {
	return dubboServices + "/" + d.application + "/" + addr
}

// A discovered is an instance of an application as Apache Curator writes it.
type discovered struct {
	Name    string  `json:"name"`
	ID      string  `json:"id"`
	Address string  `json:"address"`
	Port    int     `json:"port"`
	SSLPort *int    `json:"sslPort"`
	Payload payload `json:"payload"`
	Time    int64   `json:"registrationTimeUTC"`
	Type    string  `json:"serviceType"`
	Spec    *string `json:"uriSpec"`
}

// A payload is the part of a discovered that is Dubbo's.
type payload struct {
	Class    string            `json:"@class"`
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Metadata map[string]string `json:"metadata"`
}

// applicationInstance returns the record of an instance of an application.
func applicationInstance(a *dubborecord.Application) ([]byte, error) {
	of, err := a.InstanceMetadata()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(a.Addr)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	const class = "org.apache.dubbo.registry.zookeeper.ZookeeperInstance"
	return json.Marshal(discovered{Name: a.Name, ID: a.Addr, Address: host, Port: n, Payload: payload{class, a.Addr, a.Name, of}, Type: "DYNAMIC"})
}

// addMapping adds the application to those that serve an interface.
func (d *Dubbo) addMapping(ctx context.Context, name string) error {
	node := dubboMapping + name
	return d.store.change(ctx, "announce", node, func(ctx context.Context, conn *zk.Conn, _ *record) error {
		for ctx.Err() == nil {
			value, stat, err := conn.Get(node)
			switch {
			case errors.Is(err, zk.ErrNoNode):
				if err = d.store.keep(ctx, conn, node, []byte(d.application)); err != nil {
					return err
				}
				continue // another program may have written it at the same time
			case err != nil:
				return err
			}
			all := strings.FieldsFunc(string(value), func(r rune) bool { return r == ',' })
			if slices.Contains(all, d.application) {
				return nil
			}
			_, err = conn.Set(node, []byte(strings.Join(append(all, d.application), ",")), stat.Version)
			if !errors.Is(err, zk.ErrBadVersion) {
				return err
			}
		}
		return context.Cause(ctx)
	})
}

// Withdraw implements discovery.Registrar.
func (d *Dubbo) Withdraw(ctx context.Context, service, addr string) error {
	return d.alone(ctx, func() error {
		of := d.announced[addr]
		p := of[service]
		if p == nil {
			return nil
		}
		for _, node := range p.nodes {
			if err := d.store.remove(ctx, node); err != nil {
				return err
			}
		}
		delete(of, service)
		var err error
		if len(of) > 0 {
			err = d.announceApplication(ctx, addr, nil, p.ttl)
		} else if err = d.store.remove(ctx, d.instanceNode(addr)); err == nil {
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
// blue/com.acme.Greeter:1.0.0. A name without them means any group and any version.
//
// An instance has the protocol "dubbo", or "grpc" for triple, and a server of yodel also its own
// ones. Instance.Metadata has the parameters of the provider's URL. Instance.Weight is that of
// Dubbo, which is usually 100. Rules that change or route providers are ignored. If the metadata of
// an application are not in ZooKeeper, because its metadata type is not remote, the resolver
// assumes that all of its ports serve all interfaces that are mapped to it, without a version or a
// group.
func (d *Dubbo) Service(name string) discovery.Resolver {
	return &dubboService{d, name, dubborecord.ParseKey(name)}
}
