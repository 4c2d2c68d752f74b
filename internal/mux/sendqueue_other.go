// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

import "net"

// unacknowledged returns false: the system does not say what a peer has acknowledged. A peer that reads slowly says itself that it is
// alive, see keepAliveLocked.
func unacknowledged(net.Conn) (n int, ok bool) { return 0, false }
