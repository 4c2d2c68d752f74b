// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	std "net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// This file tests the rules of HTTP, of the Fetch standard and of gRPC-Web, whatever a method does.

// A browser makes the request only if the response to its preflight names the method.
func TestPreflightAllowsTheMethodOfTheRequest(t *testing.T) {
	const page = "https://shop.example"
	s, c := newSite(t, &http.Options{Origins: []string{page}}, yodel.ServerOptions{}), client(t, true)
	for _, verb := range []string{"GET", "POST", "PATCH", "PUT", "DELETE", "LIST"} {
		h := s.do(c, "OPTIONS", "/v1/orders/1", "", "Origin", page, "Access-Control-Request-Method", verb).Header
		if got := h.Get("Access-Control-Allow-Methods"); got != verb {
			t.Errorf("%s: got %q", verb, got)
		}
		if vary := strings.Join(h.Values("Vary"), ", "); !strings.Contains(vary, "Access-Control-Request-Method") || len(h.Values("Access-Control-Allow-Headers")) > 0 {
			t.Errorf("%s: the headers are %v", verb, h)
		}
		if h := s.do(c, "OPTIONS", "/", "", "Origin", "https://evil.example", "Access-Control-Request-Method", verb).Header; h.Get("Access-Control-Allow-Methods") != "" {
			t.Errorf("%s from another origin: the headers are %v", verb, h)
		}
	}
}

// The first request of a connection may have any method, and other beginnings are not HTTP.
func TestConnectionsBeginWithAnyMethodOfHTTP(t *testing.T) {
	p := http.New(nil)
	for first, want := range map[string]bool{
		"GET / HTTP/1.1\r\n": true, "LIST /v1 HTTP/1.1\r\n": true, "M-SEARCH * HTTP/1.1\r\n": true, "list /": true, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": true,
		"OPTIONS * HTTP/1.1": true, "GET http://a/ HTTP/1.1": true, "GET https://a/ HTTP/1.1": true,
		"CONNECT /_goRPC_ HTTP/1.0\n": false, "CONNECT a:1 HTTP/1.1": false, "Arith.Mul {}": false, `{"jsonrpc":"2.0"}`: false, "[1]": false, "\x80\x01": false, "\x00\x00": false,
		"\x08\x00": false, "\xda\xbb": false, "\x37\xff\x81\x03": false, "\xf5yodel": false, " GET /": false, "\r\nGET /": false, "GET  /": false, strings.Repeat("A", 40) + " /": false,
	} {
		for n := 0; n <= len(first); n++ {
			ok, more := p.Match([]byte(first[:n]))
			switch {
			case ok && !want || ok && more:
				t.Errorf("%.50q: it matches", first[:n])
			case !ok && !more && want:
				t.Errorf("%.50q: it does not match", first[:n])
			case n == len(first) && ok != want:
				t.Errorf("%.50q: got %t", first, ok)
			}
		}
	}
	s := newSite(t, &http.Options{Handler: std.HandlerFunc(func(w std.ResponseWriter, r *std.Request) { _, _ = io.WriteString(w, r.Method) })}, yodel.ServerOptions{})
	for _, verb := range []string{"LIST", "PROPFIND", "M-SEARCH", "list"} {
		s.do(client(t, false), verb, "/", "").is(t, 200, verb)
	}
}

// HEAD is possible where GET is, and says what GET would.
func TestHeadIsGetWithoutABody(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		for _, path := range []string{"/Test/Read?encoding=json&message=%7B%7D", "/Test/Read?encoding=json&message=%7B", "/Test/Read", "/Test/Echo", "/"} {
			get, head := s.do(c, "GET", path, ""), s.do(c, "HEAD", path, "")
			if head.StatusCode != get.StatusCode || head.body != "" || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") || head.Header.Get("Allow") != get.Header.Get("Allow") {
				t.Errorf("%s: HEAD has %d %v, and GET %d %v", path, head.StatusCode, head.Header, get.StatusCode, get.Header)
			}
		}
	})
}

// Each cookie of a reply has a header of its own, because a comma can be a part of one.
func TestEachCookieHasAHeader(t *testing.T) {
	cookies := []string{"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/", "b=2; Max-Age=5", "c=", "d=x y"}
	s := newSite(t, nil, yodel.ServerOptions{})
	for _, list := range [][]string{cookies[:1], cookies} {
		for _, separator := range []string{", ", ","} {
			must(t, s.HandleCall(fmt.Sprintf("Test.Cookies%d%d", len(list), len(separator)), func(_ context.Context, call *yodel.Call) error {
				call.SetHeader(yodel.Metadata{"set-cookie": strings.Join(list, separator)})
				call.Trailer = yodel.Metadata{"set-cookie": strings.Join(list, separator)}
				call.Reply = 1
				return nil
			}))
		}
	}
	for _, h2 := range []bool{false, true} {
		c := client(t, h2)
		for _, n := range []int{1, len(cookies)} {
			for _, separator := range []string{"1", "2"} {
				path := fmt.Sprintf("/Test/Cookies%d%s", n, separator)
				r := s.post(c, path, "{}")
				want := strings.Join(cookies[:n], "|")
				if strings.Join(r.Header.Values("Set-Cookie"), "|") != want || strings.Join(r.Header.Values("Trailer-Set-Cookie"), "|") != want {
					t.Errorf("%s: the headers are %q", path, r.Header)
				}
				web := s.do(c, "POST", path, string(envelope(0, "{}")), "Content-Type", "application/grpc-web+json")
				if strings.Count(web.body, "set-cookie: ") != n || strings.Join(web.Header.Values("Set-Cookie"), "|") != want {
					t.Errorf("%s over gRPC-Web: the headers are %q, the body is %q", path, web.Header, web.body)
				}
			}
		}
	}
}

// Clients and proxies of HTTP decode a body as its headers say, so that no metadata is among them,
// such as what a handler has received from its upstream.
func TestMetadataDoesNotSayHowABodyIsEncoded(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, h2)
		must(t, s.HandleCall("Test.Say", func(_ context.Context, call *yodel.Call) error {
			md := yodel.Metadata{"Content-Encoding": "gzip", "accept-encoding": "br", "date": "yesterday", "x": "a"}
			call.SetHeader(md)
			call.Trailer, call.Reply = md, 1
			return nil
		}))
		for _, media := range []string{"application/json", "application/grpc-web+json", "application/grpc-web-text+json", "application/connect+json"} {
			body := "{}"
			switch {
			case media == "application/grpc-web-text+json":
				body = base64.StdEncoding.EncodeToString(envelope(0, body))
			case media != "application/json":
				body = string(envelope(0, body))
			}
			r := s.do(c, "POST", "/Test/Say", body, "Content-Type", media)
			if h := r.Header; r.body == "" || h.Get("Content-Encoding") != "" || h.Get("Accept-Encoding") == "br" || h.Get("Date") == "yesterday" {
				t.Errorf("%s: got %q and %q", media, h, r.body)
			}
			if media != "application/connect+json" && r.Header.Get("X") != "a" {
				t.Errorf("%s: the header lacks x: %q", media, r.Header)
			}
		}
		if n := s.Stats().LeftOut; n != 0 {
			t.Errorf("%d pairs were left out, want 0: they are dropped", n)
		}
	})
}

// A body without bytes is not compressed, whatever the request says.
func TestNothingIsNotDecompressed(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newSite(t, nil, yodel.ServerOptions{Codecs: []yodel.Codec{raw.Codec}}), client(t, h2)
		must(t, s.Handle("Test.Bytes", func(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil }))
		for _, body := range []io.Reader{strings.NewReader(""), chunked{strings.NewReader("")}} {
			r := s.open(c, "POST", "/Test/Bytes", body, "Content-Type", "application/octet-stream", "Content-Encoding", "gzip")
			if _ = r.Body.Close(); r.StatusCode != std.StatusOK {
				t.Errorf("got %d", r.StatusCode)
			}
		}
		for media, name := range map[string]string{"application/grpc-web+octet-stream": "Grpc-Encoding", "application/connect+octet-stream": "Connect-Content-Encoding"} {
			r := s.do(c, "POST", "/Test/Bytes", string(envelope(1, "")), "Content-Type", media, name, "gzip")
			if r.StatusCode != std.StatusOK || strings.Contains(r.body, "grpc-status: 3") || strings.Contains(r.body, "error") {
				t.Errorf("%s: got %d %q", media, r.StatusCode, r.body)
			}
		}
		// What cannot be decompressed is the client's fault, in a stream too.
		stream := s.do(c, "POST", "/Test/Gather", string(envelope(1, "no gzip")), "Content-Type", "application/connect+json", "Connect-Content-Encoding", "gzip")
		if !strings.Contains(stream.body, "invalid_argument") || !strings.Contains(stream.body, "cannot be decompressed") {
			t.Errorf("a stream: got %q", stream.body)
		}
	})
}

// Base64 of gRPC-Web may have padding wherever the client has encoded a part.
func TestTextOfGRPCWebHasParts(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, false)
	message := envelope(0, `{"text":"hello"}`)
	post := func(text string) string {
		r := s.do(c, "POST", "/Test/Echo", text, "Content-Type", "application/grpc-web-text+json")
		return strings.Join(texts(t, r.body), "")
	}
	for size := 1; size <= len(message); size++ {
		var text strings.Builder
		for rest := message; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			text.WriteString(base64.StdEncoding.EncodeToString(rest[:min(size, len(rest))]))
		}
		if got := post(text.String()); !strings.Contains(got, `{"text":"hello"}`) {
			t.Errorf("parts of %d bytes: got %q", size, got)
		}
	}
	large := envelope(0, jsonOf(5000))
	if got := post(base64.StdEncoding.EncodeToString(large[:1000]) + base64.StdEncoding.EncodeToString(large[1000:])); !strings.Contains(got, jsonOf(5000)) {
		t.Errorf("a large message: got %.100q", got)
	}
	whole := base64.StdEncoding.EncodeToString(message)
	if got := post(whole[:5] + "\r\n" + whole[5:] + "\n"); !strings.Contains(got, `{"text":"hello"}`) {
		t.Errorf("with line breaks: got %q", got)
	}
	for _, broken := range []string{"!" + whole, whole[:len(whole)-1], whole + "A", "AA=A" + whole} {
		if got := post(broken); !strings.Contains(got, "grpc-status: 13\r\n") {
			t.Errorf("%q: got %q", broken, got)
		}
	}
}

// texts decodes the parts of a response in base64.
func texts(t testing.TB, body string) (parts []string) {
	t.Helper()
	for len(body) > 0 {
		end := len(body)
		if at := strings.IndexByte(body, '='); at >= 0 {
			end = at&^3 + 4
		}
		b, err := base64.StdEncoding.DecodeString(body[:end])
		must(t, err)
		parts, body = append(parts, string(b)), body[end:]
	}
	return parts
}

// The weights of Accept-Encoding are numbers, and the largest one decides.
func TestWeightsOfAcceptEncoding(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{CompressAbove: 1}), client(t, false)
	for accepted, want := range map[string]string{
		"gzip;q=0": "", "gzip;q=0.0": "", "gzip;q=0.000": "", "gzip; q=0.": "", "gzip ; Q = 0.00": "", "gzip;q=0.001": "gzip", "gzip;q=1": "gzip", "gzip;q=x": "gzip", "br;q=0.1, gzip;q=0.5": "gzip",
	} {
		if got := s.post(c, "/Test/Echo", jsonOf(2000), "Accept-Encoding", accepted).Header.Get("Content-Encoding"); got != want {
			t.Errorf("%s: got %q, want %q", accepted, got, want)
		}
	}
}

// A request of a route may come without a content type if it has no body, however it says so.
func TestRoutesWithoutABodyNeedNoContentType(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newShop(t), client(t, h2)
		for _, verb := range []string{"DELETE", "PATCH"} {
			for body, status := range map[string]int{"": 200, "{}": 415} {
				for _, reader := range []io.Reader{strings.NewReader(body), chunked{strings.NewReader(body)}} {
					r := s.open(c, verb, "/v1/orders/7", reader)
					if _ = r.Body.Close(); r.StatusCode != status {
						t.Errorf("%s with %q: got %d, want %d", verb, body, r.StatusCode, status)
					}
				}
			}
		}
		s.do(c, "DELETE", "/v1/orders/7", "", "Content-Type", "text/plain").is(t, 200, `{"id":"7"}`)
		r := s.open(c, "POST", "/v1/orders", chunked{strings.NewReader("")}) // a form of another site could send it
		if _ = r.Body.Close(); r.StatusCode != std.StatusUnsupportedMediaType {
			t.Errorf("POST: got %d", r.StatusCode)
		}
	})
}

// JSON has the deadline of Connect and that of gRPC, as grpc-gateway does.
func TestTimeoutOfGRPCOverJSON(t *testing.T) {
	s, c := newSite(t, &http.Options{JSONRPC: "/rpc", Routes: []http.Route{{Pattern: "POST /v1/see", Method: string(see)}}}, yodel.ServerOptions{}), client(t, true)
	for _, path := range []string{"/Test/See", "/v1/see"} {
		if left := s.post(c, path, "{}", "Grpc-Timeout", "60S").seen(t).Left; left < 30*time.Second || left > time.Minute {
			t.Errorf("%s: %v left", path, left)
		}
		if left := s.post(c, path, "{}", "Grpc-Timeout", "60S", "Connect-Timeout-Ms", "3600000").seen(t).Left; left < 30*time.Minute {
			t.Errorf("%s: %v left, though Connect's header counts", path, left)
		}
		s.post(c, path, "{}", "Grpc-Timeout", "soon").fails(t, 400, yodel.InvalidArgument, "grpc-timeout")
	}
	if r := s.post(c, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"Test.See","params":{}}`, "Grpc-Timeout", "60S"); strings.Contains(r.body, `"left":0`) {
		t.Errorf("JSON-RPC: got %s", r.body)
	}
}
