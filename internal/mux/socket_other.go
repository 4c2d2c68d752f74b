// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mux

import "net"

// unacknowledged returns false, because the system does not report which bytes a peer has
// acknowledged. A peer that reads slowly sends pings to show that it is alive, see keepAliveLocked.
func unacknowledged(net.Conn) (n int, ok bool) { return 0, false }

// HungUp returns false. The reader notices the end of a connection when it has read all data before
// it.
func HungUp(net.Conn) bool { return false }
