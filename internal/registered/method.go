// SPDX-License-Identifier: Apache-2.0

package registered

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/schema"
	"github.com/yodel-rpc/yodel/internal/stats"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Method is a function that a server executes under one or more names. The fields that are not
// atomic do not change after the method is registered.
type Method struct {
	Kind          uint64 // a kind of package wire
	Positional    bool
	Args, Results []reflect.Type // without pointers, for messages
	NewArgs       func() any     // returns a pointer, or Values of pointers; nil when the request has no body
	Call          func(ctx context.Context, args any) (reply any, err error)
	// Stream is in place of Call, if the method has a stream.
	Stream func(ctx context.Context, p *pipe.Pipe, args any) (reply any, err error)
	// Dynamic is in place of Call, for a method whose types are not known: a Handler of the root.
	Dynamic   any
	Views     bool             // it is unary and takes one View
	Uncarried map[string]error // why codecs do not carry the types, by the names of the codecs

	Idempotent atomic.Bool
	ReadOnly   atomic.Bool
	Nests      atomic.Bool // its handler makes calls with its context
	Unnamed    atomic.Bool // one of its names was unregistered
	Stats      stats.Method
	Replies    admission.Replies

	hint atomic.Int32
}

// Unary returns the method that a function is.
func Unary[In, Out any](f func(ctx context.Context, in *In) (*Out, error)) *Method {
	return &Method{
		Args: []reflect.Type{reflect.TypeFor[In]()}, Results: []reflect.Type{reflect.TypeFor[Out]()},
		NewArgs: func() any { return new(In) },
		Call: func(ctx context.Context, args any) (any, error) {
			return reflectcall.Outcome(f(ctx, args.(*In))) //nolint:forcetypeassert // NewArgs made it
		},
	}
}

// Typed sets the types of the request and the reply of a method, if both are given, and returns m.
func (m *Method) Typed(types []reflect.Type) *Method {
	if len(types) == 2 {
		m.Args, m.Results = types[:1:1], types[1:]
	}
	return m
}

// TakesOne reports whether the request of a call is one message.
func (m *Method) TakesOne() bool { return m.Kind == wire.Unary || m.Kind == wire.Feed }

// Takes reports whether the method is unary and its only parameter, besides a context, is of type
// t.
func (m *Method) Takes(t reflect.Type) bool {
	return m.Kind == wire.Unary && !m.Positional && len(m.Args) == 1 && m.Args[0] == t
}

// Signature describes the method for error messages.
func (m *Method) Signature() string {
	switch {
	case m.Kind != wire.Unary:
		return fmt.Sprintf("%s of %s", kinds.OneOf(m.Kind), m.Types())
	case m.Positional:
		return m.Types() + ": give yodel.Values"
	}
	return m.Types() + ": give one message, not yodel.Values"
}

// Types lists the types of the arguments and the results.
func (m *Method) Types() string {
	return m.ArgTypes() + " to " + schema.Names(m.Results, m.Positional)
}

// ArgTypes lists the types of the arguments.
func (m *Method) ArgTypes() string { return schema.Names(m.Args, m.Positional) }

// The traits of a method that the server reports to callers.
const (
	traitIdempotent = 1 << iota
	traitNests
)

// Info returns what the server says to a caller about a method with these traits.
func Info(traits uint32) wire.Info {
	return wire.Info{Known: 1, Idempotent: uint64(traits & traitIdempotent), Nests: uint64(traits & traitNests / traitNests)}
}

// Traits returns the traits of the method.
func (m *Method) Traits() (traits uint32) {
	if m.Idempotent.Load() {
		traits = traitIdempotent
	}
	if m.Nests.Load() {
		traits |= traitNests
	}
	return traits
}

// Hints for where a method runs; 0 means no hint.
const (
	hintInline = 1 + iota
	hintConcurrent
)

// Hint says that the method is short, so that it runs on the reader goroutine, or that it is not.
// Without a hint the server measures the method.
func (m *Method) Hint(short bool) {
	if short {
		m.hint.Store(hintInline)
	} else {
		m.hint.Store(hintConcurrent)
	}
}

// leastLargeReply is the size of replies, in bytes, from which a method does not run on the reader
// goroutine, because sending takes several frames.
const leastLargeReply = 64 << 10

// Inline reports whether the method runs on the reader goroutine.
func (m *Method) Inline() bool {
	hint := m.hint.Load()
	return (hint == hintInline || hint == 0 && m.Stats.Short()) && m.Replies.Expected() < leastLargeReply
}
