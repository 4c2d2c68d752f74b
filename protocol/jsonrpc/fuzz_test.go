// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/rpc"
	std "net/rpc/jsonrpc"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// An example is one of the specification, section 7.
type example struct {
	Name, Request string
	Reply         json.RawMessage
	Ends          bool // the connection ends
}

func examples(t testing.TB) (list []example) {
	t.Helper()
	file, err := os.ReadFile("../internal/jsonrpc/testdata/specification.json")
	must(t, err)
	must(t, json.Unmarshal(file, &list))
	if len(list) != 15 {
		t.Fatalf("there are %d examples", len(list))
	}
	return list
}

// The server answers the examples of the specification over TCP.
func TestSpecification(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	must(t, s.HandleCall("subtract", func(_ context.Context, call *yodel.Call) error {
		var named struct{ Minuend, Subtrahend int }
		err := call.DecodeInto(&named)
		if list := make([]int, 0, 2); call.DecodeInto(&list) == nil && len(list) == 2 {
			named.Minuend, named.Subtrahend, err = list[0], list[1], nil
		}
		call.Reply = named.Minuend - named.Subtrahend
		return err
	}))
	must(t, s.Handle("sum", func(a, b, c int) int { return a + b + c }))
	must(t, s.Handle("get_data", func(context.Context) (string, int, error) { return "hello", 5, nil }))
	probe := `{"jsonrpc":"2.0","method":"sum","params":[0,0,1],"id":"probe"}`
	for _, example := range examples(t) {
		t.Run(example.Name, func(t *testing.T) {
			c := connect(t, s.addr)
			if got, want := c.ask(probe), `{"jsonrpc":"2.0","id":"probe","result":1}`; got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
			if c.send(example.Request); example.Reply != nil {
				if got := c.line(); normal(t, got) != normal(t, string(example.Reply)) {
					t.Errorf("got %s\nwant %s", got, example.Reply)
				}
			}
			if example.Ends {
				if got := c.line(); got != "" {
					t.Errorf("the connection goes on with %s", got)
				}
				return
			}
			if got := c.ask(probe); !strings.Contains(got, `"probe"`) {
				t.Errorf("the next reply is %s", got)
			}
		})
	}
}

// normal returns a reply in a form that does not depend on the order of members and elements,
// without the text and the data of errors.
func normal(t testing.TB, reply string) string {
	t.Helper()
	var whole any
	if err := json.Unmarshal([]byte(reply), &whole); err != nil {
		t.Fatalf("%s: %v", reply, err)
	}
	replies, batch := whole.([]any)
	if !batch {
		replies = []any{whole}
	}
	var list []string
	for _, r := range replies {
		if e, ok := r.(map[string]any)["error"].(map[string]any); ok {
			r.(map[string]any)["error"] = e["code"]
		}
		b, err := json.Marshal(r)
		must(t, err)
		list = append(list, string(b))
	}
	slices.Sort(list)
	if batch {
		list = append(list, "batch")
	}
	return strings.Join(list, "\n")
}

// Whatever a client sends, its session ends when the client has left, nothing panics, each reply is
// JSON, and other clients are served.
func FuzzServe(f *testing.F) {
	for _, example := range examples(f) {
		f.Add([]byte(example.Request))
	}
	f.Add([]byte(`{"method":"Sum","params":[[1,2]],"id":0} {"method":"Sum","params":[1],"id":null}`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"Any","params":{"a":[]},"id":""}{"jsonrpc":"2.0","method":"Swap","params":["a","b"],"id":-1}`))
	f.Add([]byte(`[{"jsonrpc":"2.0","method":"Empty","id":1},{"jsonrpc":"2.0","method":"Raw","params":[],"id":2}]`))
	var log bytes.Buffer
	network := mem.New()
	s := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{jsonrpc.Protocol}, MaxMemory: 1 << 20, MaxOpen: 2,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	for name, handler := range map[string]any{
		"Sum":   func(_ context.Context, in *[]int) (*int, error) { return new(len(*in)), nil },
		"Any":   func(_ context.Context, in *any) (*any, error) { return in, nil },
		"Swap":  func(a, b string) (string, string) { return b, a },
		"Empty": func(context.Context, *struct{}) (*struct{}, error) { return new(struct{}), nil },
	} {
		must(f, s.Handle(name, handler))
	}
	must(f, s.HandleCall("Raw", func(_ context.Context, call *yodel.Call) error {
		e := new(yodel.Encoded)
		if err := call.Request(e); err != nil {
			return err
		}
		call.Reply = e
		return nil
	}))
	l, err := network.Listen("fuzz")
	must(f, err)
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
		must(t, err)
		defer c.Close()
		go func() {
			_, _ = io.WriteString(c, "{") // so that the server takes it for JSON-RPC
			_, _ = c.Write(bytes.TrimPrefix(sent, []byte("{")))
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		replies, err := io.ReadAll(c)
		if err != nil && !strings.Contains(err.Error(), "closed") {
			t.Fatal(err)
		}
		for decoder := json.NewDecoder(bytes.NewReader(replies)); ; {
			var reply any
			if err := decoder.Decode(&reply); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%q: %v", replies, err)
			}
		}
		good, err := network.Dial(t.Context(), "fuzz")
		must(t, err)
		client := rpc.NewClientWithCodec(std.NewClientCodec(good))
		defer client.Close()
		var got int
		if err := client.Call("Sum", []int{1, 2, 3}, &got); err != nil || got != 3 {
			t.Fatalf("another client got %d, %v", got, err)
		}
	})
}

// Match says the same of a beginning, whatever comes behind it.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{`{"jsonrpc"`, "  \n[ 1]", `[{"a":1}]`, `[]`, `[1,"`, "\t\t", "GET / HTTP/1.1", "\x00\x00\x00\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, first []byte) {
		first = first[:min(len(first), 512)]
		decided, was := false, false
		for n := 1; n <= len(first); n++ {
			ok, more := jsonrpc.Protocol.Match(first[:n])
			if decided && ok != was {
				t.Fatalf("%q: it matched is %t, and %t without the last byte", first[:n], ok, was)
			}
			if decided = ok || !more; ok && bytes.HasPrefix(bytes.TrimSpace(first[:n]), []byte("[1")) {
				t.Fatalf("%q was taken for JSON-RPC", first[:n])
			}
			was = ok
		}
	})
}

func TestMatch(t *testing.T) {
	for first, want := range map[string][2]bool{
		"{": {true, false}, " \r\n\t{": {true, false}, "[": {false, true}, "[{": {true, false}, "[ ": {true, false}, "[]": {true, false}, "[\n": {true, false},
		"[1": {false, false}, `[1,"`: {false, false}, " ": {false, true}, "x": {false, false}, `"`: {false, false}, "\xf5yodel": {false, false},
	} {
		if ok, more := jsonrpc.Protocol.Match([]byte(first)); ok != want[0] || more != want[1] {
			t.Errorf("%q: got %t, %t", first, ok, more)
		}
	}
}

// BenchmarkCall makes calls one after the other, with yodel's client on the other side of the wire.
func BenchmarkCall(b *testing.B) {
	s := serve(b, yodel.ServerOptions{})
	yodel.Method[Args, int]("Mul").Handle(s.Server, func(_ context.Context, a *Args) (*int, error) { return new(a.A * a.B), nil })
	b.Run("server", func(b *testing.B) { // the client allocates nothing
		c := connect(b, s.addr)
		request, reply := []byte(`{"jsonrpc":"2.0","id":1,"method":"Mul","params":{"A":6,"B":7}}`), make([]byte, 1000)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Write(request); err != nil {
				b.Fatal(err)
			}
			if n, err := c.Read(reply); err != nil || reply[n-1] != '\n' {
				b.Fatal(string(reply[:n]), err)
			}
		}
	})
	b.Run("both", func(b *testing.B) {
		c := calling(b, yodel.ClientOptions{}, "jsonrpc://"+s.addr)
		b.ReportAllocs()
		var product int
		args := Args{6, 7}
		for b.Loop() {
			if err := c.Call(b.Context(), "Mul", &args, &product); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// The server does not allocate more for a call than it did when it was measured.
func TestAllocationsOfACall(t *testing.T) {
	if testing.CoverMode() != "" || raceEnabled {
		t.Skip("it would measure something else")
	}
	s := serve(t, yodel.ServerOptions{})
	yodel.Method[Args, int]("Mul").Handle(s.Server, func(_ context.Context, a *Args) (*int, error) { return new(a.A * a.B), nil })
	c := connect(t, s.addr)
	request, reply := []byte(`{"jsonrpc":"2.0","id":1,"method":"Mul","params":{"A":6,"B":7}}`), make([]byte, 1000)
	got := testing.AllocsPerRun(2000, func() {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(reply); err != nil || reply[n-1] != '\n' {
			t.Fatal(string(reply[:n]), err)
		}
	})
	if most := 22.0; got > most {
		t.Errorf("a call made %v allocations, want at most %v", got, most)
	}
}
