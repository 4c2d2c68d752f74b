// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mux

import "net"

// A directWriter exists on unix only; elsewhere a goroutine does the writing.
type directWriter struct{}

func newDirectWriter(net.Conn, *counters) *directWriter { return nil }

func (*directWriter) write([]byte) (int, error) { panic("mux: no direct writer on this system") }

func (*directWriter) writeAll(net.Buffers) (int, net.Buffers, error) {
	panic("mux: no direct writer on this system")
}
