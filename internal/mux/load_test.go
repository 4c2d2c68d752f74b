// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestRepliesMaySayTheLoad(t *testing.T) {
	loads := []uint64{17, 0, 300, 1}
	next := 0 // the handler runs on the reading goroutine, one call after the other
	target := &handler{inline: true, serve: func(r *mux.Request) {
		if n := loads[next]; n > 0 {
			r.Reply.Fields = &wire.Fields{Load: n}
		}
		r.Reply.Body = []byte("body")
		next++
	}}
	s := &setup{server: mux.Config{
		Limits: defaultLimits(),
		Bind:   func(*mux.Conn, *wire.Binding) (mux.Target, wire.Info) { return target, wire.Info{Known: 1} },
	}}
	c, _ := s.overTCP(t)
	for _, want := range loads {
		a, err := c.Call(context.Background(), &mux.Out{Method: echo})
		if err != nil {
			t.Fatal(err)
		}
		var f wire.Fields
		if err := wire.ParseFields(a.Fields, &f); err != nil {
			t.Fatal(err)
		}
		if f.Load != want || string(a.Body) != "body" {
			t.Errorf("got the load %d and %q, want %d", f.Load, a.Body, want)
		}
		a.Release()
	}
}
