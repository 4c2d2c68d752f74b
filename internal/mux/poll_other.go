// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mux

import (
	"net"
	"syscall"
	"time"
)

// socketOf returns nil: yodel reads and writes sockets directly only on Unix. On other systems it
// calls Read of the connection, and a separate goroutine writes.
func socketOf(net.Conn) syscall.RawConn { return nil }

func readSocket(syscall.RawConn, []byte, time.Duration, bool) (int, error) {
	panic("mux: sockets are not polled on this system")
}
