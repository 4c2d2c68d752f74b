// SPDX-License-Identifier: Apache-2.0

//go:build !unix || indirect

package socket

import (
	"errors"
	"net"
	"time"
)

// Of returns no socket: yodel reads and writes sockets directly only on Unix. On other systems it
// calls Read of the connection, and a separate goroutine writes.
func Of(net.Conn) Conn { return Conn{} }

// Receive is not called: there is no descriptor without a socket.
func Receive(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func (c Conn) read([]byte, time.Duration, bool) (int, error) {
	panic("socket: sockets are not polled on this system")
}
