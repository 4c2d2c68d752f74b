// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/conformance/refusing"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/httpkeys"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A testClient is a client of Dubbo for TestProtocol.
type testClient struct {
	conn   net.Conn
	frames frameReader

	mu      sync.Mutex
	number  uint64
	err     error
	pending map[uint64]chan *reply
}

func newTestClient(conn net.Conn) yodel.Caller {
	c := &testClient{conn: conn, frames: frameReader{bufio.NewReaderSize(conn, 32<<10)}, pending: make(map[uint64]chan *reply)}
	go c.read()
	return c
}

func (c *testClient) read() {
	for {
		h, err := c.frames.head()
		var body []byte
		if err == nil {
			body, err = c.frames.body(h.body)
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
			for _, p := range c.pending {
				close(p)
			}
			clear(c.pending)
			c.mu.Unlock()
			return
		}
		p := c.pending[h.number]
		delete(c.pending, h.number)
		c.mu.Unlock()
		if p != nil {
			p <- &reply{status: h.status, body: body}
		}
	}
}

// linkOf returns a link without a connection, for its decoding.
func linkOf(limits yodel.Limits) *link {
	return &link{Link: &pipelined.Link[*reply]{Addr: "the server", Limits: limits}, wire: &wire{codec: codec.Codec}}
}

// Do implements yodel.Caller.
func (c *testClient) Do(ctx context.Context, call *yodel.Call) error {
	args, err := codec.Codec.Append(nil, call.Args)
	if err != nil {
		return err
	}
	l := linkOf(yodel.Limits{MaxMetadata: 16 << 10, MaxPairs: 128})
	pairs, e := requestPairs(ctx, call, discovery.Instance{}, l.Limits)
	if e != nil {
		return e
	}
	service, method := split(call.Method)
	var body []byte
	for _, text := range []string{version, service, "", method, "Ljava/lang/String;"} {
		body = hessian.AppendText(body, text)
	}
	body = append(append(body, args...), hessian.AppendPairs(nil, pairs...)...)
	p := make(chan *reply, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.number++
	h := head{flags: request | twoWay | hessian2, number: c.number}
	c.pending[h.number] = p
	_, err = c.conn.Write(append(h.append(nil, len(body)), body...))
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case r, ok := <-p:
		if !ok {
			return errors.New("the connection was lost")
		}
		return l.take(call, r)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestProtocol(t *testing.T) {
	yodeltest.TestProtocol(t, yodeltest.Protocol{
		Protocol: Protocol, Codecs: []yodel.Codec{codec.Codec}, Codes: true, Deadlines: true, Metadata: true, Middleware: refusing.All,
	}, newTestClient)
}

// These frames are what dubbo-java 3.3.5 sends for add(40, 2), without most of its attachments, and
// what it expects.
func TestGolden(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	c.send(unhex(t, "dabb c2 00 0000000000000007 00000033"+
		"05 322e302e32 0e 636f6d2e61636d652e4172697468 05 312e302e30 03 616464 02 4949 b8 92"+
		"48 07 74696d656f7574 04 35303030 5a"))
	if _, body := c.read(); string(body) != "\x91\xba" {
		t.Errorf("got %x, want the value 42", body)
	}
}

func TestRequests(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 100_000}})
	const end = "HZ" // no attachments
	point := unhex(t, "43 0e 636f6d2e61636d652e506f696e74 92 01 78 01 79 60 91 92")
	again := unhex(t, "51 90")      // refers to the first argument
	another := unhex(t, "60 91 92") // an object of the same class
	for name, test := range map[string]struct {
		method, types string
		rest          string
		status        byte
		want          string // a part of the answer
	}{
		"one argument":          {"move", "Lcom/acme/Point;", string(point) + end, statusOK, "\x91C\x0ecom.acme.Point\x92\x01x\x01y`\x92\x91"},
		"the name in Go":        {"Move", "Lcom/acme/Point;", string(point) + end, statusOK, "\x91C\x0ecom.acme.Point"},
		"a shared object":       {"same", "Lcom/acme/Point;Lcom/acme/Point;", string(point) + string(again) + end, statusOK, "\x91T"},
		"a shared class":        {"same", "Lcom/acme/Point;Lcom/acme/Point;", string(point) + string(another) + end, statusOK, "\x91T"},
		"no argument":           {"void", "", "" + end, statusOK, "\x92"},
		"null":                  {"none", "", "" + end, statusOK, "\x92"},
		"a generic call":        {"$invoke", "Ljava/lang/String;[Ljava/lang/String;[Ljava/lang/Object;", "\x03add\x72\x07[string\x03int\x03int\x7a\x93\x94" + end, statusOK, "\x91\x97"},
		"echo":                  {"$echo", "Ljava/lang/Object;", string(point) + end, statusOK, "\x91" + string(point)},
		"an exception":          {"fail", "Ljava/lang/String;", "\x04oops" + end, statusOK, "\x90C\x1ajava.lang.RuntimeException\x91\x0ddetailMessage`\x04oops"},
		"a code":                {"refuse", "Lcom/acme/Point;", "N" + end, statusOK, "not_found: no such point"},
		"no method":             {"nope", "", "" + end, statusServiceNotFound, "no method"},
		"another number":        {"add", "I", "\x90" + end, statusBadRequest, "takes 2 values, and the request has 1"},
		"several results":       {"divMod", "II", "\x90\x91" + end, statusServiceNotFound, "Java has one result"},
		"another type":          {"move", "Ljava/lang/String;", "\x01x" + end, statusBadRequest, "does not fit"},
		"damaged":               {"add", "II", "\x90\x40" + end, statusBadRequest, "no value begins with"},
		"no attachments":        {"move", "Lcom/acme/Point;", "N\x90", statusBadRequest, "the attachments are a int32"},
		"an attachment":         {"move", "Lcom/acme/Point;", "NH\x01xx\x00Z", statusBadRequest, "damaged"},
		"an attached list":      {"move", "Lcom/acme/Point;", "NH\x01x\x78Z", statusBadRequest, `the attachment "x" is a []interface {}`},
		"too many attachments":  {"move", "Lcom/acme/Point;", "NH\x01x" + string(hessian.AppendText(nil, strings.Repeat("x", 20_000))) + "Z", statusExhausted, "the server's limits are"},
		"large attachments":     {"move", "Lcom/acme/Point;", "NH\x01x" + string(hessian.AppendText(nil, strings.Repeat("x", 40_000))) + "Z", statusExhausted, "when encoded; the server's limit is 34816"},
		"too large":             {"move", "Lcom/acme/Point;", strings.Repeat("x", 200_000) + end, statusExhausted, "YDL2201"},
		"a stream":              {"count", "Lcom/acme/Point;", "N" + end, statusBadRequest, "feed"},
		"Goexit":                {"exit", "Lcom/acme/Point;", "N" + end, statusOK, "YDL5002"},
		"an attachment of ours": {"attach", "Lcom/acme/Point;", "N" + end, statusOK, "which Dubbo cannot carry"},
		"reserved metadata":     {"reserve", "Lcom/acme/Point;", "N" + end, statusOK, "\x92"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s.addr)
			c.send(requestOf(7, twoWay, test.method, test.types, []byte(test.rest)))
			h, body := c.read()
			if h.is(request) || h.number != 7 || h.status != test.status || !strings.Contains(string(body), test.want) {
				t.Errorf("got %+v, %q, want the status %d and %q", h, body, test.status, test.want)
			}
			c.send(requestOf(8, twoWay, "add", "II", []byte("\x91\x92"), noAttachments))
			if h, body := c.read(); h.number != 8 || string(body) != "\x91\x93" {
				t.Errorf("the next call: got %+v, %x", h, body)
			}
		})
	}
}

// The memory for what a request makes the server hold in tables counts as that of the client, until
// the request is read.
func TestMemoryOfTables(t *testing.T) {
	// A connection gets at most 8 MiB: too little for the tables of a million lists, and enough for
	// a request beside the one before it, which is released after its answer.
	s := serve(t, yodel.ServerOptions{MaxMemory: 16 << 20, Limits: yodel.Limits{MaxMessage: 2 << 20}})
	c := dial(t, s.addr)
	const object = "Ljava/lang/Object;"
	lists := func(n int) []byte {
		return append(hessian.AppendInt([]byte{'X'}, int32(n)), bytes.Repeat([]byte{0x78}, n)...)
	} // empty ones
	names := append(hessian.AppendInt([]byte{'C', 0}, 1<<20), make([]byte, 1<<20)...) // a class with empty names
	for range 6 {
		for _, test := range []struct {
			method, types string
			rest          []byte
			status        byte
			want          string
		}{
			{"void", "", append(append([]byte("H\x01a"), lists(1<<20)...), 'Z'), statusExhausted, "YDL2203"},
			{"same", object + object, append(lists(1<<20), "NHZ"...), statusExhausted, "YDL3007"},
			{"move", object, append(append(names, lists(0)...), "HZ"...), statusExhausted, "YDL3007"},
			{"$echo", object, append(lists(1<<20), "HZ"...), statusExhausted, "no memory left"},
			{"$echo", object, append(lists(1<<17), "HZ"...), statusOK, "xxxx"}, // 1 MiB of numbers of lists
			{"move", object, append(lists(1<<17), "HZ"...), statusBadRequest, "does not fit"},
		} {
			c.send(requestOf(7, twoWay, test.method, test.types, test.rest))
			if h, body := c.read(); h.status != test.status || !strings.Contains(string(body), test.want) {
				t.Fatalf("%s: got %+v, %.200q, want the status %d and %q", test.method, h, body, test.status, test.want)
			}
		}
	}
}

// refused is the error of the middleware in TestRefusedRequestsTakeLittleMemory.
var refused = yodel.Errorf(yodel.Unauthenticated, "who are you?")

// repeat returns head and each n times.
func repeat(head, each string, n int) string { return head + strings.Repeat(each, n) }

// A request that middleware refuses takes as little memory as one with a long text, whatever its
// arguments are: three times its bytes, which are collected as they come.
func TestRefusedRequestsTakeLittleMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(99)) // so that package spares allocates no reserve
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 8 << 20}, Middleware: []yodel.Middleware{
		func(yodel.Handler) yodel.Handler { return func(context.Context, *yodel.Call) error { return refused } },
	}})
	const size = 1 << 20
	number := func(n int) string { return string(hessian.AppendInt(nil, int32(n))) }
	for name, argument := range map[string]string{
		"lists":            repeat("W", "\x78", size) + "Z",
		"maps":             repeat("W", "HZ", size/2) + "Z",
		"lists of types":   repeat("W", "\x70\x01t", size/3) + "Z",
		"a type many used": repeat("W\x70\x01t", "\x70\x90", size/2) + "Z",
		"objects":          repeat("WC\x00\x90", "\x60", size) + "Z",
		"classes":          repeat("W", "C\x00\x90", 1<<16) + "Z",
		"names of fields":  "C\x00" + number(size) + strings.Repeat("\x00", size) + "N",
		"texts":            repeat("W", "\x05hello", size/6) + "Z",
		"long texts":       repeat("W", "S\xff\xff"+strings.Repeat("x", 1<<16-1), size>>16) + "Z",
		"text in parts":    repeat("", "R\x00\x02\xc3\xa4x", size/6) + "\x00",
		"bytes in parts":   repeat("", "A\x00\x02xx", size/5) + "\x20",
		"references":       repeat("W", "Q\x90", size/2) + "Z",
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s.addr)
			b := requestOf(7, twoWay, "move", "Ljava/lang/Object;", []byte(argument), noAttachments)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c.send(b)
			if h, body := c.read(); h.status != statusOK && h.status != statusExhausted || !strings.Contains(string(body), refused.Message) {
				t.Errorf("got %+v, %.200q", h, body)
			}
			runtime.ReadMemStats(&after)
			if n, most := after.TotalAlloc-before.TotalAlloc, uint64(3*len(b)+2<<20); n > most {
				t.Errorf("%d bytes took %d bytes of memory, want at most %d", len(b), n, most)
			}
		})
	}
}

// Attachments can refer to types that the arguments have named, and to nothing else of them.
func TestAttachmentsThatReferToArguments(t *testing.T) {
	s := serve(t, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1 << 20}})
	for rest, want := range map[string]string{
		"M\x01tZ" + "M\x90\x01x\x01yZ":            "\x92",
		"HZ" + "Q\x90":                            "value number 0 to refer to was skipped",
		"HZ" + "H\x01xQ\x90Z":                     "value number 0 to refer to was skipped",
		"C\x01c\x90\x60" + "H\x01x\x60Z":          "class number 0 to refer to was skipped",
		repeat("W", "C\x00\x90", 1<<16+1) + "ZHZ": "more than 65536 classes",
		"HZ" + "H\x01xQ\x92Z":                     "there is no value number 2 to refer to",
		"HZ" + "H\x01x\x78\x01yQ\x92Z":            "the attachment",
	} {
		c := dial(t, s.addr)
		c.send(requestOf(7, twoWay, "void", "Ljava/lang/Object;", []byte(rest)))
		if h, body := c.read(); !strings.Contains(string(body), want) {
			t.Errorf("%q: got %+v, %q, want %q", rest, h, body, want)
		}
	}
}

// Requests after which the server cannot go on.
func TestBrokenRequests(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	long := requestOf(1, twoWay, strings.Repeat("x", 20_000), "", noAttachments)
	for name, b := range map[string][]byte{
		"a response":     append(unhex(t, "dabb 02 14 0000000000000001 00000001"), 'N'),
		"a long name":    long,
		"no method":      requestOf(1, twoWay, "", "", noAttachments),
		"no types":       requestOf(1, twoWay, "add", "X", noAttachments),
		"another magic":  unhex(t, "dabc c2 00 0000000000000001 00000000"),
		"negative":       unhex(t, "dabb c2 00 0000000000000001 80000000"),
		"a large event":  append(unhex(t, "dabb e2 00 0000000000000001 00010000"), make([]byte, 1<<16)...),
		"not Hessian":    append(unhex(t, "dabb c2 00 0000000000000001 00000002"), 0x40, 0x40),
		"a generic call": requestOf(1, twoWay, genericMethod, "III", []byte{0x90}),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s.addr)
			c.send(requestOf(1, 0, "add", "II", []byte("\x91\x92"), noAttachments))
			_, _ = c.Write(b) // the server may have closed the connection before it has read everything
			c.ends()
		})
	}
}

func TestHeartbeat(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	c.send(unhex(t, "dabb e2 00 0000000000000009 00000001 4e"))
	if h, body := c.read(); h != (head{flags: event | hessian2, status: statusOK, number: 9, body: 1}) || string(body) != "N" {
		t.Errorf("got %+v, %x", h, body)
	}
	c.send(unhex(t, "dabb a2 00 0000000000000009 00000002 0152")) // one-way: nothing comes back
	c.send(unhex(t, "dabb d7 00 000000000000000a 00000001 00"))   // fastjson2
	if h, body := c.read(); h.status != statusBadRequest || h.number != 10 || !strings.Contains(string(body), "not serialization 23") {
		t.Errorf("got %+v, %q", h, body)
	}
}

// A one-way request gets no answer, not even an error.
func TestOneWay(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	c.send(requestOf(1, 0, "wait", "Ljava/lang/String;", []byte("\x01a"), noAttachments))
	c.send(requestOf(2, 0, "nope", "", noAttachments))
	c.send(requestOf(3, 0, "$echo", "Ljava/lang/Object;", []byte("N"), noAttachments))
	if got := <-s.arith.began; got != "a" {
		t.Errorf("got %q", got)
	}
	close(s.arith.release)
	c.send(requestOf(4, twoWay, "add", "II", []byte("\x91\x92"), noAttachments))
	if h, _ := c.read(); h.number != 4 {
		t.Errorf("got the answer to %d", h.number)
	}
}

// A server that shuts down says so, and answers the calls in flight.
func TestShutdown(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	c.send(requestOf(1, twoWay, "wait", "Ljava/lang/String;", []byte("\x01a"), noAttachments))
	<-s.arith.began
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	if h, body := c.read(); !h.is(request) || !h.is(event) || h.is(twoWay) || string(body) != readOnly {
		t.Errorf("got %+v, %q, want the event READONLY", h, body)
	}
	close(s.arith.release)
	if h, body := c.read(); h.number != 1 || string(body) != "\x91\x01a" {
		t.Errorf("got %+v, %q", h, body)
	}
	c.ends()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestServerWithoutCodec(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{Protocol}})
	err := s.ListenAndServe(t.Context(), "127.0.0.1:0")
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || e.ID != "YDL2003" || e.Message != "the protocol dubbo needs the codec hessian2 in ServerOptions.Codecs" {
		t.Errorf("got %v", err)
	}
}

// A call whose deadline has passed is a timeout, and a handler's own error of that kind is not.
func TestDeadlines(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	c.send(requestOf(1, twoWay, "wait", "Ljava/lang/String;", []byte("\x01a"), hessian.AppendPairs(nil, [2]string{keyTimeout, "50"})))
	if h, body := c.read(); h.status != statusServerTimeout || !strings.Contains(string(body), "YDL1004") {
		t.Errorf("got %+v, %q", h, body)
	}
	c.send(requestOf(2, twoWay, "late", "Ljava/lang/String;", []byte("N"), hessian.AppendPairs(nil, [2]string{keyTimeout, "50000"})))
	if h, body := c.read(); h.status != statusOK || !strings.Contains(string(body), "deadline_exceeded") {
		t.Errorf("got %+v, %q", h, body)
	}
}

// A client with another version of the protocol takes no attachments of replies.
func TestOldClients(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := dial(t, s.addr)
	old := func(method string) []byte {
		b := requestOf(1, twoWay, method, "Lcom/acme/Point;", []byte("N"), noAttachments)
		b[headSize+5] = '1' // version 2.0.1
		return b
	}
	c.send(old("refuse"))
	if _, body := c.read(); body[0] != 0x90 || !strings.HasSuffix(string(body), "no such point") {
		t.Errorf("got %q, want an exception without attachments", body)
	}
	c.send(old("describe"))
	if _, body := c.read(); body[0] != 0x91 || s.Stats().LeftOut == 0 {
		t.Errorf("got %q, want a value without attachments, and %d pairs were left out", body, s.Stats().LeftOut)
	}
}

func TestNames(t *testing.T) {
	for types, want := range map[string]int{"": 0, "I": 1, "[[I": 1, "Ljava/lang/String;Z[La;": 3, "V": -1, "L": -1, "L;": 1, "[": -1, "Lx": -1} {
		if n, err := countTypes(types); (err != nil) != (want < 0) || err == nil && n != want {
			t.Errorf("%q: got %d, %v", types, n, err)
		}
	}
}

// A server survives any bytes.
func FuzzServe(f *testing.F) {
	f.Add(requestOf(1, twoWay, "move", "Lcom/acme/Point;", unhex(f, "43 0e 636f6d2e61636d652e506f696e74 92 01 78 01 79 60 91 92"), noAttachments))
	f.Add(requestOf(1, twoWay, "same", "Lcom/acme/Point;Lcom/acme/Point;", []byte("NN"), hessian.AppendPairs(nil, [2]string{keyTimeout, "5"})))
	f.Add(requestOf(1, twoWay, "move", "Lcom/acme/Point;", []byte("C\x01c\x90\x60"), []byte("M\x01t\x01x\x60\x01yQ\x90Z")))
	f.Add(requestOf(1, twoWay, genericMethod, "ZZZ", []byte("\x03addN\x7a\x93\x94"), noAttachments))
	f.Add(requestOf(1, twoWay, echoMethod, "Z", []byte("N"), noAttachments))
	f.Add(unhex(f, "dabb e2 00 0000000000000009 00000001 4e"))
	s := serve(f, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 64 << 10}})
	close(s.arith.release)
	go func() {
		for range s.arith.began {
		}
	}()
	f.Cleanup(func() { close(s.arith.began) })
	f.Fuzz(func(t *testing.T, b []byte) {
		c := dial(t, s.addr)
		_, _ = c.Write(b) // the server may close the connection
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c.Conn); errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("the connection does not end")
		}
	})
}

func FuzzMatch(f *testing.F) {
	f.Add([]byte("\xda\xbb\xc2\x00"))
	f.Add([]byte("\xda\xbb\x02\x14"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ok, more := Protocol.Match(b)
		if ok && more {
			t.Error("it matches, and needs more")
		}
		for n := range b { // more bytes never change a decision
			if early, undecided := Protocol.Match(b[:n]); !undecided && n > 0 && early != ok {
				t.Errorf("%d bytes decide %v, all decide %v", n, early, ok)
			}
		}
	})
}

// The names, the attachments and the exceptions of any bytes are read or refused.
func FuzzValues(f *testing.F) {
	f.Add(requestOf(1, twoWay, "add", "II", []byte("\x91\x92"), noAttachments)[headSize:])
	f.Add(hessian.AppendPairs(nil, [2]string{keyTimeout, "5"}, [2]string{httpkeys.TraceParent, "x"}, [2]string{"yodel-criticality", "-1"}))
	f.Add(unhex(f, "94 43 01 41 91 0d 64657461696c4d657373616765 60 01 78 48 5a"))
	limits := yodel.Limits{MaxMetadata: 1 << 10, MaxPairs: 10}
	l := linkOf(limits)
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := readNames(b); err == nil && (n.size > len(b) || n.parameters > len(n.types) || n.method == "") {
			t.Errorf("got %+v", n)
		}
		if v, err := hessian.NewReader(b).Any(); err == nil {
			call := new(yodel.Call)
			if e := describe(call, v, time.Now(), limits); e == nil && len(call.Metadata) > limits.MaxPairs {
				t.Errorf("got %v", call.Metadata)
			}
		}
		for _, status := range []byte{statusOK, statusBadRequest} {
			call := &yodel.Call{Reply: new(any)}
			if err := l.take(call, &reply{status: status, body: b}); err == nil && status != statusOK {
				t.Error("a status that is not OK is no error")
			}
		}
	})
}
