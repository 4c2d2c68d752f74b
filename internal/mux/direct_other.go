// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mux

import (
	"net"
	"syscall"
)

func writeSocket(syscall.RawConn, *counters, []byte) (int, error) {
	panic("mux: no direct writer on this system")
}

func writeSocketAll(syscall.RawConn, *counters, net.Buffers) (int, net.Buffers, error) {
	panic("mux: no direct writer on this system")
}
