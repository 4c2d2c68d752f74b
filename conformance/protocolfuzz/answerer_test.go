// SPDX-License-Identifier: Apache-2.0

package protocolfuzz_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// The methods of the model.
const (
	theirEcho   = "R.Echo"
	theirFeed   = "R.Feed"
	theirUpload = "R.Upload"
	theirDuplex = "R.Duplex"
)

// An answerer is what the model knows of the calls that the real side makes.
type answerer struct {
	*conversation

	calls   map[uint32]*served
	last    map[uint32]uint32 // the last id of each slot
	bound   map[uint16]wire.Binding
	window  uint64  // of streams, as the settings say
	limits  []limit // that may hold: the newest, and those before it until a Pong
	most    uint64
	counted int // open calls that count
	total   uint64
}

// A limit is how many requests may be open, from the Pong of a ping on.
type limit struct {
	open uint64
	ping []byte
}

// A served is a call that the real side has made.
type served struct {
	id       uint32
	method   string
	nested   bool
	oneWay   bool
	checksum wire.Flags
	request  collector
	whole    bool
	canceled uint16

	granted uint64 // towards the real side
	used    uint64
	message collector
	count   uint32
	sum     uint32
	ended   bool
	accept  bool

	allowed uint64 // towards the model
	spent   uint64
	queue   [][]byte
	sending []byte
	size    int
}

func newAnswerer(c *conversation) *answerer {
	a := &answerer{
		conversation: c, calls: make(map[uint32]*served), last: make(map[uint32]uint32), bound: make(map[uint16]wire.Binding),
		window: []uint64{4096, 10_000, 1 << 16}[c.rng.IntN(3)], most: []uint64{8, 100, 1024}[c.rng.IntN(3)],
	}
	a.limits = []limit{{open: 1024}, {open: a.most}}
	return a
}

func (a *answerer) settings() *wire.Limits {
	return &wire.Limits{MaxOpen: a.most, MostOpen: a.most, MaxOpenBytes: 1 << 20, StreamWindow: a.window, MaxMessage: 4 << 20}
}

// maxOpenLocked is how many calls the real side may have open.
func (a *answerer) maxOpenLocked() (most uint64) {
	for _, l := range a.limits {
		most = max(most, l.open)
	}
	return most
}

// confirmedLocked forgets the limits before the one that a ping followed.
func (a *answerer) confirmedLocked(ping []byte) {
	for i, l := range a.limits {
		if l.ping != nil && string(l.ping) == string(ping) {
			a.limits = a.limits[i:]
			return
		}
	}
}

func (a *answerer) stepLocked() {
	switch k := a.rng.IntN(100); {
	case k < 8 && !a.finishing:
		n := 1 + a.rng.Uint64N(a.most)
		a.sendLocked(wire.AppendCredit(nil, 0, 0, &wire.Window{MaxOpen: n, MaxOpenBytes: 1 << 20}))
		a.limits = append(a.limits, limit{n, a.pingLocked()})
	case k < 12: // frames for calls that are not open
		id := wire.NextID(uint32(3000 + a.rng.IntN(50)))
		b := wire.AppendFrame(nil, &wire.Header{Type: wire.Data, Flags: wire.OfReply, ID: id}, []byte("to nobody"))
		if a.rng.IntN(2) == 0 {
			b = wire.AppendCredit(nil, 0, id, &wire.Window{StreamBytes: math.MaxUint64})
		}
		a.sendLocked(b)
	default:
		ids := make([]uint32, 0, len(a.calls))
		for id := range a.calls {
			ids = append(ids, id)
		}
		if len(ids) > 0 {
			slices.Sort(ids)
			a.goOnLocked(a.calls[ids[a.rng.IntN(len(ids))]])
		}
	}
}

// frameLocked takes in a Method, a Request, a Cancel, or Data that goes to the receiver of a call.
func (a *answerer) frameLocked(h wire.Header, frame []byte) {
	switch h.Type {
	case wire.Method:
		var b wire.Binding
		if err := wire.ParseMethod(frame[wire.HeaderSize:], &b); err != nil || h.Arg >= 1024 {
			a.faultLockedf("W17: Method %d: %v", h.Arg, err)
		}
		b.Name, b.Codec, b.Compressor = slices.Clone(b.Name), nil, nil
		a.bound[h.Arg] = b
		if a.rng.IntN(2) == 0 {
			a.sendLocked(wire.AppendMethodInfo(nil, h.Arg, h.ID, &wire.Info{Known: 1, Kind: b.Kind, Idempotent: uint64(a.rng.IntN(2))}))
		}
	case wire.Request:
		a.requestLocked(h, frame)
	case wire.Cancel:
		s := a.calls[h.ID]
		if s == nil {
			return // the reply was on its way
		}
		s.canceled = max(h.Arg, 1)
	default:
		a.dataLocked(h, frame)
	}
}

func (a *answerer) requestLocked(h wire.Header, frame []byte) {
	a.total++
	b, ok := a.bound[h.Arg]
	if !ok {
		a.faultLockedf("W17: a request for the number %d, which stands for nothing", h.Arg)
		return
	}
	p, ok := a.partLocked(h, frame)
	if !ok {
		return
	}
	s := &served{
		id: h.ID, method: string(b.Name), nested: p.fields.Parent != 0, oneWay: h.Flags&wire.OneWay != 0, checksum: h.Flags & wire.HasChecksum,
		allowed: 64 << 10,
	}
	if n := a.conversation.settings.StreamWindow; n != 0 {
		s.allowed = max(n, 4096)
	}
	if h.ID == 0 {
		if !s.oneWay || h.Flags&wire.More != 0 {
			a.faultLockedf("W24: a request with id 0 and flags %#x", h.Flags)
		}
		return
	}
	a.checkIDLocked(h.ID, s)
	a.calls[h.ID] = s
	if a.drained && !s.nested {
		// It may have been sent before the drain was read; it is refused.
		a.finalLocked(s, 14, true, nil)
		return
	}
	a.pieceLocked(s, p)
}

func (a *answerer) checkIDLocked(id uint32, s *served) {
	slot := wire.Slot(id)
	if a.calls[id] != nil {
		a.faultLockedf("W22: a request with id %#x, which is open", id)
	}
	if last := a.last[slot]; a.calls[last] != nil && last != 0 {
		a.faultLockedf("W23: a request in slot %d, in which %#x is open", slot, last)
	} else if last != 0 && id != wire.NextID(last) {
		a.faultLockedf("W21: the id %#x follows %#x", id, last)
	}
	a.last[slot] = id
	if limit := max(3*a.most, a.most+1024); uint64(slot) >= limit {
		a.faultLockedf("W22: slot %d, the limit is %d", slot, limit)
	}
	if s.nested {
		return
	}
	if a.counted++; uint64(a.counted) > a.maxOpenLocked() {
		a.faultLockedf("W39: %d requests are open, and %d are allowed", a.counted, a.maxOpenLocked())
	}
}

func (a *answerer) pieceLocked(s *served, p part) {
	whole, fault := s.request.add(p)
	if fault != "" {
		a.faultLockedf("%s, in a request", fault)
	}
	if s.whole = whole; whole && a.finishing {
		a.goOnLocked(s)
	}
}

// dataLocked takes in a piece of a request, or a message on a stream.
func (a *answerer) dataLocked(h wire.Header, frame []byte) {
	s := a.calls[h.ID]
	if s == nil {
		return // the reply was on its way
	}
	p, ok := a.partLocked(h, frame)
	switch {
	case !ok:
	case !s.whole:
		a.pieceLocked(s, p)
	case h.Flags&wire.End != 0:
		s.ended = true
	case s.method != theirUpload && s.method != theirDuplex:
		a.faultLockedf("W53: a message on a call of %s", s.method)
	case s.ended:
		a.faultLockedf("W64: a message after End")
	default:
		if s.used += uint64(len(frame)); s.used > s.granted {
			a.faultLockedf("W56: %d bytes on the stream %#x, and %d were granted", s.used, s.id, s.granted)
		}
		whole, fault := s.message.add(p)
		if fault != "" && s.canceled == 0 {
			a.faultLockedf("%s, on a stream of the real side", fault)
		}
		if whole {
			a.messageOfLocked(s)
		}
	}
	if a.finishing && a.calls[h.ID] == s {
		a.goOnLocked(s)
	}
}

func (a *answerer) messageOfLocked(s *served) {
	body, err := plainBody(s.message.flags, s.message.got)
	if err != nil {
		a.faultLockedf("a message cannot be decompressed: %v", err)
	}
	s.count++
	s.sum = crc32.Update(s.sum, crc32.IEEETable, body)
	if s.method == theirDuplex {
		s.queue = append(s.queue, body)
	}
}

// creditLocked takes in credit for a stream that the real side opened.
func (a *answerer) creditLocked(id uint32, sum uint64) {
	if s := a.calls[id]; s != nil {
		s.allowed = max(s.allowed, sum)
		if a.finishing {
			a.goOnLocked(s)
		}
	}
}

// goOnLocked does one thing for a call: accepts it, grants credit, sends a message, or replies.
func (a *answerer) goOnLocked(s *served) {
	if s.canceled != 0 {
		a.finalLocked(s, s.canceled, !s.whole, nil)
		return
	}
	if !s.whole {
		return
	}
	if !s.oneWay && !s.accept && a.rng.IntN(12) == 0 {
		a.refuseLocked(s)
		return
	}
	switch s.method {
	case theirUpload, theirDuplex:
		a.goOnStreamLocked(s)
	case theirFeed:
		a.goOnFeedLocked(s)
	default:
		a.finalLocked(s, 0, false, a.plainRequestLocked(s))
	}
}

// refuseLocked answers a call with an error.
func (a *answerer) refuseLocked(s *served) {
	code, notProcessed := uint16(5), false
	if a.rng.IntN(2) == 0 {
		code, notProcessed = 8, true
	}
	a.world.refused(requestSeq(a.plainRequestLocked(s)))
	a.finalLocked(s, code, notProcessed, nil)
}

func (a *answerer) plainRequestLocked(s *served) []byte {
	body, _, err := wire.SplitBody(s.request.flags, s.request.got)
	if err == nil {
		body, err = plainBody(s.request.flags, body)
	}
	if err != nil {
		a.faultLockedf("the request %#x of %s: %v", s.id, s.method, err)
	}
	return body
}

func requestSeq(body []byte) uint64 {
	if len(body) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(body)
}

func (a *answerer) goOnStreamLocked(s *served) {
	s.accept = true
	if s.granted < s.used+a.window/2+1 {
		s.granted = s.used + max(a.window, 4096)
		a.sendLocked(wire.AppendCredit(nil, wire.OfReply, s.id, &wire.Window{StreamBytes: s.granted}))
		return
	}
	if a.sendQueuedLocked(s) || !s.ended || len(s.queue) > 0 || s.sending != nil {
		return
	}
	var reply []byte
	if s.method == theirUpload {
		reply = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, s.count), s.sum)
	}
	a.finalLocked(s, 0, false, reply)
}

func (a *answerer) goOnFeedLocked(s *served) {
	if !s.accept {
		s.accept = true
		body := a.plainRequestLocked(s)
		if len(body) < 16 {
			a.faultLockedf("the request of a feed has %d bytes", len(body))
			return
		}
		seq, n, size := requestSeq(body), binary.LittleEndian.Uint32(body[8:]), binary.LittleEndian.Uint32(body[12:])
		for i := range n {
			s.queue = append(s.queue, pattern(seq+uint64(i)+1, int(size)))
		}
	}
	if !a.sendQueuedLocked(s) && len(s.queue) == 0 && s.sending == nil {
		a.finalLocked(s, 0, false, nil)
	}
}

// sendQueuedLocked sends a message or a piece of one. It reports whether there was credit and
// something to send.
func (a *answerer) sendQueuedLocked(s *served) bool {
	if s.sending == nil {
		if len(s.queue) == 0 || s.method == theirUpload {
			return false
		}
		s.sending, s.queue = s.queue[0], s.queue[1:]
		s.size = len(s.sending)
		if s.size == 0 {
			s.sending = []byte{}
		}
	}
	const overhead = wire.HeaderSize + wire.ChecksumSize + 2 + 11
	if s.allowed < s.spent+overhead+1 {
		return false
	}
	n := min(len(s.sending), int(s.allowed-s.spent-overhead), 50_000)
	if n > 1 && a.rng.IntN(3) == 0 {
		n = 1 + a.rng.IntN(n)
	}
	h := wire.Header{Type: wire.Data, Flags: wire.OfReply | s.checksum, ID: s.id}
	var f *wire.Fields
	if n < len(s.sending) {
		h.Flags |= wire.More
		if s.size > 0 {
			f = &wire.Fields{Size: uint64(s.size)}
		}
	}
	s.size = 0
	s.spent += uint64(a.messageLocked(h, f, s.sending[:n]))
	if s.sending = s.sending[n:]; len(s.sending) == 0 {
		s.sending = nil
	}
	return true
}

// finalLocked sends the reply, in pieces when it is large or by chance.
func (a *answerer) finalLocked(s *served, code uint16, notProcessed bool, body []byte) {
	h := wire.Header{Type: wire.Reply, Flags: s.checksum, Arg: code, ID: s.id}
	f := &wire.Fields{}
	if s.oneWay && code == 0 {
		body = nil
	}
	if code != 0 {
		f.Message, f.ErrorID = fmt.Appendf(nil, "the model says %d", code), []byte("MODEL1")
	}
	if notProcessed {
		h.Flags |= wire.NotProcessed
	}
	if a.rng.IntN(6) == 0 {
		f.Load, f.ServerTime, f.ServerWait = 1+a.rng.Uint64N(100), 20, 10
	}
	rest := body
	if len(body) > 50_000 || len(body) > 1 && a.rng.IntN(5) == 0 {
		n := min(a.rng.IntN(len(body)), 50_000)
		f.Size, h.Flags = uint64(len(body)), h.Flags|wire.More
		body, rest = body[:n], body[n:]
	}
	a.messageLocked(h, f, body)
	for h.Flags&wire.More != 0 {
		n := min(1+a.rng.IntN(len(rest)), 50_000)
		h = wire.Header{Type: wire.Data, Flags: wire.OfReply | s.checksum, ID: s.id}
		if n < len(rest) {
			h.Flags |= wire.More
		}
		a.messageLocked(h, nil, rest[:n])
		rest = rest[n:]
	}
	delete(a.calls, s.id)
	if !s.nested {
		a.counted--
	}
}

// finishLocked answers all calls.
func (a *answerer) finishLocked() {
	for _, s := range a.calls {
		a.goOnLocked(s)
	}
}
