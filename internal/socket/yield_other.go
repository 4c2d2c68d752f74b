// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux && !indirect

package socket

// yieldProcessor does nothing: on these systems runtime.Gosched must be enough.
func yieldProcessor() {}
