// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"os/exec"
	"syscall"
)

// EndWithParent has the kernel end the process when the test ends without a chance to clean up: by
// a panic, or at its time limit.
func EndWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
