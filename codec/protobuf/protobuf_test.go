// SPDX-License-Identifier: Apache-2.0

package protobuf_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/typepb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/codec/protobuf/internal/testpb"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// equal is proto.Equal for any two pointers.
func equal(a, b any) bool {
	x, ok := a.(proto.Message)
	y, ok2 := b.(proto.Message)
	return ok && ok2 && proto.Equal(x, y)
}

// A message whose parts are shared has more bytes than a message can hold.
func TestSharedPartsAreCounted(t *testing.T) {
	large := &testpb.Tree{Leaf: &testpb.Tree_Data{Data: make([]byte, 1<<20)}}
	for range 15 {
		large = &testpb.Tree{Kids: []*testpb.Tree{large, large}}
	}
	for _, c := range []yodel.Codec{protobuf.Codec, protobuf.JSON} {
		if _, err := c.Append(nil, large); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
			t.Errorf("%s: the error is %v, want that there are too many bytes", c.Name(), err)
		}
	}
}

func tree() *testpb.Tree {
	return &testpb.Tree{
		Kids: []*testpb.Tree{
			{Leaf: &testpb.Tree_Data{Data: []byte{0, 1, 0xff}}},
			{Leaf: &testpb.Tree_Number{Number: -0.5}, Kids: []*testpb.Tree{{}}},
		},
		Counts: map[string]int64{"one": 1, "minus": -1},
	}
}

func TestKeepsTheContract(t *testing.T) {
	list, err := structpb.NewList([]any{1.5, "two", nil, map[string]any{"three": true}})
	if err != nil {
		t.Fatal(err)
	}
	many := testpb.Fill(&testpb.BenchmarkMessage{Field5: []uint64{1, 1 << 63}})
	for _, test := range []struct {
		yodel.Codec
		changes map[string]string
	}{{protobuf.Codec, nil}, {protobuf.JSON, valuetable.Changes["JSON"]}} {
		t.Run(test.Name(), func(t *testing.T) {
			yodeltest.TestCodec(t, test.Codec, &yodeltest.CodecOptions{Equal: equal, Changes: test.changes},
				many, tree(), list, wrapperspb.String(strings.Repeat("long", 1000)))
		})
	}
}

func TestDecodeReplacesWhatWasThere(t *testing.T) {
	b, err := protobuf.Codec.Append(nil, &testpb.Tree{Counts: map[string]int64{"new": 1}})
	if err != nil {
		t.Fatal(err)
	}
	got := tree()
	if err := protobuf.Codec.Decode(b, got); err != nil {
		t.Fatal(err)
	}
	if want := (&testpb.Tree{Counts: map[string]int64{"new": 1}}); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMissingRequiredFieldsAreErrors(t *testing.T) {
	if _, err := protobuf.Codec.Append(nil, new(testpb.BenchmarkMessage)); err == nil {
		t.Error("Append gave no error")
	}
	if err := protobuf.Codec.Decode(nil, new(testpb.BenchmarkMessage)); err == nil {
		t.Error("Decode gave no error")
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range []proto.Message{testpb.Fill(new(testpb.BenchmarkMessage)), tree()} {
		b, err := protobuf.Codec.Append(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, m := range []proto.Message{new(testpb.BenchmarkMessage), new(testpb.Tree)} {
			if protobuf.Codec.Decode(src, m) != nil {
				continue
			}
			if _, err := protobuf.Codec.Append(nil, m); err != nil {
				t.Fatalf("cannot encode what was decoded: %v", err)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	m := testpb.Fill(new(testpb.BenchmarkMessage))
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
	src, err := protobuf.Codec.Append(nil, testpb.Fill(new(testpb.BenchmarkMessage)))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if err := protobuf.Codec.Decode(src, new(testpb.BenchmarkMessage)); err != nil {
			b.Fatal(err)
		}
	}
}

func Example() {
	b, err := protobuf.Codec.Append(nil, wrapperspb.String("yodel"))
	if err != nil {
		fmt.Println(err)
		return
	}
	var m wrapperspb.StringValue
	err = protobuf.Codec.Decode(b, &m)
	fmt.Println(m.GetValue(), err)
	// Output: yodel <nil>
}

// FullJSON has the fields that are not set, and reads what JSON reads.
func TestFullJSON(t *testing.T) {
	for _, codec := range []yodel.Codec{protobuf.JSON, protobuf.FullJSON} {
		b, err := codec.Append(nil, &typepb.Option{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(b, &fields); err != nil {
			t.Fatal(err)
		}
		value, has := fields["value"]
		if want := codec == protobuf.FullJSON; has != want || value != nil || fields["name"] != "x" || codec.Name() != "json" {
			t.Errorf("%s: got %s", codec.Name(), b)
		}
		in := new(typepb.Option)
		if err := codec.Decode([]byte(`{"name":"y","unknown":1}`), in); err != nil || in.GetName() != "y" {
			t.Errorf("got %v, %v", in, err)
		}
	}
}
