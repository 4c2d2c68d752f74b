// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// Ready does not connect to all of thousands, and to nobody if somebody is connected; but it finds
// the one that is there.
func TestReadyConnectsToFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("there")
		must(t, err)
		start(t, newServer(t, nil), l)
		addrs := make([]string, 1000)
		for i := range addrs {
			addrs[i] = fmt.Sprint(i)
		}
		var dials atomic.Int32
		all := transportFunc(func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			return network.Dial(ctx, "there")
		})
		c := newClient(t, &yodel.ClientOptions{Transport: all}, addrs...)
		for range 2 {
			must(t, c.Ready(t.Context()))
			synctest.Wait()
			if n := dials.Load(); n > 8 {
				t.Errorf("%d connections were made", n)
			}
		}
		one := transportFunc(func(ctx context.Context, addr string) (net.Conn, error) {
			if addr != "777" {
				return nil, errors.New("nobody listens")
			}
			return network.Dial(ctx, "there")
		})
		must(t, newClient(t, &yodel.ClientOptions{Transport: one}, addrs...).Ready(t.Context()))
		err = newClient(t, &yodel.ClientOptions{Transport: one}, addrs[:700]...).Ready(t.Context())
		wantError(t, err, yodel.Unavailable, "YDL1103")
	})
}

// A connection that is made while its client is closed is closed with it, and has one end.
func TestAConnectionThatIsMadeWhenTheClientCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("there")
		must(t, err)
		start(t, newServer(t, nil), l)
		var mu sync.Mutex
		var kinds []introspect.ConnEventKind
		leaving, closed := make(chan struct{}), make(chan struct{})
		var c *yodel.Client
		c = newClient(t, &yodel.ClientOptions{Transport: network, OnConn: func(e introspect.ConnEvent) {
			mu.Lock()
			kinds = append(kinds, e.Kind)
			mu.Unlock()
			if e.Kind == introspect.Connected {
				go func() {
					defer close(closed)
					c.Close()
				}()
				<-leaving
			}
		}}, "there")
		c.Endpoints()[0].Go(func(ctx context.Context) {
			<-ctx.Done()
			close(leaving)
		})
		_ = c.Ready(t.Context())
		<-closed
		mu.Lock()
		defer mu.Unlock()
		if want := []introspect.ConnEventKind{introspect.Connected, introspect.Closed}; !slices.Equal(kinds, want) {
			t.Errorf("when Close has returned there were %q, want %q", kinds, want)
		}
	})
}
