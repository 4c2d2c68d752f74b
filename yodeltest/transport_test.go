// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestTransportSuitePassesTCP(t *testing.T) { TestTransport(t, yodel.TCP, "127.0.0.1:0") }

func TestTransportRulesHoldInFakeTime(t *testing.T) {
	for _, rule := range transportRules {
		t.Run(rule.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := rule.try(mem.New(), "", time.Minute); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestTransportRulesCatchFaults breaks every rule of the suite, and expects it to notice.
func TestTransportRulesCatchFaults(t *testing.T) {
	faults := []struct {
		rule, name string
		put        func(*faulty) // into a transport that is sound
	}{
		{"echo", "Addr cannot be dialed", func(f *faulty) {
			f.listener = func(l net.Listener) net.Listener { return listenerElsewhere{l} }
		}},
		{"addresses", "no RemoteAddr", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connNowhere{c} }
		}},
		{"large transfers", "a byte changes behind 1 MiB", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return &connFlips{Conn: c} }
		}},
		{"half packets", "a small Read loses the rest", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connForgets{c} }
		}},
		{"buffers", "Write keeps its buffer", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return &connKeeps{Conn: c} }
		}},
		{"read deadline", "read deadlines do nothing", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connPatient{c} }
		}},
		{"read deadline", "a deadline cannot be taken back", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connStern{c} }
		}},
		{"write deadline", "write deadlines do nothing", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connPatient{c} }
		}},
		{"write deadline", "Write takes all", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return &connSwallows{Conn: c} }
		}},
		{"close ends read", "Close does nothing", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connStays{c} }
		}},
		{"close ends write", "Close does nothing", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connStays{c} }
		}},
		{"close does not wait", "Close takes its time", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connLingers{c} }
		}},
		{"close ends accept", "Close does nothing", func(f *faulty) {
			f.listener = func(l net.Listener) net.Listener { return listenerStays{l} }
		}},
		{"close ends accept", "Accept fails as if it could be tried again", func(f *faulty) {
			f.listener = func(l net.Listener) net.Listener { return listenerVague{l} }
		}},
		{"close reaches the peer", "Close tells nobody", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connLeavesQuietly{c} }
		}},
		{"close reaches the peer", "Close discards what was written", func(f *faulty) {
			f.conn = func(c net.Conn) net.Conn { return connDiscards{c} }
		}},
		{"dial ends with its context", "Dial looks at no context", func(f *faulty) {
			f.dial = func(_ context.Context, addr string) (net.Conn, error) {
				return f.inner.Dial(context.Background(), addr) //nolint:contextcheck // this is the fault
			}
		}},
		{"dial ends with its context", "Dial takes its time", func(f *faulty) {
			f.dial = func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := f.inner.Dial(ctx, addr)
				if err != nil {
					time.Sleep(20 * time.Second)
				}
				return c, err
			}
		}},
		{"silent peers", "Accept reads first", func(f *faulty) {
			f.listener = func(l net.Listener) net.Listener { return listenerListens{l} }
		}},
		{"many connections", "one after the other", func(f *faulty) {
			f.listener = func(l net.Listener) net.Listener { return &listenerSingle{Listener: l} }
		}},
		{"nothing stays behind", "a goroutine for each Dial stays", func(f *faulty) {
			f.dial = func(ctx context.Context, addr string) (net.Conn, error) {
				go func() { <-f.released }()
				return f.inner.Dial(ctx, addr)
			}
		}},
	}
	caught := map[string]bool{}
	for _, fault := range faults {
		caught[fault.rule] = true
		t.Run(fault.rule+": "+fault.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the trial's limit passes in no time
				f := newFaulty(mem.New())
				defer f.release()
				fault.put(f)
				if err := ruleNamed(t, fault.rule).try(f, "", time.Minute); err == nil {
					t.Error("the rule does not notice")
				} else {
					t.Logf("noticed: %v", err)
				}
			})
		})
	}
	for _, rule := range transportRules {
		if !caught[rule.name] {
			t.Errorf("no fault shows that the rule %q can fail", rule.name)
		}
	}
}

// On sockets the silent peer stands below any handshake, where Dial cannot be silent.
func TestTransportRuleOfSilentPeersOnSockets(t *testing.T) {
	f := newFaulty(yodel.TCP)
	defer f.release()
	f.listener = func(l net.Listener) net.Listener { return listenerListens{l} }
	f.dial = func(ctx context.Context, addr string) (net.Conn, error) { // a handshake of one byte
		c, err := f.inner.Dial(ctx, addr)
		if err == nil {
			_, err = c.Write([]byte{1})
		}
		return c, err
	}
	if err := ruleNamed(t, "silent peers").try(f, "127.0.0.1:0", 200*time.Millisecond); err == nil {
		t.Error("the rule does not notice")
	}
}

func ExampleTestTransport() {
	_ = func(t *testing.T) {
		TestTransport(t, mem.New(), ":0")
	}
	// Output:
}

func ruleNamed(t *testing.T, name string) transportRule {
	t.Helper()
	for _, rule := range transportRules {
		if rule.name == name {
			return rule
		}
	}
	t.Fatalf("there is no rule %q", name)
	return transportRule{}
}

// A faulty transport is a sound one with a fault put in.
type faulty struct {
	inner    yodel.Transport
	conn     func(net.Conn) net.Conn
	listener func(net.Listener) net.Listener
	dial     func(ctx context.Context, addr string) (net.Conn, error)
	released chan struct{}

	mu   sync.Mutex
	open []io.Closer // what the fault may keep from being closed
}

func newFaulty(inner yodel.Transport) *faulty {
	return &faulty{
		inner:    inner,
		conn:     func(c net.Conn) net.Conn { return c },
		listener: func(l net.Listener) net.Listener { return l },
		dial:     inner.Dial,
		released: make(chan struct{}),
	}
}

// release ends whatever the fault left.
func (f *faulty) release() {
	close(f.released)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.open {
		_ = c.Close()
	}
}

func (f *faulty) keep(c io.Closer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = append(f.open, c)
}

func (f *faulty) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := f.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	f.keep(c)
	return f.conn(c), nil
}

func (f *faulty) Listen(addr string) (net.Listener, error) {
	l, err := f.inner.Listen(addr)
	if err != nil {
		return nil, err
	}
	f.keep(l)
	return f.listener(faultyListener{l, f}), nil
}

type faultyListener struct {
	net.Listener
	f *faulty
}

func (l faultyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.f.keep(c)
	return l.f.conn(c), nil
}

type listenerElsewhere struct{ net.Listener }

func (listenerElsewhere) Addr() net.Addr { return &net.UnixAddr{Name: "elsewhere", Net: "unix"} }

type listenerStays struct{ net.Listener }

func (listenerStays) Close() error { return nil }

type listenerVague struct{ net.Listener }

func (l listenerVague) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return c, nil
}

type listenerListens struct{ net.Listener }

func (l listenerListens) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return c, err
}

type listenerSingle struct {
	net.Listener
	last net.Conn
}

func (l *listenerSingle) Accept() (net.Conn, error) {
	if l.last != nil {
		_, _ = io.Copy(io.Discard, l.last)
	}
	c, err := l.Listener.Accept()
	l.last = c
	return c, err
}

type connNowhere struct{ net.Conn }

func (connNowhere) RemoteAddr() net.Addr { return nil }

type connFlips struct {
	net.Conn
	read int
}

func (c *connFlips) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read += n; c.read > 1<<20 && n > 0 {
		b[0]++
	}
	return n, err
}

type connForgets struct{ net.Conn }

func (c connForgets) Read(b []byte) (int, error) {
	message := make([]byte, 1<<20)
	n, err := c.Conn.Read(message)
	return copy(b, message[:n]), err
}

type connKeeps struct {
	net.Conn
	kept []byte
}

func (c *connKeeps) Write(b []byte) (int, error) {
	if len(b) == 1 { // the greeting
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(c.kept); err != nil {
		return 0, err
	}
	c.kept = b
	return len(b), nil
}

type connPatient struct{ net.Conn }

func (connPatient) SetDeadline(time.Time) error      { return nil }
func (connPatient) SetReadDeadline(time.Time) error  { return nil }
func (connPatient) SetWriteDeadline(time.Time) error { return nil }

type connStern struct{ net.Conn }

func (c connStern) SetDeadline(at time.Time) error {
	if at.IsZero() {
		return nil
	}
	return c.Conn.SetDeadline(at)
}

type connSwallows struct {
	net.Conn
	written int
}

func (c *connSwallows) Write(b []byte) (int, error) {
	if c.written += len(b); c.written > 100<<10 {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

type connStays struct{ net.Conn }

func (connStays) Close() error { return nil }

type connLingers struct{ net.Conn }

func (c connLingers) Close() error {
	time.Sleep(5 * time.Second)
	return c.Conn.Close()
}

type connLeavesQuietly struct{ net.Conn }

func (c connLeavesQuietly) Close() error { return c.SetDeadline(time.Unix(1, 0)) }

type connDiscards struct{ net.Conn }

func (c connDiscards) Write(b []byte) (int, error) {
	if len(b) == 1 { // the greeting
		return c.Conn.Write(b)
	}
	return len(b), nil
}
