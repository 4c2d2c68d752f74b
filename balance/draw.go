// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"math/rand/v2"

	"github.com/yodel-rpc/yodel"
)

// draws is how many random draws a picker makes before it scans all endpoints. A scan is necessary
// if the call avoids many of them.
const draws = 3

// drawTwo returns two different endpoints that the call does not avoid, each pair with the same
// probability. B is nil if there is only one, and both are nil if there is none.
func drawTwo(all []*yodel.Endpoint, call *yodel.Call) (a, b *yodel.Endpoint) {
	n := len(all)
	for range draws {
		if n < 2 {
			break
		}
		i, j := rand.IntN(n), rand.IntN(n-1)
		if j >= i {
			j++
		}
		if a, b = all[i], all[j]; !call.Attempts().Avoids(a) && !call.Attempts().Avoids(b) {
			return a, b
		}
	}
	return scanTwo(all, call)
}

// scanTwo is drawTwo by a scan of all endpoints: Vitter's algorithm R.
func scanTwo(all []*yodel.Endpoint, call *yodel.Call) (a, b *yodel.Endpoint) {
	seen := 0
	for _, ep := range all {
		if call.Attempts().Avoids(ep) {
			continue
		}
		seen++
		switch at := rand.IntN(seen); {
		case seen == 1:
			a = ep
		case seen == 2:
			b = ep
		case at == 0:
			a = ep
		case at == 1:
			b = ep
		}
	}
	return a, b
}
