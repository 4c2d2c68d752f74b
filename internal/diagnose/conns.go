// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/introspect"
)

// maxConns is how many connections an answer describes.
const maxConns = 1000

// Conns collects the connections of an answer. The zero value has none.
type Conns struct{ out introspect.Conns }

// Room reports whether the answer has room for a further connection. If it has none, the connection
// counts as left out, and need not be described.
func (c *Conns) Room() bool {
	if len(c.out.Conns) >= maxConns {
		c.out.Left++
		return false
	}
	return true
}

// Add adds a connection.
func (c *Conns) Add(info introspect.ConnInfo) { c.out.Conns = append(c.out.Conns, info) }

// Answer returns the answer, sorted by side, address and age.
func (c *Conns) Answer() *introspect.Conns {
	slices.SortFunc(c.out.Conns, func(a, b introspect.ConnInfo) int {
		return cmp.Or(strings.Compare(a.Side, b.Side), strings.Compare(a.Addr, b.Addr), a.Since.Compare(b.Since))
	})
	if c.out.Conns == nil {
		c.out.Conns = []introspect.ConnInfo{}
	}
	return &c.out
}
