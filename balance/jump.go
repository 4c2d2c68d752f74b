// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// Jump sends calls for which by returns the same number to the same endpoint, as Ketama does, with
// exactly even shares and without a table. It is for numbered endpoints of which only the last
// comes and goes, such as cart-0, cart-1, cart-2 of a stateful set. Endpoints are ordered by
// address, and numbers within addresses by value, so every client uses the same order. When the
// last endpoint comes or goes, only the expected share of the keys moves. When another one goes,
// the endpoints behind it move up, and most of their keys move too: use Ketama or Maglev for that.
// An endpoint that is only not ready keeps its number, and its keys spread over the others. Jump
// does not use weights.
//
// The algorithm is that of "A Fast, Minimal Memory, Consistent Hash Algorithm" (Lamping and Veach,
// 2014). If the call avoids the endpoint of its key, the key is hashed again. So it goes to the
// same other endpoint in all clients.
func Jump(by func(*yodel.Call) uint64) yodel.Balancer {
	if by == nil {
		panic("balance: Jump with a nil function")
	}
	return func(endpoints []*yodel.Endpoint, last yodel.Picker) yodel.Picker {
		if old, ok := last.(*jump); ok && slices.Equal(old.endpoints, endpoints) {
			return old
		}
		p := &jump{by: by, endpoints: endpoints, members: membersOf(endpoints)}
		slices.SortFunc(p.members, func(a, b member) int { return compareNumbered(a.addr, b.addr) })
		return p
	}
}

type jump struct {
	by        func(*yodel.Call) uint64
	endpoints []*yodel.Endpoint
	members   members
}

// rehashes is how many times a key is hashed again before all endpoints are scanned. If the call
// avoids half of the endpoints, one of 65,536 picks scans them.
const rehashes = 16

func (p *jump) Pick(call *yodel.Call) *yodel.Endpoint {
	if len(p.members) == 0 {
		return nil
	}
	key := mix(p.by(call))
	for again := range uint64(rehashes) {
		if ep := p.members[jumpTo(mix(key+again), len(p.members))].ep; !call.Attempts().Avoids(ep) {
			return ep
		}
	}
	return p.members.other(call, key)
}

// jumpTo returns the bucket of a key among n buckets.
func jumpTo(key uint64, n int) int {
	bucket, next := int64(-1), int64(0)
	for next < int64(n) {
		bucket = next
		key = key*2862933555777941757 + 1
		next = int64(float64(bucket+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return int(bucket)
}

// compareNumbered compares two addresses. It compares consecutive digits as a number.
func compareNumbered(a, b string) int {
	for x, y := a, b; x != "" && y != ""; {
		n, m := digits(x), digits(y)
		if n == 0 || m == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		first, second := strings.TrimLeft(x[:n], "0"), strings.TrimLeft(y[:m], "0")
		if c := cmp.Or(cmp.Compare(len(first), len(second)), cmp.Compare(first, second)); c != 0 {
			return c
		}
		x, y = x[n:], y[m:]
	}
	// one is a prefix of the other, or they differ in leading zeros
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// digits returns how many digits s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
