// SPDX-License-Identifier: Apache-2.0

package reason_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
)

// sent and unsent are errors of calls that were, and were not, sent.
func sent(cause error) error   { return &mux.CallError{Cause: cause} }
func unsent(cause error) error { return &mux.CallError{Cause: cause, NotProcessed: true} }

func TestAReasonSaysWhatHappenedAndWhetherTheCallWasExecuted(t *testing.T) {
	client, server := reason.Side{Name: "client", MaxUnsent: 4096}, reason.Side{Name: "server", Serves: true}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: &os.SyscallError{Syscall: "connect", Err: errors.New("connection refused")}}
	for _, test := range []struct {
		side    reason.Side
		err     error
		streams bool
		want    string // the ID and the text
	}{
		{client, sent(&mux.IOError{Op: mux.EndOfStream, Err: io.EOF}), false, "YDL1104 the connection was lost: the peer closed the connection; it may have been executed"},
		{client, unsent(&mux.IOError{Op: mux.EndOfStream, Err: io.EOF}), false, "YDL1104 the connection was lost: the peer closed the connection; it was not executed"},
		{client, &reason.DialError{Err: refused}, false, "YDL1103 connection refused"},
		{client, &reason.DialError{Err: fmt.Errorf("bus: %w", refused)}, false, "YDL1103 bus: connection refused"},
		{client, &reason.DialError{Err: mux.ErrDead, Connected: true}, false, "YDL1105 the server has been silent for too long; it was not executed"},
		{client, unsent(mux.ErrDrained), false, "YDL3004 the server is shutting down; it was not executed"},
		{client, sent(mux.ErrDrained), false, "YDL1104 the server cut it off when it shut down; it may have been executed"},
		{client, unsent(mux.ErrClosed), false, "YDL1007 the client was closed; it was not executed"},
		{server, sent(mux.ErrClosed), false, "YDL1104 this server closed the connection; it may have been executed"},
		{client, unsent(mux.ErrWindow), false, "YDL1008 the server accepts no more requests at the moment"},
		{client, &mux.CallError{Cause: mux.ErrWindow, NotProcessed: true, Awaited: mux.AwaitedOutput}, false, "YDL1008 Limits.MaxUnsent bytes (4096) wait to be written on the connection"},
		{client, sent(mux.ErrDeadline), false, "YDL1004 no reply before the deadline; it may be executing still"},
		{client, sent(mux.ErrDeadline), true, "YDL1004 the deadline of the stream passed before it ended; it may be executing still"},
		{client, unsent(mux.ErrDeadline), true, "YDL1005 the deadline passed before the call was sent"},
		{client, &mux.CallError{Cause: mux.ErrDeadline, NotProcessed: true, Awaited: mux.AwaitedWindow}, false, "YDL1005 the deadline passed after 1.235s in the queue for the server's window: as many requests are open as the server allows"},
		{client, reason.TooLate(mux.ErrDeadline, "YDL1102", " after %v of connecting", time.Second), false, "YDL1005 the deadline passed after 1s of connecting"},
		{client, sent(context.Canceled), false, "YDL1006 the caller canceled it; it may have been executed"},
		{client, unsent(context.Canceled), false, "YDL1006 the caller canceled it before the call was sent; it was not executed"},
		{server, sent(memory.ErrFull), false, "YDL3007 this server has no memory left for the reply"},
		{client, sent(&mux.TooLargeError{Size: 10, Limit: 5}), false, "YDL2202 the reply has 10 bytes, this client's limit is 5"},
	} {
		call := reason.Call{Method: "A.B", Waited: 1234567 * time.Microsecond, Streams: test.streams}
		r := test.side.Of(t.Context(), call, "10.0.0.1:1", test.err)
		if got := r.ID + " " + strings.TrimPrefix(r.Text, "A.B: 10.0.0.1:1: "); got != test.want {
			t.Errorf("%v:\ngot  %q\nwant %q", test.err, got, test.want)
		}
	}
}

// A context may end with a cause that the user chose.
func TestTheCauseOfAContextSaysWhyItEnded(t *testing.T) {
	ownCause := errors.New("tired")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(ownCause)
	expired, stop := context.WithTimeoutCause(t.Context(), 0, ownCause)
	defer stop()
	<-expired.Done()
	for ctx, want := range map[context.Context]string{canceled: "YDL1006", expired: "YDL1004", t.Context(): "YDL1104"} {
		if r := (reason.Side{}).Of(ctx, reason.Call{}, "", sent(ownCause)); r.ID != want {
			t.Errorf("got %s %s, want %s", r.ID, r.Text, want)
		}
	}
}

func TestWhoWaitedGetsTheNextStepOfWhatItWaitedFor(t *testing.T) {
	own := (reason.Side{}).Of(t.Context(), reason.Call{}, "", reason.TooLate(mux.ErrDeadline, "YDL1103", ""))
	window := (reason.Side{}).Of(t.Context(), reason.Call{}, "", &mux.CallError{Cause: mux.ErrDeadline, NotProcessed: true, Awaited: mux.AwaitedWindow})
	if own.Next == "" || window.Next == "" || own.Next == window.Next {
		t.Errorf("the next steps are %q and %q", own.Next, window.Next)
	}
}

func TestDurationsOfMessagesHaveFewDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234567 * time.Microsecond: "1.235s", 9_876_543: "9.88ms", 9_876: "9.876µs",
	} {
		if got := reason.Rounded(d).String(); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
	if got := reason.Plain(fmt.Errorf("outer: %w", errors.New("inner"))); strings.Contains(got, "outer") {
		t.Errorf("the plain text of an error is %q", got)
	}
}

// A server that refuses a connection chooses the code and the ID of the call's error.
func TestAReasonHasTheCodeOfTheError(t *testing.T) {
	for _, test := range []struct {
		where string
		err   error
		want  string // the ID, the code, whether the call was not executed, and the text
	}{
		{"", unsent(mux.ErrClosed), "YDL1007 1 true A.B: the client was closed; it was not executed"},
		{"a:1", sent(mux.ErrDeadline), "YDL1004 4 false A.B: a:1: no reply before the deadline; it may be executing still"},
		{"a:1", &mux.Refusal{Code: 7, ID: "YDL3101", Message: "no"}, "YDL3101 7 false A.B: a:1: the server refused the connection: no"},
		{"a:1", &mux.Refusal{Code: 7, Message: "no"}, "YDL1107 7 false A.B: a:1: the server refused the connection: no"},
	} {
		r := (reason.Side{Name: "client"}).Of(t.Context(), reason.Call{Method: "A.B"}, test.where, test.err)
		if got := fmt.Sprint(r.ID, " ", r.Code, " ", r.Unsent, " ", r.Text); got != test.want {
			t.Errorf("%v:\ngot  %q\nwant %q", test.err, got, test.want)
		}
	}
}
