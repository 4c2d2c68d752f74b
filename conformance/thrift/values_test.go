// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	apache "github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
)

// A transcriber reads values with one protocol of Apache's library and writes them with another. It
// knows of each value only what Apache's library says of it.
type transcriber struct {
	ctx  context.Context
	from apache.TProtocol
	to   apache.TProtocol
}

// move transcribes a scalar.
func move[T any](ctx context.Context, read func(context.Context) (T, error), write func(context.Context, T) error) error {
	v, err := read(ctx)
	if err != nil {
		return err
	}
	return write(ctx, v)
}

func (x transcriber) value(t apache.TType) error {
	switch t {
	case apache.BOOL:
		return move(x.ctx, x.from.ReadBool, x.to.WriteBool)
	case apache.BYTE:
		return move(x.ctx, x.from.ReadByte, x.to.WriteByte)
	case apache.I16:
		return move(x.ctx, x.from.ReadI16, x.to.WriteI16)
	case apache.I32:
		return move(x.ctx, x.from.ReadI32, x.to.WriteI32)
	case apache.I64:
		return move(x.ctx, x.from.ReadI64, x.to.WriteI64)
	case apache.DOUBLE:
		return move(x.ctx, x.from.ReadDouble, x.to.WriteDouble)
	case apache.STRING:
		return move(x.ctx, x.from.ReadBinary, x.to.WriteBinary)
	case apache.UUID:
		return move(x.ctx, x.from.ReadUUID, x.to.WriteUUID)
	case apache.STRUCT:
		return x.structure()
	case apache.LIST:
		element, size, err := x.from.ReadListBegin(x.ctx)
		return errors.Join(err, x.to.WriteListBegin(x.ctx, element, size), x.elements(size, element),
			x.from.ReadListEnd(x.ctx), x.to.WriteListEnd(x.ctx))
	case apache.SET:
		element, size, err := x.from.ReadSetBegin(x.ctx)
		return errors.Join(err, x.to.WriteSetBegin(x.ctx, element, size), x.elements(size, element),
			x.from.ReadSetEnd(x.ctx), x.to.WriteSetEnd(x.ctx))
	case apache.MAP:
		key, value, size, err := x.from.ReadMapBegin(x.ctx)
		return errors.Join(err, x.to.WriteMapBegin(x.ctx, key, value, size), x.elements(size, key, value),
			x.from.ReadMapEnd(x.ctx), x.to.WriteMapEnd(x.ctx))
	}
	return fmt.Errorf("a value has the type %v", t)
}

// elements transcribes the elements of a list or a set, or the pairs of a map.
func (x transcriber) elements(size int, types ...apache.TType) error {
	for range size {
		for _, t := range types {
			if err := x.value(t); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x transcriber) structure() error {
	_, err := x.from.ReadStructBegin(x.ctx)
	if err = errors.Join(err, x.to.WriteStructBegin(x.ctx, "")); err != nil {
		return err
	}
	for range 1000 {
		_, t, id, err := x.from.ReadFieldBegin(x.ctx)
		if err != nil {
			return err
		}
		if t == apache.STOP {
			return errors.Join(x.to.WriteFieldStop(x.ctx), x.to.WriteStructEnd(x.ctx), x.from.ReadStructEnd(x.ctx))
		}
		if err := errors.Join(x.to.WriteFieldBegin(x.ctx, "", t, id), x.value(t), x.to.WriteFieldEnd(x.ctx), x.from.ReadFieldEnd(x.ctx)); err != nil {
			return err
		}
	}
	return errors.New("a structure does not end")
}

// transcribe returns a message in another protocol.
func transcribe(b []byte, from, to apache.TProtocolFactory) ([]byte, error) {
	out, in := apache.NewTMemoryBuffer(), &apache.TMemoryBuffer{Buffer: bytes.NewBuffer(bytes.Clone(b))}
	x := transcriber{context.Background(), from.GetProtocol(in), to.GetProtocol(out)}
	if err := x.structure(); err != nil {
		return nil, err
	}
	if err := x.to.Flush(x.ctx); err != nil {
		return nil, err
	}
	if in.Len() > 0 {
		return nil, fmt.Errorf("%d bytes are left over", in.Len())
	}
	return out.Bytes(), nil
}

// Apache's library reads the values that the codec carries in one protocol, and what it writes in
// the other is the same for the codec.
func TestValuesBesideApache(t *testing.T) {
	for i, f := range formats {
		other := formats[1-i]
		t.Run(f.Name(), func(t *testing.T) { besideApache(t, f.Codec, other.Codec, f.apache, other.apache) })
	}
}

func besideApache(t *testing.T, c, other yodel.Codec, mine, others apache.TProtocolFactory) {
	t.Helper()
	// Apache has no messages that are not structs: the codec puts a byte with the type before them.
	alone := map[string]string{"time.Duration, the whole message": "it is no struct", "a UUID, the whole message": "it is no struct",
		"nil map, the whole message": "it is no struct"}
	tried := valuetable.Compare(t, c, valuetable.Reference{
		Decode: func(b []byte, v any) error {
			b, err := transcribe(b, mine, others)
			if err != nil {
				return err
			}
			return other.Decode(b, v)
		},
		Encode: func(v any) ([]byte, error) {
			b, err := other.Append(nil, v)
			if err != nil {
				return nil, err
			}
			return transcribe(b, others, mine)
		},
		Reads: alone, Writes: alone,
	})
	if tried != 89 {
		t.Errorf("%d values were compared", tried)
	}
}
