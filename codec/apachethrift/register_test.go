// SPDX-License-Identifier: Apache-2.0

package apachethrift_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/apachethrift"
	"github.com/yodel-rpc/yodel/codec/apachethrift/internal/testthrift"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A mixer is a handler.
type mixer struct{}

func (mixer) Mix(_ context.Context, p *testthrift.Paint) (*testthrift.Paint, error) {
	if p == nil {
		return &testthrift.Paint{Name: "no paint"}, nil
	}
	switch p.GetName() {
	case "dry":
		return nil, &testthrift.Dry{Reason: "sun"}
	case "coded":
		return nil, &testthrift.Dry{Reason: "rain"}
	case "denied":
		return nil, yodel.Errorf(yodel.PermissionDenied, "not you")
	case "broken":
		return nil, errors.New("broken")
	}
	return &testthrift.Paint{Name: "mixed " + p.GetName()}, nil
}

// A function is a method of a processor that was not generated.
type function func(out thrift.TProtocol) thrift.TException

func (f function) Process(_ context.Context, _ int32, _, out thrift.TProtocol) (bool, thrift.TException) {
	return true, f(out)
}

func TestRegister(t *testing.T) {
	for _, f := range formats {
		t.Run(f.Name(), func(t *testing.T) {
			s := yodeltest.NewServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{f.Codec, yodel.JSON}})
			if err := apachethrift.Register(s.Server, "Paints", testthrift.NewPaintsProcessor(mixer{})); err != nil {
				t.Fatal(err)
			}
			c := yodeltest.NewClient(t, &yodel.ClientOptions{Codec: f.Codec}, s)
			sky, reply := &testthrift.Paint{Name: "sky"}, new(testthrift.Paint)
			for how, args := range map[string]any{"arguments": &testthrift.PaintsMixArgs{Paint: sky}, "the argument": sky} {
				if err := c.Call(t.Context(), "Paints.mix", args, reply); err != nil || reply.Name != "mixed sky" {
					t.Errorf("%s: got %v, %v", how, reply, err)
				}
			}
			if err := c.Call(t.Context(), "Paints.mix", yodel.Values{sky}, yodel.Values{reply}); err != nil || reply.Name != "mixed sky" {
				t.Errorf("values: got %v, %v", reply, err)
			}
			if err := c.Call(t.Context(), "Paints.mix", yodel.Values{}, yodel.Values{reply}); err != nil || reply.Name != "no paint" {
				t.Errorf("no argument: got %v, %v", reply, err)
			}
			for name, code := range map[string]yodel.Code{"denied": yodel.PermissionDenied, "broken": yodel.Unknown, "dry": yodel.Unknown, "coded": yodel.FailedPrecondition} {
				err := c.Call(t.Context(), "Paints.mix", &testthrift.Paint{Name: name}, reply)
				e, ok := errors.AsType[*yodel.Error](err)
				if !ok || e.Code != code || (name == "dry" || name == "coded") && (len(e.Details) != 1 || e.Details[0].Type != "thrift.exception.1") {
					t.Errorf("%s: got %v, want %v", name, err, code)
				}
			}
			if err := c.Call(t.Context(), "Paints.mix", "sky", reply); err != nil || reply.Name != "no paint" {
				t.Errorf("an argument of another type: got %v, %v, want that of Apache's server", reply, err)
			}
			damaged := &yodel.Encoded{Body: []byte{f.args, 8, 0}}
			for how, args := range map[string]any{"a damaged struct": damaged, "bytes behind": &yodel.Encoded{Body: []byte{f.args, 0, 0}}} {
				err := c.Call(t.Context(), "Paints.mix", args, reply)
				if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.InvalidArgument || e.ID != "YDL2101" {
					t.Errorf("%s: got %v", how, err)
				}
			}
			err := c.Do(t.Context(), &yodel.Call{Method: "Paints.mix", Args: sky, Codec: yodel.JSON})
			if yodel.CodeOf(err) != yodel.InvalidArgument || !strings.Contains(err.Error(), `thrift-compact, not "json"`) {
				t.Errorf("JSON: got %v", err)
			}
		})
	}
}

func TestRegisterRefuses(t *testing.T) {
	s := yodel.NewServer(nil)
	if err := apachethrift.Register(s, "Paints", nil); err == nil {
		t.Error("nil was registered")
	}
	p := testthrift.NewPaintsProcessor(mixer{})
	p.AddToProcessorMap("also", function(func(thrift.TProtocol) thrift.TException { return nil }))
	if err := s.Handle("Paints.mix", func() {}); err != nil {
		t.Fatal(err)
	}
	if err := apachethrift.Register(s, "Paints", p); err == nil || !strings.Contains(err.Error(), "Paints.mix: the name is taken") {
		t.Errorf("got %v, want that the name is taken", err)
	}
	if err := apachethrift.Register(s, "", p); err != nil {
		t.Error(err)
	}
	if err := s.Unregister("mix", "also"); err != nil {
		t.Error(err)
	}
	if err := s.Unregister("Paints.also"); err == nil {
		t.Error("a part of the methods was registered")
	}
}

// A processor that answers nothing, or garbage, fails its call.
func TestProcessorsThatDoNotAnswer(t *testing.T) {
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{codec.Codec}})
	p := testthrift.NewPaintsProcessor(mixer{})
	for name, f := range map[string]function{
		"silent":  func(thrift.TProtocol) thrift.TException { return nil },
		"failing": func(thrift.TProtocol) thrift.TException { return thrift.NewTTransportException(0, "no answer") },
		"garbage": func(out thrift.TProtocol) thrift.TException { _ = out.WriteByte(t.Context(), 1); return nil },
		"cut": func(out thrift.TProtocol) thrift.TException {
			_ = out.WriteMessageBegin(t.Context(), "cut", thrift.REPLY, 0)
			return nil
		},
		"panicked": func(thrift.TProtocol) thrift.TException { panic("panicked") },
	} {
		p.AddToProcessorMap(name, f)
	}
	if err := apachethrift.Register(s.Server, "Paints", p); err != nil {
		t.Fatal(err)
	}
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Codec: codec.Codec}, s)
	for name, want := range map[string]string{
		"silent": "", "failing": "no answer", "garbage": "a damaged message", "cut": "a damaged result", "panicked": "panicked",
	} {
		err := c.Call(t.Context(), "Paints."+name, yodel.Values{}, nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

// A Shelf is a handler of generated code. Registered as any other type, the second argument of Put
// would be taken for its result.
type Shelf struct{}

func (Shelf) Put(context.Context, string, *testthrift.Paint) error { return nil }

// A Lists is a handler whose second argument is a list.
type Lists struct{}

func (Lists) Put(context.Context, string, []string) error { return nil }

func TestServersDoNotGuessAboutHandlers(t *testing.T) {
	for handler, want := range map[any]string{
		Shelf{}: "Put: its parameters, such as *testthrift.Paint, are of Apache Thrift's generated code",
		Lists{}: "Put: its second parameter is []string",
	} {
		err := yodel.NewServer(nil).Register(handler)
		if e, ok := errors.AsType[*yodel.Error](err); !ok || !strings.Contains(e.Message, want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := yodel.NewServer(nil).Register(mixer{}); err != nil { // its only method is like that of any other type
		t.Error(err)
	}
}
