// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/stats"
)

// This file keeps registries in step with a server. It announces the server when it listens,
// repeats the announcement while it serves, and withdraws it before it drains. The loop that renews
// announcements also repeats failed and lost ones, as long as the server serves.

// leases is how many announcements in a row may fail or be late before the record expires.
const leases = 3

// When the server shuts down, a running announcement may take finishTime more. After that, the
// withdrawals may take withdrawTime. A record that could not be withdrawn expires.
const (
	finishTime   = time.Second
	withdrawTime = 2 * time.Second
)

// An announcer announces one address of a server.
type announcer struct {
	server *Server
	at     net.Addr // of the listener
	addr   string   // the address that others dial
	cancel context.CancelFunc
	wg     sync.WaitGroup
	stays  atomic.Bool // keep the records: another process serves there

	overrides []*overrides // one for each registrar

	mu     sync.Mutex
	record Instance // the record announced last
	calls  uint64   // calls executed until then
	since  time.Time
}

// announce starts to announce the listener at addr, if there are registrars.
func (s *Server) announce(addr net.Addr) *announcer {
	if len(s.opts.Registrars) == 0 {
		return nil
	}
	a := &announcer{server: s, at: addr, addr: advertised(addr), since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdrawn {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	for _, r := range s.opts.Registrars {
		o := &overrides{announcer: a, registrar: r, services: make(map[string][]Instance)}
		a.overrides = append(a.overrides, o)
		a.wg.Go(func() { a.keep(ctx, r, o) })
	}
	s.announced = append(s.announced, a)
	return a
}

// withdraw stops the announcements and waits until the registries have removed the records, or for
// a short time limit.
func (a *announcer) withdraw() {
	a.cancel()
	a.wg.Wait()
}

// leave handles the reason why the server ends. The reason may say that another process serves an
// address from now on, as package restart does. That process announces the address, and this server
// does not withdraw it.
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
		a.stays.Store(other.Serves(a.at))
	}
}

// keep announces the server to one registry until ctx ends, and then withdraws it.
func (a *announcer) keep(ctx context.Context, r Registrar, o *overrides) {
	s := a.server
	every := s.opts.AnnounceEvery
	known := make(map[place]bool) // possible records; true once announced
	backoff, failing := firstBackoff, false
	for ctx.Err() == nil {
		changed := s.changed()
		some, err := a.tell(ctx, r, o, known)
		pause := every - rand.N(every/8+1)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if !failing {
				s.opts.Logger.Warn("yodel: the server could not be announced; trying again until it can", "addr", a.addr, "err", err)
			}
			failing, pause = true, backoff/2+rand.N(backoff/2)
			if some { // the registry answers but refuses some, perhaps for ever
				backoff = min(2*backoff, max(every, lastBackoff))
			} else {
				backoff = min(2*backoff, lastBackoff)
				changed = nil // an announcement of a change would fail as well
			}
		case failing:
			s.opts.Logger.Info("yodel: the server is announced again", "addr", a.addr)
			fallthrough
		default:
			failing, backoff = false, firstBackoff
		}
		select {
		case <-changed:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if a.stays.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	var wg sync.WaitGroup
	for at := range known {
		wg.Go(func() {
			if err := a.guarded(r).Withdraw(ctx, at.service, at.addr); err != nil {
				s.opts.Logger.Warn("yodel: the server could not be withdrawn; its lease will end", "service", at.service, "err", err)
				return
			}
			a.log("withdrawn", r, at)
		})
	}
	wg.Wait()
}

// log logs an event of a server's record in a registry.
func (a *announcer) log(event string, r Registrar, at place) {
	a.server.opts.Logger.Info("yodel: "+event, "service", at.service, "registry", a.registryName(r), "addr", at.addr)
}

// guarded wraps r in a guardedRegistrar.
func (a *announcer) guarded(r Registrar) Registrar { return guardedRegistrar{r, &a.server.guard} }

// registryName returns the name of a registry for the log: from its String method, or else its
// package.
func (a *announcer) registryName(r Registrar) string {
	name, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", r), "*"), ".")
	if s, ok := r.(fmt.Stringer); ok {
		_ = a.server.guard.apart("the Registrar's String", nil, func() error { // a failure is in the log
			name = s.String()
			return nil
		})
	}
	return name
}

// A place identifies a record in a registry.
type place struct{ service, addr string }

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(p.service, other.service), strings.Compare(p.addr, other.addr))
}

// tell announces all services once. It withdraws records of services that were unregistered and
// records under a former address. A failure for one service does not stop the others; some reports
// whether any succeeded. When ctx ends, tell lets the current operation finish within finishTime,
// so that it cannot overtake the withdrawal that follows.
func (a *announcer) tell(ctx context.Context, r Registrar, o *overrides, known map[place]bool) (some bool, err error) {
	ttl := leases * a.server.opts.AnnounceEvery
	one, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishTime, cancel) })
	defer stop()
	in, services := a.instance(), a.server.services()
	var failed []string
	note := func(did, service string, bad error) {
		if bad == nil {
			some = true
			return
		}
		failed = append(failed, did+" "+service)
		if err == nil {
			err = bad
		}
	}
	for _, service := range services {
		if ctx.Err() != nil {
			return some, ctx.Err()
		}
		at := place{service, in.Addr}
		announced := known[at]
		known[at] = announced // even if this fails, the record may have been written
		o.follow(ctx, service)
		bad := a.guarded(r).Announce(one, service, in, ttl)
		note("announce", service, bad)
		if bad == nil && !announced {
			known[at] = true
			a.log("announced", r, at)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(known), place.compare) {
		if at.addr == in.Addr && slices.Contains(services, at.service) || ctx.Err() != nil {
			continue
		}
		bad := a.guarded(r).Withdraw(one, at.service, at.addr)
		if bad == nil {
			delete(known, at)
			a.log("withdrawn", r, at)
		}
		note("withdraw", at.service, bad)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", shorten(strings.Join(failed, ", "), 150), err)
	}
	return some, err
}

// advertised returns the address that the server announces.
func (a *announcer) advertised() string {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	return cmp.Or(a.server.instance.Addr, a.addr)
}

// instance returns the record to announce. It changes the load in the record only if that has
// changed a lot, because each write notifies every client.
func (a *announcer) instance() Instance {
	s := a.server
	s.mu.Lock()
	in := s.instance
	s.mu.Unlock()
	if in.Addr == "" {
		in.Addr = a.addr
	}
	in.Started = s.started.UTC().Truncate(time.Millisecond)
	in.Incarnation = hex.EncodeToString(s.config.Incarnation)
	a.mu.Lock()
	defer a.mu.Unlock()
	in.CallRate, in.Inflight = a.record.CallRate, a.record.Inflight
	if took := time.Since(a.since); took >= s.opts.AnnounceEvery/2 {
		calls, inflight := s.load()
		rate := math.Round(float64(max(calls, a.calls)-a.calls) / took.Seconds()) // unregistering lowers calls
		a.calls, a.since = calls, time.Now()
		if differs(rate, in.CallRate) || differs(float64(inflight), float64(in.Inflight)) {
			in.CallRate, in.Inflight = rate, inflight
		}
	}
	a.record = in
	return in
}

// differs reports whether a load differs enough from the announced one.
func differs(now, before float64) bool {
	return math.Abs(now-before) > max(before/4, 2)
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

// services returns the services that the server has methods of, except the built-in one. A method
// without a service name is a service of its own.
func (s *Server) services() []string {
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
	defer func() { <-s.updating }() // also if change panics, which changes nothing
	s.mu.Lock()
	in := s.instance
	s.mu.Unlock()
	in.Tags, in.Metadata = slices.Clone(in.Tags), maps.Clone(in.Metadata) // announcers read the old ones
	change(&in)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instance = in
	s.announceAgainLocked()
}

// changed returns a channel that is closed when there is a change to announce.
func (s *Server) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anew
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

// advertised returns the address at which others reach a listener at addr. For a listener on all
// addresses, that is the host's first address that is reachable from outside.
func advertised(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	at := *tcp
	at.IP = net.IPv4(127, 0, 0, 1)
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return at.String() // without interfaces there is only the loopback address
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && (ip.IP.To4() != nil || at.IP.IsLoopback()) {
			at.IP = ip.IP
			if ip.IP.To4() != nil {
				break
			}
		}
	}
	return at.String()
}
