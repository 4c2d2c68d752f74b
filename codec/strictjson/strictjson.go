// SPDX-License-Identifier: Apache-2.0

// Package strictjson is JSON that refuses unknown fields.
//
// yodel.JSON ignores unknown fields, as encoding/json does, so that one side can be newer than the
// other. A request with misspelled or renamed fields then arrives as zeros. With this codec it is
// refused before the method is executed:
//
//	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{strictjson.Codec}})
//
// The name of the codec is "json", so it replaces yodel.JSON on the side that uses it. The other
// side needs no change. A client with this codec as ClientOptions.Codec refuses replies with
// unknown fields, although the call has been executed by then. Use it if both sides are released
// together. Decoding takes longer than with yodel.JSON and allocates a decoder for each message.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
)

// Codec encodes as yodel.JSON does, and refuses unknown fields when it decodes.
var Codec yodel.Codec = codec{}

type codec struct{}

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (codec) CheckType(t reflect.Type) error { return carries.Check(yodel.JSON, t) }

func (codec) Name() string { return yodel.JSON.Name() }

func (codec) Append(dst []byte, v any) ([]byte, error) { return yodel.JSON.Append(dst, v) }

func (c codec) Decode(src []byte, v any) error {
	if v != nil {
		if err := c.CheckType(reflect.TypeOf(v)); err != nil {
			return err
		}
	}
	carries.Clear(v)
	d := json.NewDecoder(bytes.NewReader(src))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("json: there is something after the value")
	}
	return nil
}
