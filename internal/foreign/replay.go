// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/unpack"
)

// MaxKept is how many bytes of messages a Replay keeps until the server has answered. Clients of
// HTTP/2 may send as many before the server has said that it reads.
const MaxKept = 64 << 10

// A Replay carries the messages of a caller through one or more attempts of its call. If a server
// has not processed an attempt, and the Replay has all messages that the caller has sent, the next
// attempt sends them again, and the caller does not notice.
//
// A Replay is the Messages of the caller, and the context of its waits, which is that of the
// attempt.
type Replay struct {
	memory      unpack.Account
	unprocessed func(error) bool

	mu      sync.Mutex
	now     *attempt      // the last one; nil before the first
	between bool          // the server has not processed the last attempt
	changed chan struct{} // closed when another attempt begins, and when over is set
	over    error         // no attempt follows
	final   bool          // the call cannot be begun again, or there is no need to
	kept    []message     // those that were sent; nil if final is set
	size    int           // of kept
	ended   bool          // the caller sends no more

	returned chan struct{} // closed when the caller's function has returned; guards the fields below
	err      error
	panicked any
	exited   bool // it has ended its goroutine
}

type message struct {
	body       []byte
	compressed bool
}

// An attempt is one attempt of a call.
type attempt struct {
	context.Context //nolint:containedctx // of the attempt
	Messages
	used     sync.WaitGroup // by the caller's function
	replayed chan struct{}  // closed when the kept messages were sent
	lost     chan struct{}  // closed when the server has not processed the attempt
	why      error          // set before lost is closed
}

// NewReplay returns a Replay that counts its messages in memory. Unprocessed tells whether an error
// says that the server has not processed the attempt.
func NewReplay(memory unpack.Account, unprocessed func(error) bool) *Replay {
	return &Replay{memory: memory, unprocessed: unprocessed, changed: make(chan struct{}), returned: make(chan struct{})}
}

// Run runs the caller's function, on a goroutine that ends after Finish at the latest.
func (r *Replay) Run(body func() error) {
	go func() {
		r.exited = true
		defer func() {
			if r.exited {
				r.panicked = recover()
			}
			close(r.returned)
		}()
		r.err = body()
		r.exited = false
	}()
}

// Carry carries the messages through m until the caller's function has returned, and returns its
// error. It returns earlier if the server has not processed the attempt, with an error that says
// so, and m is not used any more. It passes on a panic of the function. Only one Carry may run at a
// time.
func (r *Replay) Carry(ctx context.Context, m Messages) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &attempt{Context: ctx, Messages: m, replayed: make(chan struct{}), lost: make(chan struct{})}
	r.mu.Lock()
	kept, ended := r.kept, r.ended
	r.now, r.between = a, false
	r.changedLocked()
	r.mu.Unlock()
	for _, k := range kept {
		if err := m.Send(ctx, k.body, k.compressed); err != nil { // the caller meets it too, if not here
			r.isLost(a, err)
			break
		}
	}
	if ended {
		m.End()
	}
	close(a.replayed)
	select {
	case <-a.lost:
		cancel()
		a.used.Wait()
		return a.why
	case <-r.returned:
		return r.result()
	}
}

// result returns the error of the caller's function, which has returned.
func (r *Replay) result() error {
	if r.panicked != nil {
		panic(r.panicked)
	}
	if r.exited {
		runtime.Goexit()
	}
	return r.err
}

// Rewind reports whether the call can be begun again after an attempt that the server has not
// processed.
func (r *Replay) Rewind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.between = r.between || !r.final
	return r.between
}

// Finish ends the waits of the caller's function with err, and waits until it has returned. It
// passes on a panic of the function.
func (r *Replay) Finish(err error) {
	r.mu.Lock()
	r.over = err
	r.finalLocked()
	r.changedLocked()
	r.mu.Unlock()
	<-r.returned
	_ = r.result() // Carry has returned it
}

func (r *Replay) changedLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// finalLocked notes that the call is not begun again.
func (r *Replay) finalLocked() {
	r.memory.Give(r.size)
	r.final, r.kept, r.size = true, nil, 0
}

// isLost reports whether the server has not processed an attempt that has failed with err, and the
// call can be begun again.
func (r *Replay) isLost(a *attempt, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case a != r.now || r.between:
		return true
	case r.final:
		return false
	case !r.unprocessed(err):
		r.finalLocked()
		return false
	}
	r.between, a.why = true, err
	close(a.lost)
	return true
}

// use waits for an attempt. It returns with r.mu locked unless there is an error. The caller calls
// used.Done of the attempt.
func (r *Replay) use() (*attempt, error) {
	r.mu.Lock()
	for r.over == nil && (r.now == nil || r.between) {
		changed := r.changed
		r.mu.Unlock()
		<-changed
		r.mu.Lock()
	}
	if r.over != nil {
		defer r.mu.Unlock()
		return nil, r.over
	}
	r.now.used.Add(1)
	return r.now, nil
}

// Send implements Messages.
func (r *Replay) Send(_ context.Context, body []byte, compressed bool) error {
	a, err := r.use()
	if err != nil {
		return err
	}
	defer a.used.Done()
	if err := a.Err(); err != nil {
		r.finalLocked()
		r.mu.Unlock()
		return err
	}
	if !r.final {
		if r.size+len(body) <= MaxKept && r.memory.Take(len(body)) {
			r.kept, r.size = append(r.kept, message{bytes.Clone(body), compressed}), r.size+len(body)
		} else {
			r.finalLocked()
		}
	}
	r.mu.Unlock()
	<-a.replayed
	err = a.Send(a, body, compressed) //nolint:contextcheck // the attempt has the context
	if err != nil && r.isLost(a, err) {
		return nil // the next attempt sends it
	}
	return err
}

// Receive implements Messages.
func (r *Replay) Receive(context.Context) (body []byte, compressed bool, err error) {
	for {
		a, err := r.use()
		if err != nil {
			return nil, false, err
		}
		r.mu.Unlock()
		body, compressed, err := a.Receive(a) //nolint:contextcheck // the attempt has the context
		again := err != nil && r.isLost(a, err)
		if err == nil {
			r.answered()
		}
		a.used.Done()
		if !again {
			return body, compressed, err
		}
	}
}

// answered notes that the server has sent a message.
func (r *Replay) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.final {
		r.finalLocked()
	}
}

// End implements Messages.
func (r *Replay) End() {
	r.mu.Lock()
	r.ended = true
	a := r.now
	if between := a == nil || r.between; between {
		r.mu.Unlock()
		return // Carry does it
	}
	a.used.Add(1)
	r.mu.Unlock()
	defer a.used.Done()
	<-a.replayed
	a.End()
}

// Context returns the context of the attempt. Between attempts it does not end.
func (r *Replay) Context() context.Context { return attempts{r} }

// attempts is the context of the attempt that runs.
type attempts struct{ r *Replay }

func (c attempts) current() (ctx context.Context, runs bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if c.r.now == nil {
		return context.Background(), false
	}
	return c.r.now, !c.r.between
}

// Deadline implements context.Context.
func (c attempts) Deadline() (time.Time, bool) {
	ctx, _ := c.current()
	return ctx.Deadline()
}

// Done implements context.Context.
func (c attempts) Done() <-chan struct{} {
	if ctx, runs := c.current(); runs {
		return ctx.Done()
	}
	return nil
}

// Err implements context.Context.
func (c attempts) Err() error {
	if ctx, runs := c.current(); runs {
		return ctx.Err()
	}
	return nil
}

// Value implements context.Context.
func (c attempts) Value(key any) any {
	ctx, _ := c.current()
	return ctx.Value(key)
}
