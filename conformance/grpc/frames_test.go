// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
)

// This file looks at the frames of responses.

// A framing is a client of HTTP/2 that sends frames as a test says.
type framing struct {
	t      *testing.T
	framer *http2.Framer
	last   uint32   // the last stream
	lines  []string // a line for each of its frames
	ended  bool     // the server has ended it
}

func newFraming(t *testing.T, addr string) *framing {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	f := &framing{t: t, framer: http2.NewFramer(conn, conn)}
	f.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must(t, f.framer.WriteSettings())
	return f
}

// open sends the headers of a request, and waits until the server has seen them.
func (f *framing) open(path string, more ...string) {
	f.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]string{":method", "POST", ":scheme", "http", ":authority", "x", ":path", path, "te", "trailers"}, more...)
	for pair := range slices.Chunk(fields, 2) {
		must(f.t, encoder.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]}))
	}
	f.last, f.lines, f.ended = (f.last+1)|1, nil, false
	must(f.t, f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: f.last, BlockFragment: block.Bytes(), EndHeaders: true}))
	f.until(f.pong)
}

// pong sends a ping if frame is nil, and reports whether frame answers it.
func (f *framing) pong(frame http2.Frame) bool {
	if frame == nil {
		must(f.t, f.framer.WritePing(false, [8]byte{}))
		return false
	}
	ping, ok := frame.(*http2.PingFrame)
	return ok && ping.IsAck()
}

// until reads frames until one is the last. The first frame is nil.
func (f *framing) until(last func(http2.Frame) bool) {
	f.t.Helper()
	for frame := http2.Frame(nil); !last(frame); {
		var err error
		frame, err = f.framer.ReadFrame()
		must(f.t, err)
		if frame.Header().StreamID != f.last {
			continue
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			var names []string
			for _, field := range frame.Fields {
				switch name := field.Name; {
				case name == "grpc-status":
					names = append(names, name+"="+field.Value)
				case name != "grpc-message" && !strings.HasPrefix(name, "yodel-"): // grpc-go sends an empty message too
					names = append(names, name)
				}
			}
			slices.Sort(names)
			f.add("HEADERS "+strings.Join(names, " "), frame.StreamEnded())
		case *http2.DataFrame:
			f.add("DATA", frame.StreamEnded())
		case *http2.RSTStreamFrame:
			f.add("RST_STREAM", false)
		}
	}
}

func (f *framing) add(line string, end bool) {
	if end {
		f.ended = true
		line += " END"
	}
	f.lines = append(f.lines, line)
}

// call makes a call of one message, and returns the frames of the response.
func (f *framing) call(path string, message []byte, more ...string) []string {
	f.t.Helper()
	f.open(path, append([]string{"content-type", "application/grpc"}, more...)...)
	must(f.t, f.framer.WriteData(f.last, true, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))) //nolint:gosec // it is small
	return f.response()
}

// response waits until the server has ended the stream, and returns a line for each of its frames.
func (f *framing) response() []string {
	f.t.Helper()
	f.until(func(http2.Frame) bool { return f.ended })
	f.until(f.pong) // a reset follows the end
	return f.lines
}

// A response of gRPC has no headers but those of gRPC and of the method. Without a message and a
// header it is Trailers-Only. The frames are those of grpc-go.
func TestFramesOfResponses(t *testing.T) {
	const service = "/grpc.testing.TestService/"
	ask := func(in proto.Message) []byte {
		b, err := proto.Marshal(in)
		must(t, err)
		return b
	}
	for server, addr := range serveFailing(t) {
		f := newFraming(t, addr)
		for _, test := range []struct {
			name, method string
			in           []byte
			want         string
		}{
			{"unary", "UnaryCall", nil, "HEADERS :status content-type, DATA, HEADERS grpc-status=0 END"},
			{"unary with a header", "UnaryCall", ask(&testpb.SimpleRequest{FillUsername: true}), "HEADERS :status content-type x-first, DATA, HEADERS grpc-status=0 END"},
			{"unary fails", "UnaryCall", ask(&testpb.SimpleRequest{ResponseStatus: refusal}), "HEADERS :status content-type grpc-status-details-bin grpc-status=9 x-last END"},
			{"unary with a header fails", "UnaryCall", ask(&testpb.SimpleRequest{FillUsername: true, ResponseStatus: refusal}),
				"HEADERS :status content-type x-first, HEADERS grpc-status-details-bin grpc-status=9 x-last END"},
			{"feed", "StreamingOutputCall", ask(wanting(2, nil)), "HEADERS :status content-type, DATA, DATA, HEADERS grpc-status=0 END"},
			{"empty feed", "StreamingOutputCall", nil, "HEADERS :status content-type grpc-status=0 END"},
			{"feed fails at once", "StreamingOutputCall", ask(wanting(0, refusal)), "HEADERS :status content-type grpc-status-details-bin grpc-status=9 END"},
			{"feed fails later", "StreamingOutputCall", ask(wanting(1, refusal)), "HEADERS :status content-type, DATA, HEADERS grpc-status-details-bin grpc-status=9 END"},
		} {
			if got := strings.Join(f.call(service+test.method, test.in), ", "); got != test.want {
				t.Errorf("%s: %s: got %s, want %s", server, test.name, got, test.want)
			}
		}
	}
}

// The response to a compression that the server does not have names those that it has.
func TestFramesOfARefusedCompression(t *testing.T) {
	f := newFraming(t, serveFailing(t)["yodel"])
	const want = "HEADERS :status content-type grpc-accept-encoding grpc-status=12 END"
	if got := strings.Join(f.call("/grpc.testing.TestService/UnaryCall", nil, "grpc-encoding", "x-unknown"), ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A request is read to its end before the response ends the stream, if the rest comes soon. Then
// the server does not reset the stream. On a busy machine the rest may come late.
func TestRefusedRequestIsNotReset(t *testing.T) {
	f := newFraming(t, serveFailing(t)["yodel"])
	for name, headers := range map[string][]string{
		"gRPC":                        {"/grpc.testing.TestService/None", "content-type", "application/grpc"},
		"Connect":                     {"/grpc.testing.TestService/None", "content-type", "application/proto"},
		"stream of Connect":           {"/grpc.testing.TestService/None", "content-type", "application/connect+proto"},
		"compression refused":         {"/grpc.testing.TestService/UnaryCall", "content-type", "application/grpc", "grpc-encoding", "x-unknown"},
		"media type refused":          {"/grpc.testing.TestService/UnaryCall", "content-type", "application/x-unknown"},
		"unary with a content length": {"/grpc.testing.TestService/UnaryCall", "content-type", "application/proto", "content-length", "1000"},
	} {
		resets, rounds := 0, 10
		for range rounds {
			f.open(headers[0], headers[1:]...)
			must(t, f.framer.WriteData(f.last, false, make([]byte, 1000)))
			f.until(f.pong)
			must(t, f.framer.WriteData(f.last, true, nil))
			if slices.Contains(f.response(), "RST_STREAM") {
				resets++
			}
		}
		if resets > rounds/2 {
			t.Errorf("%s: the server has reset %d of %d streams", name, resets, rounds)
		}
	}
}

// A client that waits for the response before it ends its request does not wait for long.
func TestRefusalOfAnOpenRequest(t *testing.T) {
	f := newFraming(t, serveFailing(t)["yodel"])
	began := time.Now()
	for _, path := range []string{"/grpc.testing.TestService/None", "/grpc.testing.TestService/UnaryCall", "/grpc.testing.TestService/FullDuplexCall"} {
		f.open(path, "content-type", "application/grpc", "grpc-encoding", "x-unknown")
		if got := f.response(); len(got) != 2 || got[1] != "RST_STREAM" {
			t.Errorf("%s: got %s, want a response and RST_STREAM", path, got)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("three refusals took %v", took)
	}
}

// respond serves one connection of HTTP/2. It answers each request as soon as it has the headers.
func respond(conn net.Conn, answer func(f *http2.Framer, stream uint32) error) error {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		return err
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = f.WritePing(true, frame.Data)
			}
		case *http2.HeadersFrame:
			err = answer(f, frame.StreamID)
		}
		if err != nil {
			return err
		}
	}
}

// A client of yodel takes the status and the trailer from each form of a response without messages,
// as grpc-go's client does. The response may come before the client has sent its messages.
func TestResponsesWithoutMessages(t *testing.T) {
	type block []string
	begin := []string{":status", "200", "content-type", "application/grpc"}
	failed := []string{"grpc-status", "9", "grpc-message", "not so", "x-last", "2"}
	for name, blocks := range map[string][]block{
		"Trailers-Only":                     {append(begin[:4:4], failed...)},
		"Trailers-Only with content length": {append(append(begin[:4:4], "content-length", "0"), failed...)},
		"with trailers":                     {begin, failed},
		"with trailers and content length":  {append(begin[:4:4], "content-length", "0"), failed},
	} {
		for _, reset := range []bool{false, true} {
			l := listen(t)
			var group sync.WaitGroup
			answer := func(f *http2.Framer, stream uint32) error {
				for i, fields := range blocks {
					var b bytes.Buffer
					encoder := hpack.NewEncoder(&b)
					for pair := range slices.Chunk(fields, 2) {
						if err := encoder.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]}); err != nil {
							return err
						}
					}
					if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: i == len(blocks)-1}); err != nil {
						return err
					}
				}
				if reset {
					return f.WriteRSTStream(stream, http2.ErrCodeNo)
				}
				return nil
			}
			group.Go(func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					group.Go(func() { _ = respond(conn, answer) }) // it ends with an error when the client leaves
				}
			})
			theirs, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			must(t, err)
			ours := yodel.NewClient(discovery.Static("grpc://"+l.Addr().String()), &yodel.ClientOptions{Codec: protobuf.Codec, Wires: []yodel.Wire{wire.Wire}})
			for client, c := range map[string]grpc.ClientConnInterface{"grpc-go": theirs, "yodel": grpcgo.Conn(ours)} {
				for kind, call := range calls {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					header, trailer, err := call(ctx, testpb.NewTestServiceClient(c))
					cancel()
					if status.Code(err) != codes.FailedPrecondition || len(header.Get("x-last")) != 0 || len(trailer.Get("x-last")) != 1 {
						t.Errorf("%s, reset %t, %s of %s: got %v, header %v, trailer %v", name, reset, kind, client, err, header, trailer)
					}
				}
			}
			ours.Close()
			_ = theirs.Close()
			_ = l.Close()
			group.Wait()
		}
	}
}

// calls are calls that return the header, the trailer and the error of a response without messages.
var calls = map[string]func(ctx context.Context, c testpb.TestServiceClient) (header, trailer metadata.MD, err error){
	"unary": func(ctx context.Context, c testpb.TestServiceClient) (header, trailer metadata.MD, err error) {
		_, err = c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 1000)}}, grpc.Header(&header), grpc.Trailer(&trailer))
		return header, trailer, err
	},
	"feed": func(ctx context.Context, c testpb.TestServiceClient) (header, trailer metadata.MD, err error) {
		s, err := c.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		if err != nil {
			return nil, nil, err
		}
		_, err = s.Recv()
		header, _ = s.Header()
		return header, s.Trailer(), err
	},
	"duplex": func(ctx context.Context, c testpb.TestServiceClient) (header, trailer metadata.MD, err error) {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			return nil, nil, err
		}
		_, err = s.Recv()
		header, _ = s.Header()
		return header, s.Trailer(), err
	},
}
