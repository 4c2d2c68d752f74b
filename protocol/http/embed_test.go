// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// newEmbedded returns a site whose methods an HTTP server of the test serves below the path /api.
// The site itself serves no port.
func newEmbedded(t *testing.T, o yodel.ServerOptions, secure bool) (s *site, c *std.Client) {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	o.Compressors = []compress.Compressor{gzip.Compressor}
	s = &site{Server: yodel.NewServer(&o), t: t}
	s.began, s.ended, s.free = make(chan struct{}, 1000), make(chan error, 1000), make(chan struct{})
	s.register()
	mux := std.NewServeMux()
	mux.Handle("/api/", std.StripPrefix("/api", http.New(nil).Handler(s.Server)))
	outer := httptest.NewUnstartedServer(mux)
	outer.Config.Protocols = new(std.Protocols)
	outer.Config.Protocols.SetHTTP1(true)
	outer.Config.Protocols.SetUnencryptedHTTP2(true)
	outer.EnableHTTP2 = true
	if secure {
		outer.StartTLS()
	} else {
		outer.Start()
	}
	t.Cleanup(outer.Close)
	s.addr = outer.Listener.Addr().String()
	return s, outer.Client()
}

// In an HTTP server of the program, too, a client that does not send the rest of a request gets a
// response and loses its connection.
func TestHalfARequestInAnotherServer(t *testing.T) {
	s, _ := newEmbedded(t, yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 10 * time.Millisecond}}, false)
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	defer conn.Close()
	from := bufio.NewReader(conn)
	status, _ := exchangeRaw(t, conn, from, "POST /api/Test/Echo HTTP/1.1\r\nContent-Type: application/json\r\n", 100, `{"text":`)
	if status != std.StatusGatewayTimeout {
		t.Errorf("got status %d", status)
	}
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection does not end: %v", err)
	}
}

func TestHandlerInAnotherServer(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, _ := newEmbedded(t, yodel.ServerOptions{}, false)
		c := client(t, h2)
		s.post(c, "/api/Test/Echo", `{"text":"x"}`).is(t, 200, `{"text":"x"}`)
		s.post(c, "/Test/Echo", `{}`).is(t, 404, "404 page not found")
		s.post(c, "/api/Test/Fail", `{"text":"x"}`).fails(t, 400, yodel.FailedPrecondition, "it failed: x")
		if got := s.connect(c, "/api/Test/Watch", 0, `{"text":"x"}`); len(got.messages) == 0 || strings.Contains(got.last, "error") {
			t.Errorf("a feed: got %q, then %s", got.messages, got.last)
		}
		if got := s.connect(c, "/api/Test/Gather", 0, `{"text":"x"}`, `{"text":"y"}`); len(got.messages) != 1 || got.last != "{}" {
			t.Errorf("an upload: got %q, then %s", got.messages, got.last)
		}
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-s.began
			leave()
		}()
		response, err := s.try(ctx, c, "POST", "/api/Test/Long", strings.NewReader("{}"), "Content-Type", "application/json")
		if err == nil {
			_ = response.Body.Close() // it is not needed
			t.Error("the canceled request succeeds")
		}
		receive(t, s.ended) // the handler's context has ended
	})
}

func TestGRPCInAnotherServer(t *testing.T) {
	s, _ := newEmbedded(t, yodel.ServerOptions{}, false)
	response := s.open(client(t, true), "POST", "/api/Test/Echo", strings.NewReader(string(envelope(0, `{"text":"x"}`))),
		"Content-Type", "application/grpc+json", "Te", "trailers")
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	must(t, err)
	if string(got) != string(envelope(0, `{"text":"x"}`)) || response.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %q, trailer %v", got, response.Trailer)
	}
}

// The peer of a call has the address, the TLS state and the agent of the request, and Connect may
// refuse it.
func TestPeerInAnotherServer(t *testing.T) {
	refuse := false
	var peer *yodel.Peer
	s, c := newEmbedded(t, yodel.ServerOptions{Connect: func(_ context.Context, p *yodel.Peer) error {
		peer = p
		if refuse {
			return yodel.Errorf(yodel.PermissionDenied, "not you")
		}
		return nil
	}}, true)
	call := func() reply {
		r, err := std.NewRequestWithContext(t.Context(), "POST", "https://"+s.addr+"/api/Test/Echo", strings.NewReader("{}"))
		must(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("User-Agent", "test/1")
		response, err := c.Do(r)
		must(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		must(t, err)
		return reply{response, string(body)}
	}
	call().is(t, 200, `{"text":""}`)
	if peer.TLS() == nil || peer.Agent != "test/1" || !strings.HasPrefix(peer.Addr.String(), "127.0.0.1:") || peer.Addr.Network() != "tcp" {
		t.Errorf("the peer is %+v, TLS %v", peer, peer.TLS())
	}
	if _, err := peer.Conn.Read(nil); err == nil {
		t.Error("the connection can be read")
	}
	select {
	case <-peer.Done():
	case <-time.After(20 * time.Second):
		t.Error("the peer has not ended with its request")
	}
	refuse = true
	call().fails(t, 403, yodel.PermissionDenied, "not you")
}

// Shutdown waits for open calls, and refuses later ones.
func TestShutdownInAnotherServer(t *testing.T) {
	s, _ := newEmbedded(t, yodel.ServerOptions{}, false)
	c := client(t, false)
	answered := make(chan reply, 1)
	go func() { answered <- s.post(c, "/api/Test/Long", `{"text":"x"}`) }()
	receive(t, s.began)
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	eventually(t, "calls are refused", func() bool { return s.post(c, "/api/Test/Echo", "{}").StatusCode == std.StatusServiceUnavailable })
	select {
	case err := <-down:
		t.Errorf("Shutdown has returned %v while a call is open", err)
	default:
	}
	close(s.free)
	receive(t, answered).is(t, 200, `{"text":"x"}`)
	must(t, receive(t, down))
	s.post(c, "/api/Test/Echo", "{}").fails(t, 503, yodel.Unavailable, "the server has been shut down")
}

// A server that is shut down at once ends the calls that are open.
func TestAbortInAnotherServer(t *testing.T) {
	s, _ := newEmbedded(t, yodel.ServerOptions{}, false)
	answered := make(chan reply, 1)
	go func() { answered <- s.post(client(t, false), "/api/Test/Long", `{"text":"x"}`) }()
	receive(t, s.began)
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(now); err == nil {
		t.Error("Shutdown does not say that it cut off a call")
	}
	receive(t, s.ended)
	if got := receive(t, answered); got.StatusCode == std.StatusOK {
		t.Errorf("the call succeeds: %s", got.body)
	}
}

// A panic that net/http uses to abort a response reaches it.
func TestAbortedResponseInAnotherServer(t *testing.T) {
	s := yodel.NewServer(nil)
	handler := http.New(&http.Options{Handler: std.HandlerFunc(func(std.ResponseWriter, *std.Request) { panic(std.ErrAbortHandler) })}).Handler(s)
	func() {
		defer func() {
			if recover() != std.ErrAbortHandler {
				t.Error("the panic is gone")
			}
		}()
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(std.MethodGet, "/", nil))
	}()
	must(t, s.Shutdown(t.Context())) // nothing is open
}
