// SPDX-License-Identifier: Apache-2.0

// Package jsoncodec encodes messages with encoding/json. It keeps encoders and decoders for reuse:
// with them, a call that multiplies two numbers makes six allocations, and with json.Marshal and
// json.Unmarshal it makes 16.
package jsoncodec

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
)

// maxKept is the largest message whose decoder is kept, in bytes.
const maxKept = 64 << 10

// A Codec encodes messages as JSON. It may be used concurrently.
type Codec struct {
	encoders sync.Pool // of *encoder
	decoders sync.Pool // of *decoder
	nested   nesting.Rules
}

// New returns a Codec.
func New() *Codec {
	return &Codec{nested: nesting.Rules{
		Methods:  []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()},
		Skip:     leftOut,
		Struct:   checkFields,
		Strict:   true,
		Decoders: []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()},
		Kinds:    []reflect.Kind{reflect.Complex64, reflect.Complex128},
		Tag:      "json",
		Key:      checkKey,
		KeyBytes: textOf,
		Values: map[reflect.Type]func(v unsafe.Pointer) error{
			reflect.TypeFor[json.Number](): checkNumber, reflect.TypeFor[time.Time](): checkTime,
		},
	}}
}

// leftOut reports whether encoding/json leaves a field out.
func leftOut(f *reflect.StructField) bool {
	if f.Tag.Get("json") == "-" {
		return true
	}
	embedded := f.Anonymous && nesting.Base(f.Type).Kind() == reflect.Struct
	return !f.IsExported() && !embedded
}

// Name returns "json".
func (*Codec) Name() string { return "json" }

// CheckType returns why messages of a type, or of pointers to it, do not arrive as they were sent.
func (c *Codec) CheckType(t reflect.Type) error {
	if err := c.nested.CheckType(t); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return nil
}

// Append appends the encoding of v to dst. It refuses values that are nested too deep, and those
// that would not arrive as they are.
func (c *Codec) Append(dst []byte, v any) ([]byte, error) {
	in, own, err := c.nested.Inspect(v)
	if err != nil {
		return dst, fmt.Errorf("json: %w", err)
	}
	e, ok := c.encoders.Get().(*encoder)
	if !ok {
		e = new(encoder)
		e.Encoder = json.NewEncoder(e)
	}
	e.dst = dst
	if err := e.Encode(in); err != nil {
		return dst, err // the encoder may be in an unusable state: drop it
	}
	b := e.dst[:len(e.dst)-1] // without the newline at the end
	e.dst = nil
	c.encoders.Put(e)
	wrong := own && !utf8.Valid(b[len(dst):])
	if wrong || bytes.Contains(b[len(dst):], replaced) {
		at := c.nested.Text(v, func(text string) bool { return !utf8.ValidString(text) })
		if at != "" || wrong {
			return dst, fmt.Errorf("json: %s is not UTF-8, which JSON cannot carry: use []byte", cmp.Or(at, fmt.Sprintf("%T", v)))
		}
	}
	return b, nil
}

// textOf returns the text of a key.
func textOf(key reflect.Value) ([]byte, error) {
	m, ok := reflect.TypeAssert[encoding.TextMarshaler](key)
	if !ok || key.Kind() == reflect.String { // the latter is its own text
		return fmt.Append(nil, key), nil
	}
	return m.MarshalText()
}

// checkNumber returns why encoding/json would write another number.
func checkNumber(v unsafe.Pointer) error {
	if *(*json.Number)(v) == "" {
		return errors.New("an empty json.Number would arrive as 0")
	}
	return nil
}

// checkTime returns why encoding/json would write another time.
func checkTime(v unsafe.Pointer) error {
	t := (*time.Time)(v)
	if t.Location() == time.UTC {
		return nil
	}
	if _, offset := t.Zone(); offset%60 != 0 {
		return fmt.Errorf("the offset of a time is %v, and JSON has no seconds in it: use Time.UTC", time.Duration(offset)*time.Second)
	}
	return nil
}

// replaced is what encoding/json writes in place of bytes that are not UTF-8.
var replaced = []byte(`\ufffd`)

type encoder struct {
	*json.Encoder
	dst []byte
}

func (e *encoder) Write(b []byte) (int, error) {
	e.dst = append(e.dst, b...)
	return len(b), nil
}

// Decode decodes src into a cleared v as json.Unmarshal does, with the same errors.
func (c *Codec) Decode(src []byte, v any) error {
	if err := c.nested.CheckTarget(v); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	carries.Clear(v)
	if len(src) > maxKept { // a decoder would copy src and keep as much memory
		return json.Unmarshal(src, v)
	}
	d, ok := c.decoders.Get().(*decoder)
	if !ok {
		d = new(decoder)
		d.Decoder = json.NewDecoder(&d.src)
	}
	if d.whole(bytes.TrimRight(src, " \t\r\n"), v) {
		c.decoders.Put(d)
		return nil
	}
	return json.Unmarshal(src, v) // the error of Unmarshal is the most precise one
}

type decoder struct {
	*json.Decoder
	src bytes.Reader
}

// whole decodes src, and reports whether src was one message without an error and without further
// bytes. If not, the caller drops the decoder.
func (d *decoder) whole(src []byte, v any) bool {
	before := d.InputOffset()
	d.src.Reset(src)
	defer d.src.Reset(nil)
	return d.Decode(v) == nil && d.InputOffset()-before == int64(len(src))
}
