// SPDX-License-Identifier: Apache-2.0

//go:build linux

package unix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// restrict sets the mode of the socket before bind creates its file. So no other user can connect
// between bind and chmod. The umask still removes bits, which chmod restores.
func restrict(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode)) }); failed != nil {
			return failed
		}
		return err
	}
}

// lock waits until no other process holds the lock of a folder. The lock creates no file.
func lock(folder string) (unlock func(), err error) {
	f, err := os.Open(folder) //nolint:gosec // the folder of the address that the caller listens at
	if err != nil {
		return nil, err
	}
	err = syscall.EINTR
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", folder, err)
	}
	return func() { _ = f.Close() }, nil
}
