// SPDX-License-Identifier: Apache-2.0

// Package gob encodes messages with encoding/gob: any Go value, between Go programs.
//
// Every message is complete, so a plain gob.Decoder can read it. A gob begins with definitions of
// its types, which a coder has to compile. This package keeps compiled coders for each type and for
// each peer's definitions of it, because compiling is slow.
//
// Append refuses values that are nested more than 1,000 deep, or contain themselves.
//
// The standard package is not made for input from untrusted peers. This package checks a message
// before the standard package decodes it. It cannot check types with interfaces, because the sender
// chooses what is decoded there. Accept these types only from peers that you trust.
package gob

import (
	"bytes"
	"encoding"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/gobwire"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/internal/panics"
)

// Codec is called "gob". Encoding a value costs a copy that encoding a pointer does not.
var Codec yodel.Codec = new(codec)

type codec struct {
	plans  sync.Map // from reflect.Type to *plan
	recent nesting.Recent[*plan]
}

func (*codec) Name() string { return "gob" }

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (*codec) CheckType(t reflect.Type) error { return gobwire.Rules.CheckType(t) }

func (c *codec) Append(dst []byte, v any) ([]byte, error) {
	if err := gobwire.Rules.Check(v); err != nil {
		return nil, err
	}
	value, err := message(v)
	if err != nil {
		return nil, err
	}
	p := c.planOf(v, value.Type())
	e, ok := p.encoders.Get().(*encoder)
	if !ok {
		e = newEncoder()
	}
	var b []byte
	if p.own {
		b, err = e.appendOwn(dst, value)
	} else {
		b, err = e.append(dst, value)
	}
	if err != nil {
		return nil, err // the encoder is not reused: it may be in the middle of a message
	}
	if !p.open {
		p.encoders.Put(e)
	}
	return b, nil
}

// message returns the addressable value that v is or points to.
func message(v any) (reflect.Value, error) {
	value := reflect.ValueOf(v)
	for value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if !value.IsValid() {
		return value, fmt.Errorf("gob: cannot encode a nil %T", v)
	}
	if !value.CanAddr() {
		twin := reflect.New(value.Type()).Elem()
		twin.Set(value)
		value = twin
	}
	return value, nil
}

func (c *codec) Decode(src []byte, v any) (err error) {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("gob: cannot decode into %T, or it is nil", v)
	}
	base := nesting.Base(target.Type())
	if base.Kind() == reflect.Pointer {
		return fmt.Errorf("gob: %T: %w", v, nesting.ErrPointers)
	}
	if err := gobwire.Rules.CheckTarget(v); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("gob: decode %T: %w", v, panics.Recovered(p))
		}
	}()
	carries.Clear(v)
	return c.planOf(v, base).decode(src, target)
}

// A plan holds the coders of one type.
type plan struct {
	// open says whether the type contains interfaces. Then each value may need other definitions,
	// and no coder can be reused.
	open bool
	// own says whether encoding can panic: the type contains interfaces, types with methods of
	// their own, or maps whose keys are pointers.
	own      bool
	encoders sync.Pool                 // of *encoder
	streams  atomic.Pointer[[]*stream] // the streams seen last; replaced, never changed
}

const (
	maxStreams     = 8        // for each type; each build of a peer has its own stream
	maxDefinitions = 64 << 10 // in bytes; a stream with more definitions is not kept
)

// planOf returns the plan of t, which v is or points to.
func (c *codec) planOf(v any, t reflect.Type) *plan {
	if p := c.recent.Get(v); p != nil {
		return *p
	}
	p := c.plan(t)
	c.recent.Put(v, p)
	return p
}

func (c *codec) plan(t reflect.Type) *plan {
	if p, ok := c.plans.Load(t); ok {
		return p.(*plan) //nolint:forcetypeassert // there is nothing else in plans
	}
	isInterface := func(t reflect.Type) bool { return t.Kind() == reflect.Interface }
	isOwn := func(t reflect.Type) bool {
		return isInterface(t) || opaque(t) || t.Kind() == reflect.Map && t.Key().Kind() == reflect.Pointer
	}
	made := &plan{open: contains(t, isInterface, map[reflect.Type]bool{}), own: contains(t, isOwn, map[reflect.Type]bool{})}
	p, _ := c.plans.LoadOrStore(t, made)
	return p.(*plan) //nolint:forcetypeassert // as above
}

// contains reports whether t is, or gobs of t contain, a type for which is reports true.
func contains(t reflect.Type, is func(t reflect.Type) bool, seen map[reflect.Type]bool) bool {
	if is(t) {
		return true
	}
	if seen[t] || opaque(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Map:
		return contains(t.Key(), is, seen) || contains(t.Elem(), is, seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return contains(t.Elem(), is, seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if f.IsExported() && contains(f.Type, is, seen) {
				return true
			}
		}
	}
	return false
}

// opaque reports whether methods of t, or of a pointer to it, encode it as bytes.
func opaque(t reflect.Type) bool {
	if t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer {
		return false
	}
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[gob.GobEncoder]()) && p.Implements(reflect.TypeFor[gob.GobDecoder]()) ||
		p.Implements(reflect.TypeFor[encoding.BinaryMarshaler]()) && p.Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]())
}

// An encoder writes complete messages of one type.
type encoder struct {
	*gob.Encoder
	out         []byte // the output
	definitions []byte // the beginning of the first message; all others lack it
	used        bool
}

func newEncoder() *encoder {
	e := new(encoder)
	e.Encoder = gob.NewEncoder(e)
	return e
}

func (e *encoder) Write(b []byte) (int, error) {
	e.out = append(e.out, b...)
	return len(b), nil
}

func (e *encoder) append(dst []byte, value reflect.Value) ([]byte, error) {
	e.out = append(dst, e.definitions...)
	err := e.EncodeValue(value)
	b := e.out
	e.out = nil
	if err != nil {
		return nil, err
	}
	if !e.used {
		e.used = true
		e.definitions = bytes.Clone(definitions(b[len(dst):]))
	}
	return b, nil
}

// appendOwn is append for values whose methods can panic, such as GobEncode of a nil pointer in a
// slice.
func (e *encoder) appendOwn(dst []byte, value reflect.Value) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			b, err = nil, fmt.Errorf("gob: encode %v: %w", value.Type(), panics.Recovered(p))
		}
	}()
	return e.append(dst, value)
}

func (p *plan) decode(src []byte, target reflect.Value) error {
	if p.open {
		return newDecoder().decode(src, target)
	}
	s, err := p.stream(definitions(src))
	if err != nil {
		return fmt.Errorf("gob: %w", err)
	}
	value := src[len(s.definitions):]
	if err := s.check(value); err != nil {
		return fmt.Errorf("gob: %w", err)
	}
	d, ok := s.decoders.Get().(*decoder)
	if !ok {
		d, value = newDecoder(), src
	}
	if err := d.decode(value, target); err != nil {
		return err // the decoder is not reused: it may be in the middle of a message
	}
	s.decoders.Put(d)
	if !ok {
		p.remember(s)
	}
	return nil
}

// A stream is the messages of one type that begin with the same definitions.
type stream struct {
	definitions []byte
	types       map[int64]*wireType
	decoders    sync.Pool // of *decoder, which have read the definitions
}

// stream returns the stream whose messages begin with definitions.
func (p *plan) stream(definitions []byte) (*stream, error) {
	if known := p.streams.Load(); known != nil {
		for _, s := range *known {
			if bytes.Equal(s.definitions, definitions) {
				return s, nil
			}
		}
	}
	types, err := parse(definitions)
	return &stream{definitions: bytes.Clone(definitions), types: types}, err
}

// remember keeps s, and removes the oldest stream if there are too many.
func (p *plan) remember(s *stream) {
	last := p.streams.Load()
	var known []*stream
	if last != nil {
		known = *last
	}
	for _, k := range known {
		if bytes.Equal(k.definitions, s.definitions) {
			return
		}
	}
	if len(s.definitions) > maxDefinitions {
		return
	}
	if len(known) == maxStreams {
		known = known[1:]
	}
	known = append(slices.Clip(known), s)
	p.streams.CompareAndSwap(last, &known) // if another goroutine was faster, s is kept the next time
}

// A decoder reads messages. The first one has the definitions, and the others do not.
type decoder struct {
	*gob.Decoder
	src bytes.Reader
}

func newDecoder() *decoder {
	d := new(decoder)
	d.Decoder = gob.NewDecoder(&d.src)
	return d
}

func (d *decoder) decode(src []byte, target reflect.Value) error {
	d.src.Reset(src)
	defer d.src.Reset(nil)
	if err := d.DecodeValue(target); err != nil {
		return err
	}
	if d.src.Len() > 0 {
		return errors.New("gob: bytes behind the message")
	}
	return nil
}
