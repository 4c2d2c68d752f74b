// SPDX-License-Identifier: Apache-2.0

//go:build !indirect

package socket

import "syscall"

// yieldProcessor lets other threads run that wait for the processor of this thread.
func yieldProcessor() {
	syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) //nolint:errcheck // it cannot fail
}
