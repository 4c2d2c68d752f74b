// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
)

var events = []string{"Content-Type", "application/json", "Accept", "text/html, text/event-stream;q=0.9"}

func TestEvents(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{CompressAbove: 1}), client(t, h2)
		r := s.do(c, "POST", "/Test/Watch", `{"text":"a b"}`, append(events, "Accept-Encoding", "gzip")...)
		r.is(t, 200, "data: {\"text\":\"a\"}\n\ndata: {\"text\":\"b\"}\n\nevent: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}")
		if h := r.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" || h.Get("First") != "header" || h.Get("Content-Encoding") != "" {
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

// Events are text, so that other codecs cannot send them. The JSON of a codec may have any line
// breaks.
func TestEventsAreText(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{Codecs: []yodel.Codec{spacious{}}}), client(t, false)
	s.do(c, "POST", "/Test/Watch", `{"text":"a"}`, events...).is(t, 200,
		"data: {\ndata: \"text\":\"a\"\ndata: }\ndata: \n\nevent: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}")
	r := s.do(c, "POST", "/Test/Watch", "x", "Content-Type", "application/octet-stream", "Accept", "text/event-stream")
	r.fails(t, 501, yodel.Unimplemented, "text/event-stream")
}

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
