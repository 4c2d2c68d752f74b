// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// Match says the same of a beginning, whatever comes behind it, and needs few bytes.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{"GET / HTTP/1.1", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI *", "POST", "OPTIONS *", "PATCHES", `{"jsonrpc"`, "\xf5yodel"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, first []byte) {
		first = first[:min(len(first), 512)]
		decided, was := false, false
		for n := 1; n <= len(first); n++ {
			ok, more := http.New(nil).Match(first[:n])
			if ok && more || decided && (more || ok != was) {
				t.Fatalf("%q: it matches %t, more %t, and %t without the last byte", first[:n], ok, more, was)
			}
			decided, was = !more, ok
			if more && n >= 24 {
				t.Fatalf("%q: it needs more bytes", first[:n])
			}
		}
	})
}

// Whatever a client sends, its session ends when the client has left, nothing panics, and other
// clients are served.
func FuzzServe(f *testing.F) {
	const end = "\r\nHost: x\r\n"
	for _, seed := range []string{
		"GET / HTTP/1.1" + end + "\r\n",
		"POST /Test/Echo HTTP/1.1" + end + "Content-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"text\":\"x\"}GET /x HTTP/1.1" + end + "\r\n",
		"POST /Test/Echo HTTP/1.1" + end + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /Test/Join HTTP/1.1" + end + "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n[\"a\",\"b\"]",
		"POST /Test/Join HTTP/1.1" + end + "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz",
		"GET /Test/Read?encoding=json&message=e30&base64=1 HTTP/1.1" + end + "\r\n",
		"POST /Test/Watch HTTP/1.1" + end + "Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: 14\r\n\r\n{\"text\":\"a b\"}",
		"POST /Test/Gather HTTP/1.1" + end + "Content-Type: application/connect+json\r\nContent-Length: 14\r\n\r\n\x00\x00\x00\x00\x02{}\x01\x00\x00\x00\x02{}",
		"POST /Test/Chat HTTP/1.1" + end + "Content-Type: application/grpc-web-text+json\r\nGrpc-Timeout: 1S\r\nContent-Length: 12\r\n\r\nAAAAAAJ7fQ==",
		"OPTIONS /Test/Echo HTTP/1.1" + end + "Origin: y\r\nAccess-Control-Request-Method: POST\r\n\r\n",
		"POST /Test HTTP/1.1" + end + "X-RPCX-SerializeType: 1\r\nX-RPCX-ServiceMethod: Echo\r\nX-RPCX-MessageID: 1\r\nX-RPCX-Meta: a=%31&__ServerTimeout=9\r\nContent-Length: 2\r\n\r\n{}",
		"POST / HTTP/1.1" + end + "X-JSONRPC-2.0: true\r\nX-RPCX-Meta: a=b\r\nContent-Length: 46\r\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"Test.Read\",\"id\":1}",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x03\x01\x05\x00\x00\x00\x01\x82\x84\x87",
	} {
		f.Add([]byte(seed))
	}
	log := new(book)
	network := mem.New()
	s := &site{t: f, Server: yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{http.New(&http.Options{Origins: []string{"*"}, RPCX: true})}, MaxMemory: 1 << 20, MaxOpen: 4,
		Compressors: []compress.Compressor{gzip.Compressor}, CompressAbove: 1, Limits: yodel.Limits{MaxMessage: 4 << 10},
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelError})),
	})}
	s.began, s.ended, s.free = make(chan struct{}, 1000), make(chan error, 1000), make(chan struct{})
	s.register()
	must(f, s.Handle("Test.Join", func(a, b string) (string, string) { return b, a }))
	must(f, s.Unregister(string(long), string(endless))) // they wait for the test
	go func() {
		for range s.ended {
		}
	}()
	l, err := network.Listen("fuzz")
	must(f, err)
	stopped := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { stopped <- s.Serve(ctx, l) }()
	f.Cleanup(func() {
		stop()
		<-stopped
		close(s.ended)
		if text := log.String(); text != "" {
			f.Errorf("the log: %s", text)
		}
	})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := network.Dial(t.Context(), "fuzz")
		must(t, err)
		defer c.Close()
		go func() {
			_, _ = c.Write(sent)
			_ = c.(interface{ CloseWrite() error }).CloseWrite() // the server may have closed it
		}()
		if _, err = io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Fatal(err)
		}
		transport := &std.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return network.Dial(ctx, "fuzz") }}
		defer transport.CloseIdleConnections()
		r, err := std.NewRequestWithContext(t.Context(), "POST", "http://fuzz/Test/Echo", bytes.NewReader([]byte(`{"text":"x"}`)))
		must(t, err)
		r.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(r)
		must(t, err)
		defer response.Body.Close()
		if response.StatusCode != std.StatusOK {
			t.Fatalf("another client got %s", response.Status)
		}
	})
}
