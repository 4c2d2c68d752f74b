// SPDX-License-Identifier: Apache-2.0

package protocolfuzz_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// The methods of the real side.
const (
	echo    = "F.Echo"
	view    = "F.View"
	delay   = "F.Delay"
	wait    = "F.Wait"
	fail    = "F.Fail"
	big     = "F.Big"
	order   = "F.Order"
	nest    = "F.Nest"
	panics  = "F.Panic"
	nothing = "F.Nothing" // there is none of this name
	feed    = "F.Feed"
	upload  = "F.Upload"
	duplex  = "F.Duplex"
)

var methods = []string{echo, echo, view, delay, wait, fail, big, order, order, nest, panics, nothing, feed, upload, duplex}

func kindOf(method string) uint64 {
	switch method {
	case feed:
		return wire.Feed
	case upload:
		return wire.Upload
	case duplex:
		return wire.Duplex
	}
	return wire.Unary
}

// An opener is what the model knows of the calls that it makes.
type opener struct {
	*conversation

	calls    map[uint32]*call // open ones
	last     map[int]uint32   // the last id of each slot
	bound    [12]*bound       // what the model's method numbers stand for
	maxOpen  uint64
	maxBytes uint64
	most     uint64 // slots are below three times that
	bytes    uint64 // of open requests
	sent     uint64
	epoch    uint64
	keys     [4]key
	ordered  []string
}

type bound struct {
	method     string
	compressed bool
}

// A key is what the model knows of an order key.
type key struct {
	epoch, broken uint64
	index         uint32 // of the next ordered call
}

// A call is one that the model has made.
type call struct {
	*bound

	id      uint32
	seq     uint64
	index   uint64 // among all requests of the connection
	body    []byte // all of the request's
	attach  []byte // nil is none
	bytes   uint64
	flags   wire.Flags // HasChecksum
	rest    []byte     // what has not been sent of the request
	explain bool
	key     string
	epoch   uint64

	canceled, halfway, timed, skipped bool
	early                             bool // it was sent before the settings came

	reply     collector
	replying  bool
	replyCode uint16
	replyNP   bool

	// Streams.
	granted, used uint64 // towards the real side
	accepted      bool
	ended         bool   // the model has sent End
	sending       []byte // the rest of the message that is being sent
	sendSize      int    // of that message; 0 when its first piece has been sent
	messages      int    // sent
	sum           uint32 // of all of them
	queue         [][]byte
	received      uint64 // bytes of frames
	allowed       uint64
	count         int // messages received
	want, size    int // messages of a feed
	message       collector
}

func newOpener(c *conversation) *opener {
	return &opener{conversation: c, calls: make(map[uint32]*call), last: make(map[int]uint32), maxOpen: 8, maxBytes: 64 << 10}
}

func (o *opener) settingsLocked(l wire.Limits) {
	or := func(n, def uint64) uint64 {
		if n == 0 {
			return def
		}
		return n
	}
	o.maxOpen, o.maxBytes = or(l.MaxOpen, 1024), or(l.MaxOpenBytes, 64<<20)
	o.most = or(l.MostOpen, o.maxOpen)
}

func (o *opener) limitsLocked(w wire.Window) {
	if w.MaxOpen != 0 {
		o.maxOpen = w.MaxOpen
	}
	if w.MaxOpenBytes != 0 {
		o.maxBytes = w.MaxOpenBytes
	}
}

func (o *opener) stepLocked() {
	switch k := o.rng.IntN(100); {
	case k < 45:
		o.openLocked()
	case k < 52:
		if c := o.anyLocked(); c != nil && o.rng.IntN(2) == 0 {
			o.cancelLocked(c)
		}
	case k < 57:
		o.bindLocked(o.rng.IntN(len(o.bound)))
	case k < 60: // frames for a call that is not open are ignored
		h := wire.Header{Type: wire.Cancel, Arg: 1, ID: wire.NextID(uint32(5000 + o.rng.IntN(100)))}
		if o.rng.IntN(2) == 0 {
			h.Type, h.Arg = wire.Data, 0
		}
		o.sendLocked(wire.AppendFrame(nil, &h, nil))
	default:
		for range 4 {
			if c := o.anyLocked(); c != nil && o.goOnLocked(c) {
				return
			}
		}
	}
}

// anyLocked returns an open call, or nil.
func (o *opener) anyLocked() *call {
	if len(o.calls) == 0 {
		return nil
	}
	ids := make([]uint32, 0, len(o.calls))
	for id := range o.calls {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return o.calls[ids[o.rng.IntN(len(ids))]]
}

func (o *opener) bindLocked(number int) {
	b := &bound{method: methods[o.rng.IntN(len(methods))]}
	binding := &wire.Binding{Name: []byte(b.method), Codec: []byte("raw"), Kind: kindOf(b.method)}
	if o.rng.IntN(3) == 0 {
		b.compressed, binding.Compressor = true, []byte(flate.Compressor.Name())
	}
	o.bound[number] = b
	o.sendLocked(wire.AppendMethod(nil, uint16(number), o.rng.Uint32(), binding))
}

// openLocked makes a call, if the window allows it.
func (o *opener) openLocked() {
	if o.goAway != nil || uint64(len(o.calls)) >= o.maxOpen || o.finishing {
		return
	}
	number := o.rng.IntN(len(o.bound))
	if o.bound[number] == nil {
		o.bindLocked(number)
	}
	slot, ok := o.slotLocked()
	if !ok {
		return
	}
	keys, epoch := o.keys, o.epoch
	c := &call{bound: o.bound[number], seq: o.world.nextSeq()}
	c.body = binary.LittleEndian.AppendUint64(nil, c.seq)
	f := &wire.Fields{}
	o.contentLocked(c, f)
	message, flags := o.encodeLocked(c)
	oneWay := kindOf(c.method) == wire.Unary && c.method != nest && c.method != wait && c.method != nothing && o.rng.IntN(12) == 0
	whole := len(message) <= 50_000 && (oneWay || c.key != "" || o.rng.IntN(4) > 0)
	if c.method == upload || c.method == duplex {
		message, whole = nil, true
		flags &^= wire.Compressed | wire.HasAttachment
	}
	if !whole || kindOf(c.method) == wire.Unary {
		c.bytes = uint64(len(message))
	}
	if o.bytes > 0 && o.bytes+c.bytes > o.maxBytes {
		o.keys, o.epoch = keys, epoch
		return
	}
	c.index, c.early = o.sent, !o.greeted
	o.sent++
	h := wire.Header{Type: wire.Request, Flags: flags, Arg: uint16(number)}
	first := message
	if oneWay && whole {
		h.Flags |= wire.OneWay
		o.world.sentOneWay(c.seq, c.method)
	} else {
		c.id = wire.NextID(o.idLocked(slot))
		o.last[slot] = c.id
		h.ID = c.id
		o.calls[c.id] = c
		o.bytes += c.bytes
	}
	if !whole {
		n := min(o.rng.IntN(len(message)+1), 50_000, len(message)-1)
		first, c.rest = message[:n], message[n:]
		h.Flags |= wire.More
		f.Size = uint64(len(message))
	}
	o.expectReplyLocked(c)
	o.messageLocked(h, f, first)
}

// expectReplyLocked allows the real side what it may send at once.
func (o *opener) expectReplyLocked(c *call) { c.allowed = max(o.answered.window, 4096) }

// contentLocked makes the body and the fields of a request.
func (o *opener) contentLocked(c *call, f *wire.Fields) {
	size := someSize(o.rng)
	switch c.method {
	case big:
		c.size = 1 + 2*size
		c.body = binary.LittleEndian.AppendUint32(c.body, uint32(c.size))
	case feed:
		c.want, c.size = o.rng.IntN(6), size
		c.body = binary.LittleEndian.AppendUint32(c.body, uint32(c.want))
		c.body = binary.LittleEndian.AppendUint32(c.body, uint32(c.size))
	case order, nothing:
		o.orderLocked(c, f)
	default:
		c.body = append(c.body, pattern(c.seq, size)...)
	}
	if c.method == echo && o.rng.IntN(4) == 0 {
		c.attach = pattern(c.seq+1, o.rng.IntN(3000))
	}
	if o.rng.IntN(6) == 0 {
		c.flags |= wire.HasChecksum
	}
	if c.method != nothing && (o.rng.IntN(8) == 0 || c.method == wait && o.rng.IntN(2) == 0) {
		c.timed, f.Timeout = true, uint64(1+o.rng.IntN(20_000))
	}
	if o.rng.IntN(8) == 0 {
		f.Metadata = wire.AppendPair(wire.AppendPair(nil, "k", "v"), "trace", "t")
		f.Tenant, f.Trace, f.Criticality, f.Budget, f.Attempt = []byte("acme"), []byte("0123456789abcdef"), 3, 4, 1
	}
	if o.rng.IntN(10) == 0 {
		c.explain, f.Explain = true, 1
	}
}

// orderLocked makes a call ordered, and notes whether it has to be refused because an earlier one
// was.
func (o *opener) orderLocked(c *call, f *wire.Fields) {
	n := o.rng.IntN(len(o.keys))
	k := &o.keys[n]
	if c.method == nothing && o.rng.IntN(3) > 0 {
		return // an unordered call of a method that does not exist
	}
	if k.epoch <= k.broken || o.rng.IntN(10) == 0 {
		if o.rng.IntN(2) == 0 || k.epoch == 0 {
			o.epoch++
			k.epoch = o.epoch
		}
	}
	f.Key, f.Epoch = []byte{byte('a' + n)}, k.epoch
	c.key, c.epoch = string(f.Key), k.epoch
	c.skipped = k.epoch <= k.broken
	if c.method == nothing && !c.skipped {
		k.broken = k.epoch
	}
	k.index++
	c.body = append(c.body, byte(n))
	c.body = binary.LittleEndian.AppendUint32(c.body, k.index)
	c.body = binary.LittleEndian.AppendUint64(c.body, o.seed)
}

// encodeLocked returns the message of the request.
func (o *opener) encodeLocked(c *call) (message []byte, flags wire.Flags) {
	message, flags = c.body, c.flags
	if c.compressed && o.rng.IntN(2) == 0 {
		message, flags = deflate(c.body), flags|wire.Compressed
	}
	if c.attach != nil {
		flags |= wire.HasAttachment
		message = slices.Concat(binary.AppendUvarint(nil, uint64(len(message))), message, c.attach)
	}
	return message, flags
}

func deflate(b []byte) []byte {
	packed, err := flate.Compressor.Append(nil, b)
	if err != nil {
		panic(err)
	}
	return packed
}

// slotLocked returns a slot that is free.
func (o *opener) slotLocked() (slot int, ok bool) {
	limit := int(max(3*o.most, o.most+1024))
	for range 20 {
		slot = o.rng.IntN(40)
		if o.rng.IntN(50) == 0 {
			slot = limit - 1 - o.rng.IntN(10)
		}
		if _, open := o.calls[o.last[slot]]; !open || o.last[slot] == 0 {
			return slot, true
		}
	}
	return 0, false
}

// idLocked returns the last id of a slot. Now and then a new slot begins at its last generation.
func (o *opener) idLocked(slot int) uint32 {
	if id := o.last[slot]; id != 0 {
		return id
	}
	return uint32(slot)
}

func (o *opener) cancelLocked(c *call) {
	if c.canceled || c.method == nothing { // W33: one that is canceled breaks no key
		return
	}
	c.canceled, c.halfway = true, c.rest != nil
	c.rest = nil
	o.sendLocked(wire.AppendFrame(nil, &wire.Header{Type: wire.Cancel, Arg: []uint16{0, 1, 4}[o.rng.IntN(3)], ID: c.id}, nil))
}

// goOnLocked sends more of a request or a message, or credit. It reports whether there was anything
// to send.
func (o *opener) goOnLocked(c *call) bool {
	switch {
	case c.rest != nil:
		n := min(1+o.rng.IntN(len(c.rest)), 50_000)
		h := wire.Header{Type: wire.Data, ID: c.id, Flags: c.flags & wire.HasChecksum}
		if n < len(c.rest) {
			h.Flags |= wire.More
		}
		piece := c.rest[:n]
		if c.rest = c.rest[n:]; len(c.rest) == 0 {
			c.rest = nil
		}
		o.messageLocked(h, nil, piece)
		return true
	case c.canceled:
		return false
	case c.method == feed || c.method == duplex:
		if o.grantLocked(c) {
			return true
		}
	}
	if (c.method == upload || c.method == duplex) && !c.ended {
		return o.sendOnStreamLocked(c)
	}
	return false
}

// grantLocked lets the real side send a window more on a stream.
func (o *opener) grantLocked(c *call) bool {
	if c.allowed >= c.received+o.answered.window {
		return false
	}
	c.allowed = c.received + max(o.answered.window, 4096)
	o.sendLocked(wire.AppendCredit(nil, 0, c.id, &wire.Window{StreamBytes: c.allowed}))
	return true
}

// sendOnStreamLocked sends a message, a piece of one, or End.
func (o *opener) sendOnStreamLocked(c *call) bool {
	if c.sending == nil {
		if c.messages > 5 || o.finishing || o.rng.IntN(6) == 0 {
			c.ended = true
			o.sendLocked(wire.AppendFrame(nil, &wire.Header{Type: wire.Data, Flags: wire.End, ID: c.id}, nil))
			return true
		}
		if !c.accepted {
			return false
		}
		o.newMessageLocked(c)
	}
	const overhead = wire.HeaderSize + wire.ChecksumSize + 2 + 11
	if c.granted < c.used+overhead+1 {
		return false
	}
	room := int(c.granted - c.used - overhead)
	n := min(len(c.sending), room, 50_000)
	if n > 1 && o.rng.IntN(3) == 0 {
		n = 1 + o.rng.IntN(n)
	}
	h := wire.Header{Type: wire.Data, ID: c.id, Flags: c.flags & wire.HasChecksum}
	var f *wire.Fields
	if n < len(c.sending) {
		h.Flags |= wire.More
		if c.sendSize > 0 {
			f = &wire.Fields{Size: uint64(c.sendSize)}
		}
	}
	if c.sendSize > 0 && c.messageCompressed() {
		h.Flags |= wire.Compressed
	}
	c.sendSize = 0
	c.used += uint64(o.messageLocked(h, f, c.sending[:n]))
	if c.sending = c.sending[n:]; len(c.sending) == 0 {
		c.sending = nil
	}
	return true
}

// messageCompressed reports whether the message that is being sent is compressed: every second one.
func (c *call) messageCompressed() bool { return c.compressed && c.messages%2 == 0 }

func (o *opener) newMessageLocked(c *call) {
	c.messages++
	size := 1 + someSize(o.rng)
	plain := pattern(c.seq+uint64(c.messages), size)
	c.sum = crc32.Update(c.sum, crc32.IEEETable, plain)
	if c.method == duplex {
		c.queue = append(c.queue, plain)
	}
	c.sending = plain
	if c.messageCompressed() {
		c.sending = deflate(plain)
	}
	c.sendSize = len(c.sending)
}

// creditLocked takes in credit for a stream that the model opened.
func (o *opener) creditLocked(id uint32, sum uint64) {
	c := o.calls[id]
	switch {
	case c == nil:
		o.faultLockedf("W67: credit for the call %#x, which is not open", id)
	case c.method != upload && c.method != duplex:
		o.faultLockedf("W56: credit for %s", c.method)
	case !c.accepted && sum < 4096:
		o.faultLockedf("W59: the first credit is %d", sum)
	default:
		c.accepted, c.granted = true, max(c.granted, sum)
	}
}

// frameLocked takes in a MethodInfo, a Reply, or Data of one or of a stream.
func (o *opener) frameLocked(h wire.Header, frame []byte) {
	if h.Type == wire.MethodInfo {
		var info wire.Info
		if err := wire.ParseMethodInfo(frame[wire.HeaderSize:], &info); err != nil || int(h.Arg) >= len(o.bound) {
			o.faultLockedf("W19: MethodInfo of number %d: %v", h.Arg, err)
		}
		return
	}
	c := o.calls[h.ID]
	if c == nil {
		o.faultLockedf("W23: a frame of type %d for the call %#x, which is not open", h.Type, h.ID)
		return
	}
	if c.flags&wire.HasChecksum != 0 && h.Flags&wire.HasChecksum == 0 && h.Flags&wire.End == 0 {
		if h.Type != wire.Reply || h.Flags&wire.NotProcessed == 0 && !c.canceled {
			o.faultLockedf("W38: a frame of type %d for the call %#x of %s has no checksum", h.Type, h.ID, c.method)
		}
	}
	p, ok := o.partLocked(h, frame)
	if !ok {
		return
	}
	if h.Type == wire.Data && !c.replying {
		o.streamLocked(c, p, len(frame))
		return
	}
	if h.Type == wire.Reply {
		if c.replying {
			o.faultLockedf("W23: a second Reply to %#x", h.ID)
		}
		c.replying, c.replyCode, c.replyNP = true, h.Arg, h.Flags&wire.NotProcessed != 0
	}
	whole, fault := c.reply.add(p)
	if fault != "" && !c.canceled && !c.timed {
		o.faultLockedf("%s, in the reply to %#x", fault, h.ID)
	}
	if !whole && h.Flags&wire.More != 0 {
		return
	}
	delete(o.calls, h.ID)
	o.bytes -= c.bytes
	if c.key != "" {
		o.noteOrderLocked(c)
	}
	if fault := o.judgeLocked(c); fault != "" {
		o.faultLockedf("the call %#x of %s (seq %d, %s) got code %d, not processed %t, %q %s, %d bytes: %s", h.ID, c.method, c.seq, c.state(), c.replyCode, c.replyNP,
			c.reply.f.Message, c.reply.f.ErrorID, len(c.reply.got), fault)
		if c.key != "" {
			o.faultLockedf("ordered calls, drain %v: %s", o.goAway, strings.Join(o.ordered, "\n    "))
		}
	}
}

// noteOrderLocked remembers the last outcomes of ordered calls, for people.
func (o *opener) noteOrderLocked(c *call) {
	if len(o.ordered) >= 20 {
		o.ordered = slices.Delete(o.ordered, 0, 1)
	}
	o.ordered = append(o.ordered, fmt.Sprintf("%s (%s): code %d, not processed %t", c.method, c.state(), c.replyCode, c.replyNP))
}

func (c *call) state() string {
	return fmt.Sprintf("number %d, key %s in epoch %d, canceled %t, halfway %t, timed %t, skipped %t, request of %d bytes",
		c.index, c.key, c.epoch, c.canceled, c.halfway, c.timed, c.skipped, c.bytes)
}

// streamLocked takes in a message of a stream, or a piece of one.
func (o *opener) streamLocked(c *call, p part, size int) {
	if c.method != feed && c.method != duplex {
		o.faultLockedf("W53: a message on a call of %s", c.method)
		return
	}
	if p.h.Flags&wire.End != 0 {
		return
	}
	if c.received += uint64(size); c.received > c.allowed {
		o.faultLockedf("W56: %d bytes on the stream %#x, and %d were granted", c.received, c.id, c.allowed)
	}
	whole, fault := c.message.add(p)
	if fault != "" {
		o.faultLockedf("%s, on the stream %#x", fault, c.id)
	}
	if o.finishing {
		o.grantLocked(c)
	}
	if !whole {
		return
	}
	got, err := plainBody(c.message.flags, c.message.got)
	if err != nil {
		o.faultLockedf("a message cannot be decompressed: %v", err)
	}
	c.count++
	want := pattern(c.seq+uint64(c.count), c.size)
	if c.method == duplex {
		if len(c.queue) == 0 {
			o.faultLockedf("a message on the stream %#x that the model did not send", c.id)
			return
		}
		want, c.queue = c.queue[0], c.queue[1:]
	}
	if !bytes.Equal(got, want) {
		o.faultLockedf("W55: message %d of %s has %d bytes, want %d", c.count, c.method, len(got), len(want))
	}
}

func plainBody(flags wire.Flags, message []byte) ([]byte, error) {
	if flags&wire.Compressed == 0 {
		return message, nil
	}
	return flate.Compressor.Decompress(nil, message, 16<<20)
}

// judgeLocked says what is wrong with the reply to a call, or nothing.
func (o *opener) judgeLocked(c *call) string {
	code := c.replyCode
	if c.replyNP {
		o.world.notProcessed(c.seq)
	}
	if c.replyNP && code == 0 {
		return "W28: success that was not processed"
	}
	if c.explain && !c.replyNP && c.reply.f.ServerTime == 0 && !c.canceled && !c.timed {
		return "W72: it does not say how long it took"
	}
	switch {
	case o.goAway != nil && o.goCode == 0 && c.index >= o.goAway.Count:
		if c.replyNP && (code == 14 || c.canceled && (code == 1 || code == 4) || code == 12) {
			return ""
		}
		return "W49: it is beyond the count of the drain"
	case c.halfway:
		if c.replyNP && (code == 1 || code == 4 || c.method == nothing && code == 12) {
			return ""
		}
		return "W26: it was canceled before it had come whole"
	case c.canceled && (code == 0 || code == 1 || code == 4):
		return "" // W25: the rest of the reply may be left out
	case c.timed && code == 4:
		return ""
	case c.skipped:
		if code == 14 && c.replyNP {
			return ""
		}
		return "W32: an earlier call with this key was refused"
	}
	return o.outcomeLocked(c)
}

// outcomeLocked compares the reply with what the method does.
func (o *opener) outcomeLocked(c *call) string {
	wantCode := map[string]uint16{fail: 5, nothing: 12, panics: 13}[c.method]
	switch {
	case c.method == nest && c.replyCode != 0 && !c.replyNP:
		return "" // the model may have refused the call that it makes
	case (c.method == upload || c.method == duplex) && c.canceled:
		return ""
	case c.early && c.replyNP && c.replyCode == 8:
		return "" // W15: it was more than the settings allow
	case c.replyCode != wantCode:
		return fmt.Sprintf("want code %d", wantCode)
	case wantCode != 0:
		return ""
	}
	body, attach, err := wire.SplitBody(c.reply.flags, c.reply.got)
	if err == nil {
		body, err = plainBody(c.reply.flags, body)
	}
	if err != nil {
		return err.Error()
	}
	want := c.body
	switch c.method {
	case big:
		want = pattern(c.seq, c.size)
	case upload:
		want = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(c.messages)), c.sum)
	case feed:
		if c.count != c.want {
			return fmt.Sprintf("%d messages, want %d", c.count, c.want)
		}
		want = nil
	case duplex:
		if len(c.queue) > 0 {
			return fmt.Sprintf("%d messages have not come back", len(c.queue))
		}
		want = nil
	}
	if !bytes.Equal(body, want) || !bytes.Equal(attach, c.attach) {
		return fmt.Sprintf("want %d bytes and %d attached, got %d and %d", len(want), len(c.attach), len(body), len(attach))
	}
	return ""
}

// finishLocked does what the open calls wait for.
func (o *opener) finishLocked() {
	for _, c := range o.calls {
		if c.method == wait && !c.timed {
			o.cancelLocked(c)
		}
		for o.goOnLocked(c) {
		}
	}
}

func (o *opener) describeLocked() string {
	var s strings.Builder
	for _, c := range o.calls {
		fmt.Fprintf(&s, "%s %#x: %s, rest %d, accepted %t, granted %d, used %d, sending %d, ended %t, received %d of %d; ", c.method, c.id, c.state(), len(c.rest),
			c.accepted, c.granted, c.used, len(c.sending), c.ended, c.received, c.allowed)
	}
	return s.String()
}
