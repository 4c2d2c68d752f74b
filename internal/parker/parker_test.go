// SPDX-License-Identifier: Apache-2.0

package parker_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/parker"
	"github.com/yodel-rpc/yodel/internal/socket"
)

// A member counts what the Parker asks of it.
type member struct {
	parker.State
	nc                       net.Conn
	parked                   atomic.Bool
	checked, woken, kept     atomic.Int32
	checks, wakes, housework chan struct{}
}

func (m *member) ParkState() *parker.State { return &m.State }
func (m *member) Socket() socket.Conn      { return socket.Of(m.nc) }
func (m *member) IsParked() bool           { return m.parked.Load() }
func (m *member) CheckIdle()               { tell(&m.checked, m.checks) }
func (m *member) Housekeep()               { tell(&m.kept, m.housework) }
func (m *member) Wake()                    { tell(&m.woken, m.wakes) }

func tell(count *atomic.Int32, to chan struct{}) {
	count.Add(1)
	select {
	case to <- struct{}{}:
	default:
	}
}

// newMember returns a member, and the other side of its connection.
func newMember(t *testing.T) (m *member, peer net.Conn) {
	t.Helper()
	if !parker.Possible {
		t.Skip("connections are not parked on this system")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		peer.Close()
	})
	return &member{nc: nc, checks: make(chan struct{}, 1), wakes: make(chan struct{}, 1), housework: make(chan struct{}, 1)}, peer
}

func within(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(10 * time.Second):
		t.Fatalf("not within ten seconds: %s", what)
	}
}

func newParker(now *atomic.Int64) *parker.Parker { return &parker.Parker{Now: now.Load} }

// A member is checked until it is parked. Then it is woken once by data, and again when it is
// watched again.
func TestAParkedMemberIsWokenByData(t *testing.T) {
	p := newParker(new(atomic.Int64))
	m, peer := newMember(t)
	p.Add(m)
	p.Add(m) // it is there already
	within(t, "it is checked", m.checks)
	for range 3 {
		m.parked.Store(true)
		if !p.Watch(m) {
			t.Fatal("it cannot be watched")
		}
		if n, _ := p.Watched(); n != 1 {
			t.Fatalf("%d sockets are watched, want 1", n)
		}
		woken, checked := m.woken.Load(), m.checked.Load()
		if p.ParkIdle(); m.checked.Load() != checked || m.woken.Load() != woken {
			t.Errorf("a parked member was checked %d times and woken %d times", m.checked.Load()-checked, m.woken.Load()-woken)
		}
		if _, err := peer.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		within(t, "data wakes it", m.wakes)
		m.parked.Store(false)
		if _, err := m.nc.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	p.Remove(m)
	p.Remove(m)
	if n, _ := p.Watched(); n != 0 {
		t.Errorf("%d sockets are watched after the end", n)
	}
}

// The end of a connection wakes it, whichever side closed the socket.
func TestAClosedSocketWakesItsMember(t *testing.T) {
	for name, end := range map[string]func(m *member, peer net.Conn){
		"the peer":  func(_ *member, peer net.Conn) { peer.Close() },
		"this side": func(m *member, _ net.Conn) { m.nc.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newParker(new(atomic.Int64))
			m, peer := newMember(t)
			m.parked.Store(true)
			if !p.Watch(m) {
				t.Fatal("it cannot be watched")
			}
			end(m, peer)
			within(t, "it is woken", m.wakes)
			p.Remove(m)
		})
	}
}

// A watched member needs no timer for its housekeeping. Another one does.
func TestHousekeepingIsDoneForWatchedMembers(t *testing.T) {
	var now atomic.Int64
	p := newParker(&now)
	m, _ := newMember(t)
	if p.HousekeepAt(m, 5) {
		t.Error("housekeeping of a member that is not watched was taken on")
	}
	m.parked.Store(true)
	if !p.Watch(m) || !p.HousekeepAt(m, 5) {
		t.Fatal("housekeeping of a watched member was not taken on")
	}
	now.Store(4)
	if p.ParkIdle(); m.kept.Load() != 0 {
		t.Error("housekeeping was done too early")
	}
	now.Store(5)
	p.ParkIdle()
	within(t, "housekeeping is done", m.housework)
	if p.ParkIdle(); m.kept.Load() != 1 {
		t.Errorf("housekeeping was done %d times, want once", m.kept.Load())
	}
	p.Remove(m)
}
