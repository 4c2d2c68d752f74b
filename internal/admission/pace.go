// SPDX-License-Identifier: Apache-2.0

package admission

import "time"

// A Pace measures how fast the rest of a message arrives.
type Pace struct {
	Waited time.Duration // in Read
	Bytes  int           // received meanwhile
}

// leastPace is the lowest rate, in bytes per second, at which the rest of a message must arrive.
const leastPace = 4 << 10

// TooSlow reports whether the message arrives too slowly. It measures periods of waiting.
func (p *Pace) TooSlow(period time.Duration) bool {
	if p.Waited < period {
		return false
	}
	slow := float64(p.Bytes) < leastPace*p.Waited.Seconds()
	*p = Pace{}
	return slow
}
