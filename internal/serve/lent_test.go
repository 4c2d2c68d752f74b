// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/serve"
)

func TestConnectionsAreLentUntilTheyEnd(t *testing.T) {
	var l serve.Lent[string, int]
	var first, second bool // whether they are over
	if len(l.Conns()) != 0 || len(l.Pools()) != 0 {
		t.Error("an empty one has connections or pools")
	}
	l.Add("first", &first)
	l.Remove("second", &second)
	l.Add("second", &second) // its handshake was still running when it ended
	if got := l.Conns(); !slices.Equal(got, []string{"first"}) {
		t.Errorf("got %q", got)
	}
	l.Remove("first", &first)
	if got := l.Conns(); len(got) != 0 {
		t.Errorf("after the end: %q", got)
	}
	l.AddPool(1)
	l.AddPool(2)
	l.RemovePool(1)
	if got := l.Pools(); !slices.Equal(got, []int{2}) {
		t.Errorf("the pools are %d", got)
	}
}
