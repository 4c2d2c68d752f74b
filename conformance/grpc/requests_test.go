// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"io"
	std "net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// send sends a request, and returns the number of the status in the response, or "RST_STREAM" if
// there is none.
func (f *framing) send(path string, body []byte, more ...string) string {
	f.t.Helper()
	f.open(path, append([]string{"content-type", "application/grpc"}, more...)...)
	reset := func(http2.Frame) bool { return f.ended || slices.Contains(f.lines, "RST_STREAM") }
	if !reset(nil) { // the server waits for the message
		must(f.t, f.framer.WriteData(f.last, true, body))
		f.until(reset)
	}
	_, status, ok := strings.Cut(strings.Join(f.lines, " "), "grpc-status=")
	if !ok {
		return f.lines[len(f.lines)-1]
	}
	status, _, _ = strings.Cut(status, " ")
	return status
}

// Requests that are malformed get the codes of grpc-go, but for those that differ by intent: see
// docs/migrate/grpc.md.
func TestMalformedRequests(t *testing.T) {
	const unary, upload, duplex = "/grpc.testing.TestService/UnaryCall", "/grpc.testing.TestService/StreamingInputCall", "/grpc.testing.TestService/FullDuplexCall"
	name, err := proto.Marshal(&testpb.SimpleRequest{FillUsername: true})
	must(t, err)
	fits := append([]byte{0, 0, 0, 0, byte(len(name))}, name...)
	damaged := "\x00\x00\x00\x00\x01\xff"
	gzip := []string{"grpc-encoding", "gzip"}
	ours, theirs := newFraming(t, serveYodel(t)), newFraming(t, serveGRPC(t))
	for _, test := range []struct {
		name, path, body string
		headers          []string
		want, differs    string // statuses of both servers, and of grpc-go if it differs
	}{
		{"fits", unary, string(fits), nil, "0", ""},
		{"unary does not decode", unary, damaged, nil, "13", ""},
		{"feed does not decode", "/grpc.testing.TestService/StreamingOutputCall", damaged, nil, "13", ""},
		{"upload does not decode", upload, damaged, nil, "13", ""},
		{"duplex does not decode", duplex, damaged, nil, "13", ""},
		{"second message of an upload", upload, "\x00\x00\x00\x00\x00" + damaged, nil, "13", ""},
		{"does not decompress", unary, "\x01\x00\x00\x00\x02ab", gzip, "13", ""},
		{"upload does not decompress", upload, "\x01\x00\x00\x00\x02ab", gzip, "13", ""},
		{"compression without a name", unary, "\x01\x00\x00\x00\x02ab", nil, "13", ""},
		{"upload, compression without a name", upload, "\x01\x00\x00\x00\x02ab", nil, "13", ""},
		{"unknown flags", unary, "\x04\x00\x00\x00\x00", nil, "13", ""},
		{"upload with unknown flags", upload, "\x04\x00\x00\x00\x00", nil, "13", ""},
		{"ends in the prefix", unary, "\x00\x00", nil, "13", ""},
		{"ends in the message", unary, "\x00\x00\x00\x00\x05ab", nil, "13", ""},
		{"upload ends in the message", upload, "\x00\x00\x00\x00\x05ab", nil, "13", ""},
		{"malformed deadline", unary, string(fits), []string{"grpc-timeout", "soon"}, "13", ""},
		{"no message", unary, "", nil, "12", "13"},
		{"two messages", unary, string(fits) + string(fits), nil, "12", "13"},
		{"unknown compression", unary, "\x01\x00\x00\x00\x02ab", []string{"grpc-encoding", "x-unknown"}, "12", ""},

		{"unknown method", "/grpc.testing.TestService/None", string(fits), nil, "12", ""},
		{"no method", "/grpc.testing.TestService", string(fits), nil, "12", ""},
		{"empty method", "/grpc.testing.TestService/", string(fits), nil, "12", ""},
		{"empty service", "//UnaryCall", string(fits), nil, "12", ""},
		{"empty path", "/", string(fits), nil, "12", ""},
		{"two slashes", "//grpc.testing.TestService/UnaryCall", string(fits), nil, "12", ""},
		{"two slashes within", "/grpc.testing.TestService//UnaryCall", string(fits), nil, "12", ""},
		{"slash at the end", unary + "/", string(fits), nil, "12", ""},
		{"dots", "/x/.." + unary, string(fits), nil, "12", ""},
		{"dot for the slash", "/grpc.testing.TestService.UnaryCall", string(fits), nil, "12", ""},
		{"query", unary + "?x=1", string(fits), nil, "12", ""},
		{"empty query", unary + "?", string(fits), nil, "12", ""},
		{"escaped", "/grpc.testing.TestService/Unary%43all", string(fits), nil, "12", ""},
		{"escaped slash", "/grpc.testing.TestService%2FUnaryCall", string(fits), nil, "12", ""},
		{"fragment", unary + "#x", string(fits), nil, "12", ""},
		{"address", "http://x" + unary, string(fits), nil, "12", ""},
		{"no slash", "grpc.testing.TestService/UnaryCall", string(fits), nil, "RST_STREAM", "12"},
		{"malformed escape", unary + "%zz", string(fits), nil, "RST_STREAM", "12"},
		{"no path", "", string(fits), nil, "RST_STREAM", "12"},
	} {
		if got := ours.send(test.path, []byte(test.body), test.headers...); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
		want := test.want
		if test.differs != "" {
			want = test.differs
		}
		if got := theirs.send(test.path, []byte(test.body), test.headers...); got != want {
			t.Errorf("%s: grpc-go: got %s, want %s", test.name, got, want)
		}
	}
}

// The service sees the code of grpc-go, over each protocol. Clients of Connect and those of yodel
// get InvalidArgument.
func TestCodesOfAMalformedRequest(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}})
	service := &receiver{TestServiceServer: interop.NewTestServer()}
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), service)
	addr := start(t, s)
	for _, test := range []struct{ method, media, body, says string }{
		{"UnaryCall", "application/proto", "\xff", `"invalid_argument"`},
		{"StreamingInputCall", "application/connect+proto", "\x00\x00\x00\x00\x01\xff", `"invalid_argument"`},
	} {
		r, err := std.Post("http://"+addr+"/grpc.testing.TestService/"+test.method, test.media, strings.NewReader(test.body))
		must(t, err)
		body, err := io.ReadAll(r.Body)
		must(t, err)
		must(t, r.Body.Close())
		if !strings.Contains(string(body), test.says) {
			t.Errorf("%s: got %s", test.method, body)
		}
	}
	if code := codes.Code(service.seen.Load()); code != codes.Internal {
		t.Errorf("the service got %v", code)
	}
	c := yodel.NewClient(discovery.Static("grpc://"+addr), &yodel.ClientOptions{Wires: []yodel.Wire{wire.Wire}})
	defer c.Close()
	err := c.Do(t.Context(), &yodel.Call{Method: "grpc.testing.TestService/UnaryCall", Codec: damagedCodec{protobuf.Codec}, Args: new(testpb.SimpleRequest), Reply: new(testpb.SimpleResponse)})
	if yodel.CodeOf(err) != yodel.InvalidArgument {
		t.Errorf("a client of yodel got %v", err)
	}
}

// A receiver notes the code with which an upload fails.
type receiver struct {
	testpb.TestServiceServer
	seen atomic.Uint32
}

func (r *receiver) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	_, err := in.Recv()
	r.seen.Store(uint32(status.Code(err)))
	return err
}

// A damagedCodec encodes messages that cannot be decoded.
type damagedCodec struct{ yodel.Codec }

func (damagedCodec) Append(dst []byte, _ any) ([]byte, error) { return append(dst, 0xff), nil }
