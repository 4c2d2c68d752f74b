// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/carries"
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
		"rpcx": {yodel.JSON, rpcx.Wire(yodel.JSON)}, "rpcx, protobuf": {pbstruct.Codec, rpcx.Wire(pbstruct.Codec)}, "Connect": {yodel.JSON, connect.Wire(nil)},
		"Connect, protobuf": {pbstruct.Codec, connect.Wire(nil)}, "gRPC": {pbstruct.Codec, grpc.Wire},
		"gRPC-Web": {pbstruct.Codec, grpc.Web}, "gRPC, JSON": {yodel.JSON, grpc.Wire},
		"Thrift": {thriftcodec.Codec, thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Service: "All"})},
		"Dubbo":  {hessian2.Codec, dubbo.Wire(hessian2.Codec, &dubbo.WireOptions{Parameters: map[string]string{"All.Echo": "Ljava/lang/Object;"}})},
	}
}

// echo starts a server, and returns a codec that sends each message through a call over the wire.
func (w valueWire) echo(t *testing.T) *echoing {
	t.Helper()
	e := &echoing{Codec: w.codec}
	s := newValueServer()
	if err := s.HandleCall("All.Echo", e.serve); err != nil {
		t.Fatal(err)
	}
	e.call = caller(t, w.dial(t, s, w.codec), nil)
	return e
}

func newValueServer() *yodel.Server {
	return yodel.NewServer(&yodel.ServerOptions{
		Codecs: append(codecs(), pbstruct.Codec), Protocols: new(Trial).protocols(), Logger: silent,
	})
}

// dial returns a client of the server over the wire. Codec is the client's.
func (w valueWire) dial(t *testing.T, s *yodel.Server, codec yodel.Codec) *yodel.Client {
	t.Helper()
	o, addr := &yodel.ClientOptions{Codec: codec, Logger: silent}, serve(t, s, nil)
	if w.wire != nil {
		o.Wires, addr = []yodel.Wire{w.wire}, w.wire.Name()+"://"+addr
	}
	c := yodel.NewClient(discovery.Static(addr), o)
	t.Cleanup(c.Close)
	return c
}

// caller returns a function that calls All.Echo. Codec is that of the calls, or nil.
func caller(t *testing.T, c yodel.Caller, codec yodel.Codec) func(in, out any) error {
	t.Helper()
	return func(in, out any) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return c.Do(ctx, &yodel.Call{Method: "All.Echo", Args: in, Reply: out, Codec: codec})
	}
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
	for name, w := range valueWires() {
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

// An asking codec asks for each message that its codec does not carry, as the reply of a call.
type asking struct {
	yodel.Codec
	call  func(in, out any) error
	asked int
	wrong []string // answers that are not those of a call that was not sent
}

func (a *asking) Append(dst []byte, v any) ([]byte, error) {
	t := reflect.TypeOf(v).Elem()
	if carries.Check(a.Codec, t) == nil {
		return dst, errCarried
	}
	a.ask(new(basket), reflect.New(t).Interface())
	a.ask(yodel.Values{new(basket)}, yodel.Values{reflect.New(t).Interface()})
	return dst, errCarried
}

var errCarried = errors.New("it is not asked for")

func (a *asking) ask(in, out any) {
	a.asked++
	err := a.call(in, out)
	e, ok := errors.AsType[*yodel.Error](err)
	if _, several := out.(yodel.Values); !ok || !e.NotProcessed || !several && e.ID != "YDL2102" {
		a.wrong = append(a.wrong, fmt.Sprintf("%T: %v", out, err))
	}
}

// undecodable is a message that no codec carries.
type undecodable struct {
	C chan int `pb:"1" thrift:"1"`
}

// A client does not send a call whose reply it could not decode, over every wire: the server would
// execute it first.
func TestACallWithoutADecodableReplyIsNotExecuted(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	for name, w := range valueWires() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var executed atomic.Int64
			s := newValueServer()
			count := func(_ context.Context, call *yodel.Call) error {
				executed.Add(1)
				call.Reply = new(basket)
				return nil
			}
			if err := errors.Join(
				s.HandleCall("All.Echo", count), s.HandleStream("All.Up", "upload", func(ctx context.Context, call *yodel.Call, _, _ func(any) error) error {
					return count(ctx, call)
				}),
			); err != nil {
				t.Fatal(err)
			}
			callers := map[string]func(in, out any) error{
				"the client's codec": caller(t, w.dial(t, s, w.codec), nil),
			}
			if w.wire == nil || strings.HasPrefix(name, "rpcx") || strings.HasPrefix(name, "gRPC") || strings.HasPrefix(name, "Connect") {
				callers["the call's codec"] = caller(t, w.dial(t, s, yodel.JSON), w.codec)
			}
			if w.wire == nil {
				callers["in process"] = caller(t, s, w.codec)
			} else if !strings.HasPrefix(name, "gRPC") && !strings.HasPrefix(name, "Connect") { // their codec is the client's
				callers["the wire's codec"] = caller(t, w.dial(t, s, nil), nil)
			}
			for whose, call := range callers {
				if err := call(new(basket), new(basket)); err != nil {
					t.Fatalf("%s: %v", whose, err)
				}
				executed.Store(0)
				a := &asking{Codec: w.codec, call: call}
				yodeltest.ValueOutcomes(a)
				if a.asked < 10 {
					t.Errorf("%s: only %d calls were tried", whose, a.asked)
				}
				if n := executed.Load(); n > 0 {
					t.Errorf("%s: %d methods were executed", whose, n)
				}
				for _, answer := range a.wrong[:min(len(a.wrong), 3)] {
					t.Errorf("%s: %s", whose, answer)
				}
			}
			executed.Store(0)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := yodel.Upload[basket, undecodable]("All.Up").Call(ctx, w.dial(t, s, w.codec), func(yodel.Send[basket]) error { return nil })
			if n := executed.Load(); err == nil || n > 0 {
				t.Errorf("an upload: %d methods were executed: %v", n, err)
			}
		})
	}
}

// jsonOnly has methods for JSON only.
type jsonOnly struct{ n int }

func (j jsonOnly) MarshalJSON() ([]byte, error)  { return json.Marshal(j.n) }
func (j *jsonOnly) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &j.n) }

// A server does not execute a method whose reply the codec of the call does not carry, over every
// wire, also if another codec of the server carries it.
func TestAMethodWithoutASendableReplyIsNotExecuted(t *testing.T) {
	t.Parallel()
	t.Attr("rerun", "never")
	for name, w := range valueWires() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var executed atomic.Int64
			s := newValueServer()
			err := s.Handle("All.Echo", func(context.Context, *basket) (*jsonOnly, error) {
				executed.Add(1)
				return &jsonOnly{1}, nil
			})
			if w.codec == yodel.JSON {
				err = errors.Join(s.Unregister("All.Echo"), s.Handle("All.Echo", func(context.Context, *basket) (*complex128, error) {
					executed.Add(1)
					return new(complex128), nil
				}))
			}
			if err != nil {
				t.Fatal(err)
			}
			err = caller(t, w.dial(t, s, w.codec), nil)(new(basket), new(yodel.Encoded))
			e, ok := errors.AsType[*yodel.Error](err)
			if n := executed.Load(); n > 0 || !ok || e.Code != yodel.Unimplemented {
				t.Errorf("%d methods were executed: %v", n, err)
			}
		})
	}
}
