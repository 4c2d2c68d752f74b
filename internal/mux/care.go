// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file is the life of a connection apart from its calls: beginning, settings, deadlines,
// keepalive, drain and end.

// New runs the protocol on nc and takes ownership of nc. Prefix holds the bytes that the caller has
// already read from nc. The side that dialled is the client, and sends first. Requests may be sent
// at once, without waiting for the peer.
func New(nc net.Conn, prefix []byte, client bool, cfg *Config) *Conn {
	return NewOf(nil, nc, prefix, client, cfg)
}

// NewOf is New for an owner with several connections that share one Config. The functions of the
// Config find the owner with Owner.
func NewOf(owner any, nc net.Conn, prefix []byte, client bool, cfg *Config) *Conn {
	c := &Conn{
		cfg: cfg, owner: owner, nc: nc, client: client,
		calls: noCalls, seldom: noneYet,
		maxOpen: min(initialWindow, cfg.ownOpen()), maxBytes: cfg.ownOpenBytes(), maxNum: defaultMaxMethods, housekeepAt: never,
		peerStream: defaultStreamWindow, socket: socketOf(nc),
	}
	c.memory.init(cfg.Memory, cfg.MaxMemory)
	c.self.init()
	rd := &reader{c: c, buf: make([]byte, max(minReadBuffer, pow2(len(prefix))))}
	rd.w = copy(rd.buf, prefix)
	c.reader.Store(rd)

	c.mu.Lock()
	c.out = append(c.out, wire.Preface...)
	c.queued += uint64(len(c.out))
	open, openBytes := c.joinBudget()
	settings := &wire.Limits{
		MaxFrame: maxFrame, MaxMessage: uint64(cfg.MaxMessage), MaxOpen: uint64(open),
		MaxOpenBytes: uint64(openBytes), MaxMethods: uint64(cfg.MaxMethods), Metadata: cfg.Metadata, Agent: []byte(cfg.Agent),
		Incarnation: cfg.Incarnation,
	}
	if cfg.Services != nil {
		settings.Services = cfg.Services()
	}
	if cfg.Keys != nil {
		scope, keep := cfg.Keys(c)
		// not negative
		settings.KeyScope, settings.KeyKeep = []byte(scope), uint64(max(keep/time.Microsecond, 0))
	}
	if open != cfg.MaxOpen {
		settings.MostOpen = uint64(cfg.MaxOpen)
	}
	if openBytes != cfg.MaxOpenBytes {
		settings.MostOpenBytes = uint64(cfg.MaxOpenBytes)
	}
	if n := c.streamWindow(); n != defaultStreamWindow {
		settings.StreamWindow = uint64(n)
	}
	c.appendLocked(func(dst []byte) []byte { return wire.AppendSettings(dst, settings) })
	now := c.now()
	if cfg.Handshake > 0 {
		c.helloBy = later(now, cfg.Handshake)
		c.housekeepByLocked(c.helloBy)
	}
	if cfg.KeepAlive > 0 {
		c.pingAt = later(now, cfg.KeepAlive)
		c.housekeepByLocked(c.pingAt)
	}
	c.ageLocked(now)
	c.greeting.Store(true)
	if client {
		c.flushAndUnlock(false)
	} else {
		c.mu.Unlock() // a server sends its settings after it has received the client's
	}
	theParker.add(c)
	go rd.loop()
	return c
}

// initialWindow is how many requests may be open before the peer's settings have arrived.
const initialWindow = 1024

// Owner returns the owner that was passed to NewOf.
func (c *Conn) Owner() any { return c.owner }

// NetConn returns the underlying connection.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Ended returns a channel that is closed when the connection has ended.
func (c *Conn) Ended() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endedLocked()
}

func (c *Conn) endedLocked() <-chan struct{} {
	if c.ended == nil {
		c.seldomLocked().ended = make(chan struct{})
		if c.hasEnded.Load() {
			close(c.ended)
		}
	}
	return c.ended
}

// Load returns how many calls of this side are open on the connection, including those that wait.
// Saturated says that another call would wait, either for the peer's window or because the output
// is full.
func (c *Conn) Load() (calls int, saturated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open + len(c.admission), len(c.admission) > 0 || c.open >= c.maxOpen || len(c.out) >= c.highWater()
}

// Usable reports whether new requests can be sent.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && c.drained == nil
}

// Accepted returns how many of this side's requests a draining peer has accepted. It returns 0
// before the peer drains.
func (c *Conn) Accepted() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.accepted
}

// Counters returns the work that the connection has done so far.
func (c *Conn) Counters() Counters {
	n := &c.count
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counters{
		Reads: n.reads.Load(), Writes: n.writes.Load(), BytesIn: n.bytesIn.Load(), BytesOut: n.bytesOut.Load(),
		FramesIn: n.framesIn.Load(), FramesOut: c.framesOut,
	}
}

func (c *Conn) onSettings(payload []byte) bool {
	var l wire.Limits
	if err := wire.ParseSettings(payload, &l); err != nil {
		c.breach("broken settings: " + err.Error())
		return false
	}
	if !c.greeting.CompareAndSwap(true, false) {
		c.breach("settings came twice")
		return false
	}
	c.mu.Lock()
	c.helloBy = 0
	c.setWindowLocked(l.MaxOpen, l.MaxOpenBytes)
	c.setUpperBoundsLocked(&l)
	if l.MaxMethods > 0 {
		c.maxNum = int32(min(l.MaxMethods, math.MaxUint16))
	}
	if l.StreamWindow > 0 {
		c.peerStream = int32(min(max(l.StreamWindow, minStreamWindow), maxStreamWindow))
	}
	if c.share != nil {
		c.cfg.Budget.greet(c.share)
	}
	c.admitNextLocked()
	c.mu.Unlock()
	if c.cfg.Hello == nil {
		return true
	}
	if refusal := c.cfg.Hello(c, &l); refusal != nil {
		c.refuse(refusal, refusal)
		return false
	}
	return true
}

func (c *Conn) onMethod(h wire.Header, payload []byte) bool {
	var b wire.Binding
	if err := wire.ParseMethod(payload, &b); err != nil {
		c.breach("a broken method: " + err.Error())
		return false
	}
	if b.TooLong() { // the connection keeps them until it ends
		c.breach(fmt.Sprintf("a method with a name, codec, compressor or schema of more than %d bytes", wire.MaxName))
		return false
	}
	number := int(h.Arg)
	if number >= max(c.cfg.MaxMethods, defaultMaxMethods) { // the peer may not know the limit yet
		c.breach(fmt.Sprintf("method number %d, which is beyond the limit", number))
		return false
	}
	cost, old := methodCost+len(payload), 0
	if b := c.targets.at(number); b != nil {
		old = b.cost
	}
	if !c.memory.holdUntilEnd(cost - old) {
		c.refuse(&Refusal{Code: catalogue.ResourceExhausted, ID: catalogue.NoMemory, Message: ErrMemory.Error()}, ErrMemory)
		return false
	}
	t, info := Target(unserved{}), wire.Info{}
	if c.cfg.Bind != nil {
		t, info = c.cfg.Bind(c, &b)
	}
	*c.targets.grow(number) = bound{target: t, id: h.ID, kind: b.Kind, cost: cost}
	if info == (wire.Info{}) { // the peer needs no information about this method
		return true // nothing that the peer needs to know
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.appendLocked(func(dst []byte) []byte { return wire.AppendMethodInfo(dst, h.Arg, h.ID, &info) })
	return true // the frame goes out at the end of the batch
}

func (c *Conn) onMethodInfo(h wire.Header, payload []byte) bool {
	var info wire.Info
	if err := wire.ParseMethodInfo(payload, &info); err != nil {
		c.breach("broken method information: " + err.Error())
		return false
	}
	if c.cfg.Learned == nil {
		return true
	}
	c.mu.Lock()
	handle := -1
	for i, n := range c.numbers {
		if n.known && n.number == h.Arg && n.id == h.ID {
			handle = i
		}
	}
	c.mu.Unlock()
	if handle >= 0 {
		c.cfg.Learned(c, handle, info)
	}
	return true
}

func (c *Conn) onCancel(h wire.Header) {
	c.mu.Lock()
	r := c.findLocked(h.ID)
	if r != nil && r.collected != nil {
		// The rest of the request will not arrive, and the request has not begun.
		c.leaveTableLocked(r)
		c.refuseForLocked(r, max(h.Arg, catalogue.Canceled), "", "canceled before the request had come")
		c.flushAndUnlock(false)
		return
	}
	if r != nil && r.ordered.waiting() {
		c.cancelWaitingLocked(r, h.Arg)
		c.flushAndUnlock(false)
		return
	}
	if r != nil {
		r.unwanted = true
	}
	c.mu.Unlock()
	if r == nil {
		return
	}
	if h.Arg == catalogue.DeadlineExceeded {
		r.cancel(context.DeadlineExceeded, ErrDeadline)
		return
	}
	r.cancel(context.Canceled, ErrCallerGone)
}

// ErrCallerGone ends a request whose result the peer no longer wants.
var ErrCallerGone = errors.New("the caller canceled the call")

func (c *Conn) onCredit(h wire.Header, payload []byte) bool {
	var w wire.Window
	if err := wire.ParseCredit(payload, &w); err != nil {
		c.breach("broken credit: " + err.Error())
		return false
	}
	c.mu.Lock()
	if h.ID != 0 {
		if st := c.streamLocked(h); st != nil {
			st.creditedLocked(w.StreamBytes)
		}
		c.mu.Unlock()
		return true
	}
	c.setWindowLocked(w.MaxOpen, w.MaxOpenBytes)
	c.admitNextLocked()
	c.mu.Unlock()
	return true
}

func (cfg *Config) ownOpen() int {
	if cfg.OwnOpen > 0 {
		return cfg.OwnOpen
	}
	return cfg.MaxOpen
}

func (cfg *Config) ownOpenBytes() int {
	if cfg.OwnOpenBytes > 0 {
		return cfg.OwnOpenBytes
	}
	return cfg.MaxOpenBytes
}

// setWindowLocked sets the peer's newest limits. 0 leaves a limit unchanged.
func (c *Conn) setWindowLocked(open, bytes uint64) {
	if open > 0 {
		c.maxOpen = int(min(open, uint64(c.cfg.ownOpen()), wire.MaxSlots))
	}
	if bytes > 0 {
		c.maxBytes = int(min(bytes, uint64(c.cfg.ownOpenBytes()))) //nolint:gosec // bounded
	}
}

// setUpperBoundsLocked sets the upper bounds of the limits that the peer will ever grant.
func (c *Conn) setUpperBoundsLocked(l *wire.Limits) {
	if open := max(l.MaxOpen, l.MostOpen); open > 0 {
		n := int(min(open, wire.MaxSlots))
		c.mostOpen = n
	}
	if bytes := max(l.MaxOpenBytes, l.MostOpenBytes); bytes > 0 {
		c.mostBytes = int(min(bytes, math.MaxInt/4))
	}
}

// streamLocked returns the stream that a frame belongs to, or nil if the stream has ended.
func (c *Conn) streamLocked(h wire.Header) *Stream {
	if h.Flags&wire.OfReply == 0 {
		if r := c.findLocked(h.ID); r != nil {
			return r.stream
		}
	} else if s := c.slotLocked(h.ID); s != nil {
		return s.stream
	}
	return nil
}

func (c *Conn) onPing(payload []byte) bool {
	if len(payload) != pingSize {
		c.breach("a ping without 8 bytes")
		return false
	}
	c.mu.Lock()
	// otherwise the queued output shows the peer that this side is alive
	if len(c.out) < c.cfg.MaxUnsent {
		c.sendPingLocked(wire.Pong, payload)
	}
	c.flushAndUnlock(false)
	return true
}

const pingSize = 8

func (c *Conn) sendPingLocked(t wire.Type, payload []byte) {
	start := c.beginLocked(wire.Header{Type: t})
	c.out = append(c.out, payload...)
	c.finishLocked(start)
}

func (c *Conn) onPong(payload []byte) {
	if len(payload) != pingSize {
		return
	}
	n := binary.LittleEndian.Uint64(payload)
	c.mu.Lock()
	if ch := c.pings[n]; ch != nil {
		close(ch)
		delete(c.pings, n)
	}
	c.limitsRead = true
	c.obeyedLocked(n)
	c.mu.Unlock()
}

// Ping sends a ping, waits for the answer and returns the round-trip time.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	ch := make(chan struct{})
	began := time.Now()
	c.mu.Lock()
	c.seldomLocked().nextPing++
	n := c.nextPing
	if c.pings == nil {
		c.seldomLocked().pings = make(map[uint64]chan struct{})
	}
	c.pings[n] = ch
	ended := c.endedLocked()
	c.startReader()
	c.sendPingLocked(wire.Ping, binary.LittleEndian.AppendUint64(nil, n))
	c.flushAndUnlock(false)
	select {
	case <-ch:
		return time.Since(began), nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.pings, n)
		c.mu.Unlock()
		return 0, context.Cause(ctx)
	case <-ended:
		return 0, c.Err()
	}
}

func (c *Conn) onGoAway(h wire.Header, payload []byte) bool {
	var d wire.Drain
	if err := wire.ParseGoAway(payload, &d); err != nil {
		c.breach("a broken drain notice: " + err.Error())
		return false
	}
	c.mu.Lock()
	if c.drained == nil {
		last := c.seldomLocked()
		last.drained, last.accepted = ErrDrained, d.Count
	}
	c.seldomLocked().accepted = min(c.accepted, d.Count)
	c.aging.retired = c.aging.retired || d.Again != 0
	if h.Arg != 0 {
		c.drained = &Refusal{Code: h.Arg, ID: text.ID(string(d.ErrorID)), Message: text.Clip(string(d.Message), maxRefusal)}
		c.endAndUnlock(c.drained)
		return false
	}
	c.admitNextLocked()
	c.endDrainedLocked()
	c.mu.Unlock()
	if c.cfg.Unusable != nil {
		c.cfg.Unusable(c)
	}
	return true
}

// maxRefusal is how many bytes of a peer's refusal message are kept.
const maxRefusal = 1 << 10

// endDrainedLocked schedules the end of a draining connection once no call is open on it. The side
// that received the drain notice closes the connection. If the draining side closed it, TCP could
// answer late data with a reset, and the reset could destroy replies that are still in transit.
func (c *Conn) endDrainedLocked() {
	switch {
	case c.open > 0 || c.inOpen > 0:
	case c.drained != nil:
		c.housekeepByLocked(c.now()) // at once, but on the timer's goroutine: the caller may be the reader
	case c.draining.Load() && c.linger == 0:
		c.seldomLocked().linger = c.now() + int64(lingerTime)
		c.housekeepByLocked(c.linger)
	}
}

// lingerTime is how long a drained connection waits for the peer to close it.
const lingerTime = time.Second

// Drain tells the peer that this side accepts no more requests. Accepted requests finish, and then
// the connection closes. Drain does not wait for that, see Ended.
func (c *Conn) Drain() { c.drain(0) }

func (c *Conn) drain(again uint64) {
	c.mu.Lock()
	if c.err != nil || c.draining.Load() {
		c.mu.Unlock()
		return
	}
	c.drainBegunLocked()
	c.draining.Store(true)
	c.promised = c.received.Load()
	d := wire.Drain{Count: c.promised, Again: again}
	c.appendLocked(func(dst []byte) []byte { return wire.AppendGoAway(dst, 0, &d) })
	c.endDrainedLocked()
	c.flushAndUnlock(false)
}

// drainBegunLocked closes the channel that Context.Draining returned, once.
func (c *Conn) drainBegunLocked() {
	if c.drainBegun != nil && !c.draining.Load() && !c.refusing.Load() {
		close(c.drainBegun)
	}
}

// Refuse makes this side accept no more requests. The connection goes on for the calls of this
// side. The returned channel is closed when the accepted requests have ended.
func (c *Conn) Refuse() (quiet <-chan struct{}) {
	c.mu.Lock()
	c.drainBegunLocked()
	c.refusing.Store(true)
	c.mu.Unlock()
	// A request that runs on the reader goroutine is not in the table. Either it began before
	// refusing was set, and handOver enters it now, or it sees refusing.
	rd := c.reader.Load()
	if state := rd.state.Load(); state&running != 0 {
		c.handOver(rd, state)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noRequests == nil {
		c.seldomLocked().noRequests = make(chan struct{})
		c.requestsEndedLocked()
	}
	return c.noRequests
}

func (c *Conn) requestsEndedLocked() {
	if c.noRequests == nil || c.inOpen > 0 {
		return
	}
	select {
	// it was closed before: only requests that serve calls of this side have arrived since
	case <-c.noRequests:
	default:
		close(c.noRequests)
	}
}

// CancelRequests cancels the contexts of all open requests.
func (c *Conn) CancelRequests() {
	c.mu.Lock()
	requests := make([]*Request, 0, c.inOpen)
	c.eachRequestLocked(func(r *Request) { requests = append(requests, r) })
	c.mu.Unlock()
	for _, r := range requests {
		r.cancel(context.Canceled, ErrClosed)
	}
}

// Executing returns the target of each request that the peer has open. A request that runs on the
// reader goroutine is missing until another goroutine has taken over the reading, which takes
// milliseconds.
func (c *Conn) Executing() []Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	targets := make([]Target, 0, c.inOpen)
	c.eachRequestLocked(func(r *Request) { targets = append(targets, r.target) })
	return targets
}

func (c *Conn) eachRequestLocked(f func(*Request)) {
	for r := range c.in.all() {
		if *r != nil {
			f(*r)
		}
	}
	for r := range c.oneWay {
		f(r)
	}
}

// Close ends the connection: open calls fail at once. Close first writes the queued output, for at
// most a second.
func (c *Conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	c.mu.Lock()
	c.flushAndUnlock(false)
	c.mu.Lock()
	c.awaitWrittenRelocking(ctx)
	gone := c.readerEndedLocked()
	c.endAndUnlock(ErrClosed)
	select {
	case <-gone:
	case <-ctx.Done():
		c.closeBelow() // the reader closes it too
	}
}

// Abort ends the connection at once.
func (c *Conn) Abort() {
	c.mu.Lock()
	c.abrupt = true
	c.endAndUnlock(ErrClosed)
}

// graciousLocked reports whether the ended connection can be closed without destroying data that is
// on its way to the peer.
func (c *Conn) graciousLocked() bool {
	written := !c.flushing && len(c.out) == 0 && c.writeErr == nil
	return written && !c.abrupt && (errors.Is(c.err, ErrClosed) || errors.Is(c.err, ErrDrained) || errors.Is(c.err, ErrRetired) || errors.Is(c.err, ErrAged))
}

// shutSocket closes the underlying connection. If a socket is closed with unread data in it, or
// data arrives after the close, TCP sends a reset, and the reset destroys what the peer has not
// read yet. A gracious end therefore only closes the writing direction. The reader then reads on
// until the peer closes too, for at most half of closingTime.
func (c *Conn) shutSocket(gracious bool) {
	if gracious && c.finishBelow() && c.limitReading(time.Now().Add(closingTime/2)) == nil {
		return
	}
	c.closeBelow()
}

// lingerAndClose closes the underlying connection. It is the last step of the reader after the
// connection has ended.
func (c *Conn) lingerAndClose() {
	c.drainBelow() // returns when the peer closes, when the read deadline passes, or at once
	c.closeBelow()
	theParker.remove(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readerDone = true
	if c.readerEnded != nil {
		close(c.readerEnded)
	}
}

// readerEndedLocked returns a channel that is closed when the reader has ended.
func (c *Conn) readerEndedLocked() <-chan struct{} {
	if c.readerEnded == nil {
		c.seldomLocked().readerEnded = make(chan struct{})
		if c.readerDone {
			close(c.readerEnded)
		}
	}
	return c.readerEnded
}

// CloseWhenIdle accepts no more calls of this side. It closes the connection when the open calls
// have ended.
func (c *Conn) CloseWhenIdle() { c.closeWhenIdle(ErrRetired) }

func (c *Conn) closeWhenIdle(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drained == nil {
		last := c.seldomLocked()
		last.drained, last.accepted = why, c.opened
	}
	c.admitNextLocked()
	c.endDrainedLocked()
}

// closingTime bounds how long an ending connection waits until its last frames are written and
// read.
const closingTime = time.Second

// awaitWrittenRelocking waits until all output has been written. It unlocks c.mu while it waits,
// and returns with c.mu held.
func (c *Conn) awaitWrittenRelocking(ctx context.Context) {
	for (c.flushing || len(c.out) > 0) && c.err == nil && c.writeErr == nil && ctx.Err() == nil {
		if c.flushed == nil {
			c.seldomLocked().flushed = make(chan struct{})
		}
		flushed, ended := c.flushed, c.endedLocked()
		c.mu.Unlock()
		select {
		case <-flushed:
		case <-ended:
		case <-ctx.Done():
		}
		c.mu.Lock()
	}
}

// refuse ends the connection and sends the reason to the peer. The reader calls it. For a while it
// reads and drops what the peer sends, because closing a socket with unread data in it would
// destroy what the peer has not read.
func (c *Conn) refuse(why *Refusal, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	d := wire.Drain{Count: c.received.Load(), Message: []byte(why.Message), ErrorID: []byte(why.ID)}
	c.draining.Store(true)
	c.mu.Lock()
	if c.err == nil {
		c.seldomLocked().endReason = err
		c.reader.Load().appendRepliesLocked()
		c.appendLocked(func(dst []byte) []byte { return wire.AppendGoAway(dst, why.Code, &d) })
	}
	c.flushAndUnlock(false)
	c.mu.Lock()
	c.awaitWrittenRelocking(ctx)
	c.mu.Unlock()
	if c.finishBelow() {
		// if it fails, the peer may miss the reason
		_ = c.readableUntil(time.Now().Add(closingTime / 2))
		c.drainBelow()
	}
	c.end(err)
}

// breach ends the connection because the peer violated the protocol, and tells the peer.
func (c *Conn) breach(what string) {
	err := &ProtocolError{What: what}
	c.refuse(&Refusal{Code: catalogue.Internal, ID: catalogue.ProtocolBroken, Message: err.Error()}, err)
}

// housekeepByLocked makes the housekeeping timer fire at t or before.
func (c *Conn) housekeepByLocked(t int64) {
	if t >= c.housekeepAt || c.err != nil {
		return
	}
	c.housekeepAt = t
	d := time.Duration(max(t-c.now(), 0))
	switch {
	case d > timerless && c.self.token.Load() == parkedReader && theParker.housekeepAt(c, t):
		c.dropTimerLocked()
	case c.housekeeper == nil:
		c.housekeeper = time.AfterFunc(d, c.housekeep)
	default:
		c.housekeeper.Reset(d)
	}
}

func (c *Conn) dropTimerLocked() {
	if c.housekeeper != nil {
		c.housekeeper.Stop()
		c.housekeeper = nil
	}
}

// housekeep does the housekeeping that is due, and sets the timer for the next time.
func (c *Conn) housekeep() {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	now := c.now()
	c.housekeepAt = never
	why := c.drainedLocked(now)
	switch {
	case why != nil:
	case c.endAt != 0 && now >= c.endAt && !c.readsOnLocked(now):
		why = c.writeErr
	case c.helloBy != 0 && now >= c.helloBy:
		why = ErrHandshake
	case c.pingAt != 0 && now >= c.pingAt && !c.keepAliveLocked(now):
		why = ErrDead
	}
	if why != nil {
		c.endAndUnlock(why)
		return
	}
	aged := c.agedLocked(now)
	next := min(neverIfZero(c.helloBy), neverIfZero(c.linger), neverIfZero(c.pingAt), neverIfZero(c.endAt), c.aging.nextLocked())
	late, late2, nextCall := c.expiredLocked(now)
	c.housekeepByLocked(min(next, nextCall))
	c.flushAndUnlock(false)
	for _, w := range late {
		w.fail(ErrDeadline)
	}
	for _, r := range late2 {
		r.cancel(context.DeadlineExceeded, ErrDeadline)
	}
	if aged {
		c.retire()
	}
}

// readsOnLocked reports whether this side goes on reading from a peer that it can no longer write
// to. Frames that the peer sent before it went away may have to wait until there is room for them.
func (c *Conn) readsOnLocked(now int64) bool {
	frames := c.count.framesIn.Load()
	if now >= c.endBy || !c.holding && frames == c.endFrames {
		return false
	}
	c.seldomLocked().endAt, c.endFrames = now+int64(closingTime)/4, frames
	return true
}

// drainedLocked returns the reason if a draining connection ends now, or nil.
func (c *Conn) drainedLocked(now int64) error {
	if c.open > 0 || c.inOpen > 0 {
		if c.linger != 0 {
			c.seldomLocked().linger = 0 // it is set again when the calls have ended
		}
		return nil
	}
	busy := c.written != c.queued || c.reader.Load().state.Load()&running != 0
	switch {
	case c.drained != nil && !busy:
		return c.drained
	case c.drained != nil:
		c.housekeepByLocked(now + int64(drainCheckTime))
	case c.linger != 0 && now >= c.linger:
		if !busy {
			return ErrClosed
		}
		c.seldomLocked().linger = now + int64(lingerTime)
	}
	return nil
}

// drainCheckTime is how often a drained connection checks whether its last bytes have been written.
const drainCheckTime = time.Millisecond

// later returns the clock reading now plus all durations. It returns never if the sum overflows.
func later(now int64, by ...time.Duration) int64 {
	for _, d := range by {
		if now > 0 && int64(d) > never-now { // in the fake time of tests, now is negative
			return never
		}
		now += int64(d)
	}
	return now
}

func neverIfZero(t int64) int64 {
	if t == 0 {
		return never
	}
	return t
}

// keepAliveLocked pings a peer that has been silent, and reports whether the peer is alive. A peer
// is alive if it sends something, or if it accepts what was written to it. On a slow link a ping
// can be queued behind megabytes of a message. A side that only receives therefore pings too: its
// peer hears the ping, although it cannot answer yet.
func (c *Conn) keepAliveLocked(now int64) bool {
	c.pingAt = later(now, c.cfg.KeepAlive)
	c.trimMemoryLocked()
	c.endStalledLocked(now)
	heard, wrote, backlog := c.heard.Swap(false), c.written != c.progress, c.written != c.queued
	c.progress = c.written
	moved := wrote && backlog || c.acknowledgesLocked()
	switch {
	case heard || moved:
		c.pinged = false
		if !heard || wrote || backlog {
			return true
		}
	// this side does not read, so it cannot hear the peer, and still has to send something
	case c.holding:
	case c.pinged:
		return false
	default:
		c.pinged = true
	}
	c.sendPingLocked(wire.Ping, make([]byte, pingSize))
	return true
}

// acknowledgesLocked reports whether the peer has acknowledged new bytes since the last check. The
// operating system of a hung peer also acknowledges, but only until its receive buffer is full.
// Bytes that are always acknowledged at once, such as pings, prove nothing.
func (c *Conn) acknowledgesLocked() bool {
	if c.open == 0 && c.inOpen == 0 {
		return false
	}
	waits, ok := unacknowledged(c.nc)
	before := c.acknowledged
	if !ok || waits == 0 && before == 0 {
		return false
	}
	last := c.seldomLocked()
	if waits == 0 {
		last.acknowledged = 0
		return true
	}
	last.acknowledged = int64(c.written) - int64(waits) //nolint:gosec // negative while a write is in progress
	return before != 0 && last.acknowledged != before
}

// leastProgress is the average rate, in bytes per second, that a peer must send while one of its
// messages is incomplete. Slower links are treated as stalled.
const leastProgress = 4 << 10

// endStalledLocked ends incomplete requests and messages if the peer has sent almost nothing for as
// long as it takes to find a peer dead. Pings keep a connection alive. They must not keep the
// memory of a message that does not arrive.
func (c *Conn) endStalledLocked(now int64) {
	unfinished := c.unfinishedLocked()
	if len(unfinished) == 0 {
		if c.stallFrom != 0 {
			c.seldomLocked().stallFrom = 0
		}
		return
	}
	last, came := c.seldomLocked(), c.count.bytesIn.Load()
	took := now - last.stallFrom
	moves := came-last.stallBytes >= uint64(float64(took)/float64(time.Second)*leastProgress)
	switch held := c.holding || len(c.out) >= c.cfg.MaxUnsent; { // this side does not read
	case last.stallFrom == 0, moves, held:
		last.stallFrom, last.stallBytes = now, came
		return
	case took < 2*int64(c.cfg.KeepAlive):
		return
	}
	for _, r := range unfinished {
		if r.collected == nil {
			r.stream.closeReceiveLocked(&BrokenError{Cause: errStalled})
		} else if int64(r.Arrived) <= last.stallFrom {
			c.abandonRequestLocked(r, catalogue.RequestCutShort, "the rest of the request did not come in time")
		}
	}
	last.stallFrom = 0
}

var errStalled = errors.New("the rest of it did not come in time")

// unfinishedLocked returns the requests of the peer that are incomplete, and the requests with a
// stream on which a large message is incomplete.
func (c *Conn) unfinishedLocked() (unfinished []*Request) {
	for in := range c.in.all() {
		if r := *in; r != nil && (r.collected != nil || r.stream != nil && r.stream.reserved > 0) {
			unfinished = append(unfinished, r)
		}
	}
	return unfinished
}

// expiredLocked returns the calls and the requests whose deadline has passed, and the next
// deadline.
func (c *Conn) expiredLocked(now int64) (late []*waiter, requests []*Request, next int64) {
	next = never
	for i := range c.slots {
		s := &c.slots[i]
		w := s.waiter
		switch {
		case w == nil || w.deadline == 0:
		case w.deadline > now:
			next = min(next, w.deadline)
		case w.id.CompareAndSwap(s.id, 0):
			c.abandonLocked(s.id, ErrDeadline)
			c.followLocked(s.id, w.to)
			late = append(late, w)
		}
	}
	look := func(r *Request) {
		switch {
		case r == nil || r.deadline == 0:
		case r.deadline > now:
			next = min(next, r.deadline)
		case r.collected == nil:
			requests = append(requests, r)
		}
	}
	for r := range c.in.all() {
		look(*r)
	}
	for r := range c.oneWay {
		look(r)
	}
	return late, requests, next
}

// Err returns why the connection has ended, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Conn) end(err error) {
	c.mu.Lock()
	c.endAndUnlock(err)
}

// endAndUnlock ends the connection once, fails its calls, and cancels its requests. It unlocks
// c.mu.
func (c *Conn) endAndUnlock(err error) {
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	err = c.reasonLocked(err)
	c.err = err
	gracious := c.graciousLocked()
	c.hasEnded.Store(true)
	if c.ended != nil {
		close(c.ended)
	}
	if c.housekeeper != nil {
		c.housekeeper.Stop()
	}
	type failed struct {
		w   *waiter
		err error
	}
	var calls []failed
	for i := range c.slots {
		s := &c.slots[i]
		if w := s.waiter; w != nil && w.id.CompareAndSwap(s.id, 0) {
			calls = append(calls, failed{w, &CallError{Cause: err, NotProcessed: c.notProcessedLocked(s)}})
		}
		if s.taken {
			c.freeSlotLocked(s)
		}
	}
	requests := make([]*Request, 0, c.inOpen)
	for r := range c.in.all() {
		r := *r
		if r == nil {
			continue
		}
		if r.OneWay && r.collected == nil && !errors.Is(err, ErrClosed) {
			c.orphanLocked(r)
			continue
		}
		requests = append(requests, r)
		if r.collected != nil { // no goroutine will run it
			c.leaveTableLocked(r)
		}
	}
	for r := range c.oneWay {
		if errors.Is(err, ErrClosed) || !r.alone() {
			requests = append(requests, r)
		} else {
			c.orphanLocked(r)
		}
	}
	c.leaveBudgetLocked()
	c.closeMemoryLocked()
	c.unparkLocked()
	c.startReader()
	c.mu.Unlock()

	for _, r := range requests {
		r.cancel(context.Canceled, err)
	}
	c.shutSocket(gracious)
	if rd := c.reader.Load(); rd != nil {
		if state := rd.state.Load(); state&running != 0 {
			c.handOver(rd, state) // so that a handler that blocks is not mistaken for the reader
		}
	}
	if c.cfg.Unusable != nil {
		c.cfg.Unusable(c)
	}
	for _, f := range calls {
		f.w.fail(f.err)
	}
	if c.cfg.Ended != nil {
		c.cfg.Ended(c, err)
	}
}

// reasonLocked returns why the connection ends. Err is the latest symptom, and an earlier reason
// takes precedence.
func (c *Conn) reasonLocked(err error) error {
	_, io := errors.AsType[*IOError](err)
	switch {
	case c.endReason != nil && !errors.Is(err, ErrClosed):
		return c.endReason
	case io && c.drained != nil:
		return c.drained
	case io && c.writeErr != nil:
		return c.writeErr
	}
	return err
}

// notProcessedLocked reports whether the peer certainly did not execute the call in s: either the
// last byte of the request was never passed to a write, or the peer refused it with its drain
// notice.
func (c *Conn) notProcessedLocked(s *slot) bool {
	// A draining peer still executes one-way requests and requests that serve its own calls.
	return s.end > c.taken || (c.drained != nil && s.nth > c.accepted && !s.oneWay && !s.nested)
}
