// SPDX-License-Identifier: Apache-2.0

package session

import "time"

// A pace measures how fast the rest of a message arrives.
type pace struct {
	waited time.Duration // in Read
	bytes  int           // received meanwhile
}

// leastPace is the lowest rate, in bytes per second, at which the rest of a message must arrive.
const leastPace = 4 << 10

// tooSlow reports whether the message arrives too slowly. It measures periods of waiting.
func (p *pace) tooSlow(period time.Duration) bool {
	if p.waited < period {
		return false
	}
	slow := float64(p.bytes) < leastPace*p.waited.Seconds()
	*p = pace{}
	return slow
}
