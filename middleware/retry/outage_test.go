// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
)

// A mortal listener and its connections can all be ended at once, as those of a process that is killed.
type mortal struct {
	net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func (m *mortal) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err == nil {
		m.mu.Lock()
		m.conns = append(m.conns, c)
		m.mu.Unlock()
	}
	return c, err
}

func (m *mortal) kill() {
	_ = m.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// run serves on addr until the function it returns is called, which kills the server.
func run(t *testing.T, addr string) (at string, kill func()) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{Listener: l}
	s := yodel.NewServer(nil)
	work.Handle(s, func(context.Context, *yodel.Empty) (*yodel.Empty, error) { return nil, nil })
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), m) }()
	return l.Addr().String(), sync.OnceFunc(func() {
		m.kill()
		<-served // with whatever its listener says
		if err := s.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

// A timeline counts what happens in each tenth of a second.
type timeline struct {
	began time.Time
	tenth [200]atomic.Int32
}

func (l *timeline) add() {
	l.tenth[min(int(time.Since(l.began)*10/time.Second), len(l.tenth)-1)].Add(1)
}

// between returns the sum of some tenths, and the largest of them.
func (l *timeline) between(from, to time.Time) (sum, most int32) {
	for i := range l.tenth {
		at := l.began.Add(time.Duration(i) * time.Second / 10)
		if !at.Before(from) && at.Before(to) {
			n := l.tenth[i].Load()
			sum, most = sum+n, max(most, n)
		}
	}
	return sum, most
}

// A counted transport counts attempts to connect.
type counted struct {
	yodel.Transport

	dials *timeline
}

func (c counted) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c.dials.add()
	return c.Transport.Dial(ctx, addr)
}

// All servers are killed, and come back: meanwhile there are few more attempts than calls, and afterwards neither a stampede nor a long wait.
func TestTotalOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	const servers, clients, callers = 3, 8, 2
	began := time.Now()
	calls, attempts, dials, successes, failures := timeline{began: began}, timeline{began: began}, timeline{began: began}, timeline{began: began}, timeline{began: began}
	var lastFailure atomic.Int64
	addrs, kills := make([]string, servers), make([]func(), servers)
	for i := range addrs {
		addrs[i], kills[i] = run(t, "127.0.0.1:0")
	}
	defer func() {
		for _, kill := range kills {
			kill()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range clients {
		c := yodel.NewClient(yodel.Static(addrs...), &yodel.ClientOptions{
			Transport: counted{yodel.TCP, &dials},
			Middleware: []yodel.Middleware{
				timeout.After(5 * time.Second),
				retry.Times(3),
				func(next yodel.Handler) yodel.Handler {
					return func(ctx context.Context, call *yodel.Call) error {
						attempts.add()
						return next(ctx, call)
					}
				},
			},
		})
		defer c.Close()
		for range callers {
			wg.Go(func() {
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for ctx.Err() == nil {
					calls.add()
					if err := c.Do(ctx, idempotent()); err == nil {
						successes.add()
					} else if ctx.Err() == nil {
						failures.add()
						lastFailure.Store(int64(time.Since(began)))
					}
					select {
					case <-tick.C:
					case <-ctx.Done():
					}
				}
			})
		}
	}
	pass := func(d time.Duration) time.Time {
		<-time.After(time.Until(time.Now().Add(d).Truncate(time.Second / 10)))
		return time.Now()
	}
	pass(time.Second)
	down := time.Now()
	for _, kill := range kills {
		kill()
	}
	up := pass(2500 * time.Millisecond)
	for i, addr := range addrs {
		_, kills[i] = run(t, addr)
	}
	end := pass(2500 * time.Millisecond)
	cancel()
	wg.Wait()

	_, usual := attempts.between(began, down)
	nCalls, _ := calls.between(down, up)
	nAttempts, _ := attempts.between(down, up)
	t.Logf("outage: %d calls, %d attempts", nCalls, nAttempts)
	if nCalls < 500 || float64(nAttempts) > 1.2*float64(nCalls) {
		t.Errorf("during the outage %d calls had %d attempts, want at most 1.2 times as many", nCalls, nAttempts)
	}
	recovered := began.Add(time.Duration(lastFailure.Load())).Sub(up)
	t.Logf("the last failure was %v after the return", recovered.Round(time.Millisecond))
	if recovered > 2*time.Second {
		t.Errorf("calls failed until %v after the return", recovered)
	}
	if n, _ := successes.between(up.Add(2*time.Second), end); n == 0 {
		t.Error("no call succeeds 2 s after the return")
	}
	nDials, most := dials.between(up, end)
	_, mostAttempts := attempts.between(up, end)
	t.Logf("return: %d dials, at most %d in 100 ms; at most %d attempts in 100 ms, usually %d", nDials, most, mostAttempts, usual)
	if nDials > 2*servers*clients || most > servers*clients/2 {
		t.Errorf("%d connections were tried after the return, %d of them within 100 ms, by %d clients of %d servers", nDials, most, clients, servers)
	}
	if mostAttempts > 2*usual {
		t.Errorf("after the return there are %d attempts in 100 ms, and usually %d", mostAttempts, usual)
	}
}
