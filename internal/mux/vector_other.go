// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

import (
	"net"
	"syscall"
)

// vectored says that several pieces of memory can be written at once.
const vectored = false

func writev(int, net.Buffers) (int, error) { panic("mux: no vectored write on this system") }

// A scatterer exists on Linux only; elsewhere one piece is read after the other.
type scatterer struct{}

func newScatterer(syscall.RawConn) *scatterer { panic("mux: no vectored read on this system") }

func (*scatterer) read([][]byte) (int, error) { panic("mux: no vectored read on this system") }
