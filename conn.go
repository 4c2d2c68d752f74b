// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"errors"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// A ConnEvent is something that happened to a connection or a listener.
type ConnEvent struct {
	// Kind is the kind of event. Package introspect has the kinds.
	Kind introspect.ConnEventKind
	// Addr is the address of the peer, or of the listener.
	Addr string
	// Err is the reason, for the kinds that have one.
	Err error
}

// ending returns the event for a connection that ended with err.
func ending(addr string, err error) ConnEvent {
	e := ConnEvent{Addr: addr, Err: err}
	op, _ := errors.AsType[*mux.IOError](err)
	switch {
	case errors.Is(err, mux.ErrClosed), errors.Is(err, mux.ErrRetired), errors.Is(err, mux.ErrAged):
		e.Kind, e.Err = introspect.Closed, nil
	case errors.Is(err, mux.ErrDrained), op != nil && op.Op == mux.EndOfStream:
		e.Kind, e.Err = introspect.Disconnected, nil
	case op != nil && op.Op == mux.Write:
		e.Kind = introspect.WriteFailed
	default:
		e.Kind = introspect.ReadFailed
	}
	return e
}
