// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package unix

import (
	"io/fs"
	"syscall"
)

// restrict does nothing: only Linux lets a socket have a mode before it has a name. Where the
// moment until chmod counts, the folder's mode protects.
func restrict(fs.FileMode) func(network, address string, c syscall.RawConn) error { return nil }

// lock does nothing: two servers must not start at the same moment on the socket of a dead one.
func lock(string) (unlock func(), err error) { return func() {}, nil }
