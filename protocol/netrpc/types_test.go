// SPDX-License-Identifier: Apache-2.0

package netrpc_test

import (
	"bufio"
	"bytes"
	"context"
	std "encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"net/rpc"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/transport/mem"
)

type (
	// Box has a value of any type.
	Box struct{ Inside any }
	// Label is in a Box.
	Label struct {
		Text  string
		Parts []Part
	}
	// Part is in a Label.
	Part struct {
		N  int
		In any
	}
	// Table is in a Box.
	Table map[string]any
)

func init() { //nolint:gochecknoinits // gob has a registry
	for _, v := range []any{Box{}, Label{}, Part{}, Table{}, []any{}} {
		std.Register(v)
	}
}

// A client defines the type of an interface value once, within the first value that has it. Later
// calls have it all the same.
func TestArgumentsWithInterfaces(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	err := s.Handle("Show", func(_ context.Context, b *Box) (*string, error) { return new(fmt.Sprintf("%+v", b.Inside)), nil })
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, s.addr)
	part := Part{1, Label{Text: "deep", Parts: []Part{{2, "text"}, {3, nil}}}}
	for range 3 {
		for _, inside := range []any{
			nil, 7, "text", Label{Text: "a"}, Label{"b", []Part{{1, 2.5}, part}}, Table{"x": part}, []any{1, "two", Table{"three": Label{}}, Box{Box{part}}}, []byte("raw"),
		} {
			var got string
			if err := c.Call("Show", Box{inside}, &got); err != nil || got != fmt.Sprintf("%+v", inside) {
				t.Errorf("%+v: got %s, %v", inside, got, err)
			}
			var product int
			if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
				t.Fatalf("after it: got %d, %v", product, err)
			}
		}
	}
}

// A refused call whose arguments have interfaces does not end the connection, on which other calls
// are open.
func TestRefusedArgumentsWithInterfaces(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Connect: func(context.Context, *yodel.Peer) error { return errors.New("not you") }})
	c := dial(t, s.addr)
	for range 3 {
		for _, inside := range []any{7, Label{Text: "a"}, Part{1, Label{Text: "b"}}} { // each type is defined in the first request that has it
			if err := c.Call("Show", Box{inside}, new(string)); err == nil || !strings.Contains(err.Error(), "not you") {
				t.Fatalf("%+v: got %v, want the refusal", inside, err)
			}
		}
	}
}

// Calls cost no more because their client has defined many other types.
func TestOnlyNeededDefinitionsAreDecoded(t *testing.T) {
	var sizes []int
	s := serve(t, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			body, err := call.Body()
			if err != nil {
				return err
			}
			if call.Method == "Arith.Multiply" {
				sizes = append(sizes, len(body))
			}
			return next(ctx, call)
		}
	}}})
	c := dial(t, s.addr)
	multiply := func() {
		t.Helper()
		var product int
		if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
			t.Fatalf("got %d, %v", product, err)
		}
	}
	multiply()
	for i := range 60 { // 2 KiB of definitions each
		if err := c.Call("Arith.Multiply", bigType(i, 150), new(int)); err == nil || !strings.Contains(err.Error(), "YDL2101") {
			t.Fatalf("type %d: got %v, want that it does not fit", i, err)
		}
	}
	multiply()
	if first, last := sizes[0], sizes[len(sizes)-1]; first != last {
		t.Errorf("the request had %d bytes, and %d after other types were defined", first, last)
	}
}

// bigType returns a value of a struct type with n fields of its own names.
func bigType(i, n int) any {
	var fields []reflect.StructField
	for j := range n {
		fields = append(fields, reflect.StructField{Name: fmt.Sprintf("Field%dOf%d", j, i), Type: reflect.TypeFor[int]()})
	}
	v := reflect.New(reflect.StructOf(fields))
	v.Elem().Field(0).SetInt(1)
	return v.Interface()
}

// A client that defines too much loses its connection.
func TestDefinitionsAreBounded(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	for name, c := range map[string]*rpc.Client{"one type": dial(t, s.addr), "all types": dial(t, s.addr)} {
		fields, calls := 2000, 1
		if name == "all types" {
			fields, calls = 500, 100
		}
		var err error
		for i := range calls {
			if err = c.Call("Arith.Multiply", bigType(i, fields), new(int)); err == nil {
				t.Fatalf("%s: the call succeeded", name)
			} else if !strings.Contains(err.Error(), "YDL") {
				break
			}
		}
		if strings.Contains(err.Error(), "YDL") {
			t.Errorf("%s: the connection goes on: %v", name, err)
		}
	}
}

// A Quitter ends the goroutine that encodes it.
type Quitter struct{ N int }

// GobEncode implements gob.GobEncoder.
func (q Quitter) GobEncode() ([]byte, error) {
	if q.N == 0 {
		panic("oh")
	}
	runtime.Goexit()
	return nil, nil
}

// GobDecode implements gob.GobDecoder.
func (*Quitter) GobDecode([]byte) error { return nil }

// A reply whose own method panics or ends the goroutine fails its call, and no other one.
func TestRepliesThatCannotBeEncoded(t *testing.T) {
	s := serve(t, yodel.ServerOptions{MaxOpen: 1})
	if err := s.Handle("Quit", func(_ context.Context, n *int) (*Quitter, error) { return &Quitter{*n}, nil }); err != nil {
		t.Fatal(err)
	}
	c := dial(t, s.addr)
	for i := range 6 {
		id := []string{"[YDL5001]", "[YDL2104]"}[i%2]
		if err := c.Call("Quit", i%2, new(Quitter)); err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("got %v, want %s", err, id)
		}
		var product int
		if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
			t.Fatalf("got %d, %v", product, err)
		}
	}
}

// Middleware may answer with an encoded reply, also for methods that do not exist.
func TestEncodedReplies(t *testing.T) {
	body, err := gob.Codec.Append(nil, new(42))
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, yodel.ServerOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
		return func(_ context.Context, call *yodel.Call) error {
			call.Reply = &yodel.Encoded{Body: body}
			return nil
		}
	}}})
	c := dial(t, s.addr)
	var product int
	if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 42 {
		t.Errorf("got %d, %v", product, err)
	}
	if err := c.Call("Arith.Nothing", &Args{7, 8}, &product); err == nil || !strings.Contains(err.Error(), "[YDL2104]") {
		t.Errorf("got %v", err)
	}
}

// requests returns what a client sends for calls.
func requests(tb testing.TB, args ...any) []byte {
	tb.Helper()
	var b bytes.Buffer
	e := std.NewEncoder(&b)
	for i, v := range args {
		if err := e.Encode(&rpc.Request{ServiceMethod: "Arith.Multiply", Seq: uint64(i)}); err != nil {
			tb.Fatal(err)
		}
		if err := e.Encode(v); err != nil {
			tb.Fatal(err)
		}
	}
	return b.Bytes()
}

// Whatever a client sends, its session ends when the client has left, nothing panics, and no memory
// stays counted.
func FuzzServe(f *testing.F) {
	f.Add(requests(f, &Args{7, 8}, &Args{1, 2}))
	f.Add(requests(f, Box{Label{"b", []Part{{1, 2.5}}}}, Box{Table{"x": Part{1, Label{}}}}, Box{Label{}}))
	f.Add([]byte("CONNECT /_goRPC_ HTTP/1.0\n\n"))
	f.Add(append([]byte("CONNECT /_goRPC_ HTTP/1.0\n\n"), requests(f, bigType(1, 50))...))
	var log bytes.Buffer
	network := mem.New()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{gob.Codec}, Protocols: []yodel.Protocol{netrpc.Protocol}, MaxMemory: 1 << 20, MaxOpen: 2,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	for name, handler := range map[string]any{
		"Arith.Multiply": func(_ context.Context, b *Box) (*Box, error) { return b, nil },
		"Multiply":       func(_ context.Context, a *Args) (*int, error) { return new(a.A * a.B), nil },
	} {
		if err := s.Handle(name, handler); err != nil {
			f.Fatal(err)
		}
	}
	l, err := network.Listen("fuzz")
	if err != nil {
		f.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { ended <- s.Serve(ctx, l) }()
	f.Cleanup(func() {
		stop()
		<-ended
		if log.Len() > 0 {
			f.Errorf("the log: %s", log.String())
		}
	})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := network.Dial(t.Context(), "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			_, _ = c.Write(sent) // the server may have closed the connection
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if _, err := bufio.NewReader(c).WriteTo(discard{}); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Fatal(err)
		}
		good, err := network.Dial(t.Context(), "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		client := rpc.NewClient(good)
		defer client.Close()
		var got Box
		if err := client.Call("Arith.Multiply", Box{Label{Text: "x"}}, &got); err != nil || got.Inside.(Label).Text != "x" {
			t.Fatalf("another client got %+v, %v", got, err)
		}
	})
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// Match says the same of a beginning, whatever comes behind it, and does not ask for more than a
// server reads.
func FuzzMatch(f *testing.F) {
	f.Add(requests(f, &Args{7, 8}))
	f.Add([]byte("CONNECT /_goRPC_ HTTP/1.0\n\n"))
	f.Add([]byte("0100000000000"))
	f.Add([]byte("\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03"))
	f.Fuzz(func(t *testing.T, first []byte) {
		first = first[:min(len(first), 512)]
		matched := false
		for n := 1; n <= len(first); n++ {
			ok, more := netrpc.Protocol.Match(first[:n])
			if matched && !ok {
				t.Fatalf("%q: it matched without the last byte", first[:n])
			}
			if matched = ok; !ok && !more {
				if ok, _ := netrpc.Protocol.Match(first); ok {
					t.Fatalf("%q: it was refused after %d bytes", first, n)
				}
				return
			}
			if !ok && more && n > 64 {
				t.Fatalf("%q: it asks for more than %d bytes", first, n)
			}
		}
	})
}
