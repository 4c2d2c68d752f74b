// SPDX-License-Identifier: Apache-2.0

package unauthenticated_test

import (
	"bufio"
	"bytes"
	std "compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	nethttp "net/http"
	"net/rpc"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/hessian"
)

// patience is how long an answer may take.
const patience = 20 * time.Second

// A wire asks a server in one protocol. Send sends a request whose message is body, and returns the
// whole answer as text. If packed is set, body is compressed with gzip.
type wire struct {
	name    string
	packs   bool // it has compression
	wrong   string
	several string // a request for several values
	send    func(t *testing.T, addr, method, body string, packed bool) string
}

// wires are the ways to ask a server.
func wires() []wire {
	return append(slices.Concat(httpWires(), rawWires()), wire{
		name: "yodel", packs: true, send: native,
	})
}

// The requests of most wires.
const (
	wrongJSON   = `{"A":]`
	severalJSON = `[1,2]`
)

// bomb returns JSON of 16 MiB that is compressed to 16 KiB.
func bomb() string {
	var b bytes.Buffer
	w := std.NewWriter(&b)
	_, _ = w.Write([]byte("[0" + strings.Repeat(",0", 8<<20) + "]")) // b does not fail
	_ = w.Close()                                                    // as above
	return b.String()
}

// native calls in yodel's own protocol. The call is for a unary method.
func native(t *testing.T, addr, method, body string, packed bool) string {
	t.Helper()
	o := &yodel.ClientOptions{CompressAbove: 1 << 30}
	if packed {
		o.Compressor, o.CompressAbove = packedAlready{body}, 1
		body += strings.Repeat(" ", 1<<20) // so that the result of the compressor is smaller
	}
	c := yodel.NewClient(discovery.Static(addr), o)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return fmt.Sprint(c.Do(ctx, &yodel.Call{Method: method, Args: &yodel.Encoded{Body: []byte(body)}, Reply: new(yodel.Encoded)}))
}

// A packedAlready is a compressor whose result is a given text.
type packedAlready struct{ result string }

func (packedAlready) Name() string                           { return "gzip" }
func (c packedAlready) Append(dst, _ []byte) ([]byte, error) { return append(dst, c.result...), nil }
func (packedAlready) Decompress([]byte, []byte, int) ([]byte, error) {
	return nil, compress.ErrTooLarge
}

// envelope returns a message of gRPC and Connect.
func envelope(body string, packed bool) string {
	flags := byte(0)
	if packed {
		flags = 1
	}
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(body)))) + body
}

// httpWires are the wires over HTTP.
func httpWires() (all []wire) {
	add := func(name string, h2, packs bool, request func(method, body string, packed bool) (verb, path string, header map[string]string, content string)) {
		all = append(all, wire{name: name, packs: packs, send: func(t *testing.T, addr, method, body string, packed bool) string {
			t.Helper()
			verb, path, header, content := request(method, body, packed)
			return overHTTP(t, addr, h2, verb, path, header, content)
		}})
	}
	encoded := func(name string, packed bool, header map[string]string) map[string]string {
		if packed {
			header[name] = "gzip"
		}
		return header
	}
	for _, family := range []struct{ name, media, encoding string }{
		{"gRPC", "application/grpc+json", "Grpc-Encoding"},
		{"gRPC-Web", "application/grpc-web+json", "Grpc-Encoding"},
		{"Connect streams", "application/connect+json", "Connect-Content-Encoding"},
	} {
		add(family.name, family.name == "gRPC", true, func(method, body string, packed bool) (string, string, map[string]string, string) {
			if strings.HasPrefix(family.name, "gRPC") {
				method = strings.Replace(method, ".", "/", 1)
			}
			return "POST", "/" + method, encoded(family.encoding, packed, map[string]string{"Content-Type": family.media, "Te": "trailers"}), envelope(body, packed)
		})
	}
	add("gRPC-Web-text", false, true, func(method, body string, packed bool) (string, string, map[string]string, string) {
		content := base64.StdEncoding.EncodeToString([]byte(envelope(body, packed)))
		return "POST", "/" + strings.Replace(method, ".", "/", 1), encoded("Grpc-Encoding", packed, map[string]string{"Content-Type": "application/grpc-web-text+json"}), content
	})
	for name, header := range map[string]map[string]string{
		"Connect unary": {"Content-Type": "application/json", "Connect-Protocol-Version": "1"},
		"JSON":          {"Content-Type": "application/json"},
		"EventSource":   {"Content-Type": "application/json", "Accept": "text/event-stream"},
	} {
		add(name, false, true, func(method, body string, packed bool) (string, string, map[string]string, string) {
			return "POST", "/" + method, encoded("Content-Encoding", packed, maps.Clone(header)), body
		})
	}
	for name, header := range map[string]map[string]string{"Connect GET": nil, "EventSource, GET": {"Accept": "text/event-stream"}} {
		add(name, false, true, func(method, body string, packed bool) (string, string, map[string]string, string) {
			query := "?connect=v1&encoding=json&base64=1&message=" + base64.RawURLEncoding.EncodeToString([]byte(body[:min(len(body), 4000)]))
			if packed {
				query += "&compression=gzip"
			}
			return "GET", "/" + method + query, header, ""
		})
	}
	add("GET without a message", false, false, func(method, _ string, _ bool) (string, string, map[string]string, string) {
		return "GET", "/" + method, nil, ""
	})
	add("POST of a form", false, false, func(method, body string, _ bool) (string, string, map[string]string, string) {
		return "POST", "/" + method, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, body
	})
	add("route by POST", false, true, func(method, body string, packed bool) (string, string, map[string]string, string) {
		return "POST", "/v1/" + method + "?A=x", encoded("Content-Encoding", packed, map[string]string{"Content-Type": "application/json"}), body
	})
	add("route by GET", false, false, func(method, body string, _ bool) (string, string, map[string]string, string) {
		return "GET", "/v1/" + method + "?A=" + url.QueryEscape(body), nil, ""
	})
	add("JSON-RPC over HTTP", false, false, func(method, body string, _ bool) (string, string, map[string]string, string) {
		return "POST", "/rpc", map[string]string{"Content-Type": "application/json"}, jsonRPC(method, body)
	})
	add("JSON-RPC over HTTP, a batch", false, false, func(method, body string, _ bool) (string, string, map[string]string, string) {
		return "POST", "/rpc", map[string]string{"Content-Type": "application/json"}, "[" + jsonRPC(method, body) + "]"
	})
	add("rpcx over HTTP", false, false, func(method, body string, _ bool) (string, string, map[string]string, string) {
		service, name, _ := strings.Cut(method, ".")
		return "POST", "/", map[string]string{"X-RPCX-SerializeType": "1", "X-RPCX-ServicePath": service, "X-RPCX-ServiceMethod": name}, body
	})
	return all
}

// overHTTP sends a request, and returns the response with its headers and trailers.
func overHTTP(t *testing.T, addr string, h2 bool, verb, path string, header map[string]string, content string) string {
	t.Helper()
	var protocols nethttp.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	transport := &nethttp.Transport{Protocols: &protocols, DisableCompression: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := nethttp.NewRequestWithContext(ctx, verb, "http://"+addr+path, strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range header {
		r.Header[nethttp.CanonicalHeaderKey(key)] = []string{value}
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Header.Del("Date")
	return fmt.Sprintf("%s close=%v %q %q %q", response.Status, response.Close, response.Header, sorted(t, response, body), response.Trailer)
}

// sorted returns the lines of a body in alphabetical order. The order of the trailers of gRPC-Web
// is random.
func sorted(t *testing.T, response *nethttp.Response, body []byte) []string {
	t.Helper()
	const padded = 8 // the prefix of a message in base64
	if strings.Contains(response.Header.Get("Content-Type"), "web-text") {
		prefix, err := base64.StdEncoding.DecodeString(string(body[:padded]))
		if err != nil {
			t.Fatal(err)
		}
		rest, err := base64.StdEncoding.DecodeString(string(body[padded:]))
		if err != nil {
			t.Fatal(err)
		}
		body = append(prefix, rest...)
	}
	if prefix := 5; strings.Contains(response.Header.Get("Content-Type"), "grpc-web") && len(body) > prefix {
		body = body[prefix:]
	}
	lines := strings.Split(string(body), "\r\n")
	slices.Sort(lines)
	return lines
}

// jsonRPC returns a request of JSON-RPC. Bytes that are not JSON become parameters that do not fit.
func jsonRPC(method, body string) string {
	if body == wrongJSON || strings.HasPrefix(body, "\x1f") {
		body = `["wrong"]`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, body)
}

// rawWires are the wires over TCP.
func rawWires() []wire {
	return []wire{
		{name: "JSON-RPC", send: func(t *testing.T, addr, method, body string, _ bool) string {
			t.Helper()
			return exchange(t, addr, jsonRPC(method, body), func(r *bufio.Reader) (string, error) { return r.ReadString('\n') })
		}},
		{name: "JSON-RPC, a batch", send: func(t *testing.T, addr, method, body string, _ bool) string {
			t.Helper()
			return exchange(t, addr, "["+jsonRPC(method, body)+"]", func(r *bufio.Reader) (string, error) { return r.ReadString('\n') })
		}},
		{name: "rpcx", packs: true, send: func(t *testing.T, addr, method, body string, packed bool) string {
			t.Helper()
			return exchange(t, addr, rpcxFrame(method, body, packed), func(r *bufio.Reader) (string, error) { return sized(r, 12) })
		}},
		{name: "Thrift, framed", wrong: "\x0b\x00\x01\x00\x00\x00\x01x\x00", several: "\x0a\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x0a\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x00", send: func(t *testing.T, addr, method, body string, _ bool) string {
			t.Helper()
			call := thriftCall(method) + body
			return exchange(t, addr, string(binary.BigEndian.AppendUint32(nil, uint32(len(call))))+call, func(r *bufio.Reader) (string, error) { return sized(r, 0) })
		}},
		{name: "Thrift", wrong: "\x0b\x00\x01\x00\x00\x00\x01x\x00", several: "\x0a\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x0a\x00\x02\x00\x00\x00\x00\x00\x00\x00\x02\x00", send: func(t *testing.T, addr, method, body string, _ bool) string {
			t.Helper()
			return exchange(t, addr, thriftCall(method)+body, func(r *bufio.Reader) (string, error) { return r.ReadString('\b') }) // up to the field of the exception's type
		}},
		{name: "Dubbo", wrong: "\x01x", several: "\x91\x92", send: dubboCall},
		{name: "Dubbo, damaged", wrong: "\x45", several: "\x45", send: dubboCall}, // no value begins with 0x45
		{name: "net/rpc", send: func(t *testing.T, addr, method, body string, _ bool) string {
			t.Helper()
			nc, err := net.DialTimeout("tcp", addr, patience)
			if err != nil {
				t.Fatal(err)
			}
			_ = nc.SetDeadline(time.Now().Add(patience))
			c := rpc.NewClient(nc)
			defer c.Close()
			return fmt.Sprint(c.Call(method, body[:min(len(body), 4000)], new(message)))
		}},
	}
}

// exchange sends a request on a new connection, and returns what answer reads.
func exchange(t *testing.T, addr, request string, answer func(r *bufio.Reader) (string, error)) string {
	t.Helper()
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	if _, err = io.WriteString(nc, request); err != nil {
		t.Fatal(err)
	}
	text, err := answer(bufio.NewReader(nc))
	if err != nil {
		t.Fatalf("the answer: %q, %v", text, err)
	}
	return fmt.Sprintf("%q", text)
}

// sized reads a frame whose length is a number of 4 bytes after some others.
func sized(r *bufio.Reader, before int) (string, error) {
	head := make([]byte, before+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return "", err
	}
	body := make([]byte, min(binary.BigEndian.Uint32(head[before:]), 1<<20))
	_, err := io.ReadFull(r, body)
	return string(head) + string(body), err
}

func rpcxFrame(method, payload string, packed bool) string {
	service, name, _ := strings.Cut(method, ".")
	var b []byte
	for _, part := range []string{service, name, "", payload} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	flags := byte(0)
	if packed {
		flags = 1 << 2
	}
	head := append([]byte{0x08, 0, flags, 1 << 4}, make([]byte, 8)...)
	return string(binary.BigEndian.AppendUint32(head, uint32(len(b)))) + string(b)
}

// thriftCall returns the header of a call.
func thriftCall(method string) string {
	_, name, _ := strings.Cut(method, ".")
	return "\x80\x01\x00\x01" + string(binary.BigEndian.AppendUint32(nil, uint32(len(name)))) + name + "\x00\x00\x00\x01"
}

// dubboCall sends a call with two parameters if body is that of several values, and otherwise with
// one.
func dubboCall(t *testing.T, addr, method, body string, _ bool) string {
	t.Helper()
	_, name, _ := strings.Cut(method, ".")
	types := "Ljava/lang/Object;"
	if body == "\x91\x92" {
		types = "JJ"
	}
	var b []byte
	for _, text := range []string{"2.0.2", "T", "0.0.0", name, types} {
		b = hessian.AppendText(b, text)
	}
	b = append(append(b, body...), "HZ"...)
	head := append([]byte("\xda\xbb\xc2\x00"), make([]byte, 8)...)
	return exchange(t, addr, string(binary.BigEndian.AppendUint32(head, uint32(len(b))))+string(b), func(r *bufio.Reader) (string, error) { return sized(r, 12) })
}
