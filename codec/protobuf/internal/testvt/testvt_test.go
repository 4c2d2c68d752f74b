// SPDX-License-Identifier: Apache-2.0

package testvt_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/codec/protobuf/internal/testpb"
	"github.com/yodel-rpc/yodel/codec/protobuf/internal/testvt"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// equal is proto.Equal for any two pointers.
func equal(a, b any) bool {
	x, ok := a.(proto.Message)
	y, ok2 := b.(proto.Message)
	return ok && ok2 && proto.Equal(x, y)
}

func tree() *testvt.Tree {
	return &testvt.Tree{
		Kids: []*testvt.Tree{
			{Leaf: &testvt.Tree_Data{Data: []byte{0, 1, 0xff}}},
			{Leaf: &testvt.Tree_Number{Number: -0.5}, Kids: []*testvt.Tree{{}}},
		},
		Counts: map[string]int64{"one": 1, "minus": -1},
	}
}

func TestKeepsTheContract(t *testing.T) {
	many := testpb.Fill(&testvt.BenchmarkMessage{Field5: []uint64{1, 1 << 63}})
	yodeltest.TestCodec(t, protobuf.Codec, &yodeltest.CodecOptions{Equal: equal}, many, tree())
}

// A counted message says which of its methods were used.
type counted struct {
	*testvt.Tree
	sizes, marshals, unmarshals int
}

func (c *counted) SizeVT() int {
	c.sizes++
	return c.Tree.SizeVT()
}

func (c *counted) MarshalToSizedBufferVT(b []byte) (int, error) {
	c.marshals++
	return c.Tree.MarshalToSizedBufferVT(b)
}

func (c *counted) UnmarshalVT(b []byte) error {
	c.unmarshals++
	return c.Tree.UnmarshalVT(b)
}

func TestUsesTheMethodsThatAreThere(t *testing.T) {
	m := &counted{Tree: tree()}
	b, err := protobuf.Codec.Append(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := protobuf.Codec.Decode(b, m); err != nil {
		t.Fatal(err)
	}
	if m.sizes != 1 || m.marshals != 1 || m.unmarshals != 1 {
		t.Errorf("got %d, %d and %d uses of the methods, want one of each", m.sizes, m.marshals, m.unmarshals)
	}
}

func TestDecodeReplacesWhatWasThere(t *testing.T) {
	b, err := protobuf.Codec.Append(nil, &testvt.Tree{Counts: map[string]int64{"new": 1}})
	if err != nil {
		t.Fatal(err)
	}
	got := tree()
	if err := protobuf.Codec.Decode(b, got); err != nil {
		t.Fatal(err)
	}
	if want := (&testvt.Tree{Counts: map[string]int64{"new": 1}}); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBytesAreThoseOfPackageProto(t *testing.T) {
	fast, err := protobuf.Codec.Append(nil, testpb.Fill(new(testvt.BenchmarkMessage)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := protobuf.Codec.Append(nil, testpb.Fill(new(testpb.BenchmarkMessage)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(fast, plain) || len(fast) != 581 {
		t.Errorf("got %x (%d bytes), want %x", fast, len(fast), plain)
	}
}

// nested returns a Tree in a Tree, levels deep.
func nested(levels int) []byte {
	var sizes []uint64 // of what is behind each level's size
	size := uint64(0)
	for range levels {
		sizes = append(sizes, size)
		size += 1 + uint64(len(binary.AppendUvarint(nil, size)))
	}
	var b []byte
	for i := range sizes {
		b = binary.AppendUvarint(append(b, 1<<3|2), sizes[len(sizes)-1-i])
	}
	return b
}

func TestNestingIsBounded(t *testing.T) {
	if err := protobuf.Codec.Decode(nested(100), new(testvt.Tree)); err != nil {
		t.Errorf("100 levels: %v", err)
	}
	// Three million levels are more than the stack may have. That cannot be recovered from.
	if protobuf.Codec.Decode(nested(3e6), new(testvt.Tree)) == nil {
		t.Error("3,000,000 levels gave no error")
	}
}

func TestLargeMessagesDecode(t *testing.T) {
	for _, want := range []proto.Message{
		&testvt.Tree{Leaf: &testvt.Tree_Data{Data: make([]byte, 1<<20)}},
		testpb.Fill(&testvt.BenchmarkMessage{Field5: make([]uint64, 1<<16)}),
	} {
		b, err := protobuf.Codec.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got := want.ProtoReflect().New().Interface()
		if err := protobuf.Codec.Decode(b, got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%T of %d bytes: decoded differently, error %v", want, len(b), err)
		}
	}
}

// FuzzDecode compares with package proto.
func FuzzDecode(f *testing.F) {
	for _, m := range []proto.Message{testpb.Fill(new(testvt.BenchmarkMessage)), tree()} {
		b, err := protobuf.Codec.Append(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, got := range []proto.Message{new(testvt.BenchmarkMessage), new(testvt.Tree)} {
			if protobuf.Codec.Decode(src, got) != nil {
				continue
			}
			again, err := protobuf.Codec.Append(nil, got)
			if err != nil {
				t.Fatalf("cannot encode what was decoded: %v", err)
			}
			// In unknown fields, and in the wire types of map entries, UnmarshalVT is less strict
			// than package proto. What package proto does not keep whole is not compared.
			known := proto.UnmarshalOptions{DiscardUnknown: true}
			want := got.ProtoReflect().New().Interface()
			if known.Unmarshal(src, want) != nil || known.Unmarshal(again, got) != nil || proto.Size(want) != len(src) {
				continue
			}
			if !proto.Equal(got, want) {
				t.Fatalf("%x decoded to %v, and with package proto to %v", src, got, want)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	m := testpb.Fill(new(testvt.BenchmarkMessage))
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = protobuf.Codec.Append(dst[:0], m); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(dst)))
}

func BenchmarkDecode(b *testing.B) {
	src, err := protobuf.Codec.Append(nil, testpb.Fill(new(testvt.BenchmarkMessage)))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if err := protobuf.Codec.Decode(src, new(testvt.BenchmarkMessage)); err != nil {
			b.Fatal(err)
		}
	}
}
