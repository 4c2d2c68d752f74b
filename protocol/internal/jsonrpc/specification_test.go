// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/jsonrpc"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A whole is a protocol whose connections carry one message each.
type whole struct {
	server jsonrpc.Server // without a session
	ctx    context.Context
}

func (*whole) Name() string                 { return "whole" }
func (*whole) Match([]byte) (ok, more bool) { return true, false }
func (w *whole) Serve(_ context.Context, s *yodel.Session) error {
	message, err := io.ReadAll(s.Reader)
	if err != nil {
		return err
	}
	server := w.server
	server.Session = s
	_, _ = s.Write(server.Do(w.ctx, message)) //nolint:contextcheck // an error ends the session
	return nil
}

// serve starts a server, and returns a function that sends it a message.
func serve(t testing.TB, w *whole, o yodel.ServerOptions) (s *yodel.Server, do func(message string) string) {
	t.Helper()
	if w.ctx == nil {
		w.ctx = context.Background()
	}
	o.Protocols, o.Logger = []yodel.Protocol{w}, slog.New(slog.DiscardHandler)
	s = yodel.NewServer(&o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return s, func(message string) string {
		conn, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.WriteString(conn, message)
		must(t, err)
		must(t, conn.(*net.TCPConn).CloseWrite())
		reply, err := io.ReadAll(conn)
		must(t, err)
		return string(reply)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The core answers the examples of the specification, section 7, without a stream around it.
func TestSpecification(t *testing.T) {
	s, do := serve(t, &whole{}, yodel.ServerOptions{})
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
	var examples []struct {
		Name, Request string
		Reply         json.RawMessage
	}
	file, err := os.ReadFile("testdata/specification.json")
	must(t, err)
	must(t, json.Unmarshal(file, &examples))
	if len(examples) != 15 {
		t.Fatalf("there are %d examples", len(examples))
	}
	for _, example := range examples {
		t.Run(example.Name, func(t *testing.T) {
			if got := do(example.Request); normal(t, []byte(got)) != normal(t, example.Reply) {
				t.Errorf("got %s\nwant %s", got, example.Reply)
			}
		})
	}
}

// normal returns a reply in a form that does not depend on the order of members and elements,
// without the text and the data of errors.
func normal(t testing.TB, reply []byte) string {
	t.Helper()
	if len(reply) == 0 {
		return ""
	}
	var whole any
	if err := json.Unmarshal(reply, &whole); err != nil {
		t.Fatalf("%s: %v", reply, err)
	}
	replies, batch := whole.([]any)
	if !batch {
		replies = []any{whole}
	}
	var list []string
	for _, r := range replies {
		if e, ok := r.(map[string]any)["error"].(map[string]any); ok {
			if e["message"] == "" {
				t.Errorf("%v has no message", e)
			}
			r.(map[string]any)["error"] = e["code"]
		}
		b, err := json.Marshal(r)
		must(t, err)
		list = append(list, string(b))
	}
	slices.Sort(list)
	return fmt.Sprint(batch, list)
}

// The server refuses an invalid request. The reply has the ID of the request, if that is valid.
func TestInvalidRequests(t *testing.T) {
	executed := false
	s, do := serve(t, &whole{}, yodel.ServerOptions{})
	must(t, s.Handle("run", func(int) { executed = true }))
	for request, want := range map[string]string{
		`  `:                                   `null -32700`,
		`{} {}`:                                `null -32700`,
		`nul`:                                  `null -32700`,
		`{"a":"` + "\n" + `"}`:                 `null -32700`,
		`7`:                                    `null -32600`,
		`"x"`:                                  `null -32600`,
		`{}`:                                   `null -32600`,
		`{"method":"run","params":[1],"id":1}`: `1 -32600`,
		`{"jsonrpc":"1.0","method":"run","params":[1],"id":1}`:                   `1 -32600`,
		`{"jsonrpc":2.0,"method":"run","params":[1],"id":"a"}`:                   `"a" -32600`,
		`{"jsonrpc":"2.0","method":"run","params":[1],"id":1,"id":1}`:            `1 -32600`,
		`{"jsonrpc":"2.0","method":"run","method":"run","params":[1],"id":1}`:    `1 -32600`,
		`{"jsonrpc":"2.0","method":"run","params":[1],"p\u0061rams":[1],"id":1}`: `1 -32600`,
		`{"jsonrpc":"2.0","jsonrpc":"2.0","method":"run","params":[1],"id":1}`:   `1 -32600`,
		`{"jsonrpc":"2.0","method":"run","params":[1],"id":true}`:                `null -32600`,
		`{"jsonrpc":"2.0","method":"run","params":[1],"id":{}}`:                  `null -32600`,
		`{"jsonrpc":"2.0","method":null,"params":[1],"id":1}`:                    `1 -32600`,
		`{"jsonrpc":"2.0","params":[1],"id":1}`:                                  `1 -32600`,
		`{"jsonrpc":"2.0","method":"run","params":null,"id":1}`:                  `1 -32600`,
		`{"jsonrpc":"2.0","method":"run","params":"x"}`:                          `null -32600`,
		`{"jsonrpc":"2.0","method":"","id":-1}`:                                  `-1 -32601`,
		`{"jsonrpc":"2.0","Method":"run","id":-1}`:                               `-1 -32600`,
	} {
		var got struct {
			ID    json.RawMessage
			Error struct{ Code int }
		}
		reply := do(request)
		if err := json.Unmarshal([]byte(reply), &got); err != nil || fmt.Sprintf("%s %d", got.ID, got.Error.Code) != want {
			t.Errorf("%s: got %s, want %s", request, reply, want)
		}
	}
	if executed {
		t.Error("a request was executed that is not valid")
	}
}

// The ID of a reply is that of the request, as it was sent: a client may compare it as text. All
// strings and numbers are IDs.
func TestIDsComeBackAsTheyWereSent(t *testing.T) {
	s, do := serve(t, &whole{}, yodel.ServerOptions{})
	must(t, s.Handle("run", func(int) {}))
	for _, id := range []string{"1.0", "1e3", "-0.5", "1E+2", "0", "-0", "123456789012345678901234567890", "null", `""`, `"1.0"`, `"\u0061\""`} {
		for _, version := range []string{`"2.0"`, `"\u0032.0"`} {
			request := `{"jsonrpc":` + version + `,"method":"run","params":[1],"id":` + id + `}`
			want := `{"jsonrpc":"2.0","id":` + id + `,"result":null}`
			if got := do(request); got != want {
				t.Errorf("%s: got %s", request, got)
			}
			if got := do("[" + request + "]"); got != "["+want+"]" {
				t.Errorf("a batch of %s: got %s", request, got)
			}
		}
	}
}

// A client finds its call by the ID of a reply, also if the server counts with floating-point
// numbers.
func TestNumberOfAReply(t *testing.T) {
	for id, want := range map[string]uint64{
		"1": 1, "1.0": 1, "1e0": 1, "10E-1": 1, "9007199254740992": 1 << 53, "18446744073709551615": 1<<64 - 1, "1.5": 0, "0": 0, "-1": 0, "0.0": 0, "1e300": 0, "1e999": 0, `"1"`: 0, "null": 0, "": 0,
	} {
		if got := jsonrpc.NumberOf([]byte(id)); got != want {
			t.Errorf("%s: got %d, want %d", id, got, want)
		}
	}
}

// A transport can give each call metadata and a deadline, and gets the trailer. When the context of
// a message ends, so do the contexts of its calls.
func TestPrepare(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	trailers := make(chan yodel.Metadata, 10)
	deadline := time.Now().Add(time.Hour)
	w := &whole{ctx: ctx, server: jsonrpc.Server{
		Prepare: func(v *yodel.Served) {
			v.Call().Metadata, v.Call().Deadline = yodel.Metadata{"color": "blue"}, deadline
		},
		Ran: func(v *yodel.Served) { trailers <- v.Call().Trailer },
	}}
	s, do := serve(t, w, yodel.ServerOptions{})
	must(t, s.Handle("color", func(ctx context.Context) (string, error) {
		call := yodel.CallFrom(ctx)
		if at, ok := ctx.Deadline(); !ok || !at.Equal(deadline) {
			t.Errorf("got the deadline %v", at)
		}
		call.Trailer = yodel.Metadata{"one-way": strconv.FormatBool(call.OneWay)}
		return call.Metadata["color"], nil
	}))
	must(t, s.Handle("wait", func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return yodel.Errorf(yodel.Aborted, "%w", context.Cause(ctx))
	}))
	if got, want := do(`[{"jsonrpc":"2.0","method":"color","id":1},{"jsonrpc":"2.0","method":"color"}]`), `[{"jsonrpc":"2.0","id":1,"result":"blue"}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := (<-trailers)["one-way"] + (<-trailers)["one-way"]; got != "truefalse" && got != "falsetrue" {
		t.Errorf("got the trailers %s", got)
	}
	if got := do(`{"jsonrpc":"2.0","method":"wait","id":1}`); !bytes.Contains([]byte(got), []byte(`"code":-32010`)) {
		t.Errorf("got %s", got)
	}
}

// A batch whose replies need more memory than there is loses only those replies. All of its calls
// are admitted before the first reply, because a call counts the size of the method's last reply.
func TestMemoryOfABatch(t *testing.T) {
	s, do := serve(t, &whole{}, yodel.ServerOptions{MaxMemory: 700 << 10})
	var running sync.WaitGroup
	running.Add(40)
	must(t, s.Handle("large", func(context.Context) (string, error) {
		running.Done()
		running.Wait()
		return string(bytes.Repeat([]byte("x"), 50_000)), nil
	}))
	var batch []string
	for i := range 40 {
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","method":"large","id":%d}`, i))
	}
	var replies []struct {
		ID     int
		Result string
		Error  struct {
			Code int
			Data struct{ ID string }
		}
	}
	must(t, json.Unmarshal([]byte(do("["+string(bytes.Join(bytesOf(batch), []byte(",")))+"]")), &replies))
	large, failed := 0, 0
	for _, r := range replies {
		switch {
		case len(r.Result) == 50_000:
			large++
		case r.Error.Code == -32008 && r.Error.Data.ID == "YDL3007":
			failed++
		default:
			t.Errorf("got %v", r)
		}
	}
	if len(replies) != 40 || large == 0 || large > 7 || failed == 0 {
		t.Errorf("%d of %d replies were sent, and %d failed", large, len(replies), failed)
	}
}

func bytesOf(list []string) (b [][]byte) {
	for _, s := range list {
		b = append(b, []byte(s))
	}
	return b
}

// A call whose parameters do not fit passes through the middleware first.
func TestMiddlewareBeforeParameters(t *testing.T) {
	var seen []string
	s, do := serve(t, &whole{}, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if seen = append(seen, call.Method); call.Method == "secret" {
				return yodel.Errorf(yodel.PermissionDenied, "no")
			}
			return next(ctx, call)
		}
	}}})
	must(t, s.Handle("secret", func(_ context.Context, in *int) (*int, error) { return in, nil }))
	must(t, s.Handle("open", func(_ context.Context, in *int) (*int, error) { return in, nil }))
	for method, want := range map[string]string{"secret": `"code":-32007,"message":"no"}`, "open": `"code":-32602,`} {
		for _, params := range []string{`[1,2]`, `[]`} {
			if got := do(`{"jsonrpc":"2.0","method":"` + method + `","params":` + params + `,"id":1}`); !bytes.Contains([]byte(got), []byte(want)) {
				t.Errorf("%s %s: got %s, want %s", method, params, got, want)
			}
		}
		if got := do(`{"jsonrpc":"2.0","method":"` + method + `","params":[1],"id":1}`); bytes.Contains([]byte(got), []byte("result")) != (method == "open") {
			t.Errorf("%s with parameters that fit: got %s", method, got)
		}
	}
	if len(seen) != 6 {
		t.Errorf("the middleware saw %q, want 6 calls", seen)
	}
}

// Without Wait, a call for which there is no room is refused.
func TestNoRoom(t *testing.T) {
	s, do := serve(t, &whole{}, yodel.ServerOptions{MaxOpen: 1})
	must(t, s.Handle("outer", func(context.Context) string { return do(`{"jsonrpc":"2.0","method":"inner","id":"a"}`) }))
	must(t, s.Handle("inner", func(context.Context) string { return "" }))
	got := do(`{"jsonrpc":"2.0","method":"outer","id":1}`)
	for _, want := range []string{`\"id\":\"a\",\"error\":{\"code\":-32008,`, `\"data\":{\"code\":\"resource_exhausted\",\"id\":\"YDL3002\",\"notProcessed\":true}`} {
		if !bytes.Contains([]byte(got), []byte(want)) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A Leaver ends its goroutine when it is encoded.
type Leaver struct{}

func (Leaver) MarshalJSON() ([]byte, error) {
	runtime.Goexit()
	return nil, nil
}

func (*Leaver) UnmarshalJSON([]byte) error { return nil }

// A Thrower panics when it is encoded.
type Thrower struct{}

func (Thrower) MarshalJSON() ([]byte, error) { panic("oh") }
func (*Thrower) UnmarshalJSON([]byte) error  { return nil }

// A reply that cannot be encoded fails its call, and no other call of the batch.
func TestRepliesThatCannotBeEncoded(t *testing.T) {
	s, do := serve(t, &whole{}, yodel.ServerOptions{})
	must(t, s.Handle("leave", func(context.Context) Leaver { return Leaver{} }))
	must(t, s.Handle("throw", func(context.Context) Thrower { return Thrower{} }))
	must(t, s.Handle("fine", func(context.Context) int { return 5 }))
	got := normal(t, []byte(do(`[{"jsonrpc":"2.0","method":"leave","id":1},{"jsonrpc":"2.0","method":"throw","id":2},{"jsonrpc":"2.0","method":"fine","id":3}]`)))
	want := normal(t, []byte(`[{"jsonrpc":"2.0","error":{"code":-32603,"message":"x"},"id":1},{"jsonrpc":"2.0","error":{"code":-32603,"message":"x"},"id":2},{"jsonrpc":"2.0","result":5,"id":3}]`))
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
