// SPDX-License-Identifier: Apache-2.0

package registered

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/admission"
	"github.com/yodel-rpc/yodel/internal/carries"
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
	Replies    stats.Replies
	First      admission.FirstCalls // the first calls in other protocols

	hint atomic.Int32
}

// Use makes m call a function by reflection.
func (m *Method) Use(fn *reflectcall.Func[*pipe.Pipe]) {
	m.Kind, m.Positional, m.Args, m.Results = fn.Kind, fn.Positional, fn.In, fn.Out
	m.NewArgs, m.Call, m.Stream = fn.NewArgs, fn.Call, fn.Stream
}

// Carry sets m.Uncarried: which codecs do not carry the types of the method, and why. The keys of
// codecs are their names. Carry returns an error if none of the codecs carries all types, or if the
// method has a type that no codec can carry, such as a channel.
func Carry[C any](m *Method, codecs map[string]C, names string) error {
	m.Uncarried = make(map[string]error)
	types := slices.DeleteFunc(slices.Concat(m.Args, m.Results), reflectcall.HasNoContent) // one-way calls have no reply
	for name, codec := range codecs {
		if err := carries.Check(codec, types...); err != nil {
			m.Uncarried[name] = err
		}
	}
	for _, t := range types {
		if err := reflectcall.Usable(t); err != nil {
			return err
		}
	}
	if len(m.Uncarried) == len(codecs) {
		return fmt.Errorf("none of the codecs %s carries its types: %w", names, m.Uncarried["json"])
	}
	return nil
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
	TraitIdempotent = 1 << iota
	TraitNests
)

// Traits returns the traits of the method.
func (m *Method) Traits() (traits uint32) {
	if m.Idempotent.Load() {
		traits = TraitIdempotent
	}
	if m.Nests.Load() {
		traits |= TraitNests
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
