// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/readiness"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/serve"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file shuts a server down. It withdraws the server from registries, drains it, cuts off calls
// that do not end in time, and logs each step.

// Addr returns the address at which the server listens, or nil before it listens. With several
// listeners it is the address of the first one. For a listen address such as "127.0.0.1:0", Addr
// has the port that the system chose. If ListenAndServe was started on another goroutine, Addr may
// still return nil. A program that needs the address at once should call net.Listen, or Listen of a
// Transport, and then Serve.
func (s *Server) Addr() net.Addr { return s.conns.Addr() }

// Ready returns nil if the server should get calls: it has not begun to drain, and
// ServerOptions.Ready has returned nil. The answer is at most some seconds old. Ready may wait 2 s
// for the first one. All health checks report it: yodel.Health, and those of package protocol/http.
func (s *Server) Ready() error {
	if s.conns.Stopping() {
		return ErrServerClosed
	}
	return s.ready.Ready()
}

// newProbe returns the probe that calls ServerOptions.Ready, or nil without Ready.
func newProbe(s *Server) *readiness.Probe {
	ask := s.opts.Ready
	if ask == nil {
		return nil
	}
	guarded := func(ctx context.Context) error {
		return s.guard.Apart("ServerOptions.Ready", nil, func() error { return ask(ctx) })
	}
	return readiness.New(guarded, func(err error) {
		if err != nil {
			s.opts.Logger.Warn("yodel: not ready", "err", err)
		} else {
			s.opts.Logger.Info("yodel: ready")
		}
		s.announced.Again()
	}, s.conns.Stopped())
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
	serving := s.conns.Listening() || len(s.lent.Conns()) > 0
	first, withdrawn := s.announced.Withdraw(ctx)
	first = first && serving
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
	withdrawn()
	if first {
		s.logStopped(time.Since(began), cut)
	}
	return err
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
	end, _ := ctx.Deadline()
	d := &drain{first: s.conns.Stop(end), empty: s.conns.Empty()}
	for _, sc := range s.lent.Conns() {
		d.links = append(d.links, sc.peer.link)
		d.quiet = append(d.quiet, sc.peer.link.Refuse())
	}
	d.pools = s.lent.Pools()
	return d
}

// wait waits until all connections have ended and no call is executing. It returns the cause of ctx
// if ctx ends first.
func (d *drain) wait(ctx context.Context) error {
	if err := serve.Wait(ctx, append([]<-chan struct{}{d.empty}, d.quiet...)); err != nil {
		return err
	}
	var settled []<-chan struct{} // for one-way calls, which may outlive their connections
	for _, pool := range d.pools {
		settled = append(settled, pool.Settled())
	}
	return serve.Wait(ctx, settled)
}

// cutOff ends the calls and connections that did not end in time. It describes them in what, for
// the log, and in err. If all of them ended in time, what is empty and err is nil.
func (s *Server) cutOff(d *drain, began time.Time, why error) (what string, err error) {
	open := s.openCalls()
	for _, link := range d.links {
		link.CancelRequests()
	}
	conns := s.conns.CutOff()
	switch {
	case len(open) > 0:
		what = count(len(open), "call") + ": " + opencalls.List(open)
	case conns > 0:
		what = count(conns, "connection") + " without calls"
	default:
		return "", nil
	}
	return what, failure("YDL4006", "shutdown after %v (%s) cut off %s", time.Since(began).Round(time.Millisecond), reason.Plain(why), what).because(why)
}

// openCalls returns the calls that the server is executing.
func (s *Server) openCalls() (open []opencalls.Call) {
	for _, c := range s.conns.All() {
		open = append(open, c.executing()...)
	}
	for _, sc := range s.lent.Conns() {
		open = append(open, sc.executing()...)
	}
	for _, pool := range s.lent.Pools() {
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
		attrs = append(attrs, "forAtMost", max(time.Until(end), 0).Round(time.Millisecond))
	}
	s.opts.Logger.Info("yodel: draining", attrs...)
}

func (s *Server) logStopped(took time.Duration, cutOff string) {
	s.peerLines.Flush()
	attrs := []any{"took", took.Round(time.Millisecond)}
	if cutOff != "" {
		attrs = append(attrs, "cutOff", cutOff)
	}
	s.opts.Logger.Info("yodel: stopped", attrs...)
}
