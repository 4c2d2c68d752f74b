// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A foreignStream is a stream of another protocol than yodel's.
type foreignStream struct {
	messages Messages
	memory   unpack.Account
	most     int  // the size of the largest message, in bytes
	ended    bool // by End; guarded by pipe.sending
	taken    int  // bytes counted for decompressed messages; the receiver's

	sent, sentBytes, received, receivedBytes atomic.Int64
}

// Accept implements messageStream. It does nothing, because other protocols have their own flow
// control.
func (st *foreignStream) Accept() {}

// Send implements messageStream.
func (st *foreignStream) Send(ctx context.Context, flags wire.Flags, body []byte) error {
	if st.ended {
		return mux.ErrSendEnded
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := st.messages.Send(ctx, body, flags&wire.Compressed != 0); err != nil {
		return err
	}
	st.sent.Add(1)
	st.sentBytes.Add(int64(len(body)))
	return nil
}

// Receive implements messageStream.
func (st *foreignStream) Receive(ctx context.Context) (body []byte, flags wire.Flags, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	body, compressed, err := st.messages.Receive(ctx)
	if err != nil {
		return nil, 0, err
	}
	if len(body) > st.most {
		return nil, 0, &mux.TooLargeError{Size: uint64(len(body)), Limit: st.most}
	}
	st.received.Add(1)
	st.receivedBytes.Add(int64(len(body)))
	if compressed {
		flags = wire.Compressed
	}
	return body, flags, nil
}

// End implements messageStream.
func (st *foreignStream) End() {
	if !st.ended {
		st.ended = true
		st.messages.End()
	}
}

// Take implements account.
func (st *foreignStream) Take(n int) bool {
	if !st.memory.Take(n) {
		return false
	}
	st.taken += n
	return true
}

// Give implements account.
func (st *foreignStream) Give(n int) {
	st.taken -= n
	st.memory.Give(n)
}

// Buffered implements messageStream.
func (st *foreignStream) Buffered() int { return 0 }

// Traffic implements messageStream.
func (st *foreignStream) Traffic() mux.Traffic {
	return mux.Traffic{
		Sent: int(st.sent.Load()), SentBytes: int(st.sentBytes.Load()),
		Received: int(st.received.Load()), ReceivedBytes: int(st.receivedBytes.Load()),
	}
}
