// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mux

import (
	"net"
	"syscall"
	"time"
)

// Sockets are read and written directly on unix only; elsewhere Read is used, and a goroutine does
// the writing.
func socketOf(net.Conn) syscall.RawConn { return nil }

func readSocket(syscall.RawConn, []byte, time.Duration, bool) (int, error) {
	panic("mux: sockets are not polled on this system")
}
