// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"bytes"
	"context"
	"reflect"
	"testing"

	apache "github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"

	"github.com/yodel-rpc/yodel/conformance/thrift/gen/thrifttest"
	"github.com/yodel-rpc/yodel/conformance/thrift/service"
)

// formats are the codecs and Apache's protocols for the same bytes.
var formats = []struct {
	yodel.Codec
	apache apache.TProtocolFactory
}{
	{codec.Codec, apache.NewTBinaryProtocolFactoryConf(nil)},
	{codec.Compact, apache.NewTCompactProtocolFactoryConf(nil)},
}

// TestSameBytes checks that both encode the same message in the same bytes, and decode it equally.
// No map or set of the message has two elements, because their order is random.
func TestSameBytes(t *testing.T) {
	for _, f := range formats {
		message := everything()
		delete(message.Things, "")
		want := encode(t, f.apache, message)
		var ours service.Everything
		if err := f.Decode(want, &ours); err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		got, err := f.Append(nil, &ours)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n got %x\nwant %x", f.Name(), err, got, want)
		}
		back := new(thrifttest.Everything)
		if err := decode(f.apache, got, back); err != nil || !reflect.DeepEqual(back, message) {
			t.Errorf("%s: Apache decoded %+v, %v", f.Name(), back, err)
		}
	}
}

// TestUUID compares the type that the compiler of the generated code does not know.
func TestUUID(t *testing.T) {
	id := apache.Tuuid{1, 2, 3, 15: 16}
	for _, f := range formats {
		b := apache.NewTMemoryBuffer()
		p, ctx := f.apache.GetProtocol(b), context.Background()
		for _, err := range []error{
			p.WriteStructBegin(ctx, ""), p.WriteFieldBegin(ctx, "", apache.UUID, 1), p.WriteUUID(ctx, id), p.WriteFieldEnd(ctx),
			p.WriteFieldStop(ctx), p.WriteStructEnd(ctx), p.Flush(ctx),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		var got struct {
			ID [16]byte `thrift:"1"`
		}
		if err := f.Decode(b.Bytes(), &got); err != nil || got.ID != id {
			t.Errorf("%s: got %v, %v", f.Name(), got.ID, err)
		}
		if again, err := f.Append(nil, &got); err != nil || !bytes.Equal(again, b.Bytes()) {
			t.Errorf("%s: got %x, %v, want %x", f.Name(), again, err, b.Bytes())
		}
	}
}

func encode(t testing.TB, f apache.TProtocolFactory, message apache.TStruct) []byte {
	t.Helper()
	b := apache.NewTMemoryBuffer()
	p := f.GetProtocol(b)
	if err := message.Write(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decode(f apache.TProtocolFactory, b []byte, into apache.TStruct) error {
	return into.Read(context.Background(), f.GetProtocol(&apache.TMemoryBuffer{Buffer: bytes.NewBuffer(b)}))
}

// FuzzDecode gives both decoders the same bytes. What Apache accepts and yodel refuses must be one
// of the differences that are documented, so it is only checked that what both accept is equal.
func FuzzDecode(f *testing.F) {
	for _, format := range formats {
		message := everything()
		delete(message.Things, "")
		f.Add(encode(f, format.apache, message))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, format := range formats {
			var ours service.Everything
			theirs := new(thrifttest.Everything)
			if format.Decode(b, &ours) != nil || decode(format.apache, b, theirs) != nil {
				continue
			}
			if ours.Medium != theirs.Medium || ours.Wide != theirs.Wide || ours.Text != theirs.Text || !bytes.Equal(ours.Data, theirs.Data) ||
				ours.Yes != theirs.Yes || ours.Tiny != theirs.Tiny || ours.Short != theirs.Short || ours.Needed != theirs.Needed || ours.Far != theirs.Far ||
				len(ours.Flags) != len(theirs.Flags) || len(ours.Numbers) != len(theirs.Numbers) || len(ours.Maps) != len(theirs.Maps) {
				t.Fatalf("%s, %x: %+v, and Apache has %+v", format.Name(), b, ours, theirs)
			}
		}
	})
}
