// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// P2C takes the one of two endpoints, drawn by chance, that has less to do: see
// yodel.Endpoint.Load. It costs the same however many there are, and clients that know the same do
// not all run to the same endpoint.
//
// The algorithm is that of Mitzenmacher, "The power of two choices in randomized load balancing"
// (1996): the longest queue of n grows as the logarithm of the logarithm of n, and with one choice
// almost as its logarithm.
func P2C(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return p2c(endpoints) }

type p2c []*yodel.Endpoint

func (p p2c) Pick(call *yodel.Call) *yodel.Endpoint {
	a, b := drawTwo(p, call)
	if b == nil {
		return a
	}
	la, lb := a.Load(), b.Load()
	if lb < la || lb == la && rand.Uint32()&1 == 0 { // the draw may have come from a scan, whose order tells something
		return b
	}
	return a
}
