// SPDX-License-Identifier: Apache-2.0

package pipe

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/foreign"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// ErrLeft is the error of a Body whose caller has left the loop over its messages.
var ErrLeft = errors.New("the caller left the loop")

// A Talk is the caller's side of a stream, in all attempts of its call. It runs Body when a server
// has accepted the call.
type Talk struct {
	Kind    uint64 // of the method
	Body    func(p *Pipe) error
	Begun   bool        // Body has received a message or may have sent one, so the call cannot be repeated
	Left    bool        // the caller has left its loop over the messages
	Traffic mux.Traffic // of the last attempt, once it has ended

	met    error           // the error of Body in the last attempt
	replay *foreign.Replay // of an upload or a duplex in another protocol, whose Body runs beside the attempts
}

// A BodyError wraps an error that the caller's own function returned. Middleware sees a call that
// was canceled because of it, and the caller gets the unwrapped error.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return e.Err.Error() }
func (e *BodyError) Unwrap() error { return e.Err }

// Again returns the fault of a further attempt of a call that cannot be repeated, or nil.
func (t *Talk) Again(method string) error {
	if t.Begun {
		return fault.Of(catalogue.StreamMisused, method, "a call with a stream cannot be made again once its messages have begun")
	}
	return nil
}

// Native makes an attempt over st, which has been started. It returns the answer, or the error of
// st, when the stream has ended. Opened is set to the reading of the clock when the server accepts
// the call, except for a feed. If Body panics or ends its goroutine, st ends with gone.
func (t *Talk) Native(ctx context.Context, st *mux.Stream, p *Pipe, opened *time.Duration, gone error) (*mux.Answer, error) {
	t.met = nil
	err, ended := error(nil), false
	defer func() {
		if !ended {
			st.Cancel(gone)
		}
	}()
	if t.Kind != wire.Feed {
		if err = st.Accepted(ctx); err == nil {
			t.Begun, *opened = true, monotime.Now()
		}
	}
	if err == nil {
		err = t.run(p)
	}
	if err == nil {
		err = t.rest(p)
	}
	if err != nil && ctx.Err() == nil { // otherwise the stream ends with ctx
		st.Cancel(err)
	}
	a, err := st.Wait()
	ended, t.Traffic = true, st.Traffic()
	return a, err
}

// run runs the caller's function.
func (t *Talk) run(p *Pipe) error {
	if t.met = t.Body(p); t.met != nil && t.Kind != wire.Feed {
		t.met = &BodyError{t.met}
	}
	return t.met
}

// rest ends the caller's messages, and waits for the end of the server's.
func (t *Talk) rest(p *Pipe) error {
	if t.Kind != wire.Feed {
		p.End()
	}
	return p.Rest()
}

// Foreign makes an attempt in another protocol, over m. NewPipe returns the pipe of a stream whose
// waits end with a context. Unprocessed tells whether an error says that the server has not
// processed the attempt.
func (t *Talk) Foreign(ctx context.Context, m foreign.Messages, memory unpack.Account, most int, newPipe func(context.Context, Stream) *Pipe, unprocessed func(error) bool) error {
	st := &foreign.Stream{Messages: m, Memory: memory, Most: most}
	if t.Kind == wire.Feed {
		return t.converse(newPipe(ctx, st), st)
	}
	t.Begun = true // Rewind clears it again
	if t.replay == nil {
		t.replay = foreign.NewReplay(memory, unprocessed)
		st.Messages = t.replay
		p := newPipe(t.replay.Context(), st) //nolint:contextcheck // that of each attempt
		t.replay.Run(func() error { return t.converse(p, st) })
	}
	return t.replay.Carry(ctx, m)
}

// converse runs the caller's function in another protocol, and waits for the end of the messages.
func (t *Talk) converse(p *Pipe, st *foreign.Stream) error {
	defer func() { t.Traffic = st.Traffic(); st.Give(st.Taken()) }()
	if err := t.run(p); err != nil && !errors.Is(err, io.EOF) { // after io.EOF the outcome has the reason
		return err
	}
	if t.Kind == wire.Upload {
		p.End()
		return nil
	}
	return t.rest(p)
}

// Rewind reports whether a call that failed with err in another protocol can be begun again.
// Unprocessed says that the server has not processed the attempt.
func (t *Talk) Rewind(err error, unprocessed bool) bool {
	_, own := errors.AsType[*BodyError](err)
	if t.replay == nil || own || !unprocessed || !t.replay.Rewind() {
		return false
	}
	t.Begun = false
	return true
}

// Finish ends the waits of a Body that runs beside the attempts with err, and waits until it has
// returned.
func (t *Talk) Finish(err error) {
	if t.replay != nil {
		t.replay.Finish(err)
	}
}

// Outcome returns the error of an attempt of a call of a method. Err is the outcome of the attempt
// for the connection.
func (t *Talk) Outcome(method string, err error) error {
	if err == nil && t.met != nil && !errors.Is(t.met, io.EOF) { // the error did not come from the server
		err = t.met
	}
	if t.Left = t.met == ErrLeft; t.Left { //nolint:errorlint // it is not wrapped
		return nil
	}
	if own, ok := err.(*BodyError); ok { //nolint:errorlint // it is not wrapped
		return fault.Of(catalogue.CallCanceled, method, "the caller's own function ended it: %v", own.Err).Because(own)
	}
	return err
}
