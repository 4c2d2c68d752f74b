// SPDX-License-Identifier: Apache-2.0

package hedge

import "time"

// A Latency is what is learned of one method.
type Latency struct{ latency }

// Add takes note of a call.
func (l *Latency) Add(took time.Duration, percentile float64) { l.add(took, percentile) }

// Delay is the percentile.
func (l *Latency) Delay() time.Duration { return l.delay.Load() }
