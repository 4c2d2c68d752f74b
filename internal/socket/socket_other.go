// SPDX-License-Identifier: Apache-2.0

//go:build !linux || indirect

package socket

import "net"

// Unacknowledged returns false, because the system does not report which bytes a peer has
// acknowledged. A peer that reads slowly has to send pings to show that it is alive.
func Unacknowledged(net.Conn) (n int, ok bool) { return 0, false }

// Look returns false twice. The reader notices the end of a connection when it has read all data
// before it.
func Look(net.Conn) (unread, gone bool) { return false, false }
