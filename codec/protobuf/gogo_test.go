// SPDX-License-Identifier: Apache-2.0

package protobuf_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/yodel-rpc/yodel/codec/protobuf"
)

// A gogoNode is a message as gogo/protobuf generates it, with a field that is no pointer.
// Conformance/rpcx has real ones.
type gogoNode struct {
	Name string     `protobuf:"bytes,1,opt,name=name,proto3" json:"name,omitempty"`
	More gogoLeaf   `protobuf:"bytes,2,opt,name=more,proto3" json:"more"`
	Next []gogoNode `protobuf:"bytes,3,rep,name=next,proto3" json:"next"`
	Self *gogoNode  `json:"-"` // not of the message
}

type gogoLeaf struct {
	N int64 `protobuf:"varint,1,opt,name=n,proto3" json:"n,omitempty"`
}

func (m *gogoNode) Reset()       { *m = gogoNode{} }
func (*gogoNode) String() string { return "a node" }
func (*gogoNode) ProtoMessage()  {}
func (m *gogoNode) Marshal() ([]byte, error) {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), m.Name)
	for i := range m.Next {
		inner, err := m.Next[i].Marshal()
		if err != nil {
			return nil, err
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), inner)
	}
	return b, nil
}

func (m *gogoNode) Unmarshal(b []byte) error {
	for len(b) > 0 {
		number, _, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errors.New("a broken tag")
		}
		value, length := protowire.ConsumeBytes(b[n:])
		if length < 0 {
			return errors.New("a broken value")
		}
		if b = b[n+length:]; number == 1 {
			m.Name = string(value)
			continue
		}
		m.Next = append(m.Next, gogoNode{})
		if err := m.Next[len(m.Next)-1].Unmarshal(value); err != nil {
			return err
		}
	}
	return nil
}

// Messages of older generators encode and decode themselves, within the limits of others.
func TestMessagesOfOlderGenerators(t *testing.T) {
	check := protobuf.Codec.(interface{ CheckType(t reflect.Type) error })
	if err := check.CheckType(reflect.TypeFor[gogoNode]()); err != nil {
		t.Error(err)
	}
	if err := check.CheckType(reflect.TypeFor[gogoLeaf]()); err == nil {
		t.Error("a struct without methods is a message")
	}
	chain := func(levels int) *gogoNode {
		m := &gogoNode{Name: "x"}
		m.Self = m
		for range levels - 1 {
			m = &gogoNode{Name: "x", Next: []gogoNode{*m}}
		}
		return m
	}
	for levels, fits := range map[int]bool{1: true, 999: true, 1002: false} {
		b, err := protobuf.Codec.Append([]byte("before"), chain(levels))
		if (err == nil) != fits {
			t.Errorf("%d levels: %v", levels, err)
		}
		if !fits {
			continue
		}
		got := &gogoNode{Name: "previous", Next: make([]gogoNode, 3)}
		if err := protobuf.Codec.Decode(b[len("before"):], got); err != nil || len(got.Next) != min(levels-1, 1) || got.Name != "x" {
			t.Errorf("%d levels: got %d and %q, %v", levels, len(got.Next), got.Name, err)
		}
	}
	if err := protobuf.Codec.Decode([]byte{0xff}, new(gogoNode)); err == nil || !strings.Contains(err.Error(), "a broken tag") {
		t.Errorf("broken bytes: %v", err)
	}
	if err := protobuf.Codec.Decode(nil, (*gogoNode)(nil)); err == nil {
		t.Error("a nil pointer is decoded into")
	}
}

// A message that decodes itself could exhaust the stack, which ends the process.
func TestDeepMessagesOfOlderGeneratorsAreRefused(t *testing.T) {
	for levels, want := range map[int]string{9_000: "", 1_000_000: "levels"} {
		var b []byte // from the end, so that each level is the length and the tag of the next one
		size := 0
		for range levels {
			head := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.BytesType), uint64(size))
			size += len(head)
			slices.Reverse(head)
			b = append(b, head...)
		}
		slices.Reverse(b)
		b = append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), strings.Repeat("x", 64<<10)), b...)
		err := protobuf.Codec.Decode(b, new(gogoNode))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d levels: got %v", levels, err)
		}
	}
}
