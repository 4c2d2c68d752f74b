// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/internal/dubborecord"
)

// A dubboService is the resolver for a service of Dubbo.
type dubboService struct {
	*Dubbo
	name string
	key  dubborecord.Key
}

// String describes the resolver in errors and logs.
func (s *dubboService) String() string { return fmt.Sprintf("service %q in %v", s.name, s.Dubbo) }

// Watch implements discovery.Resolver.
func (s *dubboService) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	w := &dubboWatch{dubboService: s}
	return poll(ctx, s.registry.opts.Every, update, func() ([]discovery.Instance, error) { return w.instances(ctx) })
}

// A dubboWatch is a call of Watch.
type dubboWatch struct {
	*dubboService
	now, last findings
}

// findings are what one reading of the instances has found.
type findings struct {
	abouts map[[2]string][]byte // the metadata of applications, by their names and revisions
	bad    map[string]bool      // the records that cannot be read, which is logged once
}

// instances returns the instances of the service. A record that cannot be read is logged and left
// out.
func (w *dubboWatch) instances(ctx context.Context) ([]discovery.Instance, error) {
	w.last, w.now = w.now, findings{make(map[[2]string][]byte), make(map[string]bool)}
	names, err := w.services(ctx)
	if err != nil {
		return nil, err
	}
	var all []discovery.Instance
	for _, name := range names {
		hosts, err := w.hosts(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			in, ok, err := dubborecord.Record{Protocol: h.Metadata["protocol"], Parameters: h.Metadata}.Instance(h.addr(), w.key)
			w.report(name, h, err)
			if ok {
				all = append(all, h.weighed(in))
			}
		}
	}
	mapping, err := w.registry.readConfiguration(ctx, dubboMapping, plain(w.key.Interface))
	if err != nil {
		return nil, err
	}
	for _, name := range applications(mapping) {
		of, err := w.ofApplication(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return dubborecord.Merge(all), nil
}

// services returns the names in Nacos of the services that the key means.
func (w *dubboWatch) services(ctx context.Context) ([]string, error) {
	if w.key.Version != "" && w.key.Group != "" {
		return []string{serviceOf(w.key)}, nil
	}
	prefix := plain(providers + ":" + w.key.Interface + ":")
	names, err := w.registry.services(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var taken []string
	for _, name := range names {
		if version, group, _ := strings.Cut(name[len(prefix):], ":"); w.key.Takes(version, group) {
			taken = append(taken, name)
		}
	}
	return taken, nil
}

// hosts returns the healthy and enabled instances of a service of Nacos in all clusters.
func (w *dubboWatch) hosts(ctx context.Context, name string) ([]host, error) {
	answer, err := w.registry.list(ctx, name, "")
	if err != nil {
		return nil, err
	}
	hosts, err := w.registry.hosts(answer)
	if err != nil {
		return nil, err
	}
	healthy := hosts[:0]
	for _, h := range hosts {
		if h.Healthy && h.Enabled {
			healthy = append(healthy, h)
		}
	}
	return healthy, nil
}

// ofApplication returns the instances of the service in an application.
func (w *dubboWatch) ofApplication(ctx context.Context, name string) (all []discovery.Instance, err error) {
	hosts, err := w.hosts(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		about, err := w.about(ctx, name, h.Metadata[dubborecord.KeyRevision])
		if err != nil {
			return nil, err
		}
		of, err := dubborecord.Instances(w.key, h.IP, h.Metadata, about)
		w.report(name, h, err)
		for _, in := range of {
			all = append(all, h.weighed(in))
		}
	}
	return all, nil
}

// about returns the metadata of an application, or nil if Nacos does not have them. Those of a
// revision never change.
func (w *dubboWatch) about(ctx context.Context, name, revision string) ([]byte, error) {
	key := [2]string{name, revision}
	about := w.now.abouts[key]
	if about == nil {
		about = w.last.abouts[key]
	}
	if about == nil && revision != "" {
		content, err := w.registry.readConfiguration(ctx, revision, name)
		if err != nil || content == "" {
			return nil, err
		}
		about = []byte(content)
	}
	w.now.abouts[key] = about
	return about, nil
}

// report logs that a record cannot be read, unless the last reading has found it too.
func (w *dubboWatch) report(service string, h host, err error) {
	if err == nil {
		return
	}
	id := service + " " + h.addr()
	if w.now.bad[id] = true; !w.last.bad[id] {
		slog.Warn("a provider of Dubbo has a record that cannot be read", "rpcService", service, "addr", h.addr(), "err", err)
	}
}

// addr returns the address of an instance.
func (h host) addr() string { return net.JoinHostPort(h.IP, strconv.Itoa(h.Port)) }

// weighed returns an instance with the state that it has in Nacos.
func (h host) weighed(in discovery.Instance) discovery.Instance {
	if h.Weight <= 0 {
		in.State = inactive
	}
	return in
}
