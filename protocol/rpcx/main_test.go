// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// Arith is a service as rpcx's documentation has it.
type Arith struct {
	began   chan struct{}
	release chan struct{}
}

type (
	Args  struct{ A, B int }
	Reply struct{ C int }
)

func (*Arith) Mul(_ context.Context, args *Args, reply *Reply) error {
	reply.C = args.A * args.B
	return nil
}

func (*Arith) Fail(_ context.Context, _ *Args, _ *Reply) error { return errors.New("boom") }

// Half fails with a reply.
func (*Arith) Half(_ context.Context, args *Args, reply *Reply) error {
	reply.C = args.A
	return yodel.Errorf(yodel.Aborted, "only half of it")
}

func (*Arith) Echo(_ context.Context, in *[]byte) (*[]byte, error) { return in, nil }

func (a *Arith) Wait(ctx context.Context, _ *Args, _ *Reply) error {
	a.began <- struct{}{}
	select {
	case <-a.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*Arith) Exit(_ context.Context, _ *Args, _ *Reply) error {
	runtime.Goexit()
	return nil
}

// Describe returns what the server knows of a call.
func (*Arith) Describe(ctx context.Context, _ *Args, reply *map[string]string) error {
	call := yodel.CallFrom(ctx)
	call.SetHeader(yodel.Metadata{"header": "1"})
	call.Trailer = yodel.Metadata{"trailer": "2", "empty": ""}
	all := map[string]string{"attempt": strconv.Itoa(call.Attempt), "tenant": call.Tenant, "oneWay": strconv.FormatBool(call.OneWay)}
	if at, ok := ctx.Deadline(); ok {
		all["left"] = time.Until(at).Round(time.Second).String()
	}
	for key, value := range call.Metadata {
		all["metadata."+key] = value
	}
	*reply = all
	return nil
}

// Reserve sets metadata that rpcx gives a meaning.
func (*Arith) Reserve(ctx context.Context, _ *Args, _ *Reply) error {
	yodel.CallFrom(ctx).Trailer = yodel.Metadata{rpcxwire.KeyError: "mine"}
	return nil
}

// Attach has a reply with an attachment.
func (*Arith) Attach(ctx context.Context, _ *Args, _ *Reply) error {
	yodel.CallFrom(ctx).ReplyAttachment = []byte("x")
	return nil
}

func (*Arith) Two(_ context.Context, a, b int) (int, int, error) { return a, b, nil }

func (*Arith) Count(_ context.Context, _ *Args, send yodel.Send[Reply]) error { return send(&Reply{1}) }

// A served is a yodel server that clients of rpcx call too.
type served struct {
	*yodel.Server
	arith *Arith
	addr  string
	stop  func() error
}

func serve(t testing.TB, o yodel.ServerOptions) *served {
	t.Helper()
	if o.Protocols == nil {
		o.Protocols = []yodel.Protocol{Protocol}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &served{Server: yodel.NewServer(&o), arith: &Arith{began: make(chan struct{}, 100), release: make(chan struct{})}}
	if err := s.Register(s.arith); err != nil {
		t.Fatal(err)
	}
	l := testserve.Listen(t)
	s.addr, s.stop = l.Addr().String(), testserve.Run(t, s.Server, l)
	return s
}

// A rawClient sends and reads frames.
type rawClient struct {
	testing.TB
	net.Conn
	frames *frameReader
}

func dial(t testing.TB, addr string) *rawClient {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return &rawClient{t, c, readerOf(c)}
}

func (c *rawClient) send(h head, payload string) {
	c.Helper()
	h.payload = len(payload)
	if _, err := c.Write(append(h.append(nil), payload...)); err != nil {
		c.Fatal(err)
	}
}

// read returns the next frame, its metadata and its payload.
func (c *rawClient) read() (*head, map[string]string, string) {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	h, err := c.frames.next()
	if err != nil {
		c.Fatal(err)
	}
	body, err := c.frames.body(h.payload)
	if err != nil {
		c.Fatal(err)
	}
	metadata := make(map[string]string)
	for rest := h.metadata; rest != ""; {
		var key, value string
		if key, value, rest, err = cutPair(rest); err != nil {
			c.Fatal(err)
		}
		metadata[key] = value
	}
	return h, metadata, string(body)
}

// ends waits until the server closes the connection.
func (c *rawClient) ends() {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if h, err := c.frames.next(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		c.Fatalf("got %+v, %v, want the end of the connection", h, err)
	}
}
