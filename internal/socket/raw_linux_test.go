// SPDX-License-Identifier: Apache-2.0

//go:build !race && !386 && !s390x && !indirect

package socket

import (
	"net"
	"sync/atomic"
	"syscall"
	"testing"
)

// A program that calls File and Fd on a connection makes its socket one that blocks. A read or a
// write of such a socket returns at once all the same.
func TestASocketThatBlocksIsNotWaitedFor(t *testing.T) {
	a, b := tcpPair(t)
	file, err := a.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.SetNonblock(int(file.Fd()), false); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := Of(a).ReadNow(buf); n != 0 || err != nil {
		t.Errorf("read %d bytes, %v, want none", n, err)
	}
	var count atomic.Uint64
	for n := len(buf); n > 0; { // until the socket is full
		if n, err = Of(a).Write(&count, buf); err != nil {
			t.Fatal(err)
		}
	}
	b.Close()
}
