// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestTheErrorOfOneAttemptSaysWhatIsLeft(t *testing.T) {
	waiting := fmt.Errorf("dial: %w", &reason.DialError{Err: io.EOF, Next: 1234567 * time.Microsecond})
	for _, test := range []struct {
		err    error
		others int
		want   string
	}{
		{io.EOF, 0, ""},
		{nil, 3, "; no other of 3 endpoints is connected"},
		{&reason.DialError{Err: io.EOF}, 0, ""},
		{waiting, 0, " (connecting again in 1.235s)"},
		{waiting, 2, " (connecting again in 1.235s); no other of 2 endpoints is connected"},
	} {
		if got := reason.AfterOne(test.err, test.others); got != test.want {
			t.Errorf("%v, %d: got %q, want %q", test.err, test.others, got, test.want)
		}
	}
}

func TestTheEndOfAConnectionIsOfAKind(t *testing.T) {
	broken := errors.New("connection reset by peer")
	for _, test := range []struct {
		err  error
		want introspect.ConnEventKind
		why  bool // the event has the reason
	}{
		{mux.ErrClosed, introspect.Closed, false},
		{mux.ErrRetired, introspect.Closed, false},
		{fmt.Errorf("it ended: %w", mux.ErrAged), introspect.Closed, false},
		{mux.ErrDrained, introspect.Disconnected, false},
		{&mux.IOError{Op: mux.EndOfStream, Err: io.EOF}, introspect.Disconnected, false},
		{&mux.IOError{Op: mux.Write, Err: broken}, introspect.WriteFailed, true},
		{&mux.IOError{Op: mux.Read, Err: broken}, introspect.ReadFailed, true},
		{mux.ErrDead, introspect.ReadFailed, true},
	} {
		kind, why := reason.OfEnd(test.err)
		if kind != test.want || why != nil != test.why || test.why && !errors.Is(why, test.err) {
			t.Errorf("%v: got %v with %v, want %v", test.err, kind, why, test.want)
		}
	}
}
