// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"context"
	"errors"
	"testing"
)

// A Conn is a connection to one server.
type Conn interface {
	Call(ctx context.Context, id int64) (answer string, err error)
	Close() error
}

// Turns returns the Call of a caller that connects to servers by itself, with dial. Callers with
// even numbers have a connection to each server and use them in turn. The others have one
// connection, and connect to the next server if it fails. A server that refuses connections is left
// out. The call during which a connection fails is not repeated.
func Turns(t testing.TB, addrs []string, caller int, dial func(ctx context.Context, addr string) (Conn, error)) Call {
	t.Helper()
	conns := make([]Conn, len(addrs))
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close() // the server may have closed it
			}
		}
	})
	at := caller
	return func(ctx context.Context, id int64) (string, error) {
		var refused error
		for range addrs {
			i := at % len(addrs)
			if conns[i] == nil {
				c, err := dial(ctx, addrs[i])
				if err != nil {
					refused = errors.Join(refused, err)
					at++
					continue
				}
				conns[i] = c
			}
			answer, err := conns[i].Call(ctx, id)
			if err != nil {
				_ = conns[i].Close() // it has failed
				conns[i] = nil
			}
			if err != nil || caller%2 == 0 {
				at++
			}
			return answer, err
		}
		return "", refused
	}
}
