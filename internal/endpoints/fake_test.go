// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/source"
)

// A fakeConn is a connection that sends nothing.
type fakeConn struct {
	ended    chan struct{}
	once     sync.Once
	end      End
	whenIdle bool
}

func (c *fakeConn) Usable() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

func (c *fakeConn) End() End               { return c.end }
func (c *fakeConn) Ended() <-chan struct{} { return c.ended }
func (c *fakeConn) Close()                 { c.once.Do(func() { close(c.ended) }) }
func (c *fakeConn) CloseWhenIdle()         { c.whenIdle = true }

type endpoint = Endpoint[string, *fakeConn]

// A fakeClient has a List whose owners are addresses. Its servers say what listens at an address.
// An address without a server is silent.
type fakeClient struct {
	list    List[string, *fakeConn]
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	servers  map[string]func(ctx context.Context, accepted func()) error
	dials    map[string][]time.Time
	dialling int
	most     int // attempts at the same time
	changes  []string
	joined   []string
	left     []string
	sets     []string // all endpoints, and those given to the balancer
	slow     func()   // a balancer that takes long; nil for none
}

func inBubble(t *testing.T, test func(t *testing.T, c *fakeClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &fakeClient{cancel: cancel, servers: make(map[string]func(context.Context, func()) error), dials: make(map[string][]time.Time)}
		l := &c.list
		l.Timeout, l.Closing, l.Go, l.Connect = 3*time.Second, ctx.Done(), c.running.Go, c.connect
		l.Ready = func(of string, _ *mux.Conn) *fakeConn { return c.first(of) }
		l.Beside = func(of string) (*fakeConn, bool) { return c.first(of), false }
		l.Elsewhere = func(of string, waited time.Duration) error {
			return fmt.Errorf("%s: another one is there after %v", of, waited)
		}
		l.Why = func(_ string, err *reason.DialError) string { return err.Error() }
		l.Changed = func(of, by string, ready bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changes = append(c.changes, fmt.Sprintf("%s %s %t", of, by, ready))
		}
		l.Background = func(f func(context.Context)) bool {
			if ctx.Err() != nil {
				return false
			}
			c.running.Go(func() { f(ctx) })
			return true
		}
		l.Joined = func(of []string) { c.joined = append(c.joined, of...) }
		l.Left = func(of []string) { c.left = append(c.left, of...) }
		l.Build = c.build
		defer func() {
			cancel()
			l.Close()
			c.running.Wait()
		}()
		test(t, c)
	})
}

func (c *fakeClient) connect(ctx context.Context, of string, _ bool, accepted func()) (*fakeConn, *reason.DialError) {
	c.mu.Lock()
	c.dials[of] = append(c.dials[of], time.Now())
	server := c.servers[of]
	c.dialling++
	c.most = max(c.most, c.dialling)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dialling--
	}()
	if server == nil {
		<-ctx.Done()
		return nil, &reason.DialError{Err: ctx.Err()}
	}
	if err := server(ctx, accepted); err != nil {
		return nil, &reason.DialError{Err: err}
	}
	return &fakeConn{ended: make(chan struct{})}, nil
}

var errRefused = errors.New("nobody listens")

func answers(context.Context, func()) error { return nil }
func refuses(context.Context, func()) error { return errRefused }

// takes returns a server that accepts a connection at once and answers after a while.
func takes(d time.Duration) func(context.Context, func()) error {
	return func(ctx context.Context, accepted func()) error {
		accepted()
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serve sets what listens at addresses.
func (c *fakeClient) serve(server func(context.Context, func()) error, addrs ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, addr := range addrs {
		c.servers[addr] = server
	}
}

// build implements List.Build.
func (c *fakeClient) build(all, given []string) (publish func()) {
	if c.slow != nil {
		c.slow()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sets = append(c.sets, strings.Join(all, "")+"/"+strings.Join(given, ""))
	}
}

// resolve reports instances. Those in upper case are inactive.
func (c *fakeClient) resolve(addrs ...string) (none bool) {
	var named []source.Found
	for _, addr := range addrs {
		lower := strings.ToLower(addr)
		named = append(named, source.Found{Instance: discovery.Instance{Addr: lower}, Active: lower == addr})
	}
	none = c.list.Update(named, func(*source.Found, string) bool { return true }, func(in *source.Found) *endpoint {
		ep := new(endpoint)
		ep.Init(&c.list, in.Addr, in.Addr)
		return ep
	})
	c.list.Rebuild()
	return none
}

// publish resolves addresses and returns their endpoints.
func (c *fakeClient) publish(addrs ...string) []*endpoint {
	c.resolve(addrs...)
	return c.list.published()
}

func (c *fakeClient) first(of string) *fakeConn {
	for _, ep := range c.list.published() {
		if conns := ep.Conns(); ep.owner == of && len(conns) > 0 {
			return conns[0]
		}
	}
	return nil
}

func (c *fakeClient) dialsTo(addr string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dials[addr]
}

// connect is a call that has other endpoints.
func connect(ep *endpoint) error { return within(ep, time.Minute) }

func within(ep *endpoint, limit time.Duration) error {
	conn, err := ep.Connect(context.Background(), time.Now().Add(limit), false, nil)
	if err == nil && conn == nil {
		return errors.New("there is neither a connection nor an error")
	}
	return err
}

// cut ends the only connection of an endpoint.
func cut(ep *endpoint, end End) {
	conn := ep.Conns()[0]
	conn.end = end
	conn.Close()
	ep.Remove(conn)
}
