// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	std "net/rpc/jsonrpc"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
)

// Arith is a service as net/rpc's documentation has it.
type Arith struct {
	began   chan struct{}
	release chan struct{}
}

type (
	Args     struct{ A, B int }
	Quotient struct{ Quo, Rem int }
)

func (*Arith) Multiply(args *Args, reply *int) error {
	*reply = args.A * args.B
	return nil
}

func (*Arith) Divide(args Args, quo *Quotient) error {
	if args.B == 0 {
		return errors.New("divide by zero")
	}
	quo.Quo, quo.Rem = args.A/args.B, args.A%args.B
	return nil
}

func (a *Arith) Wait(_ int, reply *string) error {
	a.began <- struct{}{}
	<-a.release
	*reply = "waited"
	return nil
}

func (*Arith) Sum(list []int, reply *int) error {
	for _, n := range list {
		*reply += n
	}
	return nil
}

func (*Arith) Refuse(_ int, _ *int) error { return errors.New("permission_denied: not you") }

// A served is a yodel server that clients of JSON-RPC call too.
type served struct {
	*yodel.Server
	arith *Arith
	addr  string
	log   *bytes.Buffer // complete when stop has returned
	stop  func() error  // shuts it down
}

func serve(t testing.TB, o yodel.ServerOptions) *served {
	t.Helper()
	o.Protocols = []yodel.Protocol{jsonrpc.Protocol}
	s := &served{arith: &Arith{began: make(chan struct{}, 100), release: make(chan struct{})}, log: new(bytes.Buffer)}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	}
	s.Server = yodel.NewServer(&o)
	must(t, s.Register(s.arith))
	l := testserve.Listen(t)
	s.addr, s.stop = l.Addr().String(), testserve.Run(t, s.Server, l)
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A textConn is a connection on which a test writes what it wants.
type textConn struct {
	t testing.TB
	net.Conn
	lines *bufio.Scanner
}

func connect(t testing.TB, addr string) *textConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed already
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 32<<20)
	return &textConn{t, conn, lines}
}

func (r *textConn) send(text string) {
	r.t.Helper()
	_, err := io.WriteString(r, text)
	must(r.t, err)
}

// line returns the next line, or "" at the end of the connection.
func (r *textConn) line() string {
	if !r.lines.Scan() {
		return ""
	}
	return r.lines.Text()
}

// ask sends a request and returns the reply.
func (r *textConn) ask(request string) string {
	r.t.Helper()
	r.send(request)
	return r.line()
}

// The standard library's clients call a yodel server unchanged.
func TestUnchangedClients(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 100_000}})
	c, err := std.Dial("tcp", s.addr)
	must(t, err)
	defer c.Close()
	var product int
	if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("got %d, %v", product, err)
	}
	var sum int
	if err := c.Call("Arith.Sum", []int{1, 2, 4}, &sum); err != nil || sum != 7 {
		t.Errorf("got %d, %v", sum, err)
	}
	for method, want := range map[string]string{
		"Arith.Divide": "divide by zero", "Arith.Refuse": "permission_denied: not you", "Arith.Nothing": "rpc: can't find service Arith.Nothing",
	} {
		var args any = Args{1, 0}
		if method == "Arith.Refuse" {
			args = 1
		}
		if err := c.Call(method, args, &Quotient{}); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", method, err, want)
		}
	}
	if err := c.Call("Arith.Multiply", "seven", &product); err == nil || !strings.Contains(err.Error(), "invalid_argument: Arith.Multiply: the request does not fit") {
		t.Errorf("got %v", err)
	}
	if err := c.Call("Arith.Multiply", strings.Repeat("x", 200_000), &product); err == nil || !strings.Contains(err.Error(), "[YDL2201]") {
		t.Errorf("a request that is too large: got %v", err)
	}
	var waited string
	call := c.Go("Arith.Wait", 1, &waited, nil)
	<-s.arith.began
	if err := c.Call("Arith.Multiply", &Args{7, 8}, &product); err != nil || product != 56 {
		t.Errorf("while another call runs: got %d, %v", product, err)
	}
	close(s.arith.release)
	if <-call.Done; call.Error != nil || waited != "waited" {
		t.Errorf("got %q, %v", waited, call.Error)
	}
}

// Parameters of each form reach methods of each shape.
func TestParameters(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	must(t, s.Handle("Swap", func(a, b string) (string, string) { return b, a }))
	must(t, s.Handle("Length", func(a string) int { return len(a) }))
	must(t, s.Handle("Nothing", func(context.Context) error { return nil }))
	must(t, s.Handle("Grid", func(_ context.Context, in *[][]int) (*int, error) { n := len(*in); return &n, nil }))
	must(t, s.Handle("Time", func(_ context.Context, in *time.Time) (*int, error) { n := in.Year(); return &n, nil }))
	must(t, s.Handle("Any", func(_ context.Context, in *any) (*any, error) { return in, nil }))
	must(t, s.HandleCall("Raw", func(_ context.Context, call *yodel.Call) error {
		body, err := call.Body()
		call.Reply = string(body)
		return err
	}))
	yodel.Method[struct{}, struct{}]("Empty").Handle(s.Server, func(context.Context, *struct{}) (*struct{}, error) { return nil, nil })
	c := connect(t, s.addr)
	for i, test := range []struct{ method, params, want string }{
		{"Arith.Multiply", `{"A":6,"B":7}`, `42`},
		{"Arith.Multiply", `[ { "A" : 6 , "B" : 7 } ]`, `42`},
		{"Arith/Multiply", `[{"A":6,"B":7}]`, `42`},
		{"Arith.Multiply", `[{"A":6},{"B":7}]`, `-32602 several`},
		{"Arith.Multiply", `[]`, `-32602 give an object, or an array with one value`},
		{"Arith.Multiply", ``, `-32602 missing`},
		{"Arith.Multiply", `["A"]`, `-32602 does not fit`},
		{"Arith.Multiply", `7`, `-32600 "params" must be an array or an object`},
		{"Arith.Sum", `[1,2,4]`, `7`},
		{"Arith.Sum", `[[1,2,4]]`, `7`},
		{"Arith.Sum", `[5]`, `5`},
		{"Arith.Sum", `[]`, `0`},
		{"Arith.Sum", `[null]`, `0`},
		{"Grid", `[[1],[2]]`, `2`},
		{"Grid", `[[[1],[2],[3]]]`, `3`},
		{"Time", `["2026-01-02T03:04:05Z"]`, `2026`},
		{"Any", `[1,2]`, `[1,2]`},
		{"Any", `["x"]`, `"x"`},
		{"Any", `{"a":[]}`, `{"a":[]}`},
		{"Swap", `["a","b"]`, `["b","a"]`},
		{"Swap", `["a"]`, `-32602 1 values came, 2 are expected`},
		{"Swap", `["a","b","c","d"]`, `-32602 values came, 2 are expected`},
		{"Swap", `{"a":1}`, `-32602 by position`},
		{"Swap", ``, `-32602 0 values came`},
		{"Length", `["a\u0020b"]`, `3`},
		{"Length", `[7]`, `-32602 value 1`},
		{"Nothing", ``, `null`},
		{"Nothing", `[]`, `null`},
		{"Nothing", `{}`, `null`},
		{"Nothing", `[1]`, `-32602 values came`},
		{"Nothing", `{"a":1}`, `-32602 by position`},
		{"Empty", ``, `{}`},
		{"Empty", `[]`, `{}`},
		{"Empty", `{ }`, `{}`},
		{"Empty", `[1]`, `-32602 does not fit`},
		{"Raw", `[1, {"a":2}]`, `"[1, {\"a\":2}]"`},
		{"Raw", ``, `""`},
	} {
		params := ""
		if test.params != "" {
			params = `,"params":` + test.params
		}
		reply := c.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"%s"%s}`, i, test.method, params))
		var got struct {
			ID     int
			Result json.RawMessage
			Error  *struct {
				Code    int
				Message string
			}
		}
		must(t, json.Unmarshal([]byte(reply), &got))
		if got.ID != i {
			t.Fatalf("%s %s: got the ID of another request: %s", test.method, test.params, reply)
		}
		code, text, _ := strings.Cut(test.want, " ")
		switch {
		case got.Error == nil && string(got.Result) == test.want:
		case got.Error != nil && code == fmt.Sprint(got.Error.Code) && strings.Contains(got.Error.Message, text):
		default:
			t.Errorf("%s %s: got %s, want %s", test.method, test.params, reply, test.want)
		}
	}
}

// Requests may follow each other in any way, and the server answers those with an ID.
func TestStream(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := connect(t, s.addr)
	c.send("\r\n\t " + `{"jsonrpc":"2.0","method":"Arith.Multiply","params":{"A":1,"B":2},"id":"ä\u0041"}`)
	if got, want := c.line(), `{"jsonrpc":"2.0","id":"ä\u0041","result":2}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.send(`{"method":"Arith.Multiply","params":[{"A":1,"B":2}],"id":[1]}` + `{"method":"Arith.Multiply","params":[{"A":1,"B":2}],"id":null}` + "\n\n")
	if got, want := c.line(), `{"id":[1],"result":2,"error":null}`; got != want {
		t.Errorf("version 1.0: got %s, want %s", got, want)
	}
	c.send(`{"jsonrpc":"2.0","method":"Nothing"}`) // a notification that fails
	c.send(`{"jsonrpc":"2.0","method":"Arith.Multiply","params":{"A":3,"B":2},"id":null}`)
	if got, want := c.line(), `{"jsonrpc":"2.0","id":null,"result":6}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := c.ask(`{"foo":"boo"}`), `{"id":null,"result":null,"error":"invalid request: the member \"method\" is missing"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := c.ask(`[1]`), `[{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: a request is an object"}}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":1,]`); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: `) {
		t.Errorf("got %s", got)
	}
	if got := c.line(); got != "" {
		t.Errorf("after bytes that are not JSON: got %s", got)
	}
	must(t, s.stop())
	if !strings.Contains(s.log.String(), "YDL1106") {
		t.Errorf("the log does not name the fault: %s", s.log)
	}
}

// A request over the limits is answered with its ID, and the connection goes on.
func TestLimits(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 100_000, MaxOpen: 3}})
	large := strings.Repeat("x", 101_000)
	c := connect(t, s.addr)
	for request, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"Arith.Sum","params":["` + large + `"]}`:                                                    `{"jsonrpc":"2.0","id":1,"error":{"code":-32008,`,
		`{"jsonrpc":"2.0","id":1,"method":"Arith.Sum","params":["` + large + large + `"]}`:                                            `{"jsonrpc":"2.0","id":1,"error":{"code":-32008,`,
		`{"jsonrpc":"2.0","method":"Arith.Sum","params":[{"id":9},"` + large + large + `"] , "id" : "a" }`:                            `{"jsonrpc":"2.0","id":"a","error":{"code":-32008,`,
		`{"jsonrpc":"2.0","method":"Arith.Sum","params":[` + strings.Repeat(" ", 200_000) + `1,2] , "id" : -5}`:                       `{"jsonrpc":"2.0","id":-5,"error":{"code":-32008,`,
		`[{"jsonrpc":"2.0","method":"x","id":1},1,2,3]`:                                                                               `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: the batch has more than 3 requests"}}`,
		`{"jsonrpc":"2.0","method":"Arith.Multiply","params":{},"id":"` + strings.Repeat("i", 2000) + `"}`:                            `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: the member \"id\" is too long"}}`,
		`{"jsonrpc":"2.0","method":"` + strings.Repeat("m", 5000) + `","id":1}`:                                                       `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,`,
		`{"jsonrpc":"2.0","method":"Arith.Multiply","params":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999) + `,"id":1}`: `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,`,
	} {
		if got := c.ask(request); !strings.HasPrefix(got, want) {
			t.Errorf("%.100s: got %.200s, want %s", request, got, want)
		}
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":8,"params":` + strings.Repeat("[", 10_000)); !strings.Contains(got, "more than 10000 levels of nesting") || c.line() != "" {
		t.Errorf("got %s", got)
	}
	c = connect(t, s.addr)
	c.send(`{"jsonrpc":"2.0","method":"Arith.Sum","params":["` + large + large + `"],"id":[]}`)
	if got := c.line(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":null,"error":{"code":-32008,`) || c.line() != "" {
		t.Errorf("a large request without a valid ID: got %s, want an error and the end", got)
	}
}

// The memory of messages and of the replies of batches is free again when they are done.
func TestMemoryIsReleased(t *testing.T) {
	s := serve(t, yodel.ServerOptions{MaxMemory: 2 << 20}) // a request may come before the memory of the one before is released
	must(t, s.Handle("Echo", func(_ context.Context, in *string) (*string, error) { return in, nil }))
	c := connect(t, s.addr)
	text := strings.Repeat("x", 60_000)
	for i := range 100 {
		request := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"Echo","params":["%s"]}`, i, text)
		reply := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":"%s"}`, i, text)
		if i%2 == 1 {
			request, reply = "["+request+"]", "["+reply+"]"
		}
		if got := c.ask(request); got != reply {
			t.Fatalf("message %d: got %.200s", i, got)
		}
	}
}

// The requests of a batch run at the same time, and the reply waits for all of them.
func TestBatchIsConcurrent(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := connect(t, s.addr)
	wait := `{"jsonrpc":"2.0","method":"Arith.Wait","params":[1],"id":%d},`
	c.send("[" + fmt.Sprintf(wait+wait, 1, 2) + `{"jsonrpc":"2.0","method":"Arith.Wait","params":[1]}]`)
	for range 3 {
		<-s.arith.began
	}
	close(s.arith.release)
	var replies []struct{ Result string }
	if err := json.Unmarshal([]byte(c.line()), &replies); err != nil || len(replies) != 2 || replies[0].Result != "waited" || replies[1].Result != "waited" {
		t.Errorf("got %v, %v", replies, err)
	}
}

// A batch larger than the limit of the server is executed bit by bit.
func TestBatchWaitsForRoom(t *testing.T) {
	s := serve(t, yodel.ServerOptions{MaxOpen: 2})
	c := connect(t, s.addr)
	var batch []string
	for i := range 500 {
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","method":"Arith.Multiply","params":{"A":%d,"B":2},"id":%d}`, i, i))
	}
	var replies []struct{ ID, Result int }
	must(t, json.Unmarshal([]byte(c.ask("["+strings.Join(batch, " ,\n")+"]")), &replies))
	for _, r := range replies {
		if r.Result != 2*r.ID {
			t.Errorf("got %v", r)
		}
	}
	if len(replies) != 500 {
		t.Errorf("got %d replies", len(replies))
	}
}

// What JSON-RPC cannot carry fails the call.
func TestRepliesThatCannotBeSent(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	for name, set := range map[string]func(*yodel.Call){
		"Attached": func(call *yodel.Call) { call.ReplyAttachment = []byte("x") },
		"Broken":   func(call *yodel.Call) { call.Reply = &yodel.Encoded{Body: []byte(`{"a":1}}`)} },
		"Channel":  func(call *yodel.Call) { call.Reply = make(chan int) },
	} {
		must(t, s.HandleCall(name, func(_ context.Context, call *yodel.Call) error { set(call); return nil }))
		got := connect(t, s.addr).ask(`{"jsonrpc":"2.0","id":1,"method":"` + name + `"}`)
		if !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,`) || !strings.Contains(got, "YDL2104") {
			t.Errorf("%s: got %s", name, got)
		}
	}
	must(t, s.HandleCall("Good", func(_ context.Context, call *yodel.Call) error {
		call.Reply = &yodel.Encoded{Body: []byte(` [1] `)}
		return nil
	}))
	yodel.Feed[int, int]("Feed").Handle(s.Server, func(context.Context, *int, yodel.Send[int]) error { return nil })
	c := connect(t, s.addr)
	if got, want := c.ask(`{"jsonrpc":"2.0","id":1,"method":"Good"}`), `{"jsonrpc":"2.0","id":1,"result": [1] }`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"Feed","params":[1]}`); !strings.Contains(got, `"code":-32601`) || !strings.Contains(got, "YDL2006") {
		t.Errorf("a feed: got %s", got)
	}
}

// A newline behind the last request does not delay a shutdown.
func TestDrainOfAnIdleConnection(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := connect(t, s.addr)
	c.ask(`{"jsonrpc":"2.0","id":1,"method":"Arith.Sum","params":[1]}` + "\n")
	c.send(" \n")
	must(t, s.stop())
	if got := c.line(); got != "" {
		t.Errorf("got %s", got)
	}
}
