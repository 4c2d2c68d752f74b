// SPDX-License-Identifier: Apache-2.0

package peer

import "context"

// Context returns the context of one call, which has the deadline of Deadline, if any. The caller
// calls the function when the call has ended.
func (o Options) Context() (context.Context, context.CancelFunc) {
	if o.Deadline == 0 {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), o.Deadline)
}
