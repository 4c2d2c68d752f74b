// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/strictjson"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
)

// A family is what a program has in memory: its children know their parent.
type family struct {
	Name     string
	Parent   *family
	Children []*family
}

func cyclicTree() *family {
	root := &family{Name: "root"}
	root.Children = []*family{{Name: "child", Parent: root}}
	return root
}

func deepTree() *family {
	root := &family{}
	for range 1_000_000 {
		root = &family{Children: []*family{root}}
	}
	return root
}

// A value that contains itself, or is very deep, fails its call: in each codec, over each wire, in
// both directions. The connection and the process go on.
func TestCyclicAndDeepValuesFailTheirCall(t *testing.T) {
	t.Parallel()
	deep := deepTree()
	codecs := map[string]yodel.Codec{"json": yodel.JSON, "gob": gob.Codec, "strictjson": strictjson.Codec}
	for name, bad := range map[string]func() *family{"cyclic": cyclicTree, "deep": func() *family { return deep }} {
		for codecName, codec := range codecs {
			t.Run(name+"/"+codecName, func(t *testing.T) {
				t.Parallel()
				s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{codec}})
				handleTrees(t, s, bad)
				c := yodel.NewClient(discovery.Static(serve(t, s)), &yodel.ClientOptions{Codec: codec})
				defer c.Close()
				tryTrees(t, c, bad, true)
			})
		}
	}
	wires := map[string]struct {
		codec    yodel.Codec
		protocol yodel.Protocol
		wire     yodel.Wire
	}{
		"netrpc":  {gob.Codec, netrpc.Protocol, netrpc.Wire(gob.Codec)},
		"jsonrpc": {yodel.JSON, jsonrpc.Protocol, jsonrpc.Wire(yodel.JSON)},
	}
	for name, w := range wires {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{w.codec}, Protocols: []yodel.Protocol{w.protocol}})
			handleTrees(t, s, cyclicTree)
			c := yodel.NewClient(discovery.Static(name+"://"+serve(t, s)), &yodel.ClientOptions{Codec: w.codec, Wires: []yodel.Wire{w.wire}})
			defer c.Close()
			tryTrees(t, c, cyclicTree, false)
		})
	}
}

func handleTrees(t *testing.T, s *yodel.Server, bad func() *family) {
	t.Helper()
	handle(t, s, "Tree.Get", func(context.Context, *family) (*family, error) { return bad(), nil })
	handle(t, s, "Tree.Echo", func(_ context.Context, in *family) (*family, error) { return in, nil })
	handle(t, s, "Tree.Late", func(ctx context.Context, _ *family) (*family, error) {
		yodel.CallFrom(ctx).Later()(bad(), nil)
		return nil, nil
	})
	handle(t, s, "Tree.Encode", func(ctx context.Context, _ *family) (*family, error) {
		call := yodel.CallFrom(ctx)
		call.Reply = bad()
		_, err := call.Encode()
		return &family{}, err
	})
	yodel.Feed[family, family]("Tree.Feed").Handle(s, func(_ context.Context, _ *family, send yodel.Send[family]) error { return send(bad()) })
	yodel.Upload[family, family]("Tree.Upload").Handle(s, func(_ context.Context, recv yodel.Recv[family]) (*family, error) {
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
		}
		return &family{}, nil
	})
}

func tryTrees(t *testing.T, c *yodel.Client, bad func() *family, native bool) {
	t.Helper()
	call := func(name string, in *family) error { return c.Call(timely(t), name, in, new(family)) }
	tries := map[string]func() error{
		"a request": func() error { return call("Tree.Echo", bad()) },
		"a reply":   func() error { return call("Tree.Get", &family{}) },
		"Call.Encode on the server": func() error {
			return call("Tree.Encode", &family{})
		},
	}
	if native {
		tries["a late reply"] = func() error { return call("Tree.Late", &family{}) }
		tries["an asynchronous request"] = func() error {
			return asyncCall(t, c, &yodel.Call{Method: "Tree.Echo", Args: bad(), Reply: new(family)}, func() {})
		}
		tries["a notification"] = func() error { return c.Notify(timely(t), "Tree.Echo", bad()) }
		tries["a message of a feed"] = func() error {
			_, err := yodel.Feed[family, family]("Tree.Feed").Call(timely(t), c, &family{}).Next()
			return err
		}
		tries["a message of an upload"] = func() error {
			_, err := yodel.Upload[family, family]("Tree.Upload").Call(timely(t), c, func(send yodel.Send[family]) error { return send(bad()) })
			return err
		}
	}
	for name, try := range tries {
		err := try()
		if err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "nested more than 1000 levels") {
			t.Errorf("%s: got %v", name, err)
		}
		if err := call("Tree.Echo", &family{Name: "good", Children: []*family{{}}}); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}
