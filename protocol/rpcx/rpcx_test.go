// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// The server answers golden requests of rpcx with the bytes of rpcx.
func TestGoldenAnswers(t *testing.T) {
	var calls atomic.Int32
	s := serve(t, yodel.ServerOptions{Observers: []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { calls.Add(1) }}}})
	c := dial(t, s.addr)
	for _, test := range []struct{ name, request, want string }{
		{"a call", "08000010000000000000000000000025000000054172697468000000034d756c000000000000000d7b2241223a322c2242223a337d", "0800801000000000000000000000001f000000054172697468000000034d756c00000000000000077b2243223a367d"},
		{"a failing call", "08000010000000000000000100000026000000054172697468000000044661696c000000000000000d7b2241223a322c2242223a337d", "0800811000000000000000010000003a000000054172697468000000044661696c0000001a0000000e5f5f727063785f6572726f725f5f00000004626f6f6d000000077b2243223a307d"},
		{"an unknown method", "08000010000000000000000200000026000000054172697468000000044e6f7065000000000000000d7b2241223a322c2242223a337d", "0800811000000000000000020000004b000000054172697468000000044e6f7065000000320000000e5f5f727063785f6572726f725f5f0000001c727063783a2063616e27742066696e64206d6574686f64204e6f706500000000"},
		{"an unknown service", "08000010000000000000000300000024000000044e6f7065000000034d756c000000000000000d7b2241223a322c2242223a337d", "0800811000000000000000030000004a000000044e6f7065000000034d756c000000330000000e5f5f727063785f6572726f725f5f0000001d727063783a2063616e27742066696e642073657276696365204e6f706500000000"},
		{"a one-way call", "08002010000000000000000400000025000000054172697468000000034d756c000000000000000d7b2241223a322c2242223a337d", ""},
		{"a failing one-way call", "08002010000000000000000400000026000000054172697468000000044e6f7065000000000000000d7b2241223a322c2242223a337d", ""},
		{"a heartbeat", "0800403000000000000000050000001900000000000000000000000000000009d317979cfe362a0000", "0800c03000000000000000050000001900000000000000000000000000000009d317979cfe362a0000"},
		{"a one-way heartbeat", "0800603000000000000000050000001900000000000000000000000000000009d317979cfe362a0000", "0800e03000000000000000050000001900000000000000000000000000000009d317979cfe362a0000"},
		{"bytes", "0800000000000000000000000000001b000000054172697468000000044563686f00000000000000026869", "0800800000000000000000000000001b000000054172697468000000044563686f00000000000000026869"},
		{"another version", "0809000000000000000000000000001b000000054172697468000000044563686f00000000000000026869", "0809800000000000000000000000001b000000054172697468000000044563686f00000000000000026869"},
		{"an unknown codec", "08000090000000000000000700000018000000054172697468000000034d756c0000000000000000", "08008190000000000000000700000046000000054172697468000000034d756c0000002e0000000e5f5f727063785f6572726f725f5f0000001863616e206e6f742066696e6420636f64656320666f72203900000000"},
	} {
		if _, err := c.Write(unhex(t, test.request)); err != nil {
			t.Fatal(err)
		}
		if test.want == "" {
			continue // the next test gets its own answer
		}
		want, got := unhex(t, test.want), make([]byte, len(test.want)/2)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: got %x, %v, want %x", test.name, got, err, want)
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if n := calls.Load(); n != 9 {
		t.Errorf("%d calls were counted, want 9: heartbeats are not calls", n)
	}
}

func TestErrors(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1 << 10}})
	c := dial(t, s.addr)
	for _, test := range []struct {
		method, payload string
		flags           byte
		want            map[string]string // the metadata; of the text only the beginning
		reply           string
	}{
		{"Arith.Half", `{"A":5}`, 0, map[string]string{rpcxwire.KeyError: "aborted: only half of it", "yodel-error-code": "aborted"}, `{"C":5}`},
		{"Arith.Mul", `{"A":"x"}`, 0, map[string]string{rpcxwire.KeyError: "invalid_argument: Arith.Mul: the request does not fit", "yodel-error-code": "invalid_argument", "yodel-error-id": "YDL2101", rpcxwire.KeyNotProcessed: "1"}, ""},
		{"Arith.Mul", strings.Repeat("x", 1<<10+1), 0, map[string]string{rpcxwire.KeyError: "resource_exhausted: Arith.Mul: the request has 1025 bytes", "yodel-error-code": "resource_exhausted", "yodel-error-id": "YDL2201", rpcxwire.KeyNotProcessed: "1"}, ""},
		{"Arith.Mul", "x", gzipped, map[string]string{rpcxwire.KeyError: `unimplemented: Arith.Mul: this server does not have the compressor "gzip" [YDL2004]`, "yodel-error-code": "unimplemented", "yodel-error-id": "YDL2004", rpcxwire.KeyNotProcessed: "1"}, ""},
		{"Arith.Attach", `{}`, 0, map[string]string{rpcxwire.KeyError: `internal: Arith.Attach: the reply has an attachment, which rpcx cannot carry`, "yodel-error-code": "internal", "yodel-error-id": "YDL2104"}, `{"C":0}`},
		{"Arith.Two", `{}`, 0, map[string]string{rpcxwire.KeyError: "invalid_argument: Arith.Two: the method is", "yodel-error-code": "invalid_argument", "yodel-error-id": "YDL2005", rpcxwire.KeyNotProcessed: "1"}, ""},
		{"Arith.Count", `{}`, 0, map[string]string{rpcxwire.KeyError: "invalid_argument: Arith.Count: the method is a feed", "yodel-error-code": "invalid_argument", "yodel-error-id": "YDL2006", rpcxwire.KeyNotProcessed: "1"}, ""},
		{"Arith.Exit", `{}`, 0, map[string]string{rpcxwire.KeyError: "internal: Arith.Exit: the handler ended its goroutine", "yodel-error-code": "internal", "yodel-error-id": "YDL5002"}, ""},
	} {
		path, method, _ := strings.Cut(test.method, ".")
		c.send(head{serialize: 1, flags: test.flags, path: path, method: method}, test.payload)
		h, metadata, body := c.read()
		text := test.want[rpcxwire.KeyError]
		if !strings.HasPrefix(metadata[rpcxwire.KeyError], text) {
			t.Errorf("%s: got the text %q, want %q", test.method, metadata[rpcxwire.KeyError], text)
		}
		delete(metadata, rpcxwire.KeyError)
		delete(test.want, rpcxwire.KeyError)
		if h.flags != response|failed || !maps.Equal(metadata, test.want) || body != test.reply {
			t.Errorf("%s: got %+v, %q, %q, want %q, %q", test.method, h, metadata, body, test.want, test.reply)
		}
	}
}

// A reply is sent without the metadata that rpcx reserves.
func TestReservedMetadataIsLeftOut(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	c.send(head{serialize: 1, path: "Arith", method: "Reserve"}, `{}`)
	if h, metadata, body := c.read(); h.flags != response || len(metadata) != 0 || body != `{"C":0}` || s.Stats().LeftOut != 1 {
		t.Errorf("got %+v, %q, %q, and %d pairs were left out", h, metadata, body, s.Stats().LeftOut)
	}
}

func TestMetadata(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	metadata := pairsOf("k", "v", "e", "", "ü", "ö", rpcxwire.KeyAuth, "secret", rpcxwire.KeyTimeout, "90500", "yodel-tenant", "anna", rpcxwire.Fields.Attempt, "2")
	c.send(head{serialize: 1, seq: 1 << 40, path: "Arith", method: "Describe", metadata: metadata}, `{}`)
	h, got, body := c.read()
	if h.flags != response || h.seq != 1<<40 || !maps.Equal(got, map[string]string{"header": "1", "trailer": "2", "empty": ""}) {
		t.Errorf("got %+v, %q", h, got)
	}
	var described map[string]string
	if err := json.Unmarshal([]byte(body), &described); err != nil {
		t.Fatal(err)
	}
	left := described["left"]
	delete(described, "left")
	if want := map[string]string{
		"attempt": "2", "tenant": "anna", "oneWay": "false", "metadata.k": "v", "metadata.e": "", "metadata.ü": "ö", "metadata.authorization": "secret",
	}; !maps.Equal(described, want) || left != "1m30s" && left != "1m31s" {
		t.Errorf("got %q, %q", described, left)
	}
	many := strings.Repeat(pairsOf("k", ""), 129)
	c.send(head{serialize: 1, path: "Arith", method: "Mul", metadata: many}, `{}`)
	if h, got, _ := c.read(); h.flags != response|failed || got["yodel-error-id"] != "YDL2203" || got[rpcxwire.KeyNotProcessed] != "1" {
		t.Errorf("got %+v, %q", h, got)
	}
}

func TestCompression(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Compressors: []compress.Compressor{gzip.Compressor}, Limits: yodel.Limits{MaxDecompressed: 1 << 20}})
	c := dial(t, s.addr)
	for _, size := range []int{10, 1023, 1025, 1 << 20} {
		text := strings.Repeat("a", size)
		packed, err := gzip.Compressor.Append(nil, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		c.send(head{flags: gzipped, path: "Arith", method: "Echo"}, string(packed))
		h, _, body := c.read()
		if h.is(gzipped) {
			plain, err := gzip.Compressor.Decompress(nil, []byte(body), size)
			if err != nil {
				t.Fatal(err)
			}
			body = string(plain)
		}
		if want := size > 1024; h.is(gzipped) != want || h.is(failed) || body != text {
			t.Errorf("%d bytes: got %+v and %d bytes", size, h, len(body))
		}
		c.send(head{path: "Arith", method: "Echo"}, text)
		if h, _, body = c.read(); h.flags != response || body != text {
			t.Errorf("%d bytes: got %+v and %d bytes", size, h, len(body))
		}
	}
	bomb, err := gzip.Compressor.Append(nil, make([]byte, 1<<20+1))
	if err != nil {
		t.Fatal(err)
	}
	c.send(head{flags: gzipped, path: "Arith", method: "Echo"}, string(bomb))
	if h, got, _ := c.read(); h.flags != response|failed || got["yodel-error-id"] != "YDL2204" {
		t.Errorf("got %+v, %q", h, got)
	}
	c.send(head{flags: gzipped, path: "Arith", method: "Echo"}, "not gzip")
	if h, got, _ := c.read(); h.flags != response|failed || got["yodel-error-id"] != "YDL2101" {
		t.Errorf("got %+v, %q", h, got)
	}
}

// Frames after which the connection ends.
func TestBrokenFrames(t *testing.T) {
	var log lockedBuffer
	s := serve(t, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil)), Limits: yodel.Limits{MaxMessage: 1 << 10}})
	for _, frame := range map[string]head{
		"a response":               {flags: response, path: "Arith", method: "Mul"},
		"an unknown compress type": {flags: 5 << 2, path: "Arith", method: "Mul"},
		"a large heartbeat":        {flags: heartbeat, payload: 1<<10 + 1},
	} {
		c := dial(t, s.addr)
		c.send(head{serialize: 1, path: "Arith", method: "Mul"}, `{}`)
		c.read()
		if _, err := c.Write(frame.append(nil)); err != nil {
			t.Fatal(err)
		}
		c.ends()
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(log.String(), "YDL1106"); got == 0 {
		t.Errorf("the server logs no breach: %s", log.String())
	}
}

// A lockedBuffer is a bytes.Buffer that several goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A call that is not authenticated ends the connection, after the replies to the other calls.
func TestUnauthenticated(t *testing.T) {
	for _, kind := range []byte{0, oneWay} {
		s := serve(t, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if call.Metadata["authorization"] != "good" {
					return yodel.Errorf(yodel.Unauthenticated, "invalid token")
				}
				return next(ctx, call)
			}
		}}})
		c := dial(t, s.addr)
		c.send(head{serialize: 1, seq: 1, path: "Arith", method: "Wait", metadata: pairsOf(rpcxwire.KeyAuth, "good")}, `{}`)
		<-s.arith.began
		c.send(head{flags: heartbeat, seq: 2}, "")
		if h, _, _ := c.read(); h.seq != 2 {
			t.Errorf("got %+v, want the heartbeat", h)
		}
		c.send(head{flags: kind, serialize: 1, seq: 3, path: "Arith", method: "Mul", metadata: pairsOf(rpcxwire.KeyAuth, "bad")}, `{}`)
		if kind == 0 {
			h, got, _ := c.read()
			if h.seq != 3 || h.flags != response|failed || got[rpcxwire.KeyError] != "unauthenticated: invalid token" || got["yodel-error-code"] != "unauthenticated" {
				t.Errorf("got %+v, %q", h, got)
			}
			c.send(head{serialize: 1, seq: 4, path: "Arith", method: "Mul", metadata: pairsOf(rpcxwire.KeyAuth, "good")}, `{}`) // it gets no answer
		}
		s.arith.release <- struct{}{}
		if h, _, _ := c.read(); h.seq != 1 || h.flags != response {
			t.Errorf("got %+v, want the reply to the call that waited", h)
		}
		c.ends()
	}
}

// Clients connect through HTTP, too.
func TestConnectHTTP(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	for _, request := range []string{"CONNECT /_rpcx_ HTTP/1.0\n\n", "CONNECT /_rpcx_ HTTP/1.1\r\nHost: x\r\n\r\n"} {
		c := dial(t, s.addr)
		if _, err := c.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		want := "HTTP/1.0 200 Connected to rpcx\n\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c.frames, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v", got, err)
		}
		c.send(head{serialize: 1, path: "Arith", method: "Mul"}, `{"A":2,"B":3}`)
		if _, _, body := c.read(); body != `{"C":6}` {
			t.Errorf("got %q", body)
		}
	}
	c := dial(t, s.addr)
	_, _ = c.Write([]byte("CONNECT /_rpcx_ HTTP/1.0\n" + strings.Repeat("X: y\n", 2000))) // the server may close it meanwhile
	c.ends()
}

func TestMatch(t *testing.T) {
	other := With(&Options{Path: "/other"})
	for _, test := range []struct {
		first    string
		p        yodel.Protocol
		ok, more bool
	}{
		{"\x08", Protocol, false, true},
		{"\x08\x00", Protocol, false, true},
		{"\x08\x00\x00", Protocol, true, false},
		{"\x08\x09\x7f\x00", Protocol, true, false},
		{"\x08\x00\x80", Protocol, false, false},
		{"\x09\x00\x00", Protocol, false, false},
		{"CONN", Protocol, false, true},
		{"CONNECT /_rpcx_ HTTP", Protocol, true, false},
		{"CONNECT /_goRPC_ HTTP", Protocol, false, false},
		{"CONNECT /other HTTP", Protocol, false, false},
		{"CONNECT /other HTTP", other, true, false},
		{"GET /", Protocol, false, false},
	} {
		if ok, more := test.p.Match([]byte(test.first)); ok != test.ok || more != test.more {
			t.Errorf("%q: got %v, %v", test.first, ok, more)
		}
	}
}

func TestUserCodecs(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Protocols: []yodel.Protocol{With(&Options{Codecs: map[byte]string{9: "json", 1: "raw"}})}})
	c := dial(t, s.addr)
	c.send(head{serialize: 9, path: "Arith", method: "Mul"}, `{"A":2,"B":3}`)
	if h, _, body := c.read(); h.serialize != 9 || body != `{"C":6}` {
		t.Errorf("got %+v, %q", h, body)
	}
	c.send(head{serialize: 1, path: "Arith", method: "Echo"}, `hi`)
	if _, _, body := c.read(); body != "hi" {
		t.Errorf("got %q", body)
	}
	defer func() {
		if recover() == nil {
			t.Error("the serialize type 16 is accepted")
		}
	}()
	With(&Options{Codecs: map[byte]string{16: "json"}})
}

// A server sends messages to a client that has not asked for them.
func TestServerPush(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 100}})
	c := dial(t, s.addr)
	c.send(head{serialize: 1, path: "Arith", method: "Mul"}, `{"A":2,"B":3}`)
	c.read()
	peers := s.Peers()
	if len(peers) != 1 {
		t.Fatalf("%d peers", len(peers))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // messages have no deadline
	defer cancel()
	hello := []byte("hello")
	event := func() *yodel.Call {
		return &yodel.Call{Method: "topic.evt", Args: &hello, Codec: raw.Codec, OneWay: true, Metadata: yodel.Metadata{"k": "v"}}
	}
	if err := peers[0].Do(ctx, event()); err != nil {
		t.Fatal(err)
	}
	golden := unhex(t, "0800200000000000000000010000002700000005746f706963000000036576740000000a000000016b00000001760000000568656c6c6f")
	got := make([]byte, len(golden))
	if _, err := io.ReadFull(c.frames, got); err != nil || !bytes.Equal(got, golden) {
		t.Errorf("got %x, %v, want %x", got, err, golden)
	}
	for i := range 100 {
		if err := peers[0].Do(ctx, &yodel.Call{Method: "Event", Args: &Args{A: i}, OneWay: true}); err != nil {
			t.Fatal(err)
		}
		h, _, body := c.read()
		if want := fmt.Sprintf(`{"A":%d,"B":0}`, i); h.seq != uint64(i)+2 || !h.isPush() || h.serialize != 1 || h.path != "" || h.method != "Event" || body != want {
			t.Fatalf("got %+v with %s, want %s", h, body, want)
		}
	}
	large := make([]byte, 101)
	for what, call := range map[string]*yodel.Call{
		"a call with a reply":  {Method: "Event", Args: &hello, Codec: raw.Codec, Reply: &hello},
		"an attachment":        {Method: "Event", Args: &hello, Codec: raw.Codec, OneWay: true, Attachment: hello},
		"an unknown codec":     {Method: "Event", Args: &hello, Codec: gob.Codec, OneWay: true},
		"a reserved key":       {Method: "Event", Args: &hello, Codec: raw.Codec, OneWay: true, Metadata: yodel.Metadata{rpcxwire.KeyError: "x"}},
		"too large a message":  {Method: "Event", Args: &large, Codec: raw.Codec, OneWay: true},
		"an unencodable value": {Method: "Event", Args: func() {}, OneWay: true},
	} {
		if err := peers[0].Do(ctx, call); !yodel.NotProcessed(err) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	_ = c.Close() // so that the session ends
	<-peers[0].Done()
	if err := peers[0].Do(ctx, event()); !errors.Is(err, yodel.Unavailable) || !yodel.NotProcessed(err) {
		t.Errorf("after the end of the connection: got %v", err)
	}
}
