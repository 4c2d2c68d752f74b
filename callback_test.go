// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// Callbacks of one client may run concurrently: each of these returns only when the other one runs.
func TestCallbacksOfOneClientRunConcurrently(t *testing.T) {
	pass := func(next yodel.Handler) yodel.Handler { return next }
	for name, o := range map[string]*yodel.ClientOptions{
		"two connections": nil,
		"middleware":      {Middleware: []yodel.Middleware{pass}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := serve(t, newServer(t, nil)), serve(t, newServer(t, nil))
			c := newClient(t, o, a, b)
			must(t, c.Ready(t.Context()))
			var running [2]chan struct{}
			ended := make(chan error, len(running))
			for i := range running {
				running[i] = make(chan struct{})
			}
			until(t, "there are two endpoints", func() bool { return len(c.Endpoints()) == 2 })
			for i, ep := range c.Endpoints() {
				// it is connected
				must(t, c.Do(t.Context(), &yodel.Call{Method: string(Mul), Args: &Args{}, Endpoint: ep}))
				call := &yodel.Call{Method: string(Mul), Args: &Args{}, Reply: new(Reply), Endpoint: ep}
				c.Go(context.Background(), call, func(err error) {
					close(running[i])
					<-running[1-i]
					ended <- err
				})
			}
			for range running {
				must(t, receive(t, ended, "both callbacks run at once"))
			}
		})
	}
}
