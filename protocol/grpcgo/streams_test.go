// SPDX-License-Identifier: Apache-2.0

package grpcgo_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
)

// Streams of the service of these tests.
var (
	upload = grpc.StreamDesc{StreamName: "Upload", ClientStreams: true, Handler: func(_ any, st grpc.ServerStream) error {
		for n := 0; ; n++ {
			if err := st.RecvMsg(new(wrapperspb.StringValue)); err == io.EOF {
				return st.SendMsg(wrapperspb.String(fmt.Sprint(n, " messages")))
			} else if err != nil {
				return err
			}
		}
	}}
	duplex = grpc.StreamDesc{StreamName: "Duplex", ClientStreams: true, ServerStreams: true, Handler: func(_ any, st grpc.ServerStream) error {
		for {
			if err := st.RecvMsg(new(wrapperspb.StringValue)); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
		}
	}}
	feed = grpc.StreamDesc{StreamName: "Feed", ServerStreams: true, Handler: func(_ any, st grpc.ServerStream) error {
		if err := st.RecvMsg(new(wrapperspb.StringValue)); err != nil {
			return err
		}
		st.SetTrailer(metadata.Pairs("last", "y"))
		return errors.Join(st.SetHeader(metadata.Pairs("first", "x")), st.SendMsg(wrapperspb.String("a")))
	}}
	odd = grpc.StreamDesc{StreamName: "Odd", ServerStreams: true, Handler: func(any, grpc.ServerStream) error { return status.Error(256+codes.Canceled, "odd") }}
)

// connect serves the streams and returns a connection to them.
func connect(t *testing.T) grpc.ClientConnInterface {
	t.Helper()
	return connectWith(t, []grpc.StreamDesc{upload, duplex, feed, odd})
}

func connectWith(t *testing.T, streams []grpc.StreamDesc, middleware ...yodel.Middleware) grpc.ClientConnInterface {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{codec{}}, Middleware: middleware})
	grpcgo.Registrar(s).RegisterService(&grpc.ServiceDesc{ServiceName: "test.Streams", HandlerType: (*any)(nil), Streams: streams}, nil)
	return grpcgo.Conn(serve(t, s))
}

// serve starts s, and returns a client of it.
func serve(t *testing.T, s *yodel.Server) *yodel.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	c := yodel.Dial(l.Addr().String())
	t.Cleanup(func() {
		c.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}

func open(t *testing.T, desc *grpc.StreamDesc, opts ...grpc.CallOption) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	st, err := connect(t).NewStream(ctx, desc, "/test.Streams/"+desc.StreamName, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// After a stream has ended, SendMsg returns io.EOF, as that of grpc-go does, and RecvMsg returns
// the reason.
func TestSendAfterTheEnd(t *testing.T) {
	for _, desc := range []*grpc.StreamDesc{&upload, &duplex} {
		for code, end := range map[codes.Code]func(context.Context) (context.Context, context.CancelFunc){
			codes.Canceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(20*time.Millisecond, cancel)
				return ctx, cancel
			},
			codes.DeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 20*time.Millisecond)
			},
		} {
			t.Run(desc.StreamName+" "+code.String(), func(t *testing.T) {
				ctx, cancel := end(t.Context())
				defer cancel()
				st, err := connect(t).NewStream(ctx, desc, "/test.Streams/"+desc.StreamName)
				if err != nil {
					t.Fatal(err)
				}
				for sent := 0; ; sent++ {
					if err := st.SendMsg(wrapperspb.String("more")); err == io.EOF {
						break
					} else if err != nil {
						t.Fatalf("message %d: got %v", sent, err)
					}
				}
				for range 20 {
					if err := st.SendMsg(wrapperspb.String("late")); err != io.EOF {
						t.Fatalf("a late message: got %v", err)
					}
				}
				if err := st.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != code {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// A message that cannot be encoded fails its stream: SendMsg and RecvMsg return the error.
func TestMessageThatIsNotSent(t *testing.T) {
	for _, desc := range []*grpc.StreamDesc{&upload, &duplex} {
		t.Run(desc.StreamName, func(t *testing.T) {
			st := open(t, desc)
			if err := st.SendMsg(wrapperspb.String("good")); err != nil {
				t.Fatal(err)
			}
			err := st.SendMsg(wrapperspb.String("bad \xff"))
			if err == nil || err == io.EOF || status.Code(err) == codes.OK {
				t.Errorf("SendMsg: got %v", err)
			}
			_ = st.CloseSend() // the stream has failed
			reply := new(wrapperspb.StringValue)
			if got := st.RecvMsg(reply); status.Code(got) != status.Code(err) || !strings.Contains(got.Error(), "UTF-8") {
				t.Errorf("RecvMsg: got %v and %q, want %v", got, reply.GetValue(), err)
			}
		})
	}
}

// Header may be called while the call ends. When RecvMsg returns the end, the options are filled.
func TestHeaderWhileTheCallEnds(t *testing.T) {
	for range 20 {
		var header, trailer metadata.MD
		var from peer.Peer
		finished := false
		st := open(t, &feed, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from), grpc.OnFinish(func(error) { finished = true }))
		if err := st.SendMsg(wrapperspb.String("go")); err != nil {
			t.Fatal(err)
		}
		if err := st.RecvMsg(new(wrapperspb.StringValue)); err != nil {
			t.Fatal(err)
		}
		var reading sync.WaitGroup
		reading.Go(func() {
			for range 1000 {
				if _, err := st.Header(); err != nil {
					t.Error(err)
				}
			}
		})
		if err := st.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
			t.Errorf("got %v", err)
		}
		if len(header["first"]) != 1 || len(trailer["last"]) != 1 || from.Addr == nil || !finished {
			t.Errorf("the options have %v, %v, %v and %t", header, trailer, from.Addr, finished)
		}
		reading.Wait()
		if got, err := st.Header(); err != nil || len(got["first"]) != 1 {
			t.Errorf("after the end: got %v, %v", got, err)
		}
	}
}

// A method with one request fails a second one, and goes on.
func TestSecondRequest(t *testing.T) {
	st := open(t, &feed)
	if err := st.SendMsg(wrapperspb.String("go")); err != nil {
		t.Fatal(err)
	}
	if err := st.SendMsg(wrapperspb.String("again")); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
	if err := st.RecvMsg(new(wrapperspb.StringValue)); err != nil {
		t.Errorf("got %v", err)
	}
	if err := st.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		t.Errorf("got %v", err)
	}
}

// A panic of OnFinish fails the stream, and does not end the process.
func TestOnFinishThatPanics(t *testing.T) {
	st := open(t, &feed, grpc.OnFinish(func(error) { panic("harm") }))
	if err := st.SendMsg(wrapperspb.String("go")); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(new(wrapperspb.StringValue)); err != nil {
		t.Errorf("got %v", err)
	}
	if err := st.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "OnFinish") {
		t.Errorf("got %v", err)
	}
}

// A code that gRPC does not have arrives as it was sent, on yodel's own protocol too.
func TestCodeWithoutAName(t *testing.T) {
	st := open(t, &odd)
	if err := st.SendMsg(wrapperspb.String("go")); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != 257 || !strings.Contains(err.Error(), "odd") {
		t.Errorf("got %v", err)
	}
}

// A codeless is a Caller whose errors have no code.
type codeless struct{}

func (codeless) Do(context.Context, *yodel.Call) error { return &yodel.Error{Message: "odd"} }

// An error without a code is not success.
func TestErrorWithoutACode(t *testing.T) {
	err := grpcgo.Conn(codeless{}).Invoke(t.Context(), "/test.Streams/Odd", wrapperspb.String(""), new(wrapperspb.StringValue))
	if status.Code(err) != codes.Unknown {
		t.Errorf("got %v", err)
	}
}
