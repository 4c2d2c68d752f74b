// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

import "net"

// vectored says that several pieces of memory can be written at once.
const vectored = false

func writev(int, net.Buffers) (int, error) { panic("mux: no vectored write on this system") }
