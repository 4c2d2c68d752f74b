// SPDX-License-Identifier: Apache-2.0

//go:build unix

package live

import (
	"syscall"
	"time"
)

// ProcessorTime returns how much processor time the process has used.
func ProcessorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
