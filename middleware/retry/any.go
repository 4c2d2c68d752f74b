// SPDX-License-Identifier: Apache-2.0

package retry

import "github.com/yodel-rpc/yodel"

// Any is a Balancer for a primary with standbys. Each call goes to the first healthy endpoint, in
// the order in which the resolver names them. If none is healthy, it goes to the first connected
// one. So one instance does all the work until it fails. Then the next one does, until the first is
// back. An endpoint that cannot be connected to is unhealthy. If an endpoint is not connected yet,
// or its connection was idle, the client connects to it in the background while another endpoint
// takes the call.
//
//	yodel.NewClient(r, &yodel.ClientOptions{Balancer: retry.Any})
func Any(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker { return available(endpoints) }

type available []*yodel.Endpoint

func (a available) Pick(call *yodel.Call) *yodel.Endpoint {
	var first *yodel.Endpoint
	for _, ep := range a {
		switch {
		case call.Attempts().Avoids(ep):
		case ep.Ready() || ep.Connected():
			return ep
		case first == nil:
			first = ep
		}
	}
	return first
}
