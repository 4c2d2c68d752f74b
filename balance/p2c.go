// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// P2C draws two random endpoints and picks the one with less load (power of two choices): see
// yodel.Endpoint.Load. Its cost does not depend on the number of endpoints. Clients with the same
// information do not all pick the same endpoint.
//
// The algorithm is that of Mitzenmacher, "The power of two choices in randomized load balancing"
// (1996). The longest queue of n grows as the logarithm of the logarithm of n. With one choice it
// grows almost as the logarithm.
func P2C(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return p2c(endpoints) }

type p2c []*yodel.Endpoint

func (p p2c) Pick(call *yodel.Call) *yodel.Endpoint {
	a, b := drawTwo(p, call)
	if b == nil {
		return a
	}
	la, lb := a.Load(), b.Load()
	// the draw may have come from a scan, whose order is not random
	if lb < la || lb == la && rand.Uint32()&1 == 0 {
		return b
	}
	return a
}
