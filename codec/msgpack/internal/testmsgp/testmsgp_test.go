// SPDX-License-Identifier: Apache-2.0

package testmsgp_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/codec/msgpack/internal/testmsgp"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func order() *testmsgp.Order {
	when := time.Unix(1709209800, 931135488)
	return &testmsgp.Order{
		ID: -5, Name: "schöne Grüße", Price: 1.5, Paid: true, Raw: []byte{0, 1, 0xff},
		Lines:  []testmsgp.Line{{Text: "one", Count: 1}, {Text: strings.Repeat("x", 300)}},
		Labels: map[string]string{"a": "b", "": "c"}, Size: [3]uint32{1, 2, 1 << 31}, When: when,
		Parent: &testmsgp.Order{Labels: map[string]string{}, When: when},
		Extra:  map[string]any{"list": []any{int64(1), "two", nil, true}},
	}
}

func TestKeepsTheContract(t *testing.T) {
	names := testmsgp.Names{"a", "b"}
	yodeltest.TestCodec(t, msgpack.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["msgpack"]}, order(), &testmsgp.Line{Text: "line", Count: -1}, &names)
}

func TestUsesGeneratedMethods(t *testing.T) {
	m := &testmsgp.Line{Text: "line", Count: 7}
	want, err := m.MarshalMsg(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{m, *m} {
		if got, err := msgpack.Codec.Append(nil, v); err != nil || !bytes.Equal(got, want) {
			t.Errorf("Append of a %T: got %x and error %v, want %x", v, got, err, want)
		}
	}
}

func TestHostileMessagesAreErrors(t *testing.T) {
	for name, src := range map[string]string{
		"2^32 lines":        "\x81\xa5lines\xdd\xff\xff\xff\xff",
		"2^32 labels":       "\x81\xa6labels\xdf\xff\xff\xff\xff",
		"2^32 bytes":        "\x81\xa3raw\xc6\xff\xff\xff\xff",
		"ten million deep":  strings.Repeat("\x81\xa6parent", 1e7) + "\xc0",
		"something behind":  "\x80\x00",
		"a value of a kind": "\x81\xa4when\x01",
	} {
		t.Run(name, func(t *testing.T) {
			if msgpack.Codec.Decode([]byte(src), new(testmsgp.Order)) == nil {
				t.Error("got no error")
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	b, err := msgpack.Codec.Append(nil, order())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, src []byte) {
		var got testmsgp.Order
		if msgpack.Codec.Decode(src, &got) != nil {
			return
		}
		if _, err := msgpack.Codec.Append(nil, &got); err != nil {
			t.Fatalf("cannot encode what was decoded: %v", err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	m := order()
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = msgpack.Codec.Append(dst[:0], m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	src, err := msgpack.Codec.Append(nil, order())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := msgpack.Codec.Decode(src, new(testmsgp.Order)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodePlain is what the generated method costs, which trusts the bytes.
func BenchmarkDecodePlain(b *testing.B) {
	src, err := order().MarshalMsg(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := new(testmsgp.Order).UnmarshalMsg(src); err != nil {
			b.Fatal(err)
		}
	}
}
