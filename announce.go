// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file announces a server in its registries.

// A registrar is a Registrar of a server, with its description.
type registrar struct {
	discovery.Registrar
	Description
}

// describe returns the registrars of a server. One without a name is named by its package.
func describe(all []discovery.Registrar) []registrar {
	described := make([]registrar, len(all))
	for i, r := range all {
		described[i] = registrar{r, Description{}.Over(r)}
		byPackage, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", r), "*"), ".")
		described[i].Name = cmp.Or(described[i].Name, byPackage)
	}
	return described
}

// setUpAnnouncing prepares the announcements of the server in registries.
func (s *Server) setUpAnnouncing(registrars []registrar) {
	a := &s.announced
	a.Every, a.Log, a.Guard = s.opts.AnnounceEvery, s.opts.Logger, s.guard
	for _, r := range registrars {
		if r.Rules != nil {
			s.rules = append(s.rules, r.Rules)
		}
		a.In = append(a.In, announcer.In[discovery.Instance]{Registry: r.Registrar, Name: r.Name, Settings: r.settings(s)})
	}
	a.Services = func() []string { return slices.DeleteFunc(s.Services(), introspect.Infrastructure) }
	a.Load = func() (calls uint64, inflight int) {
		s.methods.Each(func(_ []string, m *method) {
			for code := range stats.Codes {
				calls += m.Stats.Calls(code)
			}
			inflight += int(m.Stats.Inflight())
		})
		return calls, max(inflight, 0)
	}
	a.Addr = func(in *discovery.Instance) *string { return &in.Addr }
	a.Complete = func(in *discovery.Instance, rate float64, inflight int) {
		if s.ready.Err() != nil {
			in.State = discovery.Inactive
		}
		in.Started = s.started.UTC().Truncate(time.Millisecond)
		in.Incarnation, in.CallRate, in.Inflight = hex.EncodeToString(s.config.Incarnation), rate, inflight
	}
	in := s.opts.Instance
	if len(s.opts.Protocols) > 0 && in.Protocols == nil {
		in.Protocols = s.speaks()
	}
	a.SetUp(in)
}

// settings returns the function that opens the settings of operators for a service in a registry,
// or nil if the registry has none.
func (r *registrar) settings(s *Server) func(service string) announcer.Watch {
	if r.Overrides == nil {
		return nil
	}
	return func(service string) announcer.Watch {
		settings := r.Overrides(service)
		if settings == nil {
			return nil
		}
		return func(ctx context.Context, update func([]announcer.Setting)) error {
			return settings.Watch(introspect.WithNote(ctx, s.Note), func(all []discovery.Instance) {
				list := make([]announcer.Setting, len(all))
				for i := range all {
					list[i] = announcer.Setting{Addr: all[i].Addr, State: all[i].State, Weight: all[i].Weight, Problem: all[i].Metadata["problem"]}
				}
				update(list)
			})
		}
	}
}

// leave handles the reason why the server ends. The reason of package restart says that another
// process serves an address from now on. That process announces the address, so this server does
// not withdraw it.
func (s *Server) leave(why error) {
	other, ok := errors.AsType[interface {
		error
		Serves(addr net.Addr) bool
	}](why)
	if ok {
		s.announced.Keep(other.Serves)
	}
}

// Services returns the names of the services whose methods the server has, sorted, except the
// built-in service. A method without a service name is a service of its own. Services may be called
// concurrently. The result belongs to the caller.
func (s *Server) Services() []string { return s.methods.Services() }

// UpdateInstance changes the record that the server announces in registries, for example its weight
// or its state. The change is announced at once. UpdateInstance may be called concurrently: changes
// run one after the other, each on a copy of the current record, so no change is lost. Change may
// call methods of the server except UpdateInstance, which would wait for itself.
func (s *Server) UpdateInstance(change func(*discovery.Instance)) {
	s.announced.Update(func(in *discovery.Instance) {
		in.Tags, in.Metadata = slices.Clone(in.Tags), maps.Clone(in.Metadata) // announcers may be reading the old ones
		change(in)
	})
}

// speaks returns the names of the protocols that the server speaks, without those whose Name
// panics.
func (s *Server) speaks() []string {
	names := []string{native}
	for _, p := range s.opts.Protocols {
		_ = s.guard.Apart("a Protocol's Name", nil, func() error { // a panic is in the log
			names = append(names, p.Name())
			return nil
		})
	}
	return names
}
