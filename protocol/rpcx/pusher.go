// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"io"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// A pusher sends messages that the client has not asked for.
type pusher struct {
	session  *yodel.Session
	protocol *protocol
	replies  *pipelined.Replies

	mu      sync.Mutex
	seq     uint64 // of the last message
	ended   bool
	sending sync.WaitGroup
}

// Do implements yodel.Caller for one-way calls.
func (p *pusher) Do(ctx context.Context, call *yodel.Call) error {
	h, codec, e := p.prepare(ctx, call)
	if e != nil {
		return e
	}
	body, e := appendArgs(nil, call, codec)
	if e != nil {
		return e
	}
	if limit := p.session.Limits().MaxMessage; len(body) > limit {
		return linkerror.Refused(yodel.ResourceExhausted, "YDL2201", "%s: the message has %d bytes, this server's limit is %d", call.Method, len(body), limit)
	}
	h.payload = len(body)
	if h.seq = p.begin(); h.seq == 0 {
		return linkerror.Unsent(io.ErrClosedPipe)
	}
	defer p.sending.Done()
	p.replies.Send(h.append(nil), body)
	return nil
}

// prepare returns the head of a message without its payload, and the codec for that.
func (p *pusher) prepare(ctx context.Context, call *yodel.Call) (*head, yodel.Codec, *yodel.Error) {
	addr := p.session.Peer.Addr.String()
	if e := unsendableCall(call, addr); e != nil {
		return nil, nil, e
	}
	codec := call.Encoding()
	serialize, known := p.protocol.types[codec.Name()]
	if !known {
		return nil, nil, linkerror.Refused(yodel.InvalidArgument, "YDL2103", "%s: %s speaks rpcx, which has no serialize type for the codec %q", call.Method, addr, codec.Name())
	}
	metadata, e := requestMetadata(context.WithoutCancel(ctx), call, p.session.Limits()) // messages have no deadline
	if e != nil {
		return nil, nil, e
	}
	h := &head{flags: oneWay, serialize: serialize, metadata: metadata}
	h.path, h.method = split(call.Method)
	return h, codec, nil
}

// begin returns the number of the next message, or 0 if the connection has ended. If it returns a
// number, the caller must call p.sending.Done.
func (p *pusher) begin() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return 0
	}
	p.sending.Add(1)
	p.seq++
	return p.seq
}

// end makes later messages fail, and waits for those that are being sent. The caller has closed the
// connection.
func (p *pusher) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.sending.Wait()
}
