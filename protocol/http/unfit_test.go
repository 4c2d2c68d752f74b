// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	std "net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Types of messages that Protocol Buffers have, and that they do not have.
type (
	numbered struct {
		Text string `json:"text" pb:"1"`
	}
	halfNumbered struct {
		Text  string `pb:"1"`
		Other string
	}
)

// A call whose messages the codec does not have fails before the method runs, with an error that
// says what to do.
func TestTypesThatACodecDoesNotHave(t *testing.T) {
	const advice = ", a plain struct: over %s use %s, or number its fields (pb:\"1\") and add pbstruct.Codec"
	for _, codecs := range [][]yodel.Codec{nil, {pbstruct.Codec}} {
		s, c := newSite(t, nil, yodel.ServerOptions{Codecs: codecs}), client(t, false)
		ran := make(chan struct{}, 100)
		must(t, s.Handle("Test.Numbered", func(_ context.Context, in *numbered) (*numbered, error) { return in, nil }))
		must(t, s.Handle("Test.Result", func(_ context.Context, in *numbered) (*text, error) {
			ran <- struct{}{}
			return new(text), nil
		}))
		must(t, s.Handle("Test.Half", func(_ context.Context, in *halfNumbered) (*numbered, error) { return new(numbered), nil }))
		must(t, s.Handle("Test.Number", func(_ context.Context, in *int) (*numbered, error) { return new(numbered), nil }))
		for _, test := range []struct{ method, media, title, json, says string }{
			{"Echo", "application/grpc-web+proto", "gRPC-Web", "application/grpc-web+json", "Test/Echo takes http_test.text" + advice},
			{"Echo", "application/grpc-web", "gRPC-Web", "application/grpc-web+json", "Test/Echo takes http_test.text" + advice},
			{"Result", "application/grpc-web+proto", "gRPC-Web", "application/grpc-web+json", "Test.Result returns http_test.text" + advice},
			{"Watch", "application/connect+proto", "Connect", "application/connect+json", "Test.Watch takes http_test.text" + advice},
			{"Echo", "application/proto", "HTTP", "application/json", "Test/Echo takes http_test.text" + advice},
			{"Half", "application/grpc-web+proto", "", "", "Test.Half takes http_test.halfNumbered: pbstruct: http_test.halfNumbered.Other has no number: give it one, as in `pb:\"2\"`"},
			{"Number", "application/grpc-web+proto", "", "", "Test.Number takes int: pbstruct: int is not a struct"},
		} {
			says := strings.NewReplacer("over %s", "over "+test.title, "use %s", "use "+test.json).Replace(test.says)
			r := s.do(c, "POST", "/Test/"+test.method, "\x00\x00\x00\x00\x00", "Content-Type", test.media)
			switch {
			case codecs == nil && !strings.HasPrefix(test.media, "application/grpc"):
				if r.StatusCode != std.StatusUnsupportedMediaType {
					t.Errorf("%s of %s: got %d %s", test.media, test.method, r.StatusCode, r.body)
				}
				continue
			case codecs == nil && test.title == "":
				says = `this server does not have the codec "protobuf": add it to ServerOptions.Codecs`
			}
			body, _ := url.PathUnescape(strings.ReplaceAll(r.body, `\"`, `"`))
			if !strings.Contains(body, says) || strings.HasPrefix(test.media, "application/grpc") && !strings.Contains(body, "grpc-status: 12") {
				t.Errorf("%s of %s: got %d %s\nwant %s", test.media, test.method, r.StatusCode, body, says)
			}
		}
		if len(ran) > 0 {
			t.Error("a method was executed")
		}
	}
}

// One method serves numbered structs as Protocol Buffers and as JSON.
func TestNumberedStructs(t *testing.T) {
	s, c := newSite(t, &http.Options{}, yodel.ServerOptions{Codecs: []yodel.Codec{pbstruct.Codec}}), client(t, true)
	must(t, s.Handle("Test.Numbered", func(_ context.Context, in *numbered) (*numbered, error) { return in, nil }))
	s.do(c, "POST", "/Test/Numbered", "\x0a\x02hi", "Content-Type", "application/proto").is(t, 200, "\x02hi") // without the tag, which is white space
	s.post(c, "/Test/Numbered", `{"text":"hi"}`).is(t, 200, `{"text":"hi"}`)
}
