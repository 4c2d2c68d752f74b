// SPDX-License-Identifier: Apache-2.0

package h2http_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/h2"
	"github.com/yodel-rpc/yodel/protocol/internal/h2http"
)

// An engine serves HTTP/2 with an http.Handler.
type engine struct {
	name  string
	serve func(t *testing.T, l net.Listener, h http.Handler, panicked func(value any))
}

var engines = []engine{{"net/http", serveStandard}, {"h2http", serveOwn}}

func serveStandard(t *testing.T, l net.Listener, h http.Handler, panicked func(any)) {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(panicLog(panicked), "", 0)}
	s.Protocols.SetUnencryptedHTTP2(true)
	var all sync.WaitGroup
	all.Go(func() { _ = s.Serve(l) }) // it returns when the test ends
	t.Cleanup(func() {
		_ = s.Close() // as above
		all.Wait()
	})
}

// A panicLog gets the lines of the log that report a panic.
type panicLog func(value any)

func (p panicLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		p(string(line))
	}
	return len(line), nil
}

func serveOwn(t *testing.T, l net.Listener, h http.Handler, panicked func(any)) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			handler := &h2http.Handler{Handler: h, Context: ctx, Remote: nc.RemoteAddr().String(), Panicked: panicked}
			conn := h2.New(nc, h2.Config{Handler: handler})
			handler.Drain = conn.Drain
			all.Go(func() { conn.Serve(nil, func(error) {}) }) // it ends with the test
			context.AfterFunc(ctx, conn.Close)
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		all.Wait()
	})
}

// A site is a server of an engine, with a client of net/http.
type site struct {
	*http.Client
	url    string
	panics chan any
}

func (e engine) open(t *testing.T, h http.HandlerFunc) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{url: "http://" + l.Addr().String(), panics: make(chan any, 10)}
	e.serve(t, l, h, func(value any) { s.panics <- value })
	transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	s.Client = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	return s
}

// do returns all that the client sees of a response.
func (s *site) do(t *testing.T, r *http.Request) string {
	t.Helper()
	var early []string
	r = r.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			early = append(early, fmt.Sprint(code, header))
			return nil
		},
	}))
	response, err := s.Do(r)
	if err != nil {
		return "no response"
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if date := response.Header.Get("Date"); date != "" {
		if _, err := http.ParseTime(date); err != nil {
			t.Error(err)
		}
		response.Header.Set("Date", "now")
	}
	return fmt.Sprintf("%v %d, length %d, %v, %.200q… of %d, %v, the end: %t", early, response.StatusCode, response.ContentLength, response.Header, body, len(body), response.Trailer, err == nil)
}

// Handlers and requests that show what a handler can see and do.
var handlers = map[string]http.HandlerFunc{
	"nothing": func(http.ResponseWriter, *http.Request) {},
	"request": func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s %d.%d %v %q %d %v %q %v %v %v", r.Method, r.URL, r.Proto, r.ProtoMajor, r.ProtoMinor, r.Host != "", r.RequestURI, r.ContentLength, r.Header, body, err, r.Trailer, r.RemoteAddr != "")
	},
	"page": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>a page</html>") },
	"long page": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("page ", 10_000))
	},
	"many writes": func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3000 {
			_, _ = fmt.Fprintln(w, i)
		}
	},
	"exactly a chunk": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4096)) },
	"flush": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("A", "b")
		w.(http.Flusher).Flush()
		w.Header().Set("A", "too late")
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "two")
	},
	"header": func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Several"], h["Empty"], h["Set-Cookie"] = []string{"a", "b"}, []string{""}, []string{"a=b", "c=d"}
		h.Set("Content-Type", "text/special")
		h.Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		h["Break"], h["Bad name"], h["Transfer-Encoding"] = []string{"a\nb"}, []string{"a"}, []string{"chunked"}
		w.WriteHeader(http.StatusTeapot)
		h.Set("Late", "c")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "a body")
	},
	"none": func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Date"], h["Content-Length"], h["Content-Type"] = nil, nil, nil
		w.WriteHeader(http.StatusOK)
	},
	"compressed": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "not compressed")
	},
	"status 204": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_, err := io.WriteString(w, "x")
		_ = err == http.ErrBodyNotAllowed || panics("a body was allowed")
	},
	"status 304": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
	"length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "12345")
	},
	"wrong length": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "five")
		_, _ = io.WriteString(w, "12345")
	},
	"early hints": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Link", "</other.css>")
		w.WriteHeader(http.StatusProcessing)
		_, _ = io.WriteString(w, "done")
	},
	"trailer": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Sum, Content-Length")
		w.Header().Add("Trailer", "never, Other")
		_, _ = io.WriteString(w, "a body")
		w.Header().Set("Sum", "42")
		w.Header()["Other"] = []string{"a", "b"}
		w.Header().Set(http.TrailerPrefix+"Unannounced", "x")
		w.Header()[http.TrailerPrefix+"lower"] = []string{"y"}
	},
	"trailer after a flush": func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	},
	"trailer alone": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	},
	"panic": func(http.ResponseWriter, *http.Request) { panic("oh no") },
	"abort": func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	},
	"echo": func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	},
	"closed body": func(w http.ResponseWriter, r *http.Request) {
		_ = r.Body.Close()
		_, err := r.Body.Read(make([]byte, 1))
		_, _ = fmt.Fprint(w, err != nil)
	},
	"contexts": func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Context().Err()) },
	"hijack": func(w http.ResponseWriter, _ *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		_, _ = fmt.Fprint(w, errors.Is(err, http.ErrNotSupported))
	},
	"bad status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(99) },
	"form": func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.FormValue("a"), r.FormValue("b"))
	},
}

func panics(why string) bool { panic(why) }

// requests returns requests for a path.
func requests(t *testing.T, url string) map[string]*http.Request {
	to := func(method, path string, body io.Reader, headers ...string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		return r
	}
	all := map[string]*http.Request{
		"GET":      to("GET", "/", nil, "Cookie", "a=b", "Cookie", "c=d", "X-Many", "1", "X-Many", "2"),
		"HEAD":     to("HEAD", "/a%2Fb?q=%20&r", nil),
		"POST":     to("POST", "/", strings.NewReader("a=1&b=2"), "Content-Type", "application/x-www-form-urlencoded"),
		"chunked":  to("PUT", "/", io.MultiReader(strings.NewReader("one "), strings.NewReader("two"))),
		"large":    to("POST", "/", strings.NewReader(strings.Repeat("0123456789", 50_000))),
		"continue": to("POST", "/", strings.NewReader("on request"), "Expect", "100-continue"),
		"trailer":  to("POST", "/", io.MultiReader(strings.NewReader("a body"))),
		"OPTIONS":  to("OPTIONS", "/", nil, "Te", "trailers"),
	}
	all["trailer"].Trailer = http.Header{"Last": {"one"}, "None": nil}
	return all
}

// A handler sees the same requests, and its client the same responses, as in net/http.
func TestHandlersSeeAndDoTheSameAsInNetHTTP(t *testing.T) {
	t.Parallel()
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(map[string]string)
			for i, e := range engines {
				s := e.open(t, handler)
				for request, r := range requests(t, s.url) {
					seen := s.do(t, r)
					if i > 0 && seen != got[request] {
						t.Errorf("%s:\nwant %s\ngot  %s", request, got[request], seen)
					}
					got[request] = seen
				}
			}
		})
	}
}

// each runs a test with each engine.
func each(t *testing.T, test func(t *testing.T, e engine)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) { test(t, e) })
	}
}

func (s *site) request(ctx context.Context, t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came in 20 s")
	}
	return value
}

// A panic is reported, except for that of http.ErrAbortHandler, and later requests are served.
func TestPanicsAreReported(t *testing.T) {
	each(t, func(t *testing.T, e engine) {
		value := make(chan any, 1)
		s := e.open(t, func(http.ResponseWriter, *http.Request) {
			if v := <-value; v != nil {
				panic(v)
			}
		})
		for _, v := range []any{http.ErrAbortHandler, "oh no", nil} {
			value <- v
			if _, err := s.Do(s.request(t.Context(), t, nil)); (err == nil) != (v == nil) { //nolint:bodyclose // it has none
				t.Errorf("%v: %v", v, err)
			}
		}
		if got := fmt.Sprint(receive(t, s.panics)); !strings.Contains(got, "oh no") || len(s.panics) > 0 {
			t.Errorf("reported %s and %d more", got, len(s.panics))
		}
	})
}

// The context of a request ends when the client resets the stream, and when the handler returns.
func TestContextsEnd(t *testing.T) {
	each(t, func(t *testing.T, e engine) {
		begun, ended := make(chan context.Context, 1), make(chan error, 1)
		s := e.open(t, func(_ http.ResponseWriter, r *http.Request) {
			begun <- r.Context()
			if r.ContentLength == 0 {
				return
			}
			<-r.Context().Done()
			ended <- r.Context().Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := s.Do(s.request(ctx, t, strings.NewReader("x"))) //nolint:bodyclose // it fails
			failed <- err
		}()
		receive(t, begun)
		cancel()
		if err := receive(t, ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := receive(t, failed); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := s.Do(s.request(t.Context(), t, nil)); err != nil { //nolint:bodyclose // it has none
			t.Fatal(err)
		}
		<-receive(t, begun).Done()
	})
}

// Deadlines end reads and writes that wait for the client, and can be set again before they pass.
func TestDeadlines(t *testing.T) {
	each(t, func(t *testing.T, e engine) {
		read, wrote := make(chan error, 1), make(chan error, 1)
		s := e.open(t, func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			_ = c.SetReadDeadline(time.Now().Add(time.Hour)) // it is supported
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			read <- err
			_ = c.SetWriteDeadline(time.Now().Add(time.Hour))
			if _, err = w.Write(make([]byte, 1<<10)); err != nil {
				t.Error(err)
			}
			_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			for err == nil {
				_, err = w.Write(make([]byte, 64<<10))
			}
			wrote <- err
		})
		in, out := io.Pipe()
		defer out.Close()
		go func() { _, _ = out.Write([]byte("half a body")) }() // until the client ends it
		response, err := s.Do(s.request(t.Context(), t, in))
		if err == nil {
			defer response.Body.Close() // it was not read
		}
		if err := receive(t, read); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		receive(t, wrote)
	})
}

// A handler reads and writes at the same time.
func TestFullDuplex(t *testing.T) {
	each(t, func(t *testing.T, e engine) {
		s := e.open(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			var b [1]byte
			for {
				if _, err := r.Body.Read(b[:]); err != nil {
					return
				}
				_, _ = w.Write(b[:]) // the client reads it
				_ = http.NewResponseController(w).Flush()
			}
		})
		in, out := io.Pipe()
		response, err := s.Do(s.request(t.Context(), t, in))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		for i := range byte(20) {
			if _, err := out.Write([]byte{i}); err != nil {
				t.Fatal(err)
			}
			var b [1]byte
			if _, err := io.ReadFull(response.Body, b[:]); err != nil || b[0] != i {
				t.Fatal(b, err)
			}
		}
		_ = out.Close() // of a pipe
		if n, err := io.Copy(io.Discard, response.Body); n > 0 || err != nil {
			t.Error(n, err)
		}
	})
}

// A handler that ends its goroutine ends its stream alone.
func TestHandlersThatEndTheirGoroutine(t *testing.T) {
	s := engines[1].open(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 0 {
			runtime.Goexit()
		}
	})
	if _, err := s.Do(s.request(t.Context(), t, strings.NewReader("x"))); err == nil { //nolint:bodyclose // it fails
		t.Error("the request has succeeded")
	}
	if _, err := s.Do(s.request(t.Context(), t, nil)); err != nil { //nolint:bodyclose // it has none
		t.Error(err)
	}
}

// "Connection: close" drains the connection: the response arrives, and so does that of a request
// that is sent at once.
func TestConnectionClose(t *testing.T) {
	each(t, func(t *testing.T, e engine) {
		s := e.open(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "bye")
		})
		for range 2 {
			response, err := s.Do(s.request(t.Context(), t, nil))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close() // it was read
			if string(body) != "bye" || err != nil || response.Header.Get("Connection") != "" {
				t.Error(string(body), err, response.Header)
			}
		}
	})
}

// What a handler leaves behind can neither read the rest of the request nor write.
func TestNothingAfterTheHandler(t *testing.T) {
	type left struct {
		w http.ResponseWriter
		r *http.Request
	}
	kept := make(chan left, 1)
	s := engines[1].open(t, func(w http.ResponseWriter, r *http.Request) { kept <- left{w, r} })
	response, err := s.Do(s.request(t.Context(), t, strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	l := <-kept
	if n, err := l.r.Body.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("Read returns %d, %v", n, err)
	}
	if _, err := l.w.Write([]byte("x")); err == nil {
		t.Error("Write succeeds")
	}
	if _, err := io.WriteString(l.w, "x"); err == nil {
		t.Error("WriteString succeeds")
	}
	if http.NewResponseController(l.w).Flush() == nil {
		t.Error("Flush succeeds")
	}
}
