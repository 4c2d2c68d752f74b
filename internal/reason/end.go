// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"errors"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// AfterOne returns what the error of a call says about further attempts, if the only attempt failed
// with err. Others is the number of endpoints if no other endpoint could take the call, or 0.
func AfterOne(err error, others int) (text string) {
	if dial, ok := errors.AsType[*DialError](err); ok && dial.Next > 0 {
		text = fmt.Sprintf(" (connecting again in %v)", dial.Next.Round(time.Millisecond))
	}
	if others > 0 {
		text += fmt.Sprintf("; no other of %d endpoints is connected", others)
	}
	return text
}

// OfEnd returns the kind of the event that says that a connection has ended with err, and the
// reason that belongs to it. An end that is not a failure has no reason.
func OfEnd(err error) (kind introspect.ConnEventKind, why error) {
	op, _ := errors.AsType[*mux.IOError](err)
	switch {
	case errors.Is(err, mux.ErrClosed), errors.Is(err, mux.ErrRetired), errors.Is(err, mux.ErrAged):
		return introspect.Closed, nil
	case errors.Is(err, mux.ErrDrained), op != nil && op.Op == mux.EndOfStream:
		return introspect.Disconnected, nil
	case op != nil && op.Op == mux.Write:
		return introspect.WriteFailed, err
	}
	return introspect.ReadFailed, err
}
