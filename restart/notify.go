// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
)

// notify sends a state of the service to systemd, if systemd has asked for it: see sd_notify(3).
func (p *Process) notify(ctx context.Context, what string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	err := send(socket, what)
	if err != nil {
		cmp.Or(p.opts.Logger, slog.Default()).WarnContext(ctx, "yodel: systemd could not be told", "what", what, "err", err)
	}
}

func send(socket, text string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // an error does no harm: the datagram was sent or not
	_, err = conn.Write([]byte(text))
	return err
}

// notifyServing reports that this process serves. The first process of a series calls it.
func (p *Process) notifyServing(ctx context.Context) { p.notify(ctx, "READY=1") }

// notifySuccessor reports that another process is the main process of the service from now on. The
// current main process sends it, because systemd accepts it only from that one.
func (p *Process) notifySuccessor(ctx context.Context, pid int) {
	p.notify(ctx, fmt.Sprintf("MAINPID=%d\nREADY=1", pid))
}
