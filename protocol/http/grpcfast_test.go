// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	std "net/http"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// registerOdd registers methods with outcomes of all kinds.
func (s *site) registerOdd() {
	say := func(name string, f func(ctx context.Context, call *yodel.Call) error) {
		must(s.t, s.HandleCall("Odd."+name, f))
	}
	say("Metadata", func(_ context.Context, call *yodel.Call) error {
		call.SetHeader(yodel.Metadata{"first": "a", "data-bin": "\x00\x01", "grpc-status": "9", "bad key": "x"})
		call.Trailer, call.Reply = yodel.Metadata{"last": "b", "set-cookie": "a=b"}, "done"
		return nil
	})
	say("Late", func(_ context.Context, call *yodel.Call) error {
		later := call.Later()
		go later("later", nil)
		return nil
	})
	say("Header", func(_ context.Context, call *yodel.Call) error {
		call.SetHeader(yodel.Metadata{"first": "a"})
		call.Trailer = yodel.Metadata{"last": "b"}
		return yodel.Errorf(yodel.Aborted, "no: %s", "ü\n")
	})
	say("Details", func(context.Context, *yodel.Call) error {
		return &yodel.Error{Code: yodel.NotFound, Message: "gone", RetryAfter: time.Second, Details: []yodel.Detail{{Type: "test.Detail", Value: []byte("x")}}}
	})
	say("Hidden", func(context.Context, *yodel.Call) error { return errors.New("inside") })
	say("Panic", func(context.Context, *yodel.Call) error { panic("oh no") })
	say("Exit", func(context.Context, *yodel.Call) error { runtime.Goexit(); return nil })
	say("Nothing", func(context.Context, *yodel.Call) error { return nil })
	say("Attachment", func(_ context.Context, call *yodel.Call) error {
		call.Reply, call.ReplyAttachment = 1, []byte("x")
		return nil
	})
	say("Large", func(_ context.Context, call *yodel.Call) error {
		call.Reply = strings.Repeat("x", 300<<10)
		return nil
	})
	say("Unencodable", func(_ context.Context, call *yodel.Call) error {
		call.Reply = make(chan int)
		return nil
	})
	say("Slow", func(ctx context.Context, call *yodel.Call) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// ofLog says where the log has more, or when a deadline has passed. It differs each time.
var ofLog = regexp.MustCompile(`see (number|hidden error) \d+ in the server's log|the server's log, which was full, has only some errors of these seconds|before the request had arrived|before the server could begin`)

// A gRPCRequest is a request of gRPC.
type gRPCRequest struct {
	path, body string
	headers    []string
}

// The direct way of a unary call of gRPC has the outcome of an exchange for each request, while the
// server learns which methods are short. Options.OnRequest makes all calls go the way of an
// exchange.
func TestDirectCallsAreAsThoseOfAnExchange(t *testing.T) {
	limits := yodel.Limits{MaxMessage: 100 << 10}
	direct := newSite(t, nil, yodel.ServerOptions{Limits: limits})
	ordinary := newSite(t, &http.Options{OnRequest: func(*std.Request, *yodel.Call) error { return nil }}, yodel.ServerOptions{Limits: limits})
	message := envelopeOf(`{"text":"hello"}`)
	requests := map[string]gRPCRequest{
		"echo":                  {"/Test/Echo", message, nil},
		"metadata":              {"/Test/See", message, []string{"A", "b", "Data-Bin", "AAEC", "Cookie", "a=b", "Grpc-Foo", "x"}},
		"the same key twice":    {"/Test/See", message, []string{"A", "b", "A", "c"}},
		"trace":                 {"/Test/See", message, []string{"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
		"trace with a state":    {"/Test/See", message, []string{"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Tracestate", "a=b"}},
		"fields":                {"/Test/See", message, []string{"Yodel-Tenant", "t", "Idempotency-Key", "k", "Grpc-Previous-Rpc-Attempts", "2"}},
		"a page":                {"/Test/See", message, []string{"Origin", "https://shop.example", "Yodel-Tenant", "t"}},
		"a misspelt field":      {"/Test/See", message, []string{"Yodel-Tennant", "t"}},
		"an agent":              {"/Test/See", message, []string{"User-Agent", "shop/1 (x)"}},
		"much metadata":         {"/Test/See", message, []string{"A", strings.Repeat("x", 17<<10)}},
		"an error":              {"/Test/Fail", message, nil},
		"no method":             {"/Test/None", message, nil},
		"no service":            {"/None/None", message, nil},
		"a path with an escape": {"/Test/%45cho", message, nil},
		"a path with a dot":     {"/Test.Echo", message, nil},
		"a query":               {"/Test/Echo?a=b", message, nil},
		"a feed":                {"/Test/Watch", envelopeOf(`{"text":"a b"}`), nil},
		"an upload":             {"/Test/Gather", message + message, nil},
		"a codec that is not":   {"/Test/Echo", message, []string{"Content-Type", "application/grpc+none"}},
		"no codec":              {"/Test/Echo", message, []string{"Content-Type", "application/grpc"}},
		"no message":            {"/Test/Echo", "", nil},
		"half a prefix":         {"/Test/Echo", message[:3], nil},
		"half a message":        {"/Test/Echo", message[:10], nil},
		"two messages":          {"/Test/Echo", message + message, nil},
		"flags":                 {"/Test/Echo", "\x40" + message[1:], nil},
		"compressed":            {"/Test/Echo", "\x01" + message[1:], nil},
		"compressed as said":    {"/Test/Echo", message, []string{"Grpc-Encoding", "gzip", "Grpc-Accept-Encoding", "gzip"}},
		"not JSON":              {"/Test/Echo", envelopeOf("{"), nil},
		"large":                 {"/Test/Echo", envelopeOf(jsonOf(80 << 10)), nil},
		"too large":             {"/Test/Echo", envelopeOf(jsonOf(200 << 10)), nil},
		"a wrong timeout":       {"/Test/Echo", message, []string{"Grpc-Timeout", "soon"}},
		"a timeout":             {"/Test/Echo", message, []string{"Grpc-Timeout", "10S"}},
		"no time":               {"/Test/Echo", message, []string{"Grpc-Timeout", "1n"}},
		"a timeout that passes": {"/Odd/Slow", envelopeOf("1"), []string{"Grpc-Timeout", "300m"}},
	}
	for _, name := range []string{"Metadata", "Late", "Header", "Details", "Hidden", "Panic", "Exit", "Nothing", "Attachment", "Large", "Unencodable"} {
		requests[name] = gRPCRequest{"/Odd/" + name, envelopeOf("1"), nil}
	}
	want := make(map[string]string)
	for i, s := range []*site{ordinary, direct} {
		s.registerOdd()
		c := client(t, true)
		for round := range 1 + i*80 { // a method is known after 64 calls
			for name, r := range requests {
				if round > 1 && (len(r.body) > 1000 || r.path == "/Odd/Slow" || r.path == "/Odd/Large") {
					continue // it takes time
				}
				got := s.gRPC(c, r)
				if known, ok := want[name]; !ok {
					want[name] = got
				} else if got != known {
					t.Fatalf("%s:\nwant %s\ngot  %s", name, known, got)
				}
			}
		}
	}
	for name, got := range want {
		t.Logf("%s: %.300s", name, got)
	}
}

// gRPC makes a call, and returns all that the client gets.
func (s *site) gRPC(c *std.Client, r gRPCRequest) string {
	s.t.Helper()
	headers := r.headers
	if !strings.Contains(fmt.Sprint(headers), "Content-Type") {
		headers = append([]string{"Content-Type", "application/grpc+json"}, headers...)
	}
	response, err := s.try(s.t.Context(), c, "POST", r.path, chunked{strings.NewReader(r.body)}, headers...)
	must(s.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	whole := fmt.Sprint(response.StatusCode, response.Header, response.Trailer, string(body), err)
	return ofLog.ReplaceAllString(strings.ReplaceAll(whole, s.addr, "addr"), "the log has more")
}

// A call whose handler blocks the reader of its connection ends when its client cancels it, and
// calls behind it are served.
func TestDirectCallsThatBlock(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, true)
	block := make(chan bool, 1)
	must(t, s.HandleCall("Test.Block", func(ctx context.Context, call *yodel.Call) error {
		select {
		case <-block:
			s.began <- struct{}{}
			<-ctx.Done()
			s.ended <- context.Cause(ctx)
			return ctx.Err()
		default:
			return nil
		}
	}))
	request := gRPCRequest{"/Test/Block", envelopeOf("1"), nil}
	for range 100 { // the server learns that it is short
		s.gRPC(c, request)
	}
	block <- true
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		_, err := s.try(ctx, c, "POST", request.path, strings.NewReader(request.body), "Content-Type", "application/grpc+json") //nolint:bodyclose // it fails
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	receive(t, s.began)
	for range 10 {
		if got := s.gRPC(c, gRPCRequest{"/Test/Echo", envelopeOf(`{"text":"x"}`), nil}); !strings.Contains(got, "Grpc-Status:[0]") {
			t.Error(got)
		}
	}
	cancel()
	if err := receive(t, s.ended); err == nil {
		t.Error("the context ends without a cause")
	}
	all.Wait()
}

// A connection remembers no paths and content types that its client invents.
func TestWhatAClientInventsIsForgotten(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(99)) // so that package spares allocates no reserve
	s := newSite(t, nil, yodel.ServerOptions{})
	c := dialHTTP2(t, s.addr)
	const calls, size = 500, 5 << 10
	request := func(path, media string) {
		c.request(c.next, openedRequest{path: path, media: media, body: envelopeOf("{}"), whole: true})
		c.next += 2
		c.awaitPong()
	}
	request("/Test/Echo", "application/grpc+json")
	before := liveHeap()
	for i := range calls {
		request(fmt.Sprintf("/Test/%d%s", i, strings.Repeat("x", size)), "application/grpc+json")
		request("/Test/Echo", fmt.Sprintf("application/grpc+json; a=%d%s", i, strings.Repeat("x", size)))
	}
	c.awaitPong()
	if grown := liveHeap() - before; grown > calls*size/4 {
		t.Errorf("%d calls leave %d KiB", 2*calls, grown>>10)
	}
	runtime.KeepAlive(c)
}

// A direct call that waits for room ends when its client resets it. So resets do not use up the
// requests that a connection may have.
func TestDirectCallsThatWaitForRoomAreCanceled(t *testing.T) {
	const refused = 7 // REFUSED_STREAM
	s := newSite(t, nil, yodel.ServerOptions{MaxOpen: 1, Limits: yodel.Limits{MaxOpen: 4}})
	c := dialHTTP2(t, s.addr)
	open := func(path string) (id uint32, code byte) {
		id = c.next
		c.next += 2
		c.request(id, openedRequest{path: path, media: "application/grpc+json", body: envelopeOf("{}"), whole: true})
		return id, c.awaitPong()[id]
	}
	open("/Test/Echo") // the connection learns the method
	open("/Test/Long")
	receive(t, s.began)
	for range 20 {
		eventually(t, "a request is accepted", func() bool {
			id, code := open("/Test/Echo")
			c.frame(3, 0, id, "\x00\x00\x00\x08") // CANCEL
			return code != refused
		})
	}
	close(s.free)
}

// unruly is a codec whose CheckType calls what a test gives it.
type unruly struct {
	yodel.Codec
	check *atomic.Pointer[func()]
}

func (unruly) Name() string { return "unruly" }

func (c unruly) CheckType(reflect.Type) error {
	if check := c.check.Load(); check != nil {
		(*check)()
	}
	return nil
}

// A codec that panics costs its own calls and nothing else.
func TestTheCodecOfADirectCallIsUserCode(t *testing.T) {
	for name, check := range map[string]func(){
		"panics": func() { panic("oh no") },
		"exits":  runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			codec := unruly{yodel.JSON, new(atomic.Pointer[func()])}
			s, c := newSite(t, nil, yodel.ServerOptions{Codecs: []yodel.Codec{codec}}), client(t, true)
			codec.check.Store(&check)
			for range 3 {
				response, err := s.try(t.Context(), c, "POST", "/Test/Echo", strings.NewReader(envelopeOf("{}")), "Content-Type", "application/grpc+unruly")
				if err == nil {
					_, err = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close() // it was read
					if err == nil && response.Header.Get("Grpc-Status") != "13" && response.Trailer.Get("Grpc-Status") != "13" {
						t.Errorf("got %v and %v", response.Header, response.Trailer)
					}
				}
				if got := s.gRPC(c, gRPCRequest{"/Test/Echo", envelopeOf("{}"), nil}); !strings.Contains(got, "Grpc-Status:[0]") {
					t.Error(got)
				}
			}
		})
	}
}

// BenchmarkDirect makes unary calls of gRPC on one connection, many at once, with a client that
// costs nothing.
func BenchmarkDirect(b *testing.B) {
	s := newSite(b, nil, yodel.ServerOptions{})
	c := dialHTTP2(b, s.addr)
	const batch = 100
	replies := make(chan int, 1)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := c.conn.Read(buf)
			if err != nil {
				close(replies)
				return
			}
			replies <- n
		}
	}()
	// The blocks of all calls but the first two are those of the second one. A reply of the same
	// method has the same size.
	request := openedRequest{path: "/Test/Echo", media: "application/grpc+json", body: envelopeOf(`{"text":"hello"}`), whole: true}
	size := func(calls int) (total int) {
		for range calls {
			c.request(c.next, request)
			c.next += 2
		}
		c.flush()
		for idle := time.After(time.Second); ; {
			select {
			case n := <-replies:
				total += n
			case <-idle:
				return total
			}
		}
	}
	for range 200 {
		c.request(c.next, request)
		c.next += 2
	}
	c.flush()
	size(1)
	one := size(1)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += batch {
		calls := min(batch, b.N-done)
		for range calls {
			c.request(c.next, request)
			c.next += 2
		}
		c.flush()
		c.frame(8, 0, 0, "\x00\x00\x40\x00") // what the replies take of the window
		for left := one * calls; left > 0; {
			left -= <-replies
		}
	}
}
