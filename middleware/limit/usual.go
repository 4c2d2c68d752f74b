// SPDX-License-Identifier: Apache-2.0

package limit

import "time"

// usualTimes has how long good answers of methods take while no overload makes them wait. A call
// whose caller gave it less time says nothing about the limit: it would have been late in any case.
//
// In an overload, good answers take longer too, so their mean does not tell both apart. The lowest
// of the recent means does: it comes from a time before the overload, or from its beginning. The
// lowest duration would not do, because a method may answer some calls at once, for example from a
// cache.
type usualTimes map[string]*usualTime

type usualTime struct {
	answers int
	mean    time.Duration // of the last answers
	// the lowest means in this generation, which began at since, and in the one before
	least, before time.Duration
	since         time.Duration
}

const (
	meanOf   = 8   // a mean is that of about so many answers
	maxUsual = 256 // methods that have a usual time
	// unknownTime is the usual time of a method without a good answer.
	unknownTime = 100 * time.Millisecond
	// generation is how long a lowest mean is kept, and at most twice as long. A method that takes
	// longer than before is then known to.
	generation = 15 * time.Second
)

// of returns the usual time of a method.
func (u *usualTimes) of(method string) time.Duration {
	m := (*u)[method]
	if m == nil {
		return unknownTime
	}
	return min(m.least, m.before)
}

// add adds a good answer that came in time.
func (u *usualTimes) add(method string, now, took time.Duration) {
	m := (*u)[method]
	if m == nil {
		if len(*u) >= maxUsual {
			return
		}
		if *u == nil {
			*u = make(usualTimes)
		}
		m = &usualTime{mean: took, before: forever, since: now}
		(*u)[method] = m
	}
	m.answers++
	m.mean += (took - m.mean) / meanOf
	switch {
	case m.answers <= meanOf: // too few for a mean
		m.least = m.mean
	case now-m.since >= generation:
		m.before, m.least, m.since = m.least, m.mean, now
	default:
		m.least = min(m.least, m.mean)
	}
}
