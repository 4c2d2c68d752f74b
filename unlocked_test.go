// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// The tests of this file call the client or the server from code that it calls itself. See
// docs/decisions/0040-user-code-runs-without-our-locks.md.

// returns fails the test unless f returns in time.
func returns(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	receive(t, done, what)
}

func TestUpdateInstanceMayCallTheServer(t *testing.T) {
	s := newServer(t, nil)
	addr := serve(t, s)
	must(t, newClient(t, nil, addr).Ready(t.Context()))
	returns(t, "UpdateInstance returns", func() {
		s.UpdateInstance(func(in *yodel.Instance) {
			until(t, "the server knows its peer", func() bool { return len(s.Peers()) == 1 })
			if s.Addr().String() != addr {
				t.Errorf("the server listens at %v, want %s", s.Addr(), addr)
			}
			in.Weight = 7
		})
	})
}

// Each change sees those before it, and one that panics changes nothing.
func TestNoUpdateOfAnInstanceIsLost(t *testing.T) {
	const updates = 100
	registry := memory.New(nil)
	s := newServer(t, &yodel.ServerOptions{
		Registrars: []yodel.Registrar{registry},
		Instance:   yodel.Instance{Metadata: yodel.Metadata{"rack": "1"}},
	})
	serve(t, s)
	var wg sync.WaitGroup
	for range updates {
		wg.Go(func() {
			s.UpdateInstance(func(in *yodel.Instance) {
				in.Weight++
				in.Metadata["rack"] += "1"
			})
		})
	}
	wg.Wait()
	func() {
		defer func() { _ = recover() }()
		s.UpdateInstance(func(in *yodel.Instance) {
			in.Weight = -1
			panic("no")
		})
	}()
	s.UpdateInstance(func(in *yodel.Instance) {
		if in.Weight != updates || len(in.Metadata["rack"]) != updates+1 {
			t.Errorf("after %d updates the weight is %d, and the metadata has grown by %d", updates, in.Weight, len(in.Metadata["rack"])-1)
		}
	})
}

// askingKeys is a memory whose Scope asks the server.
type askingKeys struct{ ask func() }

func (askingKeys) Guard(next yodel.Handler) yodel.Handler { return next }

func (k askingKeys) Scope() (string, time.Duration) {
	k.ask()
	return "here", time.Minute
}

func TestTheScopeOfAKeyMemoryMayCallTheServer(t *testing.T) {
	var s *yodel.Server
	s = newServer(t, &yodel.ServerOptions{Keys: askingKeys{func() { s.Peers() }}})
	c := connect(t, s, nil)
	returns(t, "a call returns", func() {
		if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
			t.Error(err)
		}
	})
}

// While the memory of one connection is asked, others begin and end.
func TestAKeyMemoryThatIsSlowHoldsUpOnlyItsConnection(t *testing.T) {
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	var once sync.Once
	begun := make(chan struct{})
	s := newServer(t, &yodel.ServerOptions{Keys: askingKeys{func() {
		select {
		case <-begun:
			slow := false
			once.Do(func() { slow = true })
			if slow {
				asked <- struct{}{}
				<-answer
			}
		default: // the server begins to serve
		}
	}}})
	addr := serve(t, s)
	until(t, "the server listens", func() bool { return s.Addr() != nil })
	must(t, newClient(t, nil, addr).Ready(t.Context()))
	close(begun)
	late := newClient(t, nil, addr)
	ready := make(chan error, 1)
	go func() { ready <- late.Ready(t.Context()) }()
	receive(t, asked, "the memory is asked")
	returns(t, "another client's call returns", func() {
		if _, err := Mul.Call(t.Context(), newClient(t, nil, addr), &Args{2, 3}); err != nil {
			t.Error(err)
		}
	})
	close(answer)
	must(t, receive(t, ready, "the connection begins"))
}

// askingListener is a listener whose methods ask the server.
type askingListener struct {
	net.Listener
	ask func()
}

func (l askingListener) Addr() net.Addr {
	l.ask()
	return l.Listener.Addr()
}

func (l askingListener) Close() error {
	l.ask()
	return l.Listener.Close()
}

func TestAListenerMayCallTheServer(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Registrars: []yodel.Registrar{memory.New(nil)}})
	l := askingListener{listen(t), func() { s.Peers() }}
	serveOn(t, s, l)
	c := newClient(t, nil, l.Listener.Addr().String())
	returns(t, "the server works and ends", func() {
		if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
			t.Error(err)
		}
		if s.Addr() == nil {
			t.Error("the server has no address")
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A connection beyond the limit is refused without having been accepted.
func TestAConnectionBeyondTheLimitIsNotAccepted(t *testing.T) {
	var log hookLog
	network := mem.New()
	h := startHooked(t, network, &yodel.ServerOptions{MaxConns: 1, OnConn: log.event}, nil)
	h.works(t, 42)
	nc, err := network.Dial(t.Context(), "server")
	must(t, err)
	defer nc.Close()
	if _, err := nc.Read(make([]byte, 1)); err == nil {
		t.Error("the server sent something on a connection beyond its limit")
	}
	until(t, "the connection is refused", func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		return len(log.lines) >= 2 && log.lines[len(log.lines)-1] == "refused"
	})
	log.is(t, "accepted", "refused")
}

// Connections whose hook is still running count.
func TestConnectionsThatAreBeingAcceptedCount(t *testing.T) {
	const limit, tries = 3, 8
	var log hookLog
	network := mem.New()
	goOn := make(chan struct{})
	startHooked(t, network, &yodel.ServerOptions{MaxConns: limit, OnConn: func(e yodel.ConnEvent) {
		log.event(e)
		if e.Kind == "accepted" {
			<-goOn
		}
	}}, nil)
	for range tries {
		nc, err := network.Dial(t.Context(), "server")
		must(t, err)
		defer nc.Close()
	}
	until(t, "all connections are decided about", func() bool {
		log.mu.Lock()
		defer log.mu.Unlock()
		return len(log.lines) == tries
	})
	log.has(t, "accepted", "accepted", "accepted", "refused", "refused", "refused", "refused", "refused")
	close(goOn)
}
