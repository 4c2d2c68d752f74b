// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

import "net"

// unacknowledged returns false: the system does not say what a peer has acknowledged. A peer that
// reads slowly says itself that it is alive, see keepAliveLocked.
func unacknowledged(net.Conn) (n int, ok bool) { return 0, false }

// hungUp returns false: the end of a connection is seen when all that came before it has been read.
func hungUp(net.Conn) bool { return false }
