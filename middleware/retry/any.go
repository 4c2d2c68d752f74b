// SPDX-License-Identifier: Apache-2.0

package retry

import "github.com/yodel-rpc/yodel"

// Any is a Balancer that balances nothing: each call goes to the first endpoint that is healthy, in
// the order in which the resolver names them, and when none is to the first that is connected. So
// one instance does all the work until it fails, then the next one does, and when it is back, it is
// again the one. An endpoint that cannot be connected to is unhealthy. One that is not connected
// yet, or whose connection was idle, is connected to in the background while another endpoint takes
// the call. It is for a primary with standbys.
//
//	yodel.NewClient(r, &yodel.ClientOptions{Balancer: retry.Any})
func Any(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return available(endpoints) }

type available []*yodel.Endpoint

func (a available) Pick(call *yodel.Call) *yodel.Endpoint {
	var first *yodel.Endpoint
	for _, ep := range a {
		switch {
		case call.Avoids(ep):
		case ep.Ready() || ep.Connected():
			return ep
		case first == nil:
			first = ep
		}
	}
	return first
}
