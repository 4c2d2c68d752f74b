// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"time"

	"github.com/yodel-rpc/yodel"
)

// LowestLatencyBy is LowestLatency with round trips of the test's.
func LowestLatencyBy(rtt func(*yodel.Endpoint) time.Duration) yodel.Balancer {
	return func(endpoints []*yodel.Endpoint, _ yodel.Picker) yodel.Picker {
		return newLowestLatency(endpoints, rtt)
	}
}
