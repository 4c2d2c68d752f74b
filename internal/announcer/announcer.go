// SPDX-License-Identifier: Apache-2.0

// Package announcer keeps the records of a server in its registries up to date. It announces a
// record, renews it before it expires, repeats failed announcements, and withdraws the record at
// the end. It also watches the settings that operators make in a registry. The server provides the
// record, and determines how long it is announced.
package announcer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/address"
	"github.com/yodel-rpc/yodel/internal/guard"
	"github.com/yodel-rpc/yodel/internal/text"
)

// leases is how many announcements in a row may fail or be late before the record expires.
const leases = 3

// When the context of Run ends, a running announcement may take FinishTime more. After that, the
// withdrawals may take withdrawTime. A record that could not be withdrawn expires.
const (
	FinishTime   = time.Second
	withdrawTime = 2 * time.Second
)

// While the registry does not answer, the pause between announcements grows from firstBackoff to
// lastBackoff.
const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 1500 * time.Millisecond
)

// betweenWarnings is the pause between two warnings that the registry does not answer.
const betweenWarnings = time.Minute

// maxFailed bounds the list of services in the error of an announcement, in bytes.
const maxFailed = 150

// A Server provides the record to announce, and the services under which it is announced. Its
// methods may be called concurrently.
type Server interface {
	// Record returns the record of the server, with its address.
	Record() discovery.Instance
	// Services returns the sorted names of the services under which the record is announced.
	Services() []string
	// Changed returns a channel that is closed when the record or the services have changed since
	// the call.
	Changed() <-chan struct{}
}

// An Announcer announces a server in one registry. Its exported fields do not change after Run has
// begun.
type Announcer struct {
	Server    Server
	Registrar discovery.Registrar // its methods may panic or end their goroutine
	Guard     *guard.Guard
	Name      string        // of the registry, for the log
	Every     time.Duration // how often the announcement is renewed
	At        net.Addr      // of the listener
	Addr      string        // the address of the server in log lines about failures
	Log       *slog.Logger
	Settings  *Settings // nil if the registry has no settings of operators

	keep    atomic.Bool
	failing atomic.Bool
	at      atomic.Int64 // when the last announcement succeeded, in nanoseconds since 1970; 0 before the first
}

// State returns when the registry last accepted all records, and whether the last attempt failed.
// At is zero before the first time.
func (a *Announcer) State() (at time.Time, failing bool) {
	if ns := a.at.Load(); ns != 0 {
		at = time.Unix(0, ns)
	}
	return at, a.failing.Load()
}

// Keep says whether Run leaves the records in the registry when it ends, because another process
// serves the address from then on.
func (a *Announcer) Keep(keep bool) { a.keep.Store(keep) }

// Run announces the server until ctx ends. Then it withdraws the records, unless Keep says
// otherwise, and waits until the settings are no longer watched.
func (a *Announcer) Run(ctx context.Context) {
	if a.Settings != nil {
		defer a.Settings.Wait()
	}
	known := make(map[place]bool) // possible records; true once announced
	backoff := firstBackoff
	var warned time.Time
	for ctx.Err() == nil {
		changed := a.Server.Changed()
		some, err := a.announce(ctx, known)
		pause := a.Every - rand.N(a.Every/8+1)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if !a.failing.Swap(true) || time.Since(warned) >= betweenWarnings {
				warned = time.Now()
				a.Log.Warn("yodel: the server could not be announced; trying again until it can", "addr", a.Addr, "err", err)
			}
			pause = backoff/2 + rand.N(backoff/2)
			if some { // the registry answers but refuses some services, perhaps for ever
				backoff = min(2*backoff, max(a.Every, lastBackoff))
			} else {
				backoff = min(2*backoff, lastBackoff)
				changed = nil // an announcement of a change would fail too
			}
		default:
			if a.failing.Swap(false) {
				a.Log.Info("yodel: the server is announced again", "addr", a.Addr)
			}
			a.at.Store(time.Now().UnixNano())
			backoff = firstBackoff
		}
		select {
		case <-changed:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if !a.keep.Load() {
		a.withdraw(context.WithoutCancel(ctx), known)
	}
}

// A place identifies a record in a registry.
type place struct{ service, addr string }

func (p place) compare(other place) int {
	return cmp.Or(strings.Compare(p.service, other.service), strings.Compare(p.addr, other.addr))
}

// announce announces all services once. It withdraws records of services that were unregistered and
// records under a former address. A failure for one service does not stop the announcement of the
// other services. Some reports whether the announcement of at least one service succeeded. When ctx
// ends, announce lets the current operation finish within FinishTime, so that it cannot overtake
// the withdrawal that follows.
func (a *Announcer) announce(ctx context.Context, known map[place]bool) (some bool, err error) {
	ttl := leases * a.Every
	one, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(FinishTime, cancel) })
	defer stop()
	record := a.Server.Record()
	if _, err := address.Reachable(a.At, record.Addr); err != nil { // the program has changed it since the server began
		return true, err
	}
	services := a.Server.Services()
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
		at := place{service, record.Addr}
		announced := known[at]
		known[at] = announced // even if this fails, the record may have been written
		if a.Settings != nil {
			a.Settings.Follow(ctx, service)
		}
		bad := a.put(one, service, record, ttl)
		note("announce", service, bad)
		if bad == nil && !announced {
			known[at] = true
			a.log("announced", at)
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(known), place.compare) {
		if at.addr == record.Addr && slices.Contains(services, at.service) || ctx.Err() != nil {
			continue
		}
		bad := a.remove(one, at)
		if bad == nil {
			delete(known, at)
			a.log("withdrawn", at)
		}
		note("withdraw", at.service, bad)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", text.Cut(strings.Join(failed, ", "), maxFailed), err)
	}
	return some, err
}

// withdraw withdraws all records, in parallel.
func (a *Announcer) withdraw(ctx context.Context, known map[place]bool) {
	ctx, cancel := context.WithTimeout(ctx, withdrawTime)
	defer cancel()
	var wg sync.WaitGroup
	for at := range known {
		wg.Go(func() {
			if err := a.remove(ctx, at); err != nil {
				a.Log.Warn("yodel: the server could not be withdrawn; its lease will end", "rpcService", at.service, "err", err)
				return
			}
			a.log("withdrawn", at)
		})
	}
	wg.Wait()
}

// log logs an event of a record.
func (a *Announcer) log(event string, at place) {
	a.Log.Info("yodel: "+event, "rpcService", at.service, "registry", a.Name, "addr", at.addr)
}
