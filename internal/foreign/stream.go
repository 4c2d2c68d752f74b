// SPDX-License-Identifier: Apache-2.0

// Package foreign carries the messages of streams of other protocols than yodel's.
package foreign

import (
	"context"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/unpack"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Messages is yodel.Messages.
type Messages interface {
	Send(ctx context.Context, body []byte, compressed bool) error
	Receive(ctx context.Context) (body []byte, compressed bool, err error)
	End()
}

// A Stream counts the messages of a stream of another protocol. It is a pipe.Stream.
type Stream struct {
	Messages Messages
	Memory   unpack.Account
	Most     int // the size of the largest message, in bytes

	ended bool // by End; guarded by the lock of the sender
	taken int  // bytes counted for decompressed messages; the receiver's

	sent, sentBytes, received, receivedBytes atomic.Int64
}

// SendHeader sends the header of the call before the first message. It does nothing in a protocol
// that cannot do so.
func (st *Stream) SendHeader() error {
	sender, ok := st.Messages.(interface{ SendHeader() error })
	if !ok {
		return nil
	}
	return sender.SendHeader()
}

// Accept implements pipe.Stream. It does nothing, because other protocols have their own flow
// control.
func (st *Stream) Accept() {}

// Send implements pipe.Stream.
func (st *Stream) Send(ctx context.Context, flags wire.Flags, body []byte) error {
	if st.ended {
		return mux.ErrSendEnded
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := st.Messages.Send(ctx, body, flags&wire.Compressed != 0); err != nil {
		return err
	}
	st.sent.Add(1)
	st.sentBytes.Add(int64(len(body)))
	return nil
}

// Receive implements pipe.Stream.
func (st *Stream) Receive(ctx context.Context) (body []byte, flags wire.Flags, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	body, compressed, err := st.Messages.Receive(ctx)
	if err != nil {
		return nil, 0, err
	}
	if len(body) > st.Most {
		return nil, 0, &mux.TooLargeError{Size: uint64(len(body)), Limit: st.Most}
	}
	st.received.Add(1)
	st.receivedBytes.Add(int64(len(body)))
	if compressed {
		flags = wire.Compressed
	}
	return body, flags, nil
}

// End implements pipe.Stream.
func (st *Stream) End() {
	if !st.ended {
		st.ended = true
		st.Messages.End()
	}
}

// Take implements unpack.Account.
func (st *Stream) Take(n int) bool {
	if !st.Memory.Take(n) {
		return false
	}
	st.taken += n
	return true
}

// Give implements unpack.Account.
func (st *Stream) Give(n int) {
	st.taken -= n
	st.Memory.Give(n)
}

// Taken returns how many bytes are counted for decompressed messages.
func (st *Stream) Taken() int { return st.taken }

// Buffered implements pipe.Stream.
func (st *Stream) Buffered() int { return 0 }

// Traffic implements pipe.Stream.
func (st *Stream) Traffic() mux.Traffic {
	return mux.Traffic{
		Sent: int(st.sent.Load()), SentBytes: int(st.sentBytes.Load()),
		Received: int(st.received.Load()), ReceivedBytes: int(st.receivedBytes.Load()),
	}
}
