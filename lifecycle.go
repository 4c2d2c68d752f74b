// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/announcer"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file shuts a server down. It withdraws the server from registries, drains it, cuts off calls
// that do not end in time, and logs each step.

// Addr returns the address at which the server listens, or nil before it listens. With several
// listeners it is the address of the first one. For a listen address such as "127.0.0.1:0", Addr
// has the port that the system chose. If ListenAndServe was started on another goroutine, Addr may
// still return nil. A program that needs the address at once should call net.Listen, or Listen of a
// Transport, and then Serve.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	listeners := s.listeners
	s.mu.Unlock()
	if len(listeners) == 0 {
		return nil
	}
	return listeners[0].Addr()
}

// Shutdown shuts the server down gracefully. It withdraws the server from its registries and
// refuses new calls in a way that sends clients to other instances. It then waits for the accepted
// calls, and closes all connections. It returns nil when every accepted call has ended. If ctx ends
// first, it cuts off the remaining calls and returns an error that names them (YDL4006) and wraps
// the cause of ctx.
//
// Shutdown always returns when ctx ends. Withdrawing takes at most a quarter of the time that ctx
// allows, and at most 3 s. After that the server drains, even if a registry has not answered yet.
//
// A handler must not call Shutdown on its own goroutine, because Shutdown waits for that handler.
//
// If a client has the server in its options, the connections belong to the client. They remain open
// but serve no calls, and the client's own calls continue.
func (s *Server) Shutdown(ctx context.Context) error {
	s.hooks.Release()
	began := time.Now()
	first := s.leaving()
	withdrawing := s.withdraw(ctx, first)
	d := s.drain(ctx)
	if first {
		s.logDraining(ctx)
		s.Note(introspect.Event{Kind: eventDrain, What: "refuses new calls and waits for the others"})
	}
	cut, err := "", d.wait(ctx)
	if err != nil {
		cut, err = s.cutOff(d, began, err)
	}
	for _, pool := range d.pools {
		pool.Cancel()
	}
	if d.first {
		s.pool.Close()
	}
	select {
	case <-withdrawing:
	case <-ctx.Done():
	case <-time.After(announcer.FinishTime + announcer.WithdrawTime - time.Since(began)):
	}
	if first {
		s.logStopped(time.Since(began), cut)
	}
	return err
}

// leaving marks the server as withdrawn. It reports whether the shutdown should be logged: once,
// and only if the server was serving.
func (s *Server) leaving() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.withdrawn && len(s.listeners)+len(s.links) > 0
	s.withdrawn = true
	return first
}

// withdraw withdraws the server from all registries. It returns when that is done, or when the
// registries' share of ctx's time has passed. The returned channel is closed when the withdrawal is
// done.
func (s *Server) withdraw(ctx context.Context, first bool) (ended <-chan struct{}) {
	s.mu.Lock()
	announced := s.announced
	s.mu.Unlock()
	done := make(chan struct{})
	if len(announced) == 0 {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		for _, a := range announced {
			a.cancel()
		}
		for _, a := range announced {
			a.wg.Wait()
		}
	}()
	share := announcer.FinishTime + announcer.WithdrawTime
	if end, ok := ctx.Deadline(); ok {
		share = min(share, time.Until(end)/4)
	}
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(share):
		if first {
			s.opts.Logger.Warn("yodel: a registry has not answered yet; the server drains meanwhile", "waited", share)
		}
	}
	return done
}

// A drain holds the channels and pools that a server waits for when it shuts down.
type drain struct {
	first bool // this is the first call of Shutdown
	empty <-chan struct{}
	links []*mux.Conn
	quiet []<-chan struct{} // one for each link, closed when the link is quiet
	pools []*mux.Pool
}

// drain stops the listeners, then refuses new calls. Each connection ends when its calls have.
func (s *Server) drain(ctx context.Context) *drain {
	s.mu.Lock()
	d := &drain{first: !s.closing, empty: s.empty}
	s.closing = true
	if d.first {
		close(s.stopped)
		s.drainEnd, _ = ctx.Deadline()
	}
	s.emptyLocked()
	listeners, conns, end := s.listeners, slices.Collect(maps.Keys(s.conns)), s.drainEnd
	for sc := range s.links {
		d.links = append(d.links, sc.peer.link)
	}
	d.pools = append([]*mux.Pool{s.pool}, slices.Collect(maps.Keys(s.pools))...)
	s.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close() // no goroutine will accept from it
	}
	for _, c := range conns {
		go c.drain(end) // its client may connect again at once, and must not be reset then
	}
	for _, link := range d.links {
		d.quiet = append(d.quiet, link.Refuse())
	}
	return d
}

// wait waits until all connections have ended and no call is executing. It returns the cause of ctx
// if ctx ends first.
func (d *drain) wait(ctx context.Context) error {
	if err := wait(ctx, append([]<-chan struct{}{d.empty}, d.quiet...)); err != nil {
		return err
	}
	var settled []<-chan struct{} // for one-way calls, which may outlive their connections
	for _, pool := range d.pools {
		settled = append(settled, pool.Settled())
	}
	return wait(ctx, settled)
}

// wait waits until all channels are closed. It returns the cause of ctx if ctx ends first. A
// channel that is already closed counts even if ctx has ended.
func wait(ctx context.Context, channels []<-chan struct{}) error {
	for _, ch := range channels {
		select {
		case <-ch:
			continue
		default:
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// cutOff ends the calls and connections that did not end in time. It describes them in what, for
// the log, and in err. If all of them ended in time, what is empty and err is nil.
func (s *Server) cutOff(d *drain, began time.Time, why error) (what string, err error) {
	open := s.openCalls()
	for _, link := range d.links {
		link.CancelRequests()
	}
	s.mu.Lock()
	s.closed = true
	conns := len(s.conns) + s.arriving - s.accepting
	for c := range s.conns {
		go c.abort()
	}
	s.mu.Unlock()
	switch {
	case len(open) > 0:
		what = count(len(open), "call") + ": " + opencalls.List(open)
	case conns > 0:
		what = count(conns, "connection") + " without calls"
	default:
		return "", nil
	}
	e := failure("YDL4006", "shutdown after %v (%s) cut off %s", time.Since(began).Round(time.Millisecond), plain(why), what)
	e.Cause = why
	return what, e
}

// openCalls returns the calls that the server is executing.
func (s *Server) openCalls() (open []opencalls.Call) {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	for sc := range s.links {
		conns = append(conns, sc)
	}
	pools := append([]*mux.Pool{s.pool}, slices.Collect(maps.Keys(s.pools))...)
	s.mu.Unlock()
	for _, c := range conns {
		open = append(open, c.executing()...)
	}
	for _, pool := range pools {
		open = append(open, s.openOf(pool.Executing())...)
	}
	return open
}

// count returns n and the noun, in the plural unless n is 1.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (s *Server) logListening(l, raw net.Listener) {
	transport := l.Addr().Network()
	if strings.HasPrefix(fmt.Sprintf("%T", raw), "*tls.") { // of package transport/tls or crypto/tls
		transport += "+tls"
	}
	s.opts.Logger.Info("yodel: listening", "addr", l.Addr().String(), "transport", transport)
}

func (s *Server) logDraining(ctx context.Context) {
	open := s.openCalls()
	attrs := []any{"calls", len(open)}
	if len(open) > 0 {
		attrs = append(attrs, "open", opencalls.List(open))
	}
	if end, ok := ctx.Deadline(); ok {
		attrs = append(attrs, "for at most", max(time.Until(end), 0).Round(time.Millisecond))
	}
	s.opts.Logger.Info("yodel: draining", attrs...)
}

func (s *Server) logStopped(took time.Duration, cutOff string) {
	s.peerLines.Flush()
	attrs := []any{"took", took.Round(time.Millisecond)}
	if cutOff != "" {
		attrs = append(attrs, "cut off", cutOff)
	}
	s.opts.Logger.Info("yodel: stopped", attrs...)
}
