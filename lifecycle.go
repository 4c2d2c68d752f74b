// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/opencalls"
	"github.com/yodel-rpc/yodel/internal/readiness"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/serve"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file makes a server serve, and shuts it down. It then withdraws the server from registries,
// drains it, cuts off calls that do not end in time, and logs each step.

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
		s.opts.Logger.Info("yodel: draining", opencalls.Draining(ctx, s.openCalls())...)
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
		s.peerLines.Flush()
		s.opts.Logger.Info("yodel: stopped", opencalls.Stopped(time.Since(began), cut)...)
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
	if what = opencalls.CutOff(open, s.conns.CutOff()); what == "" {
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

// ListenAndServe listens at addr and serves until ctx ends. It then shuts the server down within
// DrainTimeout and returns nil. It returns an error if it could not listen or had to cut off calls.
//
// A program that ends on a signal should restore the usual effect of Ctrl-C after the first signal,
// so that a second Ctrl-C ends the process at once:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	context.AfterFunc(ctx, stop)
//	err := s.ListenAndServe(ctx, addr)
func (s *Server) ListenAndServe(ctx context.Context, addr string) error {
	if err := s.lacksCodec(); err != nil {
		return err
	}
	l, err := s.opts.Transport.Listen(addr)
	if err != nil {
		s.event(introspect.ConnEvent{Kind: introspect.ListenFailed, Addr: addr, Err: err})
		if e, ok := errors.AsType[*Error](err); ok {
			return e
		}
		return failure("YDL4002", "listen at %s: %s", addr, reason.Plain(err)).because(err)
	}
	return s.Serve(ctx, l)
}

// Serve accepts connections from l until ctx ends or Shutdown is called. When ctx ends, it shuts
// the server down within DrainTimeout, and returns nil or the error of Shutdown. After Shutdown it
// returns ErrServerClosed. Serve closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	given, err := l, s.lacksCodec()
	if t, ok := s.opts.Transport.(interface {
		NewListener(l net.Listener) (net.Listener, error)
	}); ok && err == nil {
		l, err = t.NewListener(given)
	}
	if err != nil {
		_ = s.guard.Listener(given).Close() // it was never used
		return err
	}
	raw := l
	l = s.guard.Listener(raw)
	if s.opts.Keys != nil {
		s.opts.Keys.Scope() // Scope may have to ask its store
	}
	if err = s.announced.Check(l.Addr()); err == nil || s.conns.Stopping() {
		err = s.conns.Listen(l)
	}
	if err != nil {
		_ = l.Close() // it was never used
		return err
	}
	s.opts.Logger.Info("yodel: listening", "addr", l.Addr().String(), "transport", serve.Transport(l, raw))
	s.Note(introspect.Event{Kind: eventStart, Object: l.Addr().String(), What: "listening"})
	defer s.live.Follow()()
	defer s.ready.Follow()()
	withdraw := s.announced.Announce(l.Addr())
	failed := make(chan error, 1)
	go func() {
		failed <- s.guard.Apart("the listener", nil, func() error { return s.conns.Accept(l, s.serve) })
	}()
	select {
	case err := <-failed:
		_ = l.Close() // it is closed already, unless Accept panicked
		withdraw()
		return err
	case <-ctx.Done():
	}
	s.leave(context.Cause(ctx))
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.DrainTimeout)
	defer cancel()
	err = s.Shutdown(drain)
	<-failed //nolint:errcheck // it is ErrServerClosed
	return err
}

// lacksCodec returns an error if a Protocol can use none of the server's codecs.
func (s *Server) lacksCodec() error {
	for _, p := range s.opts.Protocols {
		needs, ok := p.(interface{ Codecs() []string })
		if !ok {
			continue
		}
		names := needs.Codecs()
		if !slices.ContainsFunc(names, func(name string) bool { return s.codecs[name] != nil }) {
			return failure("YDL2003", "the protocol %s needs the codec %s in ServerOptions.Codecs", p.Name(), strings.Join(names, " or "))
		}
	}
	return nil
}
