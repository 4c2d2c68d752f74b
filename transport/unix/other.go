// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package unix

import (
	"io/fs"
	"syscall"
)

// restrict does nothing: only on Linux can a socket have a mode before bind. If the time between
// bind and chmod matters, the mode of the folder protects the socket.
func restrict(fs.FileMode) func(network, address string, c syscall.RawConn) error { return nil }

// lock does nothing: two servers must not start at the same moment on the socket of a dead server.
func lock(string) (unlock func(), err error) { return func() {}, nil }
