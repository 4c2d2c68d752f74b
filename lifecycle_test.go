// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A hanging registry does not answer any more once it hangs. It heeds the context, or it does not.
type hanging struct {
	heeds bool
	hangs atomic.Bool
	end   chan struct{}
}

func (h *hanging) Announce(ctx context.Context, service string, in discovery.Instance, _ time.Duration) error {
	return h.Withdraw(ctx, service, in.Addr)
}

func (h *hanging) Withdraw(ctx context.Context, _, _ string) error {
	if !h.hangs.Load() {
		return nil
	}
	var done <-chan struct{}
	if h.heeds {
		done = ctx.Done()
	}
	select {
	case <-h.end:
		return nil
	case <-done:
		return context.Cause(ctx)
	}
}

func TestARegistryThatHangsLeavesDrainingItsTime(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		t.Run(fmt.Sprintf("heeds its context %t", heeds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				h := &hanging{heeds: heeds, end: make(chan struct{})}
				l, err := network.Listen("server")
				must(t, err)
				s := yodel.NewServer(&yodel.ServerOptions{
					Registrars: []discovery.Registrar{h, h}, AnnounceEvery: time.Second, DrainTimeout: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
				})
				for _, service := range []string{"A", "B", "C"} {
					handle(t, s, service+".Slow", func() { time.Sleep(time.Second) })
				}
				ctx, cancel := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- s.Serve(ctx, l) }()
				c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
				defer c.Close()
				time.Sleep(500 * time.Millisecond)
				h.hangs.Store(true)
				time.Sleep(600 * time.Millisecond) // an announcement is under way
				var calls sync.WaitGroup
				for range 12 {
					calls.Go(func() {
						if err := c.Call(context.Background(), "B.Slow", yodel.Values{}, nil); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				began := time.Now()
				cancel()
				if err := <-served; err != nil {
					t.Errorf("Serve returned %v", err)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("the shutdown took %v", took)
				}
				calls.Wait()
				close(h.end)
			})
		})
	}
}

func TestShutdownWithAnEndedContextReturnsNilWhenNothingIsLeft(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	s := newServer(t, nil)
	must(t, s.Shutdown(t.Context()))
	for range 50 {
		must(t, s.Shutdown(over))
	}
	for range 50 {
		s := newServer(t, nil)
		served := make(chan error, 1)
		l := listen(t)
		go func() { served <- s.Serve(t.Context(), l) }()
		until(t, "the server listens", func() bool { return s.Addr() != nil })
		must(t, s.Shutdown(over))
		if err := <-served; !errors.Is(err, yodel.ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
	}
}

func TestShutdownNamesTheCallsThatItCutsOff(t *testing.T) {
	for _, n := range []int{1, 3} {
		s := newBlocking(t, nil, true)
		c := connect(t, s.Server, nil)
		var calls sync.WaitGroup
		for range n {
			calls.Go(func() { _ = c.Call(context.Background(), "Block", &Empty{}, nil) })
		}
		for range n {
			receive(t, s.begun, "the handler runs")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := s.Shutdown(ctx)
		wantError(t, err, yodel.Aborted, "YDL4006")
		want := `cut off 1 call: Block from 127\.0\.0\.1:\d+ \[YDL4006\]$`
		if n > 1 {
			want = `cut off 3 calls: Block from 127\.0\.0\.1:\d+ \(3\) \[YDL4006\]$`
		}
		if !regexp.MustCompile(want).MatchString(err.Error()) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d calls: Shutdown returned %q, want a match of %s", n, err, want)
		}
		calls.Wait()
	}
}

func TestShutdownNamesOneWayCallsWhoseConnectionsHaveEnded(t *testing.T) {
	s := newBlocking(t, nil, true)
	c := yodel.Dial(serve(t, s.Server))
	must(t, c.Do(t.Context(), &yodel.Call{Method: "Block", Args: &Empty{}, OneWay: true}))
	receive(t, s.begun, "the handler runs")
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "cut off 1 call: Block from 127.0.0.1:") {
		t.Errorf("Shutdown returned %v", err)
	}
	receive(t, s.ended, "the handler ends")
}

func TestAServerLogsItsLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		network := mem.New()
		s, stop := announced(t, network, &book{}, yodel.ServerOptions{Logger: log.everything(), DrainTimeout: 3 * time.Second})
		for _, name := range []string{"A.Slow", "A.Slower"} {
			handle(t, s, name, func() { time.Sleep(time.Duration(len(name)-5) * 2 * time.Second) })
		}
		synctest.Wait()
		c := yodel.NewClient(discovery.Static("server"), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		var calls sync.WaitGroup
		for _, name := range []string{"A.Slow", "A.Slow", "A.Slower"} {
			calls.Go(func() { _ = c.Call(context.Background(), name, yodel.Values{}, nil) })
		}
		synctest.Wait()
		_ = s.Shutdown(t.Context())
		calls.Wait()
		stop()
		var got []string
		for _, line := range log.with("level=INFO") {
			_, line, _ = strings.Cut(line, `msg="yodel: `)
			got = append(got, strings.Replace(line, `"`, "", 1))
		}
		slices.Sort(got[len(got)-4 : len(got)-2]) // withdrawals are parallel
		want := []string{
			"listening addr=server transport=mem",
			"announced rpcService=A registry=yodel_test addr=server",
			"announced rpcService=Plain registry=yodel_test addr=server",
			"withdrawn rpcService=A registry=yodel_test addr=server",
			"withdrawn rpcService=Plain registry=yodel_test addr=server",
			`draining calls=3 open="A.Slow from server/1 (2), A.Slower from server/1"`,
			"stopped took=6s",
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestAServerKnowsItsAddress(t *testing.T) {
	s := newServer(t, nil)
	if addr := s.Addr(); addr != nil {
		t.Errorf("before it listens its address is %v", addr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.ListenAndServe(ctx, "127.0.0.1:0") }()
	until(t, "the server listens", func() bool { return s.Addr() != nil })
	c := newClient(t, nil, s.Addr().String())
	if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
		t.Error(err)
	}
	cancel()
	must(t, receive(t, served, "the server ends"))
}

// Each connection that says something else than yodel is worth a line, but not thousands of them.
func TestLinesAboutBadPeersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbook
		network := mem.New()
		refuse := errors.New("refused by the test")
		var refusing bool
		_, stop := announced(t, network, &book{}, yodel.ServerOptions{Logger: log.everything(), Accept: func(net.Conn) error {
			if refusing {
				return refuse
			}
			return nil
		}})
		synctest.Wait()
		dial := func(n int) {
			for range n {
				nc, err := network.Dial(t.Context(), "server")
				must(t, err)
				_, _ = nc.Write([]byte("GET / HTTP/1.1\r\n"))
				synctest.Wait()
				_ = nc.Close()
			}
			synctest.Wait()
		}
		const text = "a peer does not speak yodel"
		dial(500)
		if n := len(log.with(text)); n != 10 {
			t.Errorf("500 bad peers made %d lines, want 10", n)
		}
		refusing = true
		dial(20) // lines of another kind have their own limit
		if n := len(log.with("connection refused")); n != 10 {
			t.Errorf("20 refused peers made %d lines, want 10", n)
		}
		refusing = false
		time.Sleep(11 * time.Second)
		if left := log.with("left out"); len(left) != 2 || len(log.with(text+": more such lines were left out\" lines=490")) != 1 {
			t.Errorf("the log says %q of what was left out", left)
		}
		dial(12)
		if n := len(log.with(text)); n != 21 {
			t.Errorf("there are %d lines, want 10 for each period and one for those that were left out", n)
		}
		stop() // says at once what was left out
		if n := len(log.with("lines=2")); n != 1 {
			t.Errorf("the end of the server says %d times that 2 lines were left out", n)
		}
	})
}
