// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"
)

const second = int64(time.Second)

// parked returns a client whose connection needs no ticks, after a call, and the time of the last
// one.
func parked(t *testing.T, cfg Config) (p *peer, active *atomic.Int32, now, next int64) {
	t.Helper()
	active = new(atomic.Int32)
	cfg.Active = func() { active.Add(1) }
	p = meetTCP(t, cfg)
	p.greet()
	p.send(p.begin(flagEndStream, "/whole"))
	p.check(p.id, "")
	p.awaitPong()
	p.until(func(c *Conn) bool { return len(c.workers.idle) > 0 && !c.send.flushing && len(c.send.out) == 0 })
	for now = second; now < 10*second; now += second {
		if next = p.conn.Tick(now); next != now+second {
			return p, active, now, next
		}
	}
	t.Fatal("the connection needs ticks")
	return nil, nil, 0, 0
}

// A silent connection without requests is due when its client gets a PING, or when it has been idle
// for too long. What arrives makes it due at once.
func TestIdleConnectionsNeedNoTicks(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		from int64 // due, since the client was last heard
	}{
		{Config{}, math.MaxInt64},
		{Config{KeepAlive: 10 * time.Second}, 160 * second},
		{Config{IdleTimeout: time.Minute}, 60 * second},
		{Config{KeepAlive: 10 * time.Second, IdleTimeout: time.Hour}, 160 * second},
		{Config{KeepAlive: 10 * time.Second, IdleTimeout: time.Minute}, 60 * second},
	} {
		p, active, now, next := parked(t, test.cfg)
		if heard := now - next + test.from; test.from == math.MaxInt64 && next != test.from || test.from != math.MaxInt64 && (heard < 0 || heard > now) {
			t.Errorf("%+v: due at %v, after a Tick at %v", test.cfg, time.Duration(next), time.Duration(now))
		}
		if n := active.Load(); n != 0 {
			t.Errorf("Active was called %d times", n)
		}
		for range 3 {
			p.awaitPong()
		}
		if n := active.Load(); n != 1 {
			t.Errorf("Active was called %d times when the client was heard", n)
		}
		now += 100 * second
		if next = p.conn.Tick(now); next != now+second && test.cfg.IdleTimeout == 0 {
			t.Errorf("the Tick that follows is due at %v", time.Duration(next-now))
		}
		_ = p.over()
		if next = p.conn.Tick(now); next != math.MaxInt64 {
			t.Errorf("a connection that has ended is due at %v", time.Duration(next))
		}
	}
}

// A client without requests that does not acknowledge its PING is gone.
func TestIdleClientsGetAPing(t *testing.T) {
	p, _, _, next := parked(t, Config{KeepAlive: 10 * time.Second})
	now := next
	if next = p.conn.Tick(now); next != now+second {
		t.Errorf("due in %v", time.Duration(next-now))
	}
	p.awaitFrame("PING", func(f frame) bool { return f.kind == pingFrame && string(f.payload[:5]) == "alive" })
	p.conn.Tick(now + 10*second)
	if err := <-p.served; !errors.Is(err, errSilent) {
		t.Error(err)
	}
}

// A part of a frame makes a client hold something.
func TestPartsOfFramesNeedTicks(t *testing.T) {
	headers := func(p *peer, flags byte) []byte { return raw(headersFrame, flags, p.id+2, string(p.head("/"))) }
	for name, sent := range map[string]func(p *peer) []byte{
		"a part of a header":  func(*peer) []byte { return []byte{0} },
		"a part of a frame":   func(p *peer) []byte { f := headers(p, flagEndHeaders); return f[:len(f)-1] },
		"a part of a request": func(p *peer) []byte { return headers(p, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			p, active, now, _ := parked(t, Config{KeepAlive: 10 * time.Second})
			p.send(sent(p))
			p.until(func(c *Conn) bool { return c.partial && active.Load() == 1 })
			for range 11 {
				now += second
				if next := p.conn.Tick(now); next != now+second {
					t.Fatalf("due in %v", time.Duration(next-now))
				}
			}
			p.awaitFrame("PING", func(f frame) bool { return f.kind == pingFrame && string(f.payload[:5]) == "alive" })
			_ = p.over()
		})
	}
}

// The time in which a connection needed no ticks does not count for what begins after it.
func TestTimeBeginsAnewForParkedConnections(t *testing.T) {
	p, _, now, _ := parked(t, Config{BodyTimeout: 3 * time.Second, KeepAlive: 10 * time.Second})
	now += 100 * second
	p.send(p.begin(0, "/whole"))
	p.awaitPong()
	for range 3 { // it is in time
		p.conn.Tick(now)
		now += second
	}
	p.send(raw(dataFrame, flagEndStream, p.id, "body"))
	p.check(p.id, "body")
	_ = p.over()

	p, active, now, _ := parked(t, Config{})
	p.conn.Drain()
	if n := active.Load(); n != 1 {
		t.Errorf("Active was called %d times by Drain", n)
	}
	now += 100 * second
	p.conn.Tick(now)
	p.awaitFrame("GOAWAY", func(f frame) bool { return f.kind == goAwayFrame })
	for _, f := range p.seen() {
		if f.kind == goAwayFrame {
			t.Error("the drain ended before the client could have known")
		}
	}
	p.conn.Tick(now + second)
	p.awaitFrame("a second GOAWAY", func(f frame) bool { return f.kind == goAwayFrame })
	_ = p.over()
}
