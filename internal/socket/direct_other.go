// SPDX-License-Identifier: Apache-2.0

//go:build !unix || indirect

package socket

import (
	"net"
	"sync/atomic"
)

func (c Conn) write(*atomic.Uint64, []byte, net.Buffers) (int, net.Buffers, error) {
	panic("socket: no direct writer on this system")
}
