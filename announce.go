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
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file decides which records a server announces in registries. The server announces them from
// the time at which it listens until it drains. Package announcer keeps the records in the
// registries up to date. This file also watches the state and the weight that operators set in a
// registry. They override the state and the weight that the server announces. The registrar writes
// them into the record. The server watches them so that they appear at once in its log and in
// inspect.Info.

// An overrider is a Registrar that stores operators' settings. Its Announce writes these settings
// in place of the instance's own values. Overrides returns the settings for the instances of a
// service as records. Only Addr, State and Weight of these records are used.
type overrider interface {
	Overrides(service string) Resolver
}

// An announcement announces one address of a server in all of its registries.
type announcement struct {
	server *Server
	at     net.Addr // of the listener
	addr   string   // the address that clients dial
	load   *announcer.Load
	to     []*announcer.Announcer[Instance] // one for each registrar

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// announce starts to announce the listener at addr, if there are registrars.
func (s *Server) announce(addr net.Addr) *announcement {
	if len(s.opts.Registrars) == 0 {
		return nil
	}
	a := &announcement{server: s, at: addr, addr: announcer.Reachable(addr), load: announcer.NewLoad()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdrawn {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	for _, r := range s.opts.Registrars {
		one := a.in(r)
		a.to = append(a.to, one)
		a.wg.Go(func() { one.Run(ctx) })
	}
	s.announced = append(s.announced, a)
	return a
}

// in returns the announcer for one registry.
func (a *announcement) in(r Registrar) *announcer.Announcer[Instance] {
	s := a.server
	one := &announcer.Announcer[Instance]{
		Server: a, Registry: guardedRegistrar{r, s.guard}, Name: func() string { return s.registryName(r) },
		Every: s.opts.AnnounceEvery, Addr: a.addr, Log: s.opts.Logger,
	}
	if of, ok := r.(overrider); ok {
		one.Settings = &announcer.Settings{
			Open: func(service string) announcer.Watch { return s.settings(of, service) },
			Addr: a.advertised,
			Changed: func(service string, now announcer.Setting) {
				s.logSetting(service, one.Name(), now)
				s.announceAgain()
			},
		}
	}
	return one
}

// stats returns the state of the announcement in each registry.
func (a *announcement) stats() []introspect.Announced {
	out := make([]introspect.Announced, 0, len(a.to))
	for _, one := range a.to {
		at, failing := one.State()
		out = append(out, introspect.Announced{Registry: one.Name(), Addr: a.addr, At: at, Failing: failing})
	}
	return out
}

// withdraw stops the announcements and waits until the registries have removed the records, or for
// a short time limit.
func (a *announcement) withdraw() {
	a.cancel()
	a.wg.Wait()
}

// leave handles the reason why the server ends. The reason of package restart says that another
// process serves an address from now on. That process announces the address, so this server does
// not withdraw it.
func (s *Server) leave(why error) {
	other, ok := errors.AsType[interface {
		error
		Serves(addr net.Addr) bool
	}](why)
	if !ok {
		return
	}
	s.mu.Lock()
	announced := s.announced
	s.mu.Unlock()
	for _, a := range announced {
		keep := other.Serves(a.at)
		for _, one := range a.to {
			one.Keep(keep)
		}
	}
}

// registryName returns the name of a registry for the log: the result of its String method, or
// otherwise the name of its package.
func (s *Server) registryName(r Registrar) string {
	name, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", r), "*"), ".")
	if named, ok := r.(fmt.Stringer); ok {
		_ = s.guard.Apart("the Registrar's String", nil, func() error { // a failure is in the log
			name = named.String()
			return nil
		})
	}
	return name
}

// advertised returns the address that the server announces.
func (a *announcement) advertised() string {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	return cmp.Or(a.server.instance.Addr, a.addr)
}

// Record implements announcer.Server.
func (a *announcement) Record() (in Instance, addr string) {
	s := a.server
	s.mu.Lock()
	in = s.instance
	s.mu.Unlock()
	if in.Addr == "" {
		in.Addr = a.addr
	}
	in.Started = s.started.UTC().Truncate(time.Millisecond)
	in.Incarnation = hex.EncodeToString(s.config.Incarnation)
	if every := s.opts.AnnounceEvery; a.load.Due(every) {
		calls, inflight := s.load()
		a.load.Measure(every, calls, inflight)
	}
	in.CallRate, in.Inflight = a.load.Announced()
	return in, in.Addr
}

// Services implements announcer.Server.
func (a *announcement) Services() []string { return a.server.Services() }

// Changed implements announcer.Server.
func (a *announcement) Changed() <-chan struct{} {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	return a.server.anew
}

// load returns how many calls the server has executed, and how many are in flight.
func (s *Server) load() (calls uint64, inflight int) {
	s.registered(func(_ []string, m *method) {
		for code := range stats.Codes {
			calls += m.stats.Calls(code)
		}
		inflight += int(m.stats.Inflight())
	})
	return calls, max(inflight, 0)
}

// Services returns the names of the services whose methods the server has, sorted, except the
// built-in service. A method without a service name is a service of its own. Services may be called
// concurrently. The result belongs to the caller.
func (s *Server) Services() []string {
	var services []string
	for name := range *s.methods.Load() {
		service := serviceOf(name)
		if service == "" {
			service = name
		}
		if service != builtInService {
			services = append(services, service)
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// builtInService is the service of the built-in methods.
const builtInService = "yodel"

// UpdateInstance changes the record that the server announces in registries, for example its weight
// or its state. The change is announced at once. UpdateInstance may be called concurrently: changes
// run one after the other, each on a copy of the current record, so no change is lost. Change may
// call methods of the server except UpdateInstance, which would wait for itself.
func (s *Server) UpdateInstance(change func(*Instance)) {
	s.updating <- struct{}{}
	defer func() { <-s.updating }() // also if change panics; the record then remains as it was
	s.mu.Lock()
	in := s.instance
	s.mu.Unlock()
	in.Tags, in.Metadata = slices.Clone(in.Tags), maps.Clone(in.Metadata) // announcers may be reading the old ones
	change(&in)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instance = in
	s.announceAgainLocked()
}

// announceAgain makes the announcers announce at once.
func (s *Server) announceAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announceAgainLocked()
}

func (s *Server) announceAgainLocked() {
	close(s.anew)
	s.anew = make(chan struct{})
}

// settings returns the operators' settings for a service in a registry. It returns nil if the
// registry has none.
func (s *Server) settings(of overrider, service string) announcer.Watch {
	var settings Resolver
	err := s.guard.Apart("the Registrar's Overrides", nil, func() error {
		settings = of.Overrides(service)
		return nil
	})
	if err != nil || settings == nil {
		return nil
	}
	return func(ctx context.Context, update func([]announcer.Setting)) error {
		return s.guard.Apart("the Watch of a registry's settings", nil, func() error {
			return settings.Watch(introspect.WithNote(ctx, s.Note), func(all []Instance) {
				list := make([]announcer.Setting, len(all))
				for i := range all {
					list[i] = announcer.Setting{Addr: all[i].Addr, State: all[i].State, Weight: all[i].Weight}
				}
				update(list)
			})
		})
	}
}

// logSetting logs that an operator has changed the server's setting.
func (s *Server) logSetting(service, registry string, now announcer.Setting) {
	if now.None() {
		s.opts.Logger.Info("yodel: an operator's settings were removed", "service", service, "registry", registry, "addr", now.Addr)
		return
	}
	s.opts.Logger.Info("yodel: an operator has set the instance", "service", service, "registry", registry, "addr", now.Addr,
		"state", now.State, "weight", now.Weight)
}

// overrides returns the operators' settings for the server, sorted by service and registry.
func (s *Server) overrides() (list []introspect.Override) {
	s.mu.Lock()
	announced := slices.Clone(s.announced)
	s.mu.Unlock()
	for _, a := range announced {
		for _, one := range a.to {
			if one.Settings == nil {
				continue
			}
			for service, set := range one.Settings.InForce() {
				list = append(list, introspect.Override{Service: service, Registry: one.Name(), Addr: set.Addr, State: set.State, Weight: set.Weight})
			}
		}
	}
	slices.SortFunc(list, introspect.Override.Compare)
	return list
}

// A guardedRegistrar is a Registrar that cannot end the process or the announcing goroutine.
type guardedRegistrar struct {
	Registrar
	guard *guard.Guard
}

// Announce implements Registrar.
func (r guardedRegistrar) Announce(ctx context.Context, service string, in Instance, ttl time.Duration) error {
	return r.guard.Apart("the Registrar's Announce", nil, func() error { return r.Registrar.Announce(ctx, service, in, ttl) })
}

// Withdraw implements Registrar.
func (r guardedRegistrar) Withdraw(ctx context.Context, service, addr string) error {
	return r.guard.Apart("the Registrar's Withdraw", nil, func() error { return r.Registrar.Withdraw(ctx, service, addr) })
}
