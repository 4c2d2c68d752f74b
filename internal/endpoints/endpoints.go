// SPDX-License-Identifier: Apache-2.0

// Package endpoints keeps the endpoints of a client. It connects them to their servers, with pauses
// that grow after failures, and decides which endpoint to dial and how urgently. It knows neither
// calls nor balancers.
//
// While at least one endpoint is connected, no call waits for an unconnected endpoint. Calls avoid
// unconnected endpoints. If the balancer would have chosen such an endpoint, the client dials it in
// the background. A suspect is an endpoint to which the client has never been connected, and to
// which it failed to connect in time. Balancers do not see a suspect until it answers.
//
// While no endpoint is connected, the first call starts a search: it dials several endpoints at the
// same time, and calls wait for the first one that answers.
package endpoints

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reason"
	"github.com/yodel-rpc/yodel/internal/record"
	"github.com/yodel-rpc/yodel/internal/text"
)

// A Conn is a connection that an endpoint has dialled. Its zero value means no connection.
type Conn interface {
	comparable
	// Usable reports whether the connection accepts further calls.
	Usable() bool
	// End says why the connection accepts no more calls.
	End() End
	// Ended returns a channel that is closed when the connection has ended.
	Ended() <-chan struct{}
	// Close ends the connection now. CloseWhenIdle ends it when its calls have ended.
	Close()
	CloseWhenIdle()
}

// An End says why a connection accepts no more calls.
type End struct {
	Err    error
	Aged   bool // the connection was idle or old, so the next call connects
	Worked bool // calls succeeded on it
	Broke  bool // the network failed or the server went away; neither side refused the other
}

// A List has the endpoints of a client. O is the type that the client uses for an endpoint. The
// exported fields must be set before the first endpoint is made.
type List[O any, C Conn] struct {
	// Timeout limits an attempt to connect, and a search.
	Timeout time.Duration
	// Connect makes a connection to an endpoint and waits until calls can be sent on it. It calls
	// accepted when the transport has connected. Spare says that the connection should be closed
	// when it is idle.
	Connect func(ctx context.Context, of O, spare bool, accepted func()) (C, *reason.DialError)
	// Ready returns a connection for a call. Own is the connection on which the call came whose
	// handler makes the call, or nil. It returns no connection if there is none, or if an
	// additional connection should be made. It is called with the lock of the endpoint held.
	Ready func(of O, own *mux.Conn) C
	// Beside returns the connection for a call while an additional connection is being made. Wait
	// says that the call should wait for the additional one.
	Beside func(of O) (conn C, wait bool)
	// Elsewhere returns the error of a call that waited for an endpoint until another one was
	// connected.
	Elsewhere func(of O, waited time.Duration) error
	// Why describes the end of a connection, or of an attempt to connect.
	Why func(of O, err *reason.DialError) string
	// Changed is called when an endpoint becomes ready, or not ready, for the reason by. It is
	// called with the lock of the endpoint held.
	Changed func(of O, by string, ready bool)
	// Go runs f on a goroutine. The end of the client waits for it.
	Go func(f func())
	// Background is Go for a function whose ctx ends when the client is closed. On a closed client,
	// it returns false without calling f.
	Background func(f func(ctx context.Context)) bool
	// Closing is closed when the client is closed.
	Closing <-chan struct{}
	// Joined and Left are called with endpoints that the resolver has added, and with endpoints
	// that have left. They are called with a lock held.
	Joined, Left func(of []O)
	// Build makes a set of all endpoints. Given are those that the balancer sees. Build may call
	// user code, and publish makes the set the current one. Publish is called with a lock held.
	Build func(all, given []O) (publish func())

	current   atomic.Pointer[[]*Endpoint[O, C]] // the endpoints of the last set; nil until there is one
	connected atomic.Int32                      // endpoints that have a connection
	dials     atomic.Int32                      // attempts to connect in progress
	leaving   atomic.Int32                      // listed endpoints that the resolver no longer reports

	// mu must not be held while user code runs. See Rebuild.
	mu        sync.Mutex
	changed   chan struct{} // closed when the set, listed or err changes; nil if nobody waits
	err       error         // the resolver's last failure; nil while it works
	heard     time.Time     // when the resolver last reported instances; zero before
	errText   string        // the text of err
	closed    bool
	known     bool              // the resolver has reported instances
	listed    []*Endpoint[O, C] // the endpoints of the next set; the slice does not change
	gone      []*Endpoint[O, C] // endpoints that were removed from listed and may still be in the set
	stale     bool              // the set is out of date
	building  bool              // a goroutine is building sets
	reshaping bool              // a timer will rebuild the set without suspects
	settling  bool              // a timer will check the endpoints that are leaving
	doubt     doubt

	searchMu sync.Mutex
	search   *search[O, C] // nil if none is running
}

// Connected returns how many endpoints have a connection.
func (l *List[O, C]) Connected() int { return int(l.connected.Load()) }

// published returns the endpoints of the last set.
func (l *List[O, C]) published() []*Endpoint[O, C] {
	if set := l.current.Load(); set != nil {
		return *set
	}
	return nil
}

// An Endpoint is what a client knows of one endpoint: its connections, and whether it is ready.
// Its methods may be called concurrently.
type Endpoint[O any, C Conn] struct {
	conns atomic.Pointer[[]C] // never nil
	// status is the number of reasons why the endpoint is not ready, plus the bit Offline while
	// there is no connection.
	status   atomic.Int32
	reached  atomic.Bool // there has been a connection
	suspect  atomic.Bool // never connected, and an attempt failed or is slow
	busy     atomic.Bool // it is being dialled, or a timer will dial it
	unlisted atomic.Bool // the resolver no longer reports it
	stranger atomic.Bool // another server listens at its address
	away     atomic.Bool // the last connection was lost, and no attempt to connect has succeeded since
	told     atomic.Bool // a call has failed since, because the transport could not connect
	// when a connection was lost, in nanoseconds since 1970; 0 if none was lost since the endpoint
	// last connected
	lostAt atomic.Int64
	// enough is the time until which no additional connection is made, in nanoseconds since 1970.
	// It is set while an additional connection is being made, and after an attempt has failed.
	enough atomic.Int64

	list   *List[O, C]
	owner  O
	addr   string
	ctx    context.Context //nolint:containedctx // canceled when the endpoint is closed
	cancel context.CancelFunc
	joined time.Time // when the resolver first reported it; does not change
	left   time.Time // when it became unlisted; guarded by List.mu

	mu       sync.Mutex
	by       map[string]bool   // the reasons why it is not ready: see SetReady
	shunned  map[string]uint64 // how often it became not ready, by reason
	dialing  *dialing[C]       // nil while no attempt is in progress
	lastErr  *reason.DialError // why the last attempt or connection failed
	failures int               // failed attempts and short-lived connections in a row
	failedAt time.Time         // when the last failure happened
	since    time.Time         // when the last connection was made
	retry    *time.Timer       // the timer of the next dial
	retryAt  time.Time
	closed   bool
}

// Offline is the bit of Endpoint.Status that means that there is no connection.
const Offline = 1 << 16

// byConn is the reason, as in SetReady, of an endpoint that has lost its connection.
const byConn = "connection"

// maxReasons limits how many different reasons for not being ready an endpoint counts.
const maxReasons = 32

// Init prepares an endpoint that the resolver has reported. Owner is the client's own value for it.
func (ep *Endpoint[O, C]) Init(l *List[O, C], owner O, addr string) {
	ep.list, ep.owner, ep.addr, ep.by, ep.joined = l, owner, addr, make(map[string]bool), time.Now()
	ep.status.Store(Offline)
	ep.conns.Store(&[]C{})
	ep.ctx, ep.cancel = context.WithCancel(context.Background()) //nolint:gosec // Close cancels it
}

// Conns returns the connections, the oldest first. The slice does not change.
func (ep *Endpoint[O, C]) Conns() []C { return *ep.conns.Load() }

// Status is 0 if the endpoint is connected and ready. The bit Offline says that it is not
// connected, and the other bits that it is not ready.
func (ep *Endpoint[O, C]) Status() int32 { return ep.status.Load() }

// Connected reports whether there is a connection.
func (ep *Endpoint[O, C]) Connected() bool { return ep.status.Load()&Offline == 0 }

// isSuspect reports whether the client has never been connected to the endpoint, and an attempt has
// failed or is slow.
func (ep *Endpoint[O, C]) isSuspect() bool { return ep.suspect.Load() && !ep.reached.Load() }

// Unreachable reports whether the endpoint has lost its connection, and a call has failed since
// then because the transport could not connect.
func (ep *Endpoint[O, C]) Unreachable() bool {
	return ep.away.Load() && ep.told.Load() && !ep.Connected()
}

// MayAdd reports whether an additional connection may be made.
func (ep *Endpoint[O, C]) MayAdd() bool { return time.Now().UnixNano() >= ep.enough.Load() }

// SetReady sets whether the endpoint should receive calls, for the reason by. The endpoint is ready
// unless at least one reason says that it is not.
func (ep *Endpoint[O, C]) SetReady(by string, ready bool) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.setReadyLocked(by, ready)
}

func (ep *Endpoint[O, C]) setReadyLocked(by string, ready bool) {
	if ready == !ep.by[by] {
		return
	}
	if ready {
		delete(ep.by, by)
	} else {
		ep.by[by] = true
		if ep.shunned == nil {
			ep.shunned = make(map[string]uint64)
		}
		if n, known := ep.shunned[by]; known || len(ep.shunned) < maxReasons {
			ep.shunned[by] = n + 1
		}
	}
	ep.status.Store(int32(len(ep.by)) | ep.status.Load()&Offline) //nolint:gosec // few
	ep.list.Changed(ep.owner, by, ready)
}

// NotReady returns the first reasons why the endpoint is not ready, sorted, for a record.
func (ep *Endpoint[O, C]) NotReady() []string {
	const most = 8
	if ep.Status()&^Offline == 0 {
		return nil
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	by := slices.Sorted(maps.Keys(ep.by))
	by = by[:min(len(by), most)]
	for i := range by {
		by[i] = text.Cut(by[i], record.MaxName)
	}
	return by
}

// Shunned returns how often the endpoint became not ready, by reason.
func (ep *Endpoint[O, C]) Shunned() map[string]uint64 {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return maps.Clone(ep.shunned)
}

// setConnsLocked replaces the connections. It reports whether this removed the client's last
// connection to any endpoint.
func (ep *Endpoint[O, C]) setConnsLocked(conns []C) (last bool) {
	before := len(ep.Conns())
	ep.conns.Store(&conns)
	connected := &ep.list.connected
	switch {
	case before == 0 && len(conns) > 0:
		ep.status.Store(ep.status.Load() &^ Offline)
		connected.Add(1)
	case before > 0 && len(conns) == 0:
		ep.status.Store(ep.status.Load() | Offline)
		return connected.Add(-1) == 0
	}
	return false
}

// Go runs f on a goroutine, with a context that ends when the endpoint leaves the list or the
// client is closed. After that it does nothing, and returns false.
func (ep *Endpoint[O, C]) Go(f func(ctx context.Context)) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.closed {
		return false
	}
	ep.list.Go(func() { f(ep.ctx) })
	return true
}

// Err returns an error when the endpoint has left the list, or when the client is closed.
func (ep *Endpoint[O, C]) Err() error { return ep.ctx.Err() }

// Unlisted reports whether the resolver no longer reports the endpoint.
func (ep *Endpoint[O, C]) Unlisted() bool { return ep.unlisted.Load() }

// SetStranger says that another server listens at the address of the endpoint.
func (ep *Endpoint[O, C]) SetStranger() { ep.stranger.Store(true) }
