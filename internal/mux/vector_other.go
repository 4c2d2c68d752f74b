// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

import (
	"net"
	"syscall"
)

// vectored says whether several pieces of memory can be written or read with one system call.
const vectored = false

func writev(int, net.Buffers) (int, error) { panic("mux: no vectored write on this system") }

// A scatterer exists only on Linux. On other systems the reader reads one piece after the other.
type scatterer struct{}

func newScatterer(syscall.RawConn) *scatterer { panic("mux: no vectored read on this system") }

func (*scatterer) read([][]byte) (int, error) { panic("mux: no vectored read on this system") }
