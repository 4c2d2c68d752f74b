// SPDX-License-Identifier: Apache-2.0

package connect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	std "net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
)

const (
	double yodel.Method[int, int] = "test.Numbers.Double"
	count  yodel.Feed[int, int]   = "test.Numbers.Count"
	sum    yodel.Upload[int, int] = "test.Numbers.Sum"
)

// serve starts a server and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Protocols: []yodel.Protocol{http.New(nil)}, Compressors: []compress.Compressor{gzip.Compressor},
	})
	double.Handle(s, func(ctx context.Context, n *int) (*int, error) {
		call := yodel.CallFrom(ctx)
		call.SetHeader(yodel.Metadata{"header": call.Metadata["sent"]})
		call.Trailer = yodel.Metadata{"cost": "3"}
		if *n < 0 {
			e := yodel.Errorf(yodel.OutOfRange, "%d is < 0", *n)
			e.Details = []yodel.Detail{{Type: "test.Detail", Value: []byte{1, 2}}}
			return nil, e
		}
		return new(2 * *n), nil
	})
	s.MarkReadOnly(string(double))
	count.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(&i); err != nil {
				return err
			}
		}
		return yodel.Errorf(yodel.DataLoss, "no more")
	})
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		total := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			total += *n
		}
		return &total, nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestWire(t *testing.T) {
	addr := serve(t)
	for _, o := range []*connect.Options{nil, {HTTP1: true}, {Get: true}, {HTTP1: true, Get: true}} {
		w := connect.Wire(o)
		t.Run(fmt.Sprintf("%s %+v", w.Name(), o), func(t *testing.T) {
			c := yodel.NewClient(discovery.Static(w.Name()+"://"+addr), &yodel.ClientOptions{Wires: []yodel.Wire{w}, Compressor: gzip.Compressor})
			defer c.Close()
			for i := range 3 {
				call := &yodel.Call{Metadata: yodel.Metadata{"sent": fmt.Sprint(i)}, Idempotent: true}
				got, err := double.Do(t.Context(), c, call, new(21))
				if err != nil || *got != 42 || call.Header()["header"] != fmt.Sprint(i) || !maps.Equal(call.Trailer, yodel.Metadata{"cost": "3"}) {
					t.Fatalf("got %v, %v, header %v, trailer %v", got, err, call.Header(), call.Trailer)
				}
			}
			call := &yodel.Call{}
			_, err := double.Do(t.Context(), c, call, new(-1))
			e, ok := errors.AsType[*yodel.Error](err)
			if !ok || e.Code != yodel.OutOfRange || e.Message != "-1 is < 0" || len(e.Details) != 1 || call.Trailer["cost"] != "3" {
				t.Errorf("got %+v, trailer %v", err, call.Trailer)
			}
			next := 0
			for n, err := range count.Call(t.Context(), c, new(10)) {
				if err != nil {
					if next != 10 || !errors.Is(err, yodel.DataLoss) {
						t.Errorf("after %d messages: %v", next, err)
					}
					break
				}
				if *n != next {
					t.Errorf("got %d, want %d", *n, next)
				}
				next++
			}
			got, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error { return errors.Join(send(new(1)), send(new(2))) })
			if err != nil || *got != 3 {
				t.Errorf("got %v, %v", got, err)
			}
			err = c.Call(t.Context(), "test.Numbers.Nothing", new(1), new(int))
			if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unimplemented {
				t.Errorf("an unknown method: got %v", err)
			}
			err = c.Do(t.Context(), &yodel.Call{Method: string(double), Args: new(1), Metadata: yodel.Metadata{"x": strings.Repeat("\n", 3)}})
			if e, ok := errors.AsType[*yodel.Error](err); !ok || !e.NotProcessed {
				t.Errorf("metadata that HTTP cannot carry: got %v", err)
			}
		})
	}
}

// A server that does not take the content type has not executed the call, and says why. The code is
// Unimplemented if the server says which content types it takes.
func TestUnsupportedMediaType(t *testing.T) {
	const text, inJSON, why = "text/plain", "application/json", "no codec for application/json"
	for _, test := range []struct {
		takes, media, body, message string
		want                        yodel.Error
	}{
		{"", text, why + "\nmore", "415 Unsupported Media Type: " + why, yodel.Error{Code: yodel.Unknown}},
		{"application/proto", text, why + "\nmore", "415 Unsupported Media Type: " + why, yodel.Error{Code: yodel.Unimplemented, ID: "YDL2003"}},
		{"", inJSON, `{"code":"unknown","message":"` + why + `"}`, why, yodel.Error{Code: yodel.Unknown}},
		{"application/proto", inJSON, `{"code":"unknown","message":"` + why + `"}`, why, yodel.Error{Code: yodel.Unimplemented, ID: "YDL2003"}},
	} {
		takes, want := test.takes, test.want
		server := httptest.NewServer(std.HandlerFunc(func(w std.ResponseWriter, _ *std.Request) {
			if takes != "" {
				w.Header().Set("Accept-Post", takes)
			}
			w.Header().Set("Content-Type", test.media)
			w.WriteHeader(std.StatusUnsupportedMediaType)
			_, _ = io.WriteString(w, test.body)
		}))
		defer server.Close()
		w := connect.Wire(&connect.Options{HTTP1: true})
		c := yodel.NewClient(discovery.Static(w.Name()+"://"+server.Listener.Addr().String()), &yodel.ClientOptions{Wires: []yodel.Wire{w}})
		defer c.Close()
		err := c.Call(t.Context(), "test.Numbers.Double", new(1), new(int))
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.Code != want.Code || e.ID != want.ID || !e.NotProcessed || !strings.HasSuffix(e.Message, test.message) {
			t.Errorf("with Accept-Post %q and %s: got %v", takes, test.media, err)
		}
	}
}

// A message without bytes is not decompressed, whatever the reply says.
func TestNothingIsNotDecompressed(t *testing.T) {
	server := httptest.NewServer(std.HandlerFunc(func(w std.ResponseWriter, r *std.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		if strings.HasSuffix(r.URL.Path, "/Unary") {
			w.Header().Set("Content-Encoding", "gzip")
			return
		}
		w.Header().Set("Connect-Content-Encoding", "gzip")
		_, _ = w.Write([]byte("\x01\x00\x00\x00\x00\x02\x00\x00\x00\x02{}"))
	}))
	defer server.Close()
	w := connect.Wire(&connect.Options{HTTP1: true})
	c := yodel.NewClient(discovery.Static(w.Name()+"://"+server.Listener.Addr().String()), &yodel.ClientOptions{
		Wires: []yodel.Wire{w}, Codec: raw.Codec, Compressor: gzip.Compressor,
	})
	defer c.Close()
	reply := []byte("before")
	if err := c.Call(t.Context(), "test.Bytes.Unary", new([]byte), &reply); err != nil || len(reply) != 0 {
		t.Errorf("got %q, %v", reply, err)
	}
	n := 0
	for message, err := range yodel.Feed[[]byte, []byte]("test.Bytes.Feed").Call(t.Context(), c, new([]byte)) {
		if err != nil || len(*message) != 0 {
			t.Errorf("got %v, %v", message, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("got %d messages", n)
	}
}
