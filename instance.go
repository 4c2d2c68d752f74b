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

	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// An Instance is one running server of a service, as a registry lists it. A registry stores it as
// JSON that people can read. Slices and maps in an Instance must not be changed.
type Instance struct {
	// Addr is the address of the server, in the form that the client's transport dials: HOST:PORT
	// for TCP. If it is empty, the server announces the address at which it listens, or that of the
	// host's default route if it listens at all addresses.
	Addr string `json:"addr"`
	// Protocols are the protocols that the server speaks, for example "yodel" or "netrpc". A client
	// uses "yodel" if Protocols contains it, and otherwise the first of ClientOptions.Wires that
	// Protocols contains. If Protocols contains none of them, the client leaves the instance out.
	// Empty means yodel. A server with ServerOptions.Protocols announces "yodel" and their names,
	// unless its Instance sets the list.
	Protocols []string `json:"protocols,omitempty"`
	// Group is a part of the fleet that clients can select, for example a team's servers or a
	// canary. Several groups are separated by commas.
	Group string `json:"group,omitempty"`
	// Version is the version of the service, which clients can select.
	Version string `json:"version,omitempty"`
	// Weight is the instance's share of the calls, for balancers that use weights. 0 means 1.
	Weight int `json:"weight,omitempty"`
	// Zone is the data center or rack in which the server runs, for balancers that prefer their own
	// zone.
	Zone string `json:"zone,omitempty"`
	// Latitude and Longitude locate the server, in degrees. If both are 0, the location is unknown.
	Latitude  float64 `json:"latitude,omitempty"`
	Longitude float64 `json:"longitude,omitempty"`
	// State is empty or "active" if the instance receives calls, and "inactive" if it receives
	// none.
	State string `json:"state,omitempty"`
	// Tags are words by which clients can select instances.
	Tags []string `json:"tags,omitempty"`
	// Metadata describes the instance further.
	Metadata Metadata `json:"metadata,omitempty"`
	// Started is when the server began to serve.
	Started time.Time `json:"started,omitzero"`
	// Incarnation identifies one run of the server's process. The server sets it. A client compares
	// it with the incarnation that the connected server sends, to detect that another server now
	// listens at Addr.
	Incarnation string `json:"incarnation,omitempty"`
	// CallRate is how many calls the server executed per second when the record was written, and
	// Inflight is how many calls were in flight. Servers update the record when these values have
	// changed a lot.
	CallRate float64 `json:"callRate,omitempty"`
	Inflight int     `json:"inflight,omitempty"`
}

// inactive is the State of an instance that receives no calls.
const inactive = "inactive"

// A registrar is a Registrar of a server, with its description.
type registrar struct {
	Registrar
	Description
}

// describe returns the registrars of a server. One without a name is named by its package.
func describe(all []Registrar) []registrar {
	described := make([]registrar, len(all))
	for i, r := range all {
		described[i] = registrar{r, Description{}.Over(r)}
		byPackage, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", r), "*"), ".")
		described[i].Name = cmp.Or(described[i].Name, byPackage)
	}
	return described
}

// setUpAnnouncing prepares the announcements of the server.
func (s *Server) setUpAnnouncing() {
	a := &s.announced
	a.Every, a.Log, a.Guard = s.opts.AnnounceEvery, s.opts.Logger, s.guard
	for _, r := range s.registrars {
		a.In = append(a.In, announcer.In[Instance]{Registry: r.Registrar, Name: r.Name, Settings: r.settings(s)})
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
	a.Addr = func(in *Instance) *string { return &in.Addr }
	a.Complete = func(in *Instance, rate float64, inflight int) {
		if s.ready.Err() != nil {
			in.State = inactive
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
			return settings.Watch(introspect.WithNote(ctx, s.Note), func(all []Instance) {
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
func (s *Server) UpdateInstance(change func(*Instance)) {
	s.announced.Update(func(in *Instance) {
		in.Tags, in.Metadata = slices.Clone(in.Tags), maps.Clone(in.Metadata) // announcers may be reading the old ones
		change(in)
	})
}
