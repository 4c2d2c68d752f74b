// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A book is a writer for the lines of a log.
type book struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.String()
}

func TestHandler(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		mux, log := std.NewServeMux(), new(book)
		mux.HandleFunc("GET /page", func(w std.ResponseWriter, r *std.Request) {
			_, _ = io.WriteString(w, "a page for "+r.URL.Query().Get("who"))
		})
		mux.HandleFunc("/panic", func(std.ResponseWriter, *std.Request) { panic("oh no") })
		mux.HandleFunc("/abort", func(w std.ResponseWriter, r *std.Request) {
			_, _ = io.WriteString(w, "half a page")
			_ = std.NewResponseController(w).Flush()
			panic(std.ErrAbortHandler)
		})
		mux.HandleFunc("POST /other.Service/Method", func(w std.ResponseWriter, r *std.Request) {
			_, _ = io.WriteString(w, r.Header.Get("Content-Type")+" ")
			_, _ = io.Copy(w, r.Body)
		})
		s := newSite(t, &http.Options{Handler: mux, Logger: slog.New(slog.NewTextHandler(log, nil))}, yodel.ServerOptions{})
		c := client(t, h2)
		s.do(c, "GET", "/page?who=you", "").is(t, 200, "a page for you")
		s.do(c, "PUT", "/page", "").is(t, 405, "Method Not Allowed")
		s.do(c, "GET", "/other", "").is(t, 404, "404 page not found")
		s.post(c, "/Test/Echo", `{"text":"x"}`).is(t, 200, `{"text":"x"}`)
		s.post(c, "/Test/Nothing", "{}").is(t, 404, "404 page not found")
		for _, media := range []string{"application/grpc", "application/grpc-web+proto", "application/connect+json", "application/connect+none", "application/json"} {
			if media == "application/grpc" && !h2 {
				continue // gRPC needs HTTP/2
			}
			response := s.open(c, "POST", "/other.Service/Method", bytes.NewReader(envelope(0, "message")), "Content-Type", media)
			if got, err := io.ReadAll(response.Body); err != nil || string(got) != media+" "+string(envelope(0, "message")) {
				t.Errorf("a call of another service: the handler answers %q, %v", got, err)
			}
			_ = response.Body.Close() // it was read
		}
		for _, path := range []string{"/panic", "/abort"} {
			response, err := s.try(t.Context(), c, "GET", path, nil)
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close() // the connection or stream was cut
			}
			if err == nil {
				t.Errorf("%s: the response is whole", path)
			}
		}
		s.post(c, "/Test/Echo", `{"text":"x"}`).is(t, 200, `{"text":"x"}`)
		eventually(t, "the panic is logged", func() bool { return strings.Contains(log.String(), "oh no") })
		if lines := log.String(); !strings.Contains(lines, "panicked") || strings.Contains(lines, "abort") || !strings.Contains(lines, "oh no") {
			t.Errorf("the log has %s", lines)
		}
	})
}

// upgraded serves connections that a handler takes over: it sends each line back.
func upgraded(w std.ResponseWriter, _ *std.Request) {
	conn, buffered, err := std.NewResponseController(w).Hijack()
	if err != nil {
		std.Error(w, err.Error(), std.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n")
	go func() {
		defer conn.Close()
		for {
			line, err := buffered.ReadString('\n')
			if err != nil {
				_, _ = io.WriteString(conn, "bye\n")
				return
			}
			_, _ = io.WriteString(conn, line)
		}
	}()
}

// upgrade opens a connection that upgraded serves.
func (s *site) upgrade() (conn net.Conn, lines *bufio.Reader) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	must(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	must(s.t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n")
	must(s.t, err)
	lines = bufio.NewReader(conn)
	response, err := std.ReadResponse(lines, nil) //nolint:bodyclose // close does it
	must(s.t, err)
	if response.StatusCode != std.StatusSwitchingProtocols {
		s.t.Fatalf("got %s", response.Status)
	}
	return conn, lines
}

func says(t testing.TB, conn net.Conn, lines *bufio.Reader, word string) {
	t.Helper()
	_, err := fmt.Fprintln(conn, word)
	must(t, err)
	if got, err := lines.ReadString('\n'); err != nil || got != word+"\n" {
		t.Fatalf("got %q, %v, want %s", got, err, word)
	}
}

// A handler that takes a connection over has it until it closes it. Idle time does not end it, and
// a drain ends its reads.
func TestHijack(t *testing.T) {
	const idle = 30 * time.Millisecond
	s := newSite(t, &http.Options{Handler: std.HandlerFunc(upgraded)}, yodel.ServerOptions{MaxConns: 1, Limits: yodel.Limits{IdleTimeout: idle}})
	conn, lines := s.upgrade()
	for range 5 {
		says(t, conn, lines, "hello")
		<-time.After(2 * idle) // a server that counts it as idle ends it in this time
	}
	must(t, conn.Close())
	eventually(t, "the place of the connection is free", func() bool { return s.Stats().Conns == 0 })
	conn, lines = s.upgrade()
	says(t, conn, lines, "hello")
	must(t, s.stop())
	if got, err := lines.ReadString('\n'); err != nil || got != "bye\n" {
		t.Errorf("while the server drains: got %q, %v", got, err)
	}
}

// A handler that never closes the connection does not keep Shutdown after its context has ended.
func TestHijackIsCutOff(t *testing.T) {
	taken := make(chan net.Conn, 1)
	keep := func(w std.ResponseWriter, _ *std.Request) {
		conn, _, err := std.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
		}
		taken <- conn
	}
	s := newSite(t, &http.Options{Handler: std.HandlerFunc(keep)}, yodel.ServerOptions{DrainTimeout: 50 * time.Millisecond})
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	kept := receive(t, taken)
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("the connection is open")
	}
	receive(t, stopped)
	_ = kept.Close() // the server has closed it
}
