// SPDX-License-Identifier: Apache-2.0

package protobuf

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/nesting"
)

// JSON is called "json". It encodes the messages that protoc-gen-go generates in ProtoJSON, as all
// other implementations of Protocol Buffers do. For all other values it is yodel.JSON, which it
// replaces in ServerOptions.Codecs. It ignores unknown fields of messages.
var JSON yodel.Codec = jsonCodec{}

// FullJSON is JSON that also encodes the fields of messages that are not set: numbers as 0, texts
// as "", lists as [], messages as null. Grpc-gateway does that too.
var FullJSON yodel.Codec = jsonCodec{protojson.MarshalOptions{EmitUnpopulated: true}}

type jsonCodec struct{ options protojson.MarshalOptions }

func (jsonCodec) Name() string { return "json" }

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (jsonCodec) CheckType(t reflect.Type) error {
	if reflect.PointerTo(nesting.Base(t)).Implements(reflect.TypeFor[proto.Message]()) {
		return nil
	}
	return carries.Check(yodel.JSON, t)
}

func (c jsonCodec) Append(dst []byte, v any) ([]byte, error) {
	m, ok := pointer(v).(proto.Message)
	if !ok {
		return yodel.JSON.Append(dst, v)
	}
	if err := checkNesting(m); err != nil {
		return nil, err
	}
	if err := checkSize(v, proto.Size(m)); err != nil {
		return nil, err
	}
	b, err := c.options.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("protobuf: encode %T as JSON: %w", v, err)
	}
	return b, nil
}

func (jsonCodec) Decode(src []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return yodel.JSON.Decode(src, v)
	}
	if reflect.ValueOf(v).IsNil() {
		return notMessage(v)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(src, m); err != nil {
		return broken(v, err)
	}
	return nil
}
