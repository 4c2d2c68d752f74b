// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// jsonOf returns the JSON of a text, with n bytes.
func jsonOf(n int) string { return `{"text":"` + strings.Repeat("x", n-len(`{"text":""}`)) + `"}` }

// chunked hides the length of a body.
type chunked struct{ io.Reader }

func TestSizeOfARequest(t *testing.T) {
	const most = 64 << 10
	both(t, func(t *testing.T, h2 bool) {
		c := client(t, h2)
		for name, s := range map[string]*site{
			"MaxMessage": newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: most}}),
			"MaxRequest": newSite(t, &http.Options{MaxRequest: most}, yodel.ServerOptions{}),
			"both":       newSite(t, &http.Options{MaxRequest: 10 * most}, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: most}}),
		} {
			for _, size := range []int{11, 100, 4 << 10, 4<<10 + 1, most, most + 1, 3 * most} {
				for _, hidden := range []bool{false, true} {
					var body io.Reader = strings.NewReader(jsonOf(size))
					if hidden {
						body = chunked{body}
					}
					r := s.doReader(c, body, "/Test/Echo")
					if size <= most {
						r.is(t, 200, jsonOf(size))
						continue
					}
					if r.fails(t, 413, yodel.ResourceExhausted, "the server's limit is 65536"); r.Header.Get("Yodel-Error-Id") != "YDL2201" || r.Header.Get("Yodel-Not-Processed") != "1" {
						t.Errorf("%s, %d bytes: the headers are %v", name, size, r.Header)
					}
				}
			}
			for _, size := range []int{most - 100, most + 1} { // the reply is a little larger
				r := s.connect(c, "/Test/Gather", 0, jsonOf(50), jsonOf(size))
				if failed := strings.Contains(r.last, "resource_exhausted"); failed != (size > most) {
					t.Errorf("%s: a stream with a message of %d bytes ends with %s", name, size, r.last)
				}
			}
		}
	})
}

// doReader posts a JSON body.
func (s *site) doReader(c *std.Client, body io.Reader, path string, headers ...string) reply {
	s.t.Helper()
	response := s.open(c, "POST", path, body, append([]string{"Content-Type", "application/json"}, headers...)...)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	must(s.t, err)
	return reply{response, string(b)}
}

// A small request must not become a large one.
func TestSizeAfterDecompression(t *testing.T) {
	const most = 64 << 10
	s, c := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{MaxDecompressed: most}}), client(t, true)
	must(t, s.Handle("Test.Join", func(a, b string) string { return fmt.Sprint(len(a) + len(b)) }))
	for _, size := range []int{most, most + 1, 100 * most} {
		packed, err := gzip.Compressor.Append(nil, []byte(jsonOf(size)))
		must(t, err)
		values, err := gzip.Compressor.Append(nil, []byte(`["`+strings.Repeat("x", size-7)+`",""]`))
		must(t, err)
		for _, r := range []reply{s.post(c, "/Test/Echo", string(packed), "Content-Encoding", "gzip"), s.post(c, "/Test/Join", string(values), "Content-Encoding", "gzip")} {
			if size <= most {
				if r.StatusCode != std.StatusOK {
					t.Errorf("%d bytes: %d %s", size, r.StatusCode, r.body)
				}
			} else {
				r.fails(t, 413, yodel.ResourceExhausted, "decompression")
			}
		}
		stream := s.connect(c, "/Test/Gather", 1, string(packed))
		if failed := strings.Contains(stream.last, "resource_exhausted"); failed != (size > most) {
			t.Errorf("a stream with a message of %d bytes ends with %s", size, stream.last)
		}
	}
	for _, path := range []string{"/Test/Echo", "/Test/Join"} {
		s.post(c, path, "no gzip", "Content-Encoding", "gzip").fails(t, 400, yodel.InvalidArgument, "cannot be decompressed")
	}
}

func TestCompression(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{CompressAbove: 1000}), client(t, h2)
		large, small := jsonOf(5000), jsonOf(500)
		packed, err := gzip.Compressor.Append(nil, []byte(large))
		must(t, err)
		for _, test := range []struct {
			name, body     string
			headers        []string
			encoding, want string
		}{
			{"none", large, nil, "", large},
			{"accepted", large, []string{"Accept-Encoding", "br, gzip"}, "gzip", large},
			{"accepted, small", small, []string{"Accept-Encoding", "gzip"}, "", small},
			{"q=0", large, []string{"Accept-Encoding", "gzip;q=0"}, "", large},
			{"unknown", large, []string{"Accept-Encoding", "lzma"}, "", large},
			{"sent and accepted", string(packed), []string{"Content-Encoding", "gzip", "Accept-Encoding", "gzip"}, "gzip", large},
			{"sent", string(packed), []string{"Content-Encoding", "GZIP", "Accept-Encoding", "identity"}, "", large},
			{"identity", large, []string{"Content-Encoding", "identity"}, "", large},
		} {
			r := s.post(c, "/Test/Echo", test.body, test.headers...)
			if got := r.Header.Get("Content-Encoding"); r.StatusCode != std.StatusOK || got != test.encoding || unpacked(t, r) != test.want {
				t.Errorf("%s: status %d, encoding %q, body of %d bytes", test.name, r.StatusCode, got, len(r.body))
			}
			if r.Header.Get("Accept-Encoding") != "gzip" {
				t.Errorf("%s: the server accepts %q", test.name, r.Header.Get("Accept-Encoding"))
			}
		}
		s.post(c, "/Test/Echo", "x", "Content-Encoding", "lzma").fails(t, 501, yodel.Unimplemented, `"lzma"; it has gzip`)
		without := newSite(t, nil, yodel.ServerOptions{Compressors: []compress.Compressor{}})
		without.post(c, "/Test/Echo", "x", "Content-Encoding", "gzip").fails(t, 501, yodel.Unimplemented, `"gzip"; it has none`)
		s.post(c, "/Test/Echo", "x", "Content-Encoding", "gzip, gzip").fails(t, 501, yodel.Unimplemented, "gzip, gzip")
	})
}

// A request whose rest does not come ends with its connection in HTTP/1, and alone in HTTP/2.
func TestSlowBody(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 50 * time.Millisecond}}), client(t, h2)
		for _, path := range []string{"/Test/Echo", "/Test/Read"} {
			in, out := io.Pipe()
			go func() { _, _ = out.Write([]byte(`{"te`)) }() // until the client ends it
			response, err := s.try(t.Context(), c, "POST", path, in, "Content-Type", "application/json")
			if err == nil {
				b, err := io.ReadAll(response.Body)
				must(t, errors.Join(err, response.Body.Close()))
				reply{response, string(b)}.fails(t, 504, yodel.DeadlineExceeded, "ends too early")
			}
			must(t, out.Close())
			s.post(c, "/Test/Echo", `{"text":"next"}`).is(t, 200, `{"text":"next"}`)
		}
	})
}

// The server does not wait for the rest of a request whose deadline has passed.
func TestDeadlineOfASlowBody(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		in, out := io.Pipe()
		defer out.Close()
		go func() { _, _ = out.Write([]byte(`{"te`)) }() // until the client ends it
		response, err := s.try(t.Context(), c, "POST", "/Test/Echo", in, "Content-Type", "application/json", "Connect-Timeout-Ms", "50")
		must(t, err)
		b, err := io.ReadAll(response.Body)
		must(t, errors.Join(err, response.Body.Close()))
		reply{response, string(b)}.fails(t, 504, yodel.DeadlineExceeded, "the deadline passed before the request had arrived")
	})
}

// All parts of a request with one message in an envelope must arrive in time: its prefix, its
// message and its end. The deadline of the call ends the wait for them too.
func TestSlowEnvelope(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		quick := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 50 * time.Millisecond}})
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		whole := envelope(0, `{"text":"x"}`)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		slow := func(s *site, path string, n int, headers ...string) {
			in, out := io.Pipe()
			defer out.Close()
			go func() { _, _ = out.Write(whole[:n]) }() // until the client ends it
			response, err := s.try(ctx, c, "POST", path, in, append(headers, "Content-Type", "application/grpc-web+json")...)
			if err != nil {
				if ctx.Err() != nil {
					t.Errorf("%s with %d bytes: the server still waits after 20 s", path, n)
				}
				return
			}
			defer response.Body.Close()
			b, _ := io.ReadAll(response.Body) // the server may reset the stream after the response
			if response.Header.Get("Grpc-Status") != "4" && !strings.Contains(string(b), "grpc-status: 4") {
				t.Errorf("%s with %d bytes: got %v, %q", path, n, response.Header, b)
			}
		}
		var all sync.WaitGroup
		for _, path := range []string{"/Test/Echo", "/Test/Watch"} {
			for _, n := range []int{0, 3, 9, len(whole)} {
				all.Go(func() { slow(quick, path, n) })
				all.Go(func() { slow(s, path, n, "Grpc-Timeout", "50m") })
			}
		}
		all.Wait()
		s.post(c, "/Test/Echo", "{}").is(t, 200, `{"text":""}`)
	})
}

// A connection without requests ends after Limits.IdleTimeout, and one with a request does not.
func TestIdleTimeout(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{IdleTimeout: 50 * time.Millisecond}}), client(t, h2)
		running := make(chan reply, 1)
		go func() { running <- s.post(c, "/Test/Long", `{"text":"x"}`) }()
		receive(t, s.began)
		<-time.After(200 * time.Millisecond) // a server that ends the connection does so in this time
		close(s.free)
		r := receive(t, running)
		r.is(t, 200, `{"text":"x"}`)
		eventually(t, "the connection ends", func() bool { return s.Stats().Conns == 0 })
	})
}

// Connections over ServerOptions.MaxConns are closed, and get their place when another one ends.
func TestMaxConns(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s := newSite(t, nil, yodel.ServerOptions{MaxConns: 1})
		first, second := client(t, h2), client(t, h2)
		s.post(first, "/Test/Echo", "{}").is(t, 200, `{"text":""}`)
		response, err := s.try(t.Context(), second, "POST", "/Test/Echo", strings.NewReader("{}"), "Content-Type", "application/json")
		if err == nil {
			_ = response.Body.Close()
			t.Fatalf("a second connection: %s", response.Status)
		}
		first.CloseIdleConnections()
		eventually(t, "the second connection has the place of the first", func() bool {
			response, err := s.try(t.Context(), second, "POST", "/Test/Echo", strings.NewReader("{}"), "Content-Type", "application/json")
			if err == nil {
				_ = response.Body.Close() // it was read, or is small
			}
			return err == nil
		})
	})
}

// Memory of a body without a length grows with what has come. When the connection's memory is used
// up, the request is refused.
func TestMemoryOfChunkedBodies(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1 << 20, MaxMemory: 1 << 19}}), client(t, false)
	s.doReader(c, chunked{strings.NewReader(jsonOf(900 << 10))}, "/Test/Echo").fails(t, 429, yodel.ResourceExhausted, "no memory left")
	s.doReader(c, chunked{strings.NewReader(jsonOf(100 << 10))}, "/Test/Echo").is(t, 200, jsonOf(100<<10))
}

// A client that sends no header in time loses its connection.
func TestSlowHeader(t *testing.T) {
	s := newSite(t, nil, yodel.ServerOptions{Limits: yodel.Limits{Handshake: 50 * time.Millisecond}})
	for _, start := range []string{"POST /Test/Echo HTTP/1.1\r\nHost:", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		conn, err := net.Dial("tcp", s.addr)
		must(t, err)
		must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = io.WriteString(conn, start)
		must(t, err)
		if _, err := io.Copy(new(bytes.Buffer), conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection is open 10 s after %q", start)
		}
		must(t, conn.Close())
	}
}
