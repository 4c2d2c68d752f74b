// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/protocol/connect"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A relay notes the metadata of its calls, sets header and trailer, and returns an error.
type relay struct {
	testpb.UnimplementedTestServiceServer

	seen            chan metadata.MD
	header, trailer metadata.MD
	send            bool
	err             error
}

func (r *relay) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	r.seen <- md
	set := grpc.SetHeader
	if r.send {
		set = grpc.SendHeader
	}
	if err := errors.Join(set(ctx, r.header), grpc.SetTrailer(ctx, r.trailer)); err != nil {
		return nil, fmt.Errorf("the metadata was refused: %w", err)
	}
	return &testpb.SimpleResponse{}, r.err
}

func (r *relay) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, st testpb.TestService_StreamingOutputCallServer) error {
	md, _ := metadata.FromIncomingContext(st.Context())
	r.seen <- md
	set := st.SetHeader
	if r.send {
		set = st.SendHeader
	}
	if err := set(r.header); err != nil {
		return fmt.Errorf("the metadata was refused: %w", err)
	}
	st.SetTrailer(r.trailer)
	if err := st.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
		return err
	}
	return r.err
}

// StreamingInputCall forgets its reply.
func (r *relay) StreamingInputCall(st testpb.TestService_StreamingInputCallServer) error {
	for {
		if _, err := st.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return r.err
			}
			return err
		}
	}
}

// serveRelay serves r with grpc-go and with yodel.
func serveRelay(t *testing.T, r *relay) (theirs, ours string, server *yodel.Server) {
	t.Helper()
	r.seen = make(chan metadata.MD, 1)
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, r)
	server = yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}, Logger: slog.New(slog.DiscardHandler),
	})
	testpb.RegisterTestServiceServer(grpcgo.Registrar(server), r)
	return startGRPC(t, s), start(t, server), server
}

// dialRelay returns an unchanged client.
func dialRelay(t *testing.T, addr string) testpb.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("shop/1"), grpc.WithAuthority("shop.example"))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// outcome is what a client sees of a call.
type outcome struct {
	code            codes.Code
	header, trailer metadata.MD
}

func (o outcome) String() string {
	return fmt.Sprintf("%v\nheader %v\ntrailer %v", o.code, o.header, o.trailer)
}

// call makes a unary call, or one of a feed.
func call(ctx context.Context, c testpb.TestServiceClient, feed bool) (o outcome) {
	if !feed {
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&o.header), grpc.Trailer(&o.trailer))
		o.code = status.Code(err)
		return o
	}
	st, err := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{})
	for err == nil {
		_, err = st.Recv()
	}
	if st != nil {
		o.header, _ = st.Header() // the error is that of Recv
		o.trailer = st.Trailer()
	}
	if !errors.Is(err, io.EOF) {
		o.code = status.Code(err)
	}
	return o
}

// each runs a test for a unary call and one of a feed.
func each(t *testing.T, test func(t *testing.T, feed bool)) {
	t.Helper()
	t.Run("unary", func(t *testing.T) { test(t, false) })
	t.Run("feed", func(t *testing.T) { test(t, true) })
}

// A handler sees the metadata that it sees with grpc-go, but for two headers of the protocol.
func TestHandlersSeeTheMetadataOfRequests(t *testing.T) {
	r := &relay{}
	theirs, ours, _ := serveRelay(t, r)
	each(t, func(t *testing.T, feed bool) {
		var seen []metadata.MD
		for _, addr := range []string{theirs, ours} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "accept-language", "de", "accept", "*/*", "accept-encoding", "br", "accept-charset", "utf-8",
				"cookie", "a=b", "authorization", "Bearer x", "x-forwarded-for", "10.0.0.1", "origin", "https://shop.example", "referer", "x", "date", "now",
				"content-language", "de", "content-encoding", "br", "content-disposition", "inline", "connect-x", "1", "grpc-trace-bin", "\x00\xff",
				"grpc-tags-bin", "\x01", "grpc-x", "1", "grpc-previous-rpc-attempts", "1", "x-order", "7", "vary", "x", "cache-control", "no-cache",
				"if-match", "x", "range", "bytes=0-1", "expect-ct", "x", "from", "ann", "via", "1.1 proxy", "forwarded", "for=10.0.0.1", "x-grpc-web", "1")
			if o := call(ctx, dialRelay(t, addr), feed); o.code != codes.OK {
				t.Fatal(o)
			}
			md := await.Value(t, r.seen, "the metadata of the call")
			delete(md, "content-type")
			delete(md, "grpc-accept-encoding")
			seen = append(seen, md)
		}
		for key, want := range seen[0] {
			if got := seen[1][key]; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				t.Errorf("%s is %q, with grpc-go %q", key, got, want)
			}
		}
		for key, got := range seen[1] {
			if seen[0][key] == nil {
				t.Errorf("%s is %q, and grpc-go does not show it", key, got)
			}
		}
	})
}

// A patient sends the header of a feed, and no message until it may.
type patient struct {
	testpb.UnimplementedTestServiceServer

	may chan struct{}
}

func (p *patient) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, st testpb.TestService_StreamingOutputCallServer) error {
	if err := st.SendHeader(metadata.Pairs("x-first", "1")); err != nil {
		return err
	}
	select {
	case <-p.may:
		return st.Send(&testpb.StreamingOutputCallResponse{})
	case <-st.Context().Done():
		return st.Context().Err()
	}
}

// The header of a stream arrives before its first message.
func TestHeadersArriveBeforeTheFirstMessage(t *testing.T) {
	p := &patient{may: make(chan struct{})}
	s := yodelServer()
	testpb.RegisterTestServiceServer(grpcgo.Registrar(s), p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	st, err := dialRelay(t, start(t, s)).StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{})
	must(t, err)
	if header, err := st.Header(); err != nil || len(header["x-first"]) != 1 {
		t.Errorf("before a message: got the header %v and %v", header, err)
	}
	select {
	case p.may <- struct{}{}:
	case <-ctx.Done():
		t.Fatal("the handler does not wait")
	}
	if _, err = st.Recv(); err != nil {
		t.Error(err)
	}
	if _, err = st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// A handler may pass on the header and the trailer that another server has sent. The client sees
// what it sees with grpc-go, which drops what belongs to a hop.
func TestHandlersPassOnMetadata(t *testing.T) {
	upstream := metadata.MD{
		"content-type": {"text/html"}, "user-agent": {"x"}, "te": {"x"}, "grpc-status": {"9"}, "grpc-message": {"x"}, "grpc-encoding": {"gzip"},
		"grpc-timeout": {"1S"}, "grpc-message-type": {"x"}, ":status": {"404"}, "date": {"now"}, "x-order": {"7"}, "x-bin": {"\x00\xff", "b"},
		"accept-language": {"de"}, "content-language": {"de"}, "server": {"proxy"}, "vary": {"Origin"}, "connect-x": {"1"},
	}
	r := &relay{}
	theirs, ours, server := serveRelay(t, r)
	for _, err := range []error{nil, status.Error(codes.NotFound, "nothing")} {
		for _, r.send = range []bool{false, true} {
			r.header, r.trailer, r.err = upstream, maps.Clone(upstream), err
			r.trailer["grpc-retry-pushback-ms"] = []string{"5"}
			each(t, func(t *testing.T, feed bool) {
				want := call(t.Context(), dialRelay(t, theirs), feed)
				await.Value(t, r.seen, "the call")
				got := call(t.Context(), dialRelay(t, ours), feed)
				await.Value(t, r.seen, "the call")
				if got.code != status.Code(err) || got.String() != want.String() {
					t.Errorf("send %t: got %v\nwith grpc-go %v", r.send, got, want)
				}
			})
		}
	}
	if n := server.Stats().LeftOut; n != 0 { // grpc-go drops them without a word, too
		t.Errorf("%d pairs were left out", n)
	}
}

// What gRPC cannot carry is left out of the reply. Grpc-go fails such calls, or breaks its
// connection.
func TestRepliesWithoutOddMetadata(t *testing.T) {
	odd := metadata.MD{"X-Order": {"7"}, "x-umlaut": {"ü"}, "x-line": {"a\r\nb"}, "bad key": {"x"}, "content-length": {"3"}, "yodel-error-id": {"x"}}
	r := &relay{header: odd, trailer: odd}
	_, ours, server := serveRelay(t, r)
	for _, r.err = range []error{nil, status.Error(codes.NotFound, "nothing")} {
		each(t, func(t *testing.T, feed bool) {
			before := server.Stats().LeftOut
			got := call(t.Context(), dialRelay(t, ours), feed)
			await.Value(t, r.seen, "the call")
			want := outcome{status.Code(r.err), metadata.MD{"content-type": {"application/grpc"}, "x-order": {"7"}}, metadata.MD{"x-order": {"7"}}}
			if got.String() != want.String() {
				t.Errorf("got %v\nwant %v", got, want)
			}
			if left := server.Stats().LeftOut - before; left != 8 {
				t.Errorf("%d pairs were left out, want 8", left)
			}
		})
	}
}

// Codes that gRPC does not have arrive as they were sent.
func TestCodesWithoutNames(t *testing.T) {
	r := &relay{}
	theirs, ours, server := serveRelay(t, r)
	for _, code := range []codes.Code{16, 17, 42, 255, 256, 1001, 65535} {
		r.err = status.Error(code, "ours")
		for name, c := range map[string]testpb.TestServiceClient{
			"grpc-go calls grpc-go": dialRelay(t, theirs), "grpc-go calls yodel": dialRelay(t, ours),
			"yodel calls grpc-go": testpb.NewTestServiceClient(clientOf(t, "grpc://"+theirs)), "yodel calls yodel by gRPC": testpb.NewTestServiceClient(clientOf(t, "grpc://"+ours)),
			"yodel calls yodel": testpb.NewTestServiceClient(clientOf(t, ours)),
		} {
			for _, feed := range []bool{false, true} {
				got := call(t.Context(), c, feed)
				if await.Value(t, r.seen, "the call"); got.code != code {
					t.Errorf("%s, feed %t: got the code %d, want %d", name, feed, got.code, code)
				}
			}
		}
	}
	for _, m := range server.Stats().Methods {
		if m.Calls > 0 && (m.Errors["unauthenticated"] != 3 || m.Errors["unknown"] != 18) { // of three clients
			t.Errorf("%s: codes without names do not count as unknown: %v", m.Name, m.Errors)
		}
	}
}

// An upload whose handler sends no reply fails, as with grpc-go.
func TestForgottenReplies(t *testing.T) {
	r := &relay{}
	theirs, ours, _ := serveRelay(t, r)
	clients := map[string]testpb.TestServiceClient{"grpc-go calls grpc-go": dialRelay(t, theirs), "grpc-go calls yodel": dialRelay(t, ours)}
	for _, scheme := range []string{"yodel://", "grpc://", "grpc-web://", "connect://"} {
		c := yodel.NewClient(discovery.Static(strings.TrimPrefix(scheme+ours, "yodel://")), &yodel.ClientOptions{
			Codec: protobuf.Codec, Wires: []yodel.Wire{wire.Wire, wire.Web, connect.Wire(nil)},
		})
		t.Cleanup(c.Close)
		clients["yodel by "+scheme] = testpb.NewTestServiceClient(grpcgo.Conn(c))
	}
	for name, c := range clients {
		for code, err := range map[codes.Code]error{codes.Internal: nil, codes.NotFound: status.Error(codes.NotFound, "nothing")} {
			r.err = err
			st, failed := c.StreamingInputCall(t.Context())
			must(t, failed)
			if _, err := st.CloseAndRecv(); status.Code(err) != code {
				t.Errorf("%s: got %v, want %v", name, err, code)
			}
		}
	}
}
