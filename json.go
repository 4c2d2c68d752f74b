// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

// JSON encodes messages with encoding/json. It is the default codec.
//
// Values may be nested 1,000 deep. Append refuses deeper ones, and those that contain themselves,
// as the codecs of this repository do.
var JSON Codec = &jsonCodec{nested: nesting.Rules{
	Methods:   []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()},
	Addressed: true,
	Skip:      notInJSON,
}}

// A jsonCodec pools encoders and decoders with their memory. With the pools, a call that multiplies
// two numbers makes six allocations. With json.Marshal and json.Unmarshal it makes 16.
type jsonCodec struct {
	encoders sync.Pool // of *jsonEncoder
	decoders sync.Pool // of *jsonDecoder
	nested   nesting.Rules
}

// notInJSON reports whether encoding/json leaves a field out.
func notInJSON(f *reflect.StructField) bool {
	if f.Tag.Get("json") == "-" {
		return true
	}
	embedded := f.Anonymous && nesting.Base(f.Type).Kind() == reflect.Struct
	return !f.IsExported() && !embedded
}

func (*jsonCodec) Name() string { return "json" }

func (c *jsonCodec) Append(dst []byte, v any) ([]byte, error) {
	if err := c.nested.Check(v); err != nil {
		return dst, fmt.Errorf("json: %w", err)
	}
	e, ok := c.encoders.Get().(*jsonEncoder)
	if !ok {
		e = new(jsonEncoder)
		e.Encoder = json.NewEncoder(e)
	}
	e.dst = dst
	if err := e.Encode(v); err != nil {
		return dst, err // the encoder may be in an unusable state: drop it
	}
	b := e.dst[:len(e.dst)-1] // without the newline at the end
	e.dst = nil
	c.encoders.Put(e)
	return b, nil
}

type jsonEncoder struct {
	*json.Encoder
	dst []byte
}

func (e *jsonEncoder) Write(b []byte) (int, error) {
	e.dst = append(e.dst, b...)
	return len(b), nil
}

func (c *jsonCodec) Decode(src []byte, v any) error {
	if len(src) > keepScratch { // a decoder would copy src and keep as much memory
		return json.Unmarshal(src, v)
	}
	d, ok := c.decoders.Get().(*jsonDecoder)
	if !ok {
		d = new(jsonDecoder)
		d.Decoder = json.NewDecoder(&d.src)
	}
	if d.whole(bytes.TrimRight(src, " \t\r\n"), v) {
		c.decoders.Put(d)
		return nil
	}
	return json.Unmarshal(src, v) // the error of Unmarshal is the most precise one
}

type jsonDecoder struct {
	*json.Decoder
	src bytes.Reader
}

// whole decodes src, and reports whether src was one message without an error and without further
// bytes. If not, the caller drops the decoder.
func (d *jsonDecoder) whole(src []byte, v any) bool {
	before := d.InputOffset()
	d.src.Reset(src)
	defer d.src.Reset(nil)
	return d.Decode(v) == nil && d.InputOffset()-before == int64(len(src))
}
