// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"math/bits"

	"github.com/yodel-rpc/yodel/internal/spares"
)

// keepBody is the largest buffer that a stream keeps for further DATA. A larger one goes back when
// the handler has read what it had.
const keepBody = 4 << 10

// small has the buffers of bodies below spares.Least.
var small spares.Buffers

// recycle returns the memory of a body that was read, for what follows.
func recycle(b []byte) []byte {
	switch {
	case cap(b) <= keepBody:
		return b[:0]
	case cap(b) < spares.Least:
		small.Put(&b)
	case cap(b)&(cap(b)-1) == 0: // enlarge takes no other sizes
		spares.Process.Give(b)
	}
	return nil
}

// enlarge moves a body to a buffer for at least need bytes.
func enlarge(b []byte, need int) []byte {
	need = 1 << bits.Len(uint(need-1)) // #nosec G115 -- it is above 0
	var larger []byte
	if need >= spares.Least {
		larger = spares.Process.Take(need)
	} else if spare := small.GetFor(need); cap(*spare) >= need {
		larger = *spare
	} else {
		small.Put(spare)
		larger = make([]byte, 0, need)
	}
	larger = append(larger, b...)
	recycle(b)
	return larger
}
