// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// An echoing codec sends each message through a call to a server that decodes it and returns it.
type echoing struct {
	yodel.Codec
	call func(in, out any) error
	mu   sync.Mutex
	sent reflect.Type // the type of the message that the server decodes
	got  any          // the last reply
}

func (e *echoing) CheckType(t reflect.Type) error {
	checker, ok := e.Codec.(interface{ CheckType(t reflect.Type) error })
	if !ok {
		return nil
	}
	return checker.CheckType(t)
}

func (e *echoing) Append(dst []byte, v any) ([]byte, error) {
	e.mu.Lock()
	e.sent = reflect.TypeOf(v).Elem()
	e.mu.Unlock()
	e.got = reflect.New(e.sent).Interface()
	return append(dst, "sent"...), e.call(v, e.got)
}

func (e *echoing) Decode(_ []byte, v any) error {
	reflect.ValueOf(v).Elem().Set(reflect.ValueOf(e.got).Elem())
	return nil
}

// serve handles the calls of the codec.
func (e *echoing) serve(ctx context.Context, call *yodel.Call) error {
	e.mu.Lock()
	message := reflect.New(e.sent).Interface()
	e.mu.Unlock()
	if err := call.DecodeInto(message); err != nil {
		return err
	}
	call.Reply = message
	return nil
}

// A valueWire is a wire and the codec of its calls. Wire is nil for yodel's own protocol.
type valueWire struct {
	codec yodel.Codec
	wire  yodel.Wire
}

func valueWires() map[string]valueWire {
	return map[string]valueWire{
		"yodel, JSON": {yodel.JSON, nil}, "yodel, gob": {gob.Codec, nil}, "yodel, hessian2": {hessian2.Codec, nil},
		"yodel, thrift": {thriftcodec.Codec, nil}, "yodel, pbstruct": {pbstruct.Codec, nil},
		"JSON-RPC": {yodel.JSON, jsonrpc.Wire(yodel.JSON)}, "net rpc": {gob.Codec, netrpc.Wire(gob.Codec)},
		"rpcx": {yodel.JSON, rpcx.Wire(yodel.JSON)}, "Connect": {yodel.JSON, connect.Wire(nil)},
		"Connect, protobuf": {pbstruct.Codec, connect.Wire(nil)}, "gRPC": {pbstruct.Codec, grpc.Wire},
		"gRPC-Web": {pbstruct.Codec, grpc.Web}, "gRPC, JSON": {yodel.JSON, grpc.Wire},
		"Thrift": {thriftcodec.Codec, thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "All"})},
		"Dubbo":  {hessian2.Codec, dubbo.Wire(hessian2.Codec, &dubbo.WireOptions{Parameters: map[string]string{"All.Echo": "Ljava/lang/Object;"}})},
	}
}

// echo starts a server, and returns a codec that sends each message through a call over the wire.
func (w valueWire) echo(t *testing.T) *echoing {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: append(codecs(), pbstruct.Codec), Protocols: new(Trial).protocols(), Logger: silent,
	})
	e := &echoing{Codec: w.codec}
	if err := s.HandleCall("All.Echo", e.serve); err != nil {
		t.Fatal(err)
	}
	o, addr := &yodel.ClientOptions{Codec: w.codec, Logger: silent}, serve(t, s, nil)
	if w.wire != nil {
		o.Wires, addr = []yodel.Wire{w.wire}, w.wire.Name()+"://"+addr
	}
	c := yodel.NewClient(yodel.Static(addr), o)
	t.Cleanup(c.Close)
	e.call = func(in, out any) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return c.Call(ctx, "All.Echo", in, out)
	}
	return e
}

// Each wire carries the values that its codec carries, as requests and as replies, and changes and
// refuses no other.
func TestValuesOverEveryWire(t *testing.T) {
	t.Parallel()
	for name, w := range valueWires() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := w.echo(t)
			direct := yodeltest.ValueOutcomes(w.codec)
			for i, o := range yodeltest.ValueOutcomes(e) {
				if name == "JSON-RPC" && (strings.HasSuffix(o.Value, "the whole message") || o.Value == "embedded time.Time alone") {
					continue // params are a list or an object: the server has to know the types
				}
				if want := direct[i]; o.Value != want.Value || o.Result != want.Result {
					t.Errorf("%s is %s over the wire, and %s in the codec: %s", o.Value, o.Result, want.Result, o.Text)
				}
			}
		})
	}
}

// A basket is a reply into a variable that is used again.
type basket struct {
	Name   string           `pb:"1" thrift:"1"`
	Counts map[string]int64 `pb:"2" thrift:"2"`
	Items  []basketItem     `pb:"3" thrift:"3"`
	First  *basketItem      `pb:"4" thrift:"4"`
}

type basketItem struct {
	Name  string `json:",omitempty" pb:"1" thrift:"1"`
	Count int64  `json:",omitempty" pb:"2" thrift:"2"`
}

// A reply replaces all that the caller's variable held, over every wire.
func TestAReplyReplacesOverEveryWire(t *testing.T) {
	t.Parallel()
	wires := valueWires()
	wires["rpcx, protobuf"] = valueWire{pbstruct.Codec, rpcx.Wire(pbstruct.Codec)} // an empty message has no bytes
	for name, w := range wires {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := w.echo(t)
			e.sent = reflect.TypeFor[basket]()
			used := &basket{}
			for i, sent := range []*basket{
				{"full", map[string]int64{"a": 1}, []basketItem{{"x", 1}, {"y", 2}}, &basketItem{"z", 3}},
				{"other", map[string]int64{"b": 2}, []basketItem{{Name: "v"}}, &basketItem{Count: 4}},
				{}, // absent fields only
			} {
				if err := e.call(sent, used); err != nil {
					t.Fatalf("call %d: %v", i, err)
				}
				if got, want := fmt.Sprintf("%+v %+v", *used, used.First), fmt.Sprintf("%+v %+v", *sent, sent.First); stable(got) != stable(want) {
					t.Errorf("call %d: got %s, want %s", i, got, want)
				}
			}
		})
	}
}

// stable removes the addresses from the text of a value.
func stable(text string) string { return regexp.MustCompile("0x[0-9a-f]+").ReplaceAllString(text, "") }
