// SPDX-License-Identifier: Apache-2.0

package codecs_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/smallnest/rpcx/protocol"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/bench/codecs/gencode"
	"github.com/yodel-rpc/yodel/bench/codecs/msgp"
	"github.com/yodel-rpc/yodel/bench/codecs/pb"
	"github.com/yodel-rpc/yodel/bench/codecs/plain"
	"github.com/yodel-rpc/yodel/bench/codecs/vtpb"
	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	gencodecodec "github.com/yodel-rpc/yodel/codec/gencode"
	gobcodec "github.com/yodel-rpc/yodel/codec/gob"
	msgpackcodec "github.com/yodel-rpc/yodel/codec/msgpack"
	protobufcodec "github.com/yodel-rpc/yodel/codec/protobuf"
)

// A row is a work with a codec.
type row struct {
	work, codec string
	frameworks  []framework
}

// A framework starts a server and a client of it, both of which end with tb.
type framework struct {
	name  string
	start func(tb testing.TB) caller
}

// A caller makes one call, waits for the reply and checks it. It is called concurrently.
type caller func(ctx context.Context) error

// A format is a codec as the frameworks need it.
type format struct {
	name  string
	yodel yodel.Codec
	rpcx  protocol.SerializeType
}

func rows() []row {
	reflective := []format{
		{"gob", gobcodec.Codec, gobOfRPCX},
		{"json", yodel.JSON, protocol.JSON},
		{"msgpack", msgpackcodec.Codec, protocol.MsgPack},
	}
	generatedMsgp := format{"msgp", msgpackcodec.Codec, protocol.MsgPack}
	generatedGencode := format{"gencode", gencodecodec.Trusting, gencodeOfRPCX}
	protobuf := format{"protobuf", protobufcodec.Codec, protocol.ProtoBuffer}
	vtprotobuf := format{"vtprotobuf", protobufcodec.Codec, vtprotobufOfRPCX}

	var all []row
	for _, f := range reflective {
		all = append(all, newRow("mul", f, &work[plain.Args, plain.Reply]{
			in:    &plain.Args{A: 7, B: 8},
			serve: func(in *plain.Args, out *plain.Reply) { out.C = in.A * in.B },
			right: func(out *plain.Reply) bool { return out.C == 56 },
		}))
	}
	all = append(all,
		newRow("mul", generatedMsgp, &work[msgp.Args, msgp.Reply]{
			in:    &msgp.Args{A: 7, B: 8},
			serve: func(in *msgp.Args, out *msgp.Reply) { out.C = in.A * in.B },
			right: func(out *msgp.Reply) bool { return out.C == 56 },
		}),
		newRow("mul", generatedGencode, &work[gencode.Args, gencode.Reply]{
			in:    &gencode.Args{A: 7, B: 8},
			serve: func(in *gencode.Args, out *gencode.Reply) { out.C = in.A * in.B },
			right: func(out *gencode.Reply) bool { return out.C == 56 },
		}),
		newRow("mul", protobuf, &work[pb.Args, pb.Reply]{
			in:    &pb.Args{A: proto.Int64(7), B: proto.Int64(8)},
			serve: func(in *pb.Args, out *pb.Reply) { out.C = proto.Int64(in.GetA() * in.GetB()) },
			right: func(out *pb.Reply) bool { return out.GetC() == 56 },
		}),
		newRow("mul", vtprotobuf, &work[vtpb.Args, vtpb.Reply]{
			in:    &vtpb.Args{A: proto.Int64(7), B: proto.Int64(8)},
			serve: func(in *vtpb.Args, out *vtpb.Reply) { out.C = proto.Int64(in.GetA() * in.GetB()) },
			right: func(out *vtpb.Reply) bool { return out.GetC() == 56 },
		}),
	)
	for _, f := range reflective {
		all = append(all, newRow("message", f, filled(assign[peer.PlainMessage])))
	}
	return append(all,
		newRow("message", generatedMsgp, filled(assign[msgp.BenchmarkMessage])),
		newRow("message", generatedGencode, filled(assign[gencode.BenchmarkMessage])),
		newRow("message", protobuf, filled(assignFields[pb.BenchmarkMessage]())),
		newRow("message", vtprotobuf, filled(assignFields[message.BenchmarkMessage]())),
	)
}

func newRow[In, Out any](name string, f format, w *work[In, Out]) row {
	return row{work: name, codec: f.name, frameworks: []framework{
		{"yodel", func(tb testing.TB) caller { return w.throughYodel(tb, f.yodel) }},
		{"netrpc", func(tb testing.TB) caller { return w.throughNetRPC(tb, f) }},
		{"rpcx", func(tb testing.TB) caller { return w.throughRPCX(tb, f.rpcx) }},
	}}
}

// A work is what a call carries, what the server does with it, and what has to come back.
type work[In, Out any] struct {
	in    *In
	serve func(in *In, out *Out)
	right func(out *Out) bool
}

func (w *work[In, Out]) check(out *Out) error {
	if !w.right(out) {
		return fmt.Errorf("wrong reply: %v", out)
	}
	return nil
}

// filled is the work of the benchmarks of RPC frameworks since 2016: the server sets field1 and
// field2 of the message that it has got, and returns it. M is a struct with the fields of
// BenchmarkMessage, or with pointers to them.
func filled[M any](assign func(to, from *M)) *work[M, M] {
	in := new(M)
	for f, v := range reflect.ValueOf(in).Elem().Fields() {
		if f.IsExported() {
			set(v, 100_000)
		}
	}
	return &work[M, M]{
		in: in,
		serve: func(in, out *M) {
			assign(out, in)
			field1, field2, _ := fields(out)
			*field1, *field2 = "OK", 100
		},
		right: func(out *M) bool {
			field1, field2, field102 := fields(out)
			return *field1 == "OK" && *field2 == 100 && *field102 == message.Text
		},
	}
}

// assign is for plain structs.
func assign[M any](to, from *M) { *to = *from }

// assignFields is for messages that must not be assigned as a whole, for what they have besides
// their fields.
func assignFields[M any]() func(to, from *M) {
	var exported []int
	for f := range reflect.TypeFor[M]().Fields() {
		if f.IsExported() {
			exported = append(exported, f.Index[0])
		}
	}
	return func(to, from *M) {
		t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
		for _, i := range exported {
			t.Field(i).Set(f.Field(i))
		}
	}
}

// set fills a field as the benchmarks do; lists stay empty.
func set(f reflect.Value, number int64) {
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	switch f.Kind() {
	case reflect.String:
		f.SetString(message.Text)
	case reflect.Bool:
		f.SetBool(true)
	case reflect.Int32, reflect.Int64:
		f.SetInt(number)
	default:
	}
}

// fields returns where a message has the fields that matter.
func fields(m any) (field1 *string, field2 *int32, field102 *string) {
	switch m := m.(type) {
	case *peer.PlainMessage:
		return &m.Field1, &m.Field2, &m.Field102
	case *msgp.BenchmarkMessage:
		return &m.Field1, &m.Field2, &m.Field102
	case *gencode.BenchmarkMessage:
		return &m.Field1, &m.Field2, &m.Field102
	case *pb.BenchmarkMessage:
		return m.Field1, m.Field2, m.Field102
	case *message.BenchmarkMessage:
		return m.Field1, m.Field2, m.Field102
	}
	panic(fmt.Sprintf("no message: %T", m))
}
