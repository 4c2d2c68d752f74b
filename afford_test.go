// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// Attempts on endpoints that have left are not forgotten, or what comes after them would not count.
func TestAClientCountsItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		addrs := []string{"a", "b", "c"}
		for _, addr := range addrs {
			s := yodel.NewServer(nil)
			relay.Handle(s, func(_ context.Context, in *int) (*int, error) { return in, nil })
			l, err := network.Listen(addr)
			must(t, err)
			start(t, s, l)
		}
		updates := make(chan []discovery.Instance)
		c := yodel.NewClient(changing(updates), &yodel.ClientOptions{Transport: network})
		defer c.Close()
		for i := range 12 {
			updates <- []discovery.Instance{{Addr: addrs[i%3]}, {Addr: addrs[(i+1)%3]}}
			synctest.Wait()
			for range 10 {
				_, err := relay.Call(t.Context(), c, new(int))
				must(t, err)
			}
			if n := yodel.AttemptsOf(c); n != int64(10*(i+1)) {
				t.Errorf("after %d calls it counts %d", 10*(i+1), n)
			}
		}
	})
}

// A changing resolver names what is sent to it.
type changing <-chan []discovery.Instance

func (r changing) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	for {
		select {
		case set := <-r:
			update(set)
		case <-ctx.Done():
			return nil
		}
	}
}
