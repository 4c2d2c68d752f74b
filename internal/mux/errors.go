// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"fmt"
)

// Reasons why connections end and calls fail.
var (
	ErrClosed    = errors.New("the connection was closed by this side")
	ErrRetired   = errors.New("this side opens no more calls on the connection")
	ErrAged      = errors.New("the connection was closed because it had been idle or open for long enough")
	ErrDead      = errors.New("the peer has been silent for too long")
	ErrDrained   = errors.New("the peer is shutting down")
	ErrDeadline  = errors.New("the deadline passed")
	ErrWindow    = errors.New("the peer's window or this side's output is full")
	ErrFlooded   = errors.New("the peer sends one-way requests faster than they are executed, and its replies are not read meanwhile")
	ErrHandshake = errors.New("the peer sent no preface and settings in time")
)

// A ProtocolError says that the peer violated the protocol. It ends the connection.
type ProtocolError struct{ What string }

func (e *ProtocolError) Error() string { return "protocol error: " + e.What }

// A PrefaceError says that the peer speaks another protocol, or another version of this one.
type PrefaceError struct{ Got []byte }

func (e *PrefaceError) Error() string { return fmt.Sprintf("the peer began with %q", e.Got) }

// A TooLargeError says that a reply exceeds this side's limit. It fails only that call.
type TooLargeError struct {
	Size  uint64
	Limit int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the reply has %d bytes, the limit is %d", e.Size, e.Limit)
}

// A BrokenError says that a message cannot be read. It fails only that call.
type BrokenError struct{ Cause error }

func (e *BrokenError) Error() string { return "a broken message: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Cause }

// An Op names the operation that failed on the underlying connection.
type Op string

// The operations that can fail.
const (
	Read        Op = "read"
	Write       Op = "write"
	EndOfStream Op = "end of stream" // the peer closed the connection
)

// An IOError says that the underlying connection failed, or that the peer closed it.
type IOError struct {
	Op  Op
	Err error
}

func (e *IOError) Error() string {
	if e.Op == EndOfStream {
		return "the peer closed the connection"
	}
	return string(e.Op) + ": " + e.Err.Error()
}

// Unwrap returns the cause. For an EndOfStream it returns nil, because to callers io.EOF means the
// regular end of a stream of messages.
func (e *IOError) Unwrap() error {
	if e.Op == EndOfStream {
		return nil
	}
	return e.Err
}

// A CallError says that the connection could not complete a call.
type CallError struct {
	Cause        error
	NotProcessed bool    // the peer certainly did not execute the call
	Awaited      Awaited // what the call was waiting for when its caller canceled it, or did not wait for
}

// Awaited says what a call was waiting for.
type Awaited uint8

// A call that has not been sent waits for the peer's window, or for space in the output.
const (
	_ Awaited = iota
	AwaitedWindow
	AwaitedOutput
)

func (e *CallError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Cause }

// ErrCallerGone ends a request whose result the peer no longer wants.
var ErrCallerGone = errors.New("the caller canceled the call")

func isDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrDeadline)
}
