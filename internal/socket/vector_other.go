// SPDX-License-Identifier: Apache-2.0

//go:build !linux || indirect

package socket

import "net"

// Vectored says whether several pieces of memory can be written or read with one system call.
const Vectored = false

func writev(int, net.Buffers) (int, error) { panic("socket: no vectored write on this system") }

// A Scatterer exists only on Linux. On other systems the reader reads one piece after the other.
type Scatterer struct{}

// Scatterer panics.
func (Conn) Scatterer() *Scatterer { panic("socket: no vectored read on this system") }

// Read panics.
func (*Scatterer) Read([][]byte) (int, error) { panic("socket: no vectored read on this system") }
