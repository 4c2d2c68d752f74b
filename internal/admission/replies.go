// SPDX-License-Identifier: Apache-2.0

package admission

import "github.com/yodel-rpc/yodel/internal/stats"

// Replies is what a server knows of the size of a method's replies. The zero value is ready to use.
// It may be used concurrently.
type Replies struct {
	stats.Replies
	First FirstCalls // the first calls in other protocols
}

// Learn adds a reply of n bytes in another protocol.
func (r *Replies) Learn(n int) {
	r.Add(n)
	r.First.Known()
}
