// SPDX-License-Identifier: Apache-2.0

package retry

import "github.com/yodel-rpc/yodel"

// Any is a Balancer that balances nothing: each call goes to the first endpoint that is connected and healthy, in the order in which the resolver
// names them, and when none is connected to the first healthy one. So one instance does all the work until it fails, then the next one does, and
// when it is back, it is again the one. It is for a primary with standbys.
//
//	yodel.NewClient(r, &yodel.ClientOptions{Balancer: retry.Any})
func Any(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return available(endpoints) }

type available []*yodel.Endpoint

func (a available) Pick(call *yodel.Call) *yodel.Endpoint {
	var healthy *yodel.Endpoint
	for _, ep := range a {
		switch {
		case call.Avoids(ep):
		case ep.Connected():
			return ep
		case healthy == nil:
			healthy = ep
		}
	}
	return healthy
}
