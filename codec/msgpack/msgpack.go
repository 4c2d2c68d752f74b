// SPDX-License-Identifier: Apache-2.0

// Package msgpack encodes messages as MessagePack. It encodes any Go value by reflection, with
// github.com/vmihailenco/msgpack and its struct tags. It encodes types faster if they have the
// methods that github.com/tinylib/msgp generates.
//
// The two libraries name fields by different tags, msgpack and msg. If one side has the generated
// methods and the other does not, the names must be the same.
package msgpack

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/panics"
)

// Codec is called "msgpack". Encoding a value costs a copy that encoding a pointer does not, if the
// type has generated methods.
//
// Append refuses values that are nested more than 1,000 deep, or contain themselves. Both methods
// refuse types of which the library would lose a field, such as struct{ Base; ID string } over
// Base{ID int}: its fields have the same name in a message.
//
// Decode refuses messages with more than 10,000 levels, and strings that the peer has interned (the
// option "intern" of the tag msgpack).
var Codec yodel.Codec = new(codec)

type codec struct {
	encoders sync.Pool // of *encoder
	decoders sync.Pool // of *decoder
}

// A marshaler and an unmarshaler have the methods that msgp generates.
type (
	marshaler interface {
		MarshalMsg(dst []byte) ([]byte, error)
	}
	unmarshaler interface {
		UnmarshalMsg(src []byte) (rest []byte, err error)
	}
)

func (*codec) Name() string { return "msgpack" }

func (c *codec) Append(dst []byte, v any) ([]byte, error) {
	value := reflect.ValueOf(v)
	if value.Kind() == reflect.Pointer && value.IsNil() {
		return nil, fmt.Errorf("msgpack: cannot encode a nil %T", v)
	}
	b, err := c.append(dst, v, value)
	if err != nil {
		return nil, fmt.Errorf("msgpack: encode %T: %w", v, err)
	}
	return b, nil
}

func (c *codec) append(dst []byte, v any, value reflect.Value) ([]byte, error) {
	if m, ok := generated(v, value); ok {
		if err := nestedGenerated.Check(v); err != nil {
			return nil, err
		}
		return m.MarshalMsg(dst)
	}
	in, own, err := nested.Inspect(v)
	if err != nil {
		return nil, err
	}
	e, ok := c.encoders.Get().(*encoder)
	if !ok {
		e = new(encoder)
		e.Encoder = msgpack.NewEncoder(&e.dst)
	}
	e.dst = *bytes.NewBuffer(dst)
	e.Reset(&e.dst)
	e.SetSortMapKeys(true) // so that equal maps have equal encodings
	if err := e.Encode(in); err != nil {
		return nil, err // the encoder is not reused: it may be in the middle of a message
	}
	b := e.dst.Bytes()
	e.dst = bytes.Buffer{}
	c.encoders.Put(e)
	if own {
		err = checkNil(v, b[len(dst):])
	}
	return b, err
}

// generated returns v, or a pointer to a copy of it, if that value has generated methods.
func generated(v any, value reflect.Value) (marshaler, bool) {
	if m, ok := v.(marshaler); ok {
		return m, true
	}
	if !value.IsValid() || !reflect.PointerTo(value.Type()).Implements(reflect.TypeFor[marshaler]()) {
		return nil, false
	}
	twin := reflect.New(value.Type())
	twin.Elem().Set(value)
	return reflect.TypeAssert[marshaler](twin)
}

type encoder struct {
	*msgpack.Encoder
	dst bytes.Buffer
}

func (c *codec) Decode(src []byte, v any) (err error) {
	if target := reflect.ValueOf(v); target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("msgpack: cannot decode into %T, or it is nil", v)
	}
	defer func() {
		if p := recover(); p != nil {
			err = panics.Recovered(p)
		}
		if err != nil {
			err = fmt.Errorf("msgpack: decode %T: %w", v, err)
		}
	}()
	if _, ok := v.(unmarshaler); !ok {
		if err := nested.CheckTarget(v); err != nil {
			return err
		}
	}
	carries.Clear(v)
	d, ok := c.decoders.Get().(*decoder)
	if !ok {
		d = new(decoder)
		d.Decoder = msgpack.NewDecoder(&d.src)
	}
	if err := d.decode(src, v); err != nil {
		return err // the decoder is not reused: it may be in the middle of a message
	}
	c.decoders.Put(d)
	return nil
}

type decoder struct {
	*msgpack.Decoder
	src checked
}

func (d *decoder) decode(src []byte, v any) error {
	d.src.reset(src)
	defer d.src.reset(nil)
	if err := d.src.check(); err != nil {
		return err
	}
	if m, ok := v.(unmarshaler); ok {
		rest, err := m.UnmarshalMsg(src)
		if err == nil && len(rest) > 0 {
			err = errBehind
		}
		return err
	}
	d.Reset(&d.src)
	d.SetMapDecoder(mapOf) // Reset has forgotten it
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.src.at < len(src) {
		return errBehind
	}
	return nil
}

// mapOf decodes a map into an interface: as map[string]any if all of its keys are strings or bytes,
// and otherwise as map[any]any. The message has as many entries as it announces.
func mapOf(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeMapLen()
	if err != nil || n < 0 {
		return map[string]any(nil), err
	}
	named, mixed := make(map[string]any, n), map[any]any(nil)
	for range n {
		name, key, err := decodeKey(d)
		if err != nil {
			return nil, err
		}
		value, err := d.DecodeInterface()
		switch {
		case err != nil:
			return nil, err
		case key == nil && mixed == nil:
			named[name] = value
			continue
		case key == nil:
			key = name
		case mixed == nil:
			mixed = make(map[any]any, n)
			for name, value := range named {
				mixed[name] = value
			}
		}
		mixed[key] = value
	}
	if mixed != nil {
		return mixed, nil
	}
	return named, nil
}

// decodeKey returns a key of a map as name, or as key if it is neither a string nor bytes.
func decodeKey(d *msgpack.Decoder) (name string, key any, err error) {
	code, err := d.PeekCode()
	switch {
	case err != nil:
		return "", nil, err
	case msgpcode.IsString(code), msgpcode.IsBin(code), code == msgpcode.Nil:
		name, err = d.DecodeString()
		return name, nil, err
	}
	if key, err = d.DecodeInterface(); err == nil && !reflect.ValueOf(&key).Elem().Comparable() {
		err = fmt.Errorf("the key of a map is a %T, which Go cannot compare", key)
	}
	return "", key, err
}
