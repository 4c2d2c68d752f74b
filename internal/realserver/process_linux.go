// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"os/exec"
	"syscall"
)

// EndWithParent makes the kernel end the process when the test process ends without a cleanup,
// because of a panic or at its time limit.
func EndWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
