// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bytes"
	"encoding/json"
	"sync"
)

// JSON encodes messages with encoding/json. It is the default codec.
var JSON Codec = new(jsonCodec)

// A jsonCodec pools encoders and decoders with their memory. With the pools, a call that multiplies
// two numbers makes six allocations. With json.Marshal and json.Unmarshal it makes 16.
type jsonCodec struct {
	encoders sync.Pool // of *jsonEncoder
	decoders sync.Pool // of *jsonDecoder
}

func (*jsonCodec) Name() string { return "json" }

func (c *jsonCodec) Append(dst []byte, v any) ([]byte, error) {
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
