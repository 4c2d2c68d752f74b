// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	std "net/http"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

var events = []string{"Content-Type", "application/json", "Accept", "text/html, text/event-stream;q=0.9"}

func TestEvents(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{CompressAbove: 1}), client(t, h2)
		r := s.do(c, "POST", "/Test/Watch", `{"text":"a b"}`, append(events, "Accept-Encoding", "gzip")...)
		r.is(t, 200, "data: {\"text\":\"a\"}\n\ndata: {\"text\":\"b\"}\n\nevent: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}")
		if h := r.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" || h.Get("X-Accel-Buffering") != "no" || h.Get("First") != "header" || h.Get("Content-Encoding") != "" {
			t.Errorf("the headers are %v", h)
		}
		s.do(c, "POST", "/Test/Watch", `{"text":""}`, events...).is(t, 200, "event: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}")
		s.do(c, "POST", "/Test/Watch", `{"text":"a fail b"}`, events...).is(t, 200,
			"data: {\"text\":\"a\"}\n\nevent: error\ndata: {\"error\":{\"code\":\"aborted\",\"message\":\"in the middle\"},\"metadata\":{\"Last\":[\"trailer\"]}}")
		s.do(c, "POST", "/Test/Watch", `{"text":"fail"}`, events...).fails(t, 409, yodel.Aborted, "in the middle")
		s.do(c, "POST", "/Test/Watch", `{"text":`, events...).fails(t, 400, yodel.InvalidArgument, "Test.Watch")
		s.do(c, "POST", "/Test/Watch", `{}`, append(events, "Connect-Timeout-Ms", "x")...).fails(t, 400, yodel.InvalidArgument, "connect-timeout-ms")
		// Other methods ignore the header.
		s.do(c, "POST", "/Test/Echo", `{"text":"a"}`, events...).is(t, 200, `{"text":"a"}`)
	})
}

// An EventSource of a browser sends GET, and no content type. It calls read-only feeds.
func TestEventSource(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, &http.Options{OpenAPI: "/openapi.json"}, yodel.ServerOptions{}), client(t, h2)
		get := func(method, query string) reply {
			return s.do(c, "GET", "/Test/"+method+"?"+query, "", "Accept", "text/event-stream")
		}
		const query = "encoding=json&message=%7B%22text%22%3A%22a%22%7D"
		if r := get("Watch", query); r.StatusCode != std.StatusMethodNotAllowed || r.Header.Get("Allow") != "POST" {
			t.Errorf("a feed that may change something: got %d %s", r.StatusCode, r.body)
		}
		s.MarkReadOnly("Test.Watch")
		const want = "data: {\"text\":\"a\"}\n\nevent: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}"
		get("Watch", query).is(t, 200, want)
		get("Watch", "encoding=json&base64=1&message="+base64.RawURLEncoding.EncodeToString([]byte(`{"text":"a"}`))).is(t, 200, want)
		get("Watch", "encoding=json&message=%7B").fails(t, 400, yodel.InvalidArgument, "Test.Watch")
		get("Read", query).is(t, 200, `{"text":"a"}`)
		s.do(c, "GET", "/Test/Watch?"+query, "").fails(t, 501, yodel.Unimplemented, "accept text/event-stream")
		described := s.do(c, "GET", "/openapi.json", "").body
		if n := strings.Count(described, `"operationId":"Test.Watch.get"`); n != 1 {
			t.Errorf("%d descriptions of GET", n)
		}
	})
}

// Events are text, so that other codecs cannot send them. The JSON of a codec may have any line
// breaks.
func TestEventsAreText(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{Codecs: []yodel.Codec{spacious{}, anotherCodec{}}}), client(t, false)
	s.do(c, "POST", "/Test/Watch", `{"text":"a"}`, events...).is(t, 200,
		"data: {\ndata: \"text\":\"a\"\ndata: }\ndata: \n\nevent: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}")
	r := s.do(c, "POST", "/Test/Watch", "x", "Content-Type", "application/binary", "Accept", "text/event-stream")
	r.fails(t, 501, yodel.Unimplemented, "text/event-stream")
}

// AnotherCodec is another codec than JSON.
type anotherCodec struct{ spacious }

func (anotherCodec) Name() string { return "binary" }

// A spacious is JSON with all three line breaks.
type spacious struct{}

func (spacious) Name() string                   { return "json" }
func (spacious) Decode(src []byte, v any) error { return json.Unmarshal(src, v) }
func (spacious) Append(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, strings.NewReplacer("{", "{\r\n", "}", "\r}\n").Replace(string(b))...), err
}

// A client that leaves ends the context of the handler.
func TestEventsClientLeaves(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		response, err := s.try(ctx, c, "POST", "/Test/Endless", strings.NewReader(`{"text":"x"}`), events...)
		must(t, err)
		defer response.Body.Close()
		line, err := bufio.NewReader(response.Body).ReadString('\n')
		must(t, err)
		if line != "data: {\"text\":\"x\"}\n" {
			t.Errorf("the first line is %q", line)
		}
		cancel()
		if err := receive(t, s.ended); err == nil {
			t.Error("the context ended without a cause")
		}
	})
}

// A client that leaves a feed gets no error, so the server does not log one that it does not see.
func TestLogOfClientsThatLeave(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		var log lockedBuffer
		ended := make(chan struct{}, 1)
		observer := yodel.Observer{End: func(context.Context, *yodel.Call, error) { ended <- struct{}{} }}
		s := newSite(t, nil, yodel.ServerOptions{
			Logger: slog.New(slog.NewTextHandler(&log, nil)), Observers: []yodel.Observer{observer},
		})
		const ticks yodel.Feed[text, text] = "Test.Ticks"
		ticks.Handle(s.Server, func(ctx context.Context, in *text, send yodel.Send[text]) error {
			if err := send(in); err != nil || in.Text == "broken" {
				return errors.Join(err, errors.New("broken"))
			}
			<-ctx.Done()
			return ctx.Err() // as the page about streams has it
		})
		c := client(t, h2)
		for _, what := range []string{"left", "broken"} {
			ctx, cancel := context.WithCancel(t.Context())
			response, err := s.try(ctx, c, "POST", "/Test/Ticks", strings.NewReader(`{"text":"`+what+`"}`), events...)
			must(t, err)
			_, err = bufio.NewReader(response.Body).ReadString('\n')
			must(t, err)
			cancel()
			receive(t, ended)
			_ = response.Body.Close()
			if logged := strings.Contains(log.String(), "hiddenError"); logged != (what == "broken") {
				t.Errorf("%s: the log has a hidden error: %t\n%s", what, logged, log.String())
			}
		}
	})
}
