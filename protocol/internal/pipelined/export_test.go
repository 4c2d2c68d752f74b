// SPDX-License-Identifier: Apache-2.0

package pipelined

// Queued returns how many bytes of replies are queued.
func (r *Replies) Queued() int { return r.length() }
