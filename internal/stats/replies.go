// SPDX-License-Identifier: Apache-2.0

package stats

import "sync/atomic"

// leastReply is the smallest size of a reply, in bytes, that is expected again. A call of a method
// with larger replies waits until there is memory for its reply.
const leastReply = 8 << 10

// Replies is the expected size of a method's replies. It rises at once with a larger reply, and
// falls slowly. The zero value expects small replies. Its methods may be called concurrently.
type Replies struct{ size atomic.Int64 }

// Expected returns how many bytes a reply is expected to have, or 0 if that is few.
func (r *Replies) Expected() int { return int(r.size.Load()) }

// Add updates the expected size by a reply of n bytes.
func (r *Replies) Add(n int) {
	old := r.size.Load()
	if n < leastReply && old == 0 {
		return
	}
	if next := max(int64(n), old-old/8); next != old {
		if next < leastReply {
			next = 0
		}
		r.size.Store(next)
	}
}
