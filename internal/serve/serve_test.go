// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/serve"
)

var (
	errClosed = errors.New("closed")
	errFull   = errors.New("full")
	errAccept = errors.New("accept fails")
)

// A listener accepts what a test puts into come: connections and errors.
type listener struct {
	net.Listener
	come   chan any
	closed chan struct{}
	once   sync.Once
}

func newListener() *listener { return &listener{come: make(chan any), closed: make(chan struct{})} }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case come := <-l.come:
		if err, ok := come.(error); ok {
			return nil, err
		}
		return come.(net.Conn), nil
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "here"} }

// arrive lets a connection arrive, and returns its other end.
func (l *listener) arrive(t *testing.T) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	select {
	case l.come <- here:
	case <-time.After(time.Minute):
		t.Error("the server does not accept")
		here.Close()
	}
	return there
}

// A server has connections that are closed when they drain.
type server struct {
	*serve.Conns[net.Conn]

	mu  sync.Mutex
	log []string
}

func (s *server) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, line)
}

// did compares what was logged since the last call.
func (s *server) did(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := fmt.Sprint(s.log); got != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	s.log = nil
}

func newServer(most int) *server {
	s := &server{}
	ends := func(what string) func(net.Conn) {
		return func(c net.Conn) {
			s.add(what)
			c.Close()
			s.Forget(c)
		}
	}
	s.Conns = serve.New(&serve.Options[net.Conn]{
		Max: most, Patience: 10 * time.Second, Closed: errClosed, Full: func() error { return errFull },
		Drain: func(c net.Conn, end time.Time) {
			s.add("drain")
			if end.IsZero() { // else it hangs
				c.Close()
				s.Forget(c)
			}
		},
		Abort: ends("abort"), Displace: ends("displace"),
		Failed: func(_ net.Listener, err error, again time.Duration) { s.add(fmt.Sprint(err, " ", again)) },
	})
	return s
}

// accepting runs Accept until the test ends. Its connections enter at once, and are silent.
func (s *server) accepting(t *testing.T) *listener {
	t.Helper()
	l := newListener()
	if err := s.Listen(l); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Accept(l, s.serve) }()
	t.Cleanup(func() {
		s.Stop(time.Time{})
		if err := <-ended; !errors.Is(err, errClosed) {
			t.Errorf("Accept returned %v", err)
		}
		s.CutOff()
		<-s.Empty()
	})
	return l
}

func (s *server) serve(nc net.Conn, refused error) {
	if refused != nil {
		s.add(refused.Error())
		nc.Close()
		return
	}
	if _, err := s.Enter(nc, nil); err != nil {
		s.add(err.Error())
		nc.Close()
		return
	}
	s.Silent(nc)
}

func TestAConnectionBeyondTheLimitIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(2)
		l := s.accepting(t)
		for range 3 {
			l.arrive(t)
		}
		s.did(t, "full")
		s.Forget(s.All()[0])
		l.arrive(t)
		s.did(t)
		if n := s.Len(); n != 2 {
			t.Errorf("%d connections are open, want 2", n)
		}
	})
}

// The limit counts a connection before it is served, so that goroutines are bounded too.
func TestAConnectionTakesItsPlaceBeforeItIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		l := newListener()
		if err := s.Listen(l); err != nil {
			t.Fatal(err)
		}
		refusal := make(chan struct{})
		go s.Accept(l, func(nc net.Conn, refused error) {
			defer nc.Close()
			if refused != nil {
				s.add("refused")
				<-refusal
				return
			}
			s.add("admitted")
			<-refusal
			s.Leave()
		})
		const refusals = 64
		l.arrive(t)
		s.did(t, "admitted")
		for range refusals {
			l.arrive(t)
		}
		s.did(t, slices.Repeat([]string{"refused"}, refusals)...)
		l.arrive(t) // the accept loop has it, and waits
		synctest.Wait()
		select {
		case l.come <- errAccept:
			t.Error("the server accepts although it refuses 64 connections")
		default:
		}
		s.did(t)
		close(refusal)
		synctest.Wait()
		s.Stop(time.Time{})
		<-s.Empty()
	})
}

// A silent connection keeps its place until another one needs it.
func TestASilentConnectionGivesItsPlaceToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(3)
		l := s.accepting(t)
		oldest := l.arrive(t)
		time.Sleep(time.Second)
		l.arrive(t)
		time.Sleep(time.Second)
		l.arrive(t)
		time.Sleep(8*time.Second - time.Nanosecond)
		l.arrive(t)
		s.did(t, "full") // none is silent for 10 seconds
		time.Sleep(time.Nanosecond)
		l.arrive(t)
		s.did(t, "displace")
		if _, err := oldest.Read(make([]byte, 1)); err == nil {
			t.Error("the connection that was silent longest is open")
		}
		time.Sleep(time.Hour)
		for _, c := range s.All() {
			s.Spoke(c)
			s.Spoke(c)
		}
		l.arrive(t)
		s.did(t, "full")
	})
}

// The place counts once, whether the displaced connection has ended or not.
func TestADisplacedConnectionIsOpenUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve.New(&serve.Options[int]{
			Max: 1, Closed: errClosed, Full: func() error { return errFull }, Drain: func(int, time.Time) {}, Displace: func(int) {}, Abort: func(int) {},
		})
		enter := func(c int, want error) {
			t.Helper()
			err := s.Admit()
			if err == nil {
				_, err = s.Enter(c, nil)
			}
			if !errors.Is(err, want) {
				t.Errorf("connection %d: got %v, want %v", c, err, want)
			}
		}
		enter(1, nil)
		s.Silent(1)
		enter(2, nil)
		s.Silent(1) // too late
		enter(3, errFull)
		s.Forget(1)
		s.Forget(1)
		enter(3, errFull)
		s.Stop(time.Time{})
		select {
		case <-s.Empty():
			t.Error("it is empty although a connection is open")
		default:
		}
		s.Forget(2)
		<-s.Empty()
	})
}

func TestAReplacedConnectionKeepsItsPlace(t *testing.T) {
	s := newServer(1)
	a, b := net.Pipe()
	if err := s.Admit(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Enter(a, nil); err != nil {
		t.Fatal(err)
	}
	begun := false
	if draining, err := s.Replace(a, b, func() { begun = true }); draining || err != nil || !begun {
		t.Errorf("got %t, %v, begun %t", draining, err, begun)
	}
	if err := s.Admit(); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
	if all := s.All(); len(all) != 1 || all[0] != b {
		t.Errorf("got %v", all)
	}
	a.Close()
	b.Close()
}

func TestAConnectionThatIsUsedTwiceIsOpenUntilBothEnd(t *testing.T) {
	s := newServer(1)
	a, b := net.Pipe()
	defer b.Close()
	for range 2 {
		if !s.Use(a) {
			t.Error("it cannot be used")
		}
	}
	s.Forget(a)
	if s.Len() != 1 {
		t.Error("it has gone after its first end")
	}
	s.Forget(a)
	if s.Len() != 0 {
		t.Error("it is still open")
	}
	s.Stop(time.Time{})
	if s.Use(a) {
		t.Error("it can be used after Stop")
	}
	<-s.Empty()
}

func TestStopDrainsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(2)
		l := s.accepting(t)
		l.arrive(t)
		if s.Stopping() || s.Addr().String() != "here" || !s.Listening() {
			t.Error("the server is not listening")
		}
		if err := s.Admit(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !s.Stop(time.Time{}) || s.Stop(time.Now()) {
			t.Error("not the first Stop alone is the first")
		}
		<-s.Stopped()
		s.did(t, "drain", "drain") // as often as Stop was called
		nc, other := net.Pipe()
		defer other.Close()
		if draining, err := s.Enter(nc, nil); !draining || err != nil {
			t.Errorf("got %t, %v, want that it may enter and has to drain", draining, err)
		}
		s.did(t, "drain")
		if err := s.Listen(newListener()); !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
	})
}

// CutOff counts what is left: open connections, and those that are about to enter.
func TestCutOffEndsConnectionsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(3)
		l := newListener()
		if err := s.Listen(l); err != nil {
			t.Fatal(err)
		}
		accepted, goOn := make(chan error, 1), make(chan struct{})
		first := true
		go func() {
			accepted <- s.Accept(l, func(nc net.Conn, refused error) {
				if first {
					first = false
					s.serve(nc, refused)
					return
				}
				<-goOn
				if err := s.Check(); !errors.Is(err, errClosed) {
					t.Errorf("got %v, want %v", err, errClosed)
				}
				s.serve(nc, refused)
			})
		}()
		l.arrive(t)
		synctest.Wait()
		l.arrive(t)
		synctest.Wait()
		s.Stop(time.Now().Add(time.Hour)) // with an end, connections of this test hang
		s.did(t, "drain")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := new(lent).Drain(s.Empty()).Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want that Wait ends with its context", err)
		}
		if left := s.CutOff(); left != 2 {
			t.Errorf("%d connections were left, want 2", left)
		}
		s.did(t, "abort")
		close(goOn)
		s.did(t, "closed")
		if err := new(lent).Drain(s.Empty()).Wait(ctx); err != nil {
			t.Errorf("got %v, want nil, because nothing is left", err)
		}
		if err := s.Admit(); !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
		<-accepted
	})
}

func TestAcceptTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1)
		l := s.accepting(t)
		begin := time.Now()
		for range 9 {
			l.come <- errAccept
		}
		s.did(t, "accept fails 5ms", "accept fails 10ms", "accept fails 20ms", "accept fails 40ms", "accept fails 80ms", "accept fails 160ms",
			"accept fails 320ms", "accept fails 640ms", "accept fails 1s")
		l.arrive(t)
		l.come <- errAccept
		s.did(t, "accept fails 5ms")
		if took := time.Since(begin); took != 2275*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// A listener that somebody else has closed ends Accept.
func TestAcceptEndsWithItsListener(t *testing.T) {
	s := newServer(1)
	l := newListener()
	if err := s.Listen(l); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := s.Accept(l, s.serve); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
	s.Stop(time.Time{})
	<-s.Empty()
	if got := fmt.Sprint(s.log); got != fmt.Sprintf("[%v 0s]", net.ErrClosed) {
		t.Errorf("got %s", got)
	}
}
