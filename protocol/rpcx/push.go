// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
)

// pushed reads a message that the server sends without being asked.
func (l *link) pushed(h *head) error {
	codec := l.codecOf(h.serialize)
	if l.pushes == nil || codec == nil || h.excess != "" || h.compressType() != 0 || h.payload > l.Limits.MaxMessage || !l.pushes.room(h.payload) {
		l.wire.dropped.Add(1)
		return l.frames.skip(h.payload)
	}
	body, err := l.frames.body(h.payload)
	if err != nil {
		return err
	}
	call := &yodel.Call{Args: &yodel.Encoded{Body: body}, Codec: codec, OneWay: true}
	l.metadata(h, call)
	call.Method, call.Metadata, call.Trailer = h.name(), call.Trailer, nil
	l.pushes.add(call, h.payload)
	return nil
}

// codecOf returns the codec of a pushed message, or nil if the client does not have it.
func (l *link) codecOf(serialize byte) yodel.Codec {
	for _, codec := range []yodel.Codec{raw.Codec, l.wire.codec, yodel.JSON} {
		if codec == nil {
			continue
		}
		if n, ok := l.wire.types[codec.Name()]; ok && n == serialize {
			return codec
		}
	}
	return nil
}

// A pushes is the queue of the messages that a server has pushed over one connection.
type pushes struct {
	to       yodel.Caller
	dropped  *atomic.Int64
	maxBytes int

	mu     sync.Mutex
	queue  []*yodel.Call
	sizes  []int
	bytes  int
	queued chan struct{} // capacity 1: has an element when queue is not empty
}

// maxPushes is how many messages may wait.
const maxPushes = 1024

func newPushes(to yodel.Caller, dropped *atomic.Int64, maxBytes int) *pushes {
	return &pushes{to: to, dropped: dropped, maxBytes: maxBytes, queued: make(chan struct{}, 1)}
}

// room reports whether a message of n bytes may be added. A single message may have any size.
func (p *pushes) room(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) == 0 || len(p.queue) < maxPushes && p.bytes+n <= p.maxBytes
}

func (p *pushes) add(call *yodel.Call, n int) {
	p.mu.Lock()
	p.queue, p.sizes = append(p.queue, call), append(p.sizes, n)
	p.bytes += n
	p.mu.Unlock()
	select {
	case p.queued <- struct{}{}:
	default: // run has a signal already
	}
}

// take removes the first message. It returns nil if there is none.
func (p *pushes) take() *yodel.Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return nil
	}
	call := p.queue[0]
	p.bytes -= p.sizes[0]
	p.queue[0] = nil
	p.queue, p.sizes = p.queue[1:], p.sizes[1:]
	return call
}

// run makes the calls, until done is closed or ctx ends.
func (p *pushes) run(ctx context.Context, done <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { <-ended }()
	go func() {
		defer close(ended)
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer cancel()
	for {
		select {
		case <-p.queued:
		case <-ctx.Done():
			return
		}
		for call := p.take(); call != nil && ctx.Err() == nil; call = p.take() {
			if err := p.to.Do(ctx, call); yodel.NotProcessed(err) {
				p.dropped.Add(1)
			}
		}
	}
}
