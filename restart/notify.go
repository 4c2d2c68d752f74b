// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart

import (
	"context"
	"fmt"
	"net"
	"os"
)

// notify tells systemd what became of the service, if it has asked: see sd_notify(3).
func (p *Process) notify(ctx context.Context, what string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	err := send(socket, what)
	if err != nil {
		p.opts.Logger.WarnContext(ctx, "yodel: systemd could not be told", "what", what, "err", err)
	}
}

func send(socket, text string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // a datagram has gone or has not
	_, err = conn.Write([]byte(text))
	return err
}

// notifyServing says that this process serves, as the first in a row.
func (p *Process) notifyServing(ctx context.Context) { p.notify(ctx, "READY=1") }

// notifySuccessor says that another process is the service from now on. It comes from the process
// that is so far, whom systemd believes.
func (p *Process) notifySuccessor(ctx context.Context, pid int) {
	p.notify(ctx, fmt.Sprintf("MAINPID=%d\nREADY=1", pid))
}
