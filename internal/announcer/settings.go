// SPDX-License-Identifier: Apache-2.0

package announcer

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A Setting holds the values that an operator has set for the instance at Addr. They override the
// values that the server announces, until the operator removes the setting.
type Setting struct {
	Addr   string
	State  string
	Weight int
	// Problem is why the setting cannot be read. Such a setting overrides nothing.
	Problem string
}

// None reports whether there is no setting.
func (s Setting) None() bool { return s.State == "" && s.Weight == 0 && s.Problem == "" }

// A Watch watches the settings for one service until ctx ends or the registry fails. It calls
// update with all settings at first and after each change. It must not panic or end its goroutine.
type Watch func(ctx context.Context, update func(all []Setting)) error

// Settings holds the settings of operators for one server in one registry. Its methods may be
// called concurrently. Its exported fields do not change after the first Follow.
type Settings struct {
	// Open returns the Watch for a service. It returns nil if the registry has no settings.
	Open func(service string) Watch
	// Addr returns the address that the server announces.
	Addr func() string
	// Changed is called when the setting for the server has changed under a service.
	Changed func()
	Name    string // of the registry, for the log
	Log     *slog.Logger

	wg sync.WaitGroup

	mu       sync.Mutex
	services map[string][]Setting // nil for a service before the registry has answered
}

// Follow starts to watch the settings for a service, once, until ctx ends.
func (s *Settings) Follow(ctx context.Context, service string) {
	s.mu.Lock()
	_, follows := s.services[service]
	if !follows {
		if s.services == nil {
			s.services = make(map[string][]Setting)
		}
		s.services[service] = nil
	}
	s.mu.Unlock()
	if !follows {
		s.wg.Go(func() {
			if watch := s.Open(service); watch != nil {
				s.watch(ctx, service, watch)
			}
		})
	}
}

// Wait waits until the contexts of all calls of Follow have ended and every Watch has returned.
func (s *Settings) Wait() { s.wg.Wait() }

// watch keeps the settings for a service up to date. While the registry fails, the last settings
// remain in force.
func (s *Settings) watch(ctx context.Context, service string, watch Watch) {
	for backoff := firstBackoff; ctx.Err() == nil; backoff = min(2*backoff, lastBackoff) {
		// If the registry fails, announcements fail too, and their errors are logged. So the error
		// of watch is ignored.
		_ = watch(ctx, func(all []Setting) {
			backoff = firstBackoff
			s.update(service, all)
		})
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
	}
}

// update stores the settings for a service. It calls Changed if they change the record of the
// server.
func (s *Settings) update(service string, all []Setting) {
	addr := s.Addr()
	s.mu.Lock()
	before := settingFor(s.services[service], addr)
	s.services[service] = slices.Clone(all)
	now := settingFor(all, addr)
	s.mu.Unlock()
	if now != before {
		s.log(service, now)
		s.Changed()
	}
}

// log logs that an operator has changed the setting for the server.
func (s *Settings) log(service string, now Setting) {
	about := []any{"rpcService", service, "registry", s.Name, "addr", now.Addr}
	switch {
	case now.Problem != "":
		s.Log.Warn("yodel: the setting of an operator cannot be read and does not count", append(about, "err", now.Problem)...)
	case now.None():
		s.Log.Info("yodel: an operator's settings were removed", about...)
	default:
		s.Log.Info("yodel: an operator has set the instance", append(about, "state", now.State, "weight", now.Weight)...)
	}
}

// settingFor returns the setting for the instance at addr, or an empty setting.
func settingFor(all []Setting, addr string) Setting {
	for _, one := range all {
		if one.Addr == addr {
			return one
		}
	}
	return Setting{Addr: addr}
}

// InForce returns the settings for the server that change something, by service.
func (s *Settings) InForce() map[string]Setting {
	addr := s.Addr()
	s.mu.Lock()
	defer s.mu.Unlock()
	inForce := make(map[string]Setting)
	for service, all := range s.services {
		if set := settingFor(all, addr); !set.None() {
			inForce[service] = set
		}
	}
	return inForce
}
