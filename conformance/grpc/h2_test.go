// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/h2"
	"github.com/yodel-rpc/yodel/internal/inline"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echoed answers calls of gRPC with the bytes of their messages, without decoding them.
type echoed struct{}

const mostEchoed = 4 << 20

func (echoed) Head(s *h2.Stream) h2.Plan {
	switch s.Path {
	case "/e.E/Inline":
		return h2.Plan{Whole: mostEchoed, Inline: true}
	case "/e.E/Whole", "/e.E/Block":
		return h2.Plan{Whole: mostEchoed}
	case "/e.E/InlineBlock":
		return h2.Plan{Whole: mostEchoed, Inline: true}
	default:
		return h2.Plan{}
	}
}

var (
	echoHeader = []h2.Field{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc", Form: h2.Repeated}}
	echoEnd    = []h2.Field{{Name: "grpc-status", Value: "0", Form: h2.Repeated}}
)

func (echoed) Serve(s *h2.Stream) {
	switch s.Path {
	case "/e.E/Inline", "/e.E/Whole":
		header := echoHeader
		for _, f := range s.Fields {
			if strings.HasPrefix(f.Name, "k-") {
				header = append(header[:len(header):len(header)], h2.Field{Name: f.Name, Value: f.Value})
			}
		}
		_ = s.Reply(header, s.Body(), echoEnd)
	case "/e.E/Block", "/e.E/InlineBlock":
		<-s.Done()
	case "/e.E/Duplex":
		if s.Header(echoHeader) != nil {
			return
		}
		var message []byte
		for {
			var err error
			if message, err = readMessage(s, message); errors.Is(err, io.EOF) {
				_ = s.End(echoEnd)
				return
			} else if err != nil {
				return
			}
			if _, err := s.Write(message); err != nil {
				return
			}
		}
	case "/e.E/Feed":
		message, err := readMessage(s, nil)
		if err != nil || s.Header(echoHeader) != nil {
			return
		}
		for range 2000 {
			if _, err := s.Write(message); err != nil {
				return
			}
		}
		_ = s.End(echoEnd)
	default:
		_ = s.Reply([]h2.Field{echoHeader[0], echoHeader[1], {Name: "grpc-status", Value: "12"}}, nil, nil)
	}
}

// readMessage reads a message with its prefix.
func readMessage(s *h2.Stream, into []byte) ([]byte, error) {
	into = append(into[:0], 0, 0, 0, 0, 0)
	if _, err := io.ReadFull(s, into); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(into[1:]))
	into = append(into, make([]byte, size)...)
	_, err := io.ReadFull(s, into[5:])
	return into, err
}

// serveEngine serves a listener with the engine.
func serveEngine(t *testing.T, handler h2.Handler) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	watch := inline.NewWatch()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				h2.New(nc, h2.Config{Handler: handler, Watch: watch}).Serve(nil, func(err error) {
					if err != nil && !errors.Is(err, syscall.ECONNRESET) { // of a client that ends before it has read all
						t.Error(err)
					}
				})
			})
		}
	})
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func dialEngine(t *testing.T) *grpc.ClientConn {
	cc, err := grpc.NewClient("passthrough:///"+serveEngine(t, echoed{}), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostEchoed)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// Unary calls of an unchanged grpc-go client, from many callers, with metadata, of 0 to 3 MiB.
func TestEngineAnswersUnaryCalls(t *testing.T) {
	cc := dialEngine(t)
	for _, method := range []string{"/e.E/Inline", "/e.E/Whole"} {
		var callers sync.WaitGroup
		for i := range 200 {
			callers.Go(func() {
				for k := range 20 {
					size := (i*37 + k*1011) % 3000
					if k == 10 {
						size = 1000 * i
					}
					in, out, header := wrapperspb.Bytes(bytes.Repeat([]byte{byte(i + k)}, size)), new(wrapperspb.BytesValue), metadata.MD{}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(k)*time.Second)
					if k%3 == 0 {
						ctx = metadata.AppendToOutgoingContext(ctx, "k-a", fmt.Sprint(i, k), "k-bin", "\x00\xff")
					}
					err := cc.Invoke(ctx, method, in, out, grpc.Header(&header))
					cancel()
					if err != nil || !bytes.Equal(in.Value, out.Value) {
						t.Errorf("%s: %d bytes in place of %d: %v", method, len(out.Value), size, err)
						return
					}
					if k%3 == 0 && (header.Get("k-a")[0] != fmt.Sprint(i, k) || header.Get("k-bin")[0] != "\x00\xff") {
						t.Errorf("metadata is %v", header)
					}
				}
			})
		}
		callers.Wait()
		for _, size := range []int{0, 16379, 16380, 65535, 1 << 20, 3 << 20} {
			in, out := wrapperspb.Bytes(bytes.Repeat([]byte("x"), size)), new(wrapperspb.BytesValue)
			if err := cc.Invoke(t.Context(), method, in, out); err != nil || !bytes.Equal(in.Value, out.Value) {
				t.Errorf("%s: %d bytes in place of %d: %v", method, len(out.Value), size, err)
			}
		}
	}
	if err := cc.Invoke(t.Context(), "/e.E/None", wrapperspb.Bytes(nil), new(wrapperspb.BytesValue)); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// Calls that end by their deadline, or are canceled, end their handlers.
func TestEngineEndsCallsThatWereGivenUp(t *testing.T) {
	cc := dialEngine(t)
	for _, method := range []string{"/e.E/Block", "/e.E/InlineBlock"} {
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if err := cc.Invoke(ctx, method, wrapperspb.Bytes(nil), new(wrapperspb.BytesValue)); status.Code(err) != codes.DeadlineExceeded {
					t.Error(err)
				}
			})
			callers.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(20*time.Millisecond, cancel)
				if err := cc.Invoke(ctx, method, wrapperspb.Bytes(nil), new(wrapperspb.BytesValue)); status.Code(err) != codes.Canceled {
					t.Error(err)
				}
			})
		}
		callers.Wait()
	}
	in, out := wrapperspb.Bytes([]byte("alive")), new(wrapperspb.BytesValue)
	if err := cc.Invoke(t.Context(), "/e.E/Inline", in, out); err != nil || string(out.Value) != "alive" {
		t.Error(err)
	}
}

// Duplex streams with large messages, and feeds, beside each other.
func TestEngineServesStreams(t *testing.T) {
	cc := dialEngine(t)
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			st, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/e.E/Duplex")
			if err != nil {
				t.Error(err)
				return
			}
			for k := range 20 {
				in, out := wrapperspb.Bytes(bytes.Repeat([]byte{byte(k)}, i*20000)), new(wrapperspb.BytesValue)
				if err := errors.Join(st.SendMsg(in), st.RecvMsg(out)); err != nil || !bytes.Equal(in.Value, out.Value) {
					t.Error(i, k, err)
					return
				}
			}
			if err := errors.Join(st.CloseSend(), st.RecvMsg(new(wrapperspb.BytesValue))); !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
		callers.Go(func() {
			st, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/e.E/Feed")
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(st.SendMsg(wrapperspb.Bytes(bytes.Repeat([]byte("x"), 1+i*50))), st.CloseSend()); err != nil {
				t.Error(err)
			}
			n := 0
			for ; ; n++ {
				if err = st.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
					break
				}
			}
			if n != 2000 || !errors.Is(err, io.EOF) {
				t.Error(n, err)
			}
		})
	}
	callers.Wait()
}

// The client of golang.org/x/net sends and reads bodies of any size, with trailers.
func TestEngineServesAnHTTPClient(t *testing.T) {
	addr := serveEngine(t, echoed{})
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: nil}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tr.NewClientConn(nc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var callers sync.WaitGroup
	for i := range 30 {
		callers.Go(func() {
			for _, path := range []string{"/e.E/Inline", "/e.E/Whole"} {
				body := bytes.Repeat([]byte{byte(i)}, i*i*1000)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+path, bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := conn.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || !bytes.Equal(got, body) || resp.StatusCode != http.StatusOK || resp.Trailer.Get("Grpc-Status") != "0" {
					t.Errorf("%d bytes in place of %d, status %d, trailer %v: %v", len(got), len(body), resp.StatusCode, resp.Trailer, err)
				}
			}
		})
	}
	callers.Wait()
}
