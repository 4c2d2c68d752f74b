// SPDX-License-Identifier: Apache-2.0

package dialled

import (
	"errors"
	"net"
	"time"

	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
)

// workedFrames is the number of received frames from which a connection counts as having worked. A
// connection that ends at once receives fewer frames.
const workedFrames = 8

// endOf says why a connection in yodel's own protocol accepts no more calls.
func endOf(conn *mux.Conn) (end endpoints.End) {
	if end.Aged = conn.Aged(); !end.Aged {
		end.Err = conn.Err()
		end.Worked = conn.Counters().FramesIn >= workedFrames || conn.Accepted() > 0 && (end.Err == nil || errors.Is(end.Err, mux.ErrDrained))
	}
	return complete(end)
}

// complete returns e with an Err, and with Broke set if the network failed or the server went away.
func complete(e endpoints.End) endpoints.End {
	if e.Err == nil {
		e.Err = mux.ErrDrained
	}
	_, refused := errors.AsType[*mux.Refusal](e.Err)
	_, foreign := errors.AsType[*mux.PrefaceError](e.Err)
	_, mismatch := errors.AsType[*firstbytes.MismatchError](e.Err)
	_, broken := errors.AsType[*mux.ProtocolError](e.Err)
	e.Broke = !refused && !foreign && !mismatch && !broken
	return e
}

// silence sends two line ends to a server that has not sent its settings, and returns why the
// server is silent. Ended returns the error with which the connection has ended when answered is
// closed. An HTTP server that waits for a line then answers, and its answer identifies the
// protocol. A slow yodel server takes the four bytes for the beginning of a frame. This does no
// harm, because the connection ends before the rest of the frame could come.
func silence(nc net.Conn, answered <-chan struct{}, ended func() error) error {
	const patience = 50 * time.Millisecond
	_ = nc.SetWriteDeadline(time.Now().Add(patience)) // nothing else will be written
	if _, err := nc.Write([]byte("\r\n\r\n")); err != nil {
		return mux.ErrHandshake
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-answered:
		if preface, ok := errors.AsType[*mux.PrefaceError](ended()); ok {
			return preface
		}
	case <-timer.C:
	}
	return mux.ErrHandshake
}
