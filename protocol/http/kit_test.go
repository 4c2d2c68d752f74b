// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	std "net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// Messages and methods of the server that the tests call.
type (
	text struct {
		Text string `json:"text"`
	}
	seen struct {
		Metadata yodel.Metadata `json:"metadata"`
		Left     time.Duration  `json:"left"`
		Call     fields         `json:"call"`
	}
	// fields are the fields of a Call that headers carry.
	fields struct {
		Tenant, Key, IdempotencyKey, Trace string
		Budget, Criticality, Attempt       int
		Explain                            bool
	}
)

const (
	echo    yodel.Method[text, text] = "Test/Echo"
	read    yodel.Method[text, text] = "Test.Read" // read-only
	see     yodel.Method[text, seen] = "Test.See"
	fail    yodel.Method[text, text] = "Test.Fail"
	long    yodel.Method[text, text] = "Test.Long"
	watch   yodel.Feed[text, text]   = "Test.Watch"
	endless yodel.Feed[text, text]   = "Test.Endless"
	gather  yodel.Upload[text, text] = "Test.Gather"
	chat    yodel.Duplex[text, text] = "Test.Chat"
)

// A site is a server with a Protocol.
type site struct {
	*yodel.Server
	t     testing.TB
	addr  string
	began chan struct{} // a call of Test.Long or Test.Endless has begun
	ended chan error    // the context of such a call has ended
	free  chan struct{} // closed to end calls of Test.Long
	stop  func() error  // shuts it down
}

func newSite(t testing.TB, p *http.Options, o yodel.ServerOptions) *site {
	t.Helper()
	return newSiteOn(t, testserve.Listen(t), p, o)
}

func newSiteOn(t testing.TB, l net.Listener, p *http.Options, o yodel.ServerOptions) *site {
	t.Helper()
	o.Protocols = []yodel.Protocol{http.New(p)}
	if o.Compressors == nil {
		o.Compressors = []compress.Compressor{gzip.Compressor}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &site{Server: yodel.NewServer(&o), t: t, addr: l.Addr().String()}
	s.began, s.ended, s.free = make(chan struct{}, 1000), make(chan error, 1000), make(chan struct{})
	s.register()
	s.stop = testserve.Run(t, s.Server, l)
	return s
}

func (s *site) register() {
	echo.Handle(s.Server, func(ctx context.Context, in *text) (*text, error) { return in, nil })
	read.Handle(s.Server, func(ctx context.Context, in *text) (*text, error) { return in, nil })
	s.MarkReadOnly(string(read))
	see.Handle(s.Server, func(ctx context.Context, _ *text) (*seen, error) {
		c := yodel.CallFrom(ctx)
		out := &seen{Metadata: yodel.Metadata{}, Call: fields{c.Tenant, c.Key, c.IdempotencyKey, c.Trace, c.Budget, c.Criticality, c.Attempt, c.Explain}}
		maps.Copy(out.Metadata, c.Metadata)
		if strings.HasPrefix(c.Metadata["user-agent"], "Go-http-client/") { // the tests do not set it
			delete(out.Metadata, "user-agent")
		}
		if at, ok := ctx.Deadline(); ok {
			out.Left = time.Until(at)
		}
		return out, nil
	})
	fail.Handle(s.Server, func(_ context.Context, in *text) (*text, error) {
		return nil, yodel.Errorf(yodel.FailedPrecondition, "it failed: %s", in.Text)
	})
	long.Handle(s.Server, func(ctx context.Context, in *text) (*text, error) {
		s.began <- struct{}{}
		select {
		case <-s.free:
			return in, nil
		case <-ctx.Done():
			s.ended <- context.Cause(ctx)
			return nil, ctx.Err()
		}
	})
	watch.Handle(s.Server, func(ctx context.Context, in *text, send yodel.Send[text]) error {
		call := yodel.CallFrom(ctx)
		call.SetHeader(yodel.Metadata{"first": "header"})
		call.Trailer = yodel.Metadata{"last": "trailer"}
		for word := range strings.FieldsSeq(in.Text) {
			if word == "fail" {
				return yodel.Errorf(yodel.Aborted, "in the middle")
			}
			if err := send(&text{word}); err != nil {
				return err
			}
		}
		return nil
	})
	endless.Handle(s.Server, func(ctx context.Context, in *text, send yodel.Send[text]) error {
		s.began <- struct{}{}
		for {
			if err := send(in); err != nil {
				<-ctx.Done()
				s.ended <- context.Cause(ctx)
				return err
			}
		}
	})
	gather.Handle(s.Server, func(_ context.Context, recv yodel.Recv[text]) (*text, error) {
		var all []string
		for in, err := range recv {
			if err != nil {
				return nil, err
			}
			all = append(all, in.Text)
		}
		return &text{strings.Join(all, " ")}, nil
	})
	chat.Handle(s.Server, func(ctx context.Context, recv yodel.Recv[text], send yodel.Send[text]) error {
		for {
			in, err := recv.Next()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				s.ended <- err
				return err
			}
			if err := send(in); err != nil {
				return err
			}
		}
	})
}

// client returns a client of HTTP/1 or HTTP/2 with connections of its own.
func client(t testing.TB, h2 bool) *std.Client {
	transport := &std.Transport{Protocols: new(std.Protocols), DisableCompression: true}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return &std.Client{Transport: transport, Timeout: time.Minute}
}

// A reply is the response to a request.
type reply struct {
	*std.Response
	body string
}

// do sends a request with headers, which are pairs of a name and a value.
func (s *site) do(c *std.Client, method, path, body string, headers ...string) reply {
	s.t.Helper()
	response := s.open(c, method, path, strings.NewReader(body), headers...)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	must(s.t, err)
	return reply{response, string(b)}
}

// open sends a request, and returns the response with its body unread.
func (s *site) open(c *std.Client, method, path string, body io.Reader, headers ...string) *std.Response {
	s.t.Helper()
	response, err := s.try(s.t.Context(), c, method, path, body, headers...)
	must(s.t, err)
	return response
}

func (s *site) try(ctx context.Context, c *std.Client, method, path string, body io.Reader, headers ...string) (*std.Response, error) {
	r, err := std.NewRequestWithContext(ctx, method, "http://"+s.addr+path, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return c.Do(r)
}

// post calls a method with a JSON body.
func (s *site) post(c *std.Client, path, body string, headers ...string) reply {
	s.t.Helper()
	return s.do(c, std.MethodPost, path, body, append([]string{"Content-Type", "application/json"}, headers...)...)
}

// is checks the status and the body.
func (r reply) is(t testing.TB, status int, body string) {
	t.Helper()
	if r.StatusCode != status || strings.TrimSpace(r.body) != body {
		t.Errorf("got %d %.2000s, want %d %.2000s", r.StatusCode, r.body, status, body)
	}
}

// fails checks the status, the code, and that the message contains a text.
func (r reply) fails(t testing.TB, status int, code yodel.Code, message string) {
	t.Helper()
	var e yodel.Error
	if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.StatusCode != status || e.Code != code || !strings.Contains(e.Message, message) {
		t.Errorf("got %d %.2000s, want %d, %s and %q", r.StatusCode, r.body, status, code, message)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// both runs a test with HTTP/1 and with HTTP/2.
func both(t *testing.T, test func(t *testing.T, h2 bool)) {
	t.Run("HTTP 1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP 2", func(t *testing.T) { test(t, true) })
}

// receive waits for a value.
func receive[T any](t testing.TB, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came in 20 s")
	}
	return value
}

// eventually waits until a condition is true.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(20 * time.Second); !condition(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}
