// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/defaults"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/internal/aside"
)

// LaterOptions changes how calls are repeated in the background. The zero value has sensible
// defaults.
type LaterOptions struct {
	// Queue bounds the calls that wait to be repeated. Default 1000.
	Queue int
	// QueueBytes bounds the encoded size of these calls, in bytes. Default 16 MiB.
	QueueBytes int
	// Times is how many attempts each call gets in the background. Default 10.
	Times int
	// Backoff is the longest wait before the first attempt in the background. It doubles with each
	// attempt. Each wait is a random part of it, at least half. Default 1 s.
	Backoff time.Duration
	// MaxBackoff bounds every wait. Default 1 min.
	MaxBackoff time.Duration
	// Timeout is the time limit of each attempt in the background. Default 10 s.
	Timeout time.Duration
	// Dropped is called for each call that is given up, with the reason: the error does not allow
	// another attempt, the attempts are used up, or the client was closed (YDL1402). The Args of
	// the call are an *yodel.Encoded. Dropped runs on the goroutines that repeat the calls.
	// Client.Close waits for them, so Dropped must not close the client. It may be called
	// concurrently. Default none: dropped calls are logged in any case.
	Dropped func(call *yodel.Call, err error)
	// Logger logs dropped calls. Default slog.Default().
	Logger *slog.Logger
}

// Later is failback: when a call fails, its caller gets success, and the call is repeated in the
// background, until it succeeds or its attempts are used up. It is for notifications and other
// calls that may arrive late. Nil means the default LaterOptions.
//
// The caller waits for the first attempt. If it succeeds, the caller has its reply. If it fails
// with an error that allows another attempt (see the package comment), Do returns nil for a call
// without a use for the reply: its Reply is nil, an *Empty or no Values, or the call is one-way.
// Every other call gets its error, as without Later, because success needs a reply, and a call that
// failed for its caller must not be executed later. Ordered calls and streams get their errors too.
//
// The arguments are encoded before Do returns, and may be changed then. The repeated call has the
// method, arguments, attachment, metadata, keys, class and tenant of the first one. It does not
// have its context or its deadline: each attempt has Timeout. It goes down the whole chain of the
// client. So observers see a call for each attempt, and a retry.Times below Later makes several
// attempts of each.
//
// The client has one queue, which is bounded and in memory only. If it is full, the caller gets an
// error (YDL1401). Calls are repeated one after the other. While they fail, they use the client's
// retry budget, so a queue that has grown during an outage causes no stampede afterwards. A call
// that takes longer than a second does not block the others: up to 16 may be in flight. Closing the
// client drops the queue. Dropped calls are logged, and Dropped is called for them.
func Later(o *LaterOptions) yodel.Middleware {
	var opts LaterOptions
	if o != nil {
		opts = *o
	}
	opts.Queue = defaults.Positive(opts.Queue, 1000)
	opts.QueueBytes = defaults.Positive(opts.QueueBytes, 16<<20)
	opts.Times = defaults.Positive(opts.Times, 10)
	opts.Backoff = min(defaults.Positive(opts.Backoff, time.Second), forever)
	opts.MaxBackoff = min(defaults.Positive(opts.MaxBackoff, time.Minute), forever)
	opts.Timeout = min(defaults.Positive(opts.Timeout, 10*time.Second), forever)
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			// all repeated calls have encoded arguments
			if _, ok := call.Args.(*yodel.Encoded); ok {
				avoidLast(ctx, call)
			}
			err := next(ctx, call)
			if err == nil {
				return nil
			}
			return opts.failed(ctx, call, err)
		}
	}
}

// avoidLast makes a repeated call go to another endpoint than its last attempt, if there is one.
func avoidLast(ctx context.Context, call *yodel.Call) {
	if t, ok := ctx.Value(taskKey{}).(*task); ok && t.last != nil {
		call.Attempts().Avoid(t.last)
	}
}

// forever is the longest wait, ten years, so that sums of waits do not overflow.
const forever = 10 * 365 * 24 * time.Hour

// failed handles a call that failed with err: it queues the call or returns its error.
func (o *LaterOptions) failed(ctx context.Context, call *yodel.Call, err error) error {
	c := call.Client()
	if c == nil { // on a server, or a server's call
		return err
	}
	again := worthwhile(call, err)
	if t, ok := ctx.Value(taskKey{}).(*task); ok {
		t.again, t.last = again, call.Endpoint
		return err
	}
	if !again || call.Ordered || wantsReply(call.Reply) || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	t, encodeErr := o.task(call)
	if encodeErr != nil { // a stream
		return err
	}
	b := call.State(backlogKey{}, func() any { return &backlog{client: c, news: make(chan struct{}, 1)} }).(*backlog) //nolint:forcetypeassert // nobody else has the key
	t.unsent, t.err, t.last = yodel.NotProcessed(err), err, call.Endpoint
	t.dueAfter()
	if refused := b.add(t); refused != nil {
		return refused
	}
	call.Trailer, call.ReplyAttachment = nil, nil
	call.Note("later", fmt.Sprintf("will be made again in the background, after: %v", err))
	return nil
}

// wantsReply reports whether the caller uses the reply.
func wantsReply(reply any) bool {
	switch r := reply.(type) {
	case nil, *struct{}:
		return false
	case yodel.Values:
		return len(r) > 0
	}
	return true
}

// A task is a call to be repeated.
type task struct {
	*LaterOptions

	call     yodel.Call
	size     int // bytes
	since    time.Time
	due      time.Time
	attempts int           // in the background
	longest  time.Duration // the next wait
	again    bool          // whether the last attempt failed in a way that allows another one
	unsent   bool          // whether the call was certainly not executed so far
	err      error         // of the last attempt
	last     *yodel.Endpoint
}

type (
	taskKey    struct{}
	backlogKey struct{}
)

// task makes a copy of call that shares nothing with the caller.
func (o *LaterOptions) task(call *yodel.Call) (*task, error) {
	args := call.Args
	encoded, err := call.Encode()
	call.Args = args
	if err != nil {
		return nil, err
	}
	if args == any(encoded) { // the caller still owns them
		encoded = &yodel.Encoded{Body: bytes.Clone(encoded.Body), Several: encoded.Several}
	}
	t := &task{LaterOptions: o, since: time.Now(), longest: min(o.Backoff, o.MaxBackoff), size: len(encoded.Body) + len(call.Attachment)}
	for k, v := range call.Metadata {
		t.size += len(k) + len(v)
	}
	defer t.call.Attempts().Resume(call)
	t.call = yodel.Call{
		Method: call.Method, Args: encoded, Metadata: maps.Clone(call.Metadata), Attachment: bytes.Clone(call.Attachment),
		Codec: call.Codec, Compressor: call.Compressor, Key: call.Key, IdempotencyKey: call.IdempotencyKey, Idempotent: call.Idempotent,
		NoWait: call.NoWait, OneWay: call.OneWay, Criticality: call.Criticality, Tenant: call.Tenant,
	}
	return t, nil
}

// dueAfter sets the time of the next attempt, after one that failed or was not allowed.
func (t *task) dueAfter() {
	t.due = time.Now().Add(t.longest/2 + rand.N(t.longest/2+1) + min(retryAfter(t.err), t.MaxBackoff))
	t.longest = min(2*t.longest, t.MaxBackoff)
}

// refusal returns the error of a call that is not repeated, with the reason.
func (t *task) refusal(code yodel.Code, id, why string) *yodel.Error {
	e := &yodel.Error{
		Code: code, ID: id, NotProcessed: t.unsent, Cause: t.err, RetryAfter: retryAfter(t.err),
		Message: fmt.Sprintf("%s: %s; it failed: %s", t.call.Method, why, strings.TrimPrefix(t.err.Error(), t.call.Method+": ")),
	}
	if report := (*introspect.CallReport)(nil); errors.As(t.err, &report) {
		e.Report = report
	}
	return e
}

// drop drops a call.
func (t *task) drop(err error) {
	cmp.Or(t.Logger, slog.Default()).Warn("yodel: a call that was to be repeated in the background is dropped",
		"method", t.call.Method, "attempts", t.attempts, "after", time.Since(t.since).Round(time.Millisecond), "err", err)
	if t.Dropped != nil {
		// A panic of Dropped is logged.
		_ = aside.Do("retry.LaterOptions.Dropped", t.Logger, func() { t.Dropped(&t.call, err) })
	}
}

// These constants limit how long an attempt may delay the others, and how many may be in flight.
const (
	patience   = time.Second
	maxWorkers = 16
)

// A backlog holds the tasks of a client. A worker, on a goroutine of the client, takes them one
// after the other. If an attempt takes long, another worker goes on with the other tasks.
type backlog struct {
	client *yodel.Client
	news   chan struct{} // a new task may be the first one due
	well   atomic.Bool   // whether the last attempt has succeeded

	mu      sync.Mutex
	tasks   []*task // sorted by due time
	count   int     // tasks, including those in flight
	bytes   int
	workers int
	taking  bool // whether a worker takes tasks
}

// add queues a task, or returns why it cannot.
func (b *backlog) add(t *task) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count >= t.Queue || b.bytes+t.size > t.QueueBytes {
		return t.refusal(yodel.ResourceExhausted, "YDL1401", fmt.Sprintf("it cannot be made again later, because %d calls of %d bytes wait for that already", b.count, b.bytes))
	}
	if !b.staffLocked() { // the backlog is closed
		return t.err
	}
	b.count++
	b.bytes += t.size
	b.insertLocked(t)
	return nil
}

// staffLocked makes sure that a worker takes tasks. It returns false if there is no worker and none
// can start.
func (b *backlog) staffLocked() bool {
	if !b.taking && b.workers < maxWorkers && b.client.Background(b.work) {
		if b.taking = true; b.workers == 0 {
			b.well.Store(false) // a new task means that calls fail
		}
		b.workers++
	}
	return b.workers > 0
}

func (b *backlog) insertLocked(t *task) {
	at, _ := slices.BinarySearchFunc(b.tasks, t, func(a, b *task) int { return a.due.Compare(b.due) })
	b.tasks = slices.Insert(b.tasks, at, t)
	if at == 0 {
		select {
		case b.news <- struct{}{}:
		default: // a signal is already pending
		}
	}
}

// work repeats calls until the queue is empty, another worker takes the tasks, or the client is
// closed.
func (b *backlog) work(ctx context.Context) {
	for t := b.first(ctx); t != nil; t = b.first(ctx) {
		if !b.well.Load() && !b.client.Afford(budget, share, reserve) {
			b.again(t)
			continue
		}
		s := &shift{of: b}
		late := time.AfterFunc(patience, s.standAside)
		err := b.attemptAside(ctx, t)
		late.Stop()
		b.well.Store(err == nil)
		// If the client was closed, that is the reason.
		if err != nil && (ctx.Err() != nil || t.again && t.attempts < t.Times) {
			b.again(t)
		} else {
			b.remove(t)
			if err != nil {
				t.drop(err)
			}
		}
		if !s.goesOn() {
			return
		}
	}
}

// A shift is the state of a worker during an attempt. The lock of the backlog guards it.
type shift struct {
	of           *backlog
	aside, ended bool
}

// standAside lets another worker take the tasks.
func (s *shift) standAside() {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.ended {
		return
	}
	s.aside, b.taking = true, false
	if len(b.tasks) > 0 {
		b.staffLocked()
	}
}

// goesOn ends a shift, and reports whether its worker takes tasks again.
func (s *shift) goesOn() bool {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	s.ended = true
	if s.aside && b.taking {
		b.workers--
		return false
	}
	b.taking = true
	return true
}

// attemptAside makes an attempt. A panic in it ends the attempts of its call.
func (b *backlog) attemptAside(ctx context.Context, t *task) (err error) {
	if failed := aside.Do("a call in the background", t.Logger, func() { err = b.attempt(ctx, t) }); failed != nil {
		err = yodel.Errorf(yodel.Internal, "%s: %w", t.call.Method, failed)
		t.again, t.unsent, t.err = false, false, err
	}
	return err
}

// attempt makes one attempt.
func (b *backlog) attempt(ctx context.Context, t *task) error {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, taskKey{}, t), t.Timeout)
	defer cancel()
	t.attempts++
	t.again, t.call.Endpoint = false, nil
	err := b.client.Do(ctx, &t.call)
	// A middleware above Later may have refused the call.
	t.again = err != nil && (t.again || worthwhile(&t.call, err))
	if err != nil {
		t.unsent, t.err = t.unsent && yodel.NotProcessed(err), err
	}
	return err
}

// first waits until a task is due, and takes it. If there are no tasks, it returns nil and the
// worker ends. If ctx has ended, it drops all tasks first.
func (b *backlog) first(ctx context.Context) *task {
	for {
		b.mu.Lock()
		if ctx.Err() != nil || len(b.tasks) == 0 {
			left := b.tasks
			b.tasks, b.taking = nil, false
			b.workers--
			for _, t := range left {
				b.removeLocked(t)
			}
			b.mu.Unlock()
			for _, t := range left {
				t.drop(t.refusal(yodel.Canceled, "YDL1402", "the client was closed before it could be made again in the background"))
			}
			return nil
		}
		t := b.tasks[0]
		wait := time.Until(t.due)
		if wait <= 0 {
			b.tasks = slices.Delete(b.tasks, 0, 1)
			b.mu.Unlock()
			return t
		}
		b.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-b.news:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// again puts back a task whose attempt failed or was not allowed.
func (b *backlog) again(t *task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.dueAfter()
	b.insertLocked(t)
}

func (b *backlog) remove(t *task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeLocked(t)
}

func (b *backlog) removeLocked(t *task) {
	b.count--
	b.bytes -= t.size
}
