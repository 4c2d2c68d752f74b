// SPDX-License-Identifier: Apache-2.0

package apachethrift_test

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/apachethrift"
	"github.com/yodel-rpc/yodel/codec/apachethrift/internal/testthrift"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

var formats = []struct {
	yodel.Codec
	apache thrift.TProtocolFactory
	args   byte // before the arguments of a method
}{
	{apachethrift.New(codec.Codec), thrift.NewTBinaryProtocolFactoryConf(nil), 0xff},
	{apachethrift.New(codec.Compact), thrift.NewTCompactProtocolFactoryConf(nil), 0xf0},
}

func paint() *testthrift.Paint {
	return &testthrift.Paint{
		Name: "sky", Color: testthrift.Color_BLUE, Codes: []int32{7}, Litres: -3,
		Parts: []*testthrift.Paint{{Name: "grün", Color: testthrift.Color_RED, Codes: []int32{}}},
	}
}

// Plain is encoded by package codec/thrift.
type Plain struct {
	Number int64               `thrift:"number,1"`
	Codes  map[string]struct{} `thrift:"codes,2"`
}

func TestKeepsTheContract(t *testing.T) {
	color := testthrift.Color_BLUE
	generated := func(message any) bool { _, is := message.(thrift.TStruct); return is } // the defaults of its constructor
	for _, f := range formats {
		t.Run(f.Name(), func(t *testing.T) {
			yodeltest.TestCodec(t, f.Codec, &yodeltest.CodecOptions{Changes: valuetable.Changes["thrift"], Keeps: generated}, paint(), &testthrift.Dry{Reason: "sun"}, &color, &Plain{Number: 1, Codes: map[string]struct{}{"a": {}}},
				&[]*testthrift.Paint{paint(), paint()}, &map[int64]map[testthrift.Color]*testthrift.Paint{1: {testthrift.Color_RED: paint()}, 2: {}},
				&map[testthrift.Color][]byte{1: {2, 3}}, &[]map[testthrift.Color]thrift.Tuuid{{1: {15: 9}}},
				&map[testthrift.Color]struct{}{testthrift.Color_RED: {}}, new("text"), new(true), &testthrift.PaintsMixArgs{Paint: paint()})
		})
	}
}

// Enums and sets have their own types on the wire, which the Go types do not show.
func TestSameBytesAsApache(t *testing.T) {
	for _, f := range formats {
		b := thrift.NewTMemoryBuffer()
		if err := paint().Write(t.Context(), f.apache.GetProtocol(b)); err != nil {
			t.Fatal(err)
		}
		for name, message := range map[string]any{"pointer": paint(), "value": *paint()} {
			if got, err := f.Append([]byte("x"), message); err != nil || !bytes.Equal(got[1:], b.Bytes()) {
				t.Errorf("%s, %s: got %x, %v, want %x", f.Name(), name, got, err, b.Bytes())
			}
		}
		got, err := f.Append(nil, &testthrift.PaintsMixArgs{Paint: paint()})
		if err != nil || got[0] != f.args {
			t.Errorf("%s: the arguments begin with %x, %v", f.Name(), got[:1], err)
		}
		one := new(testthrift.Paint)
		if err = f.Decode(got, &one); err != nil || !one.Equals(paint()) { // the argument itself
			t.Errorf("%s: got %v, %v", f.Name(), one, err)
		}
		nothing := paint()
		if err = f.Decode([]byte{f.args, 0}, &nothing); err != nil || nothing != nil {
			t.Errorf("%s: an argument that was left out became %v, %v", f.Name(), nothing, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	type mixed struct {
		Paint *testthrift.Paint `thrift:"paint,1"`
	}
	for _, f := range formats {
		for want, message := range map[string]any{
			"mixed.Paint has a type that Apache's compiler has generated": &mixed{Paint: paint()},
			"is the result of a method":                                   &testthrift.PaintsMixResult{Success: paint()},
			"cannot encode a nil":                                         (*testthrift.Paint)(nil),
			"an element is a nil *testthrift.Paint":                       []*testthrift.Paint{nil},
			"chan int is no type that Apache's compiler generates":        map[testthrift.Color]chan int{},
			"uint32 is no type that Apache's compiler generates":          []map[testthrift.Color]uint32{{}},
			"is no value of an enum":                                      testthrift.Color(math.MaxInt32 + 1),
		} {
			if _, err := f.Append(nil, message); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: encoding %T: got %v, want %q", f.Name(), message, err, want)
			}
		}
		whole, err := f.Append(nil, paint())
		if err != nil {
			t.Fatal(err)
		}
		colors, err := f.Append(nil, []testthrift.Color{1})
		if err != nil {
			t.Fatal(err)
		}
		type decoding struct {
			b    []byte
			into any
		}
		for name, c := range map[string]decoding{
			"a part":                {whole[:len(whole)-1], new(testthrift.Paint)},
			"bytes behind":          {append(bytes.Clone(whole), 0), new(testthrift.Paint)},
			"nothing":               {nil, new(testthrift.Paint)},
			"a list as a struct":    {colors, new(testthrift.Paint)},
			"a struct as a list":    {whole, new([]testthrift.Color)},
			"other elements":        {colors, new([]*testthrift.Paint)},
			"a struct as arguments": {whole, new(testthrift.PaintsMixArgs)},
			"a result":              {whole, new(testthrift.PaintsMixResult)},
			"a nil pointer":         {whole, (*testthrift.Paint)(nil)},
			"no pointer":            {whole, testthrift.Paint{}},
		} {
			if err := f.Decode(c.b, c.into); err == nil {
				t.Errorf("%s: decoding %s succeeded", f.Name(), name)
			}
		}
	}
}

// FuzzDecode checks that no message makes the generated code panic, and that what was decoded can
// be encoded.
func FuzzDecode(f *testing.F) {
	for _, format := range formats {
		for _, message := range []any{paint(), []*testthrift.Paint{paint()}, map[testthrift.Color]*testthrift.Paint{1: paint()}, &testthrift.PaintsMixArgs{Paint: paint()}} {
			b, err := format.Append(nil, message)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, format := range formats {
			for _, into := range []any{
				new(testthrift.Paint), new([]*testthrift.Paint), new(map[testthrift.Color]*testthrift.Paint), new(testthrift.PaintsMixArgs), new(testthrift.Color),
			} {
				if format.Decode(b, into) != nil {
					continue
				}
				if _, err := format.Append(nil, into); err != nil && !strings.Contains(err.Error(), "set") && !strings.Contains(err.Error(), "nil") {
					t.Errorf("%s, %x: %v", format.Name(), b, err)
				}
			}
		}
	})
}

// A recorder is a client that records the call and answers it.
type recorder struct {
	call  *yodel.Call
	reply []byte
	err   error
}

func (r *recorder) Do(_ context.Context, call *yodel.Call) error {
	if r.call = call; call.Reply != nil {
		call.Reply.(*yodel.Encoded).Body = r.reply
	}
	return r.err
}

func TestClientFillsTheResult(t *testing.T) {
	for _, f := range formats {
		encoded, err := f.Append(nil, paint())
		if err != nil {
			t.Fatal(err)
		}
		r := &recorder{reply: encoded}
		client := testthrift.NewPaintsClient(apachethrift.Client(r, f.Codec, "Paints"))
		got, err := client.Mix(t.Context(), paint())
		if err != nil || !got.Equals(paint()) || r.call.Method != "Paints.mix" {
			t.Errorf("%s: %s returned %v, %v", f.Name(), r.call.Method, got, err)
		}
		dry, err := f.Append(nil, &testthrift.Dry{Reason: "sun"})
		if err != nil {
			t.Fatal(err)
		}
		r.reply, r.err = nil, &yodel.Error{Details: []yodel.Detail{{Type: "other"}, {Type: "thrift.exception.1", Value: dry}}}
		if _, err = client.Mix(t.Context(), paint()); err == nil {
			t.Errorf("%s: an exception was lost", f.Name())
		} else if dry, ok := err.(*testthrift.Dry); !ok || dry.Reason != "sun" {
			t.Errorf("%s: got %v", f.Name(), err)
		}
		r.err = yodel.Errorf(yodel.Unavailable, "none")
		if _, err = client.Mix(t.Context(), paint()); yodel.CodeOf(err) != yodel.Unavailable {
			t.Errorf("%s: got %v", f.Name(), err)
		}
	}
}
