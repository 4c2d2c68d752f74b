// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A Point is a com.acme.Point.
type Point struct{ X, Y int32 }

func (Point) JavaClassName() string { return "com.acme.Point" }

// Arith is the service com.acme.Arith.
type Arith struct {
	began   chan string
	release chan struct{}
}

func (*Arith) Add(_ context.Context, a, b int32) (int32, error)  { return a + b, nil }
func (*Arith) Move(_ context.Context, p *Point) (*Point, error)  { return &Point{p.Y, p.X}, nil }
func (*Arith) Same(_ context.Context, p, q *Point) (bool, error) { return *p == *q, nil }
func (*Arith) Void(context.Context, *struct{}) (*struct{}, error) {
	return &struct{}{}, nil
}
func (*Arith) None(context.Context) (*Point, error)                       { return nil, nil }
func (*Arith) DivMod(_ context.Context, a, b int32) (int32, int32, error) { return a / b, a % b, nil }
func (*Arith) Fail(_ context.Context, text *string) (*Point, error)       { return nil, errors.New(*text) }
func (*Arith) Count(_ context.Context, _ *Point, send yodel.Send[Point]) error {
	return send(&Point{})
}

func (*Arith) Refuse(context.Context, *Point) (*Point, error) {
	return nil, &yodel.Error{Code: yodel.NotFound, Message: "no such point", RetryAfter: 3 * time.Second}
}

func (*Arith) Late(context.Context, *string) (*Point, error) {
	return nil, yodel.Errorf(yodel.DeadlineExceeded, "the other server was late")
}

func (*Arith) Exit(context.Context, *Point) (*Point, error) {
	runtime.Goexit()
	return nil, nil
}

func (*Arith) Attach(ctx context.Context, _ *Point) (*Point, error) {
	yodel.CallFrom(ctx).ReplyAttachment = []byte("x")
	return &Point{}, nil
}

// Reserve sets metadata that yodel gives a meaning.
func (*Arith) Reserve(ctx context.Context, _ *Point) (*Point, error) {
	yodel.CallFrom(ctx).Trailer = yodel.Metadata{"yodel-error-id": "mine"}
	return &Point{}, nil
}

func (a *Arith) Wait(ctx context.Context, name *string) (*string, error) {
	a.began <- *name
	select {
	case <-a.release:
		return name, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Describe returns what the server knows of a call.
func (*Arith) Describe(ctx context.Context, _ *Point) (*map[string]string, error) {
	call := yodel.CallFrom(ctx)
	call.SetHeader(yodel.Metadata{"header": "1"})
	call.Trailer = yodel.Metadata{"trailer": "2"}
	all := map[string]string{"tenant": call.Tenant, "key": call.Key, "trace": call.Trace, "idempotency": call.IdempotencyKey}
	if call.OneWay {
		all["oneWay"] = "true"
	}
	if at, ok := ctx.Deadline(); ok {
		all["left"] = time.Until(at).Round(time.Second).String()
	}
	for key, value := range call.Metadata {
		all["metadata."+key] = value
	}
	return &all, nil
}

// A served is a yodel server that clients of Dubbo call too.
type served struct {
	*yodel.Server
	arith *Arith
	addr  string
	stop  func() error
}

func serve(t testing.TB, o yodel.ServerOptions) *served {
	t.Helper()
	o.Protocols = []yodel.Protocol{Protocol}
	if o.Codecs == nil {
		o.Codecs = []yodel.Codec{codec.Codec}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &served{Server: yodel.NewServer(&o), arith: &Arith{began: make(chan string, 100), release: make(chan struct{})}}
	if err := s.RegisterName("com.acme.Arith", s.arith); err != nil {
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
	frames frameReader
}

func dial(t testing.TB, addr string) *rawClient {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return &rawClient{t, c, frameReader{bufio.NewReaderSize(c, 32<<10)}}
}

func (c *rawClient) send(b []byte) {
	c.Helper()
	if _, err := c.Write(b); err != nil {
		c.Fatal(err)
	}
}

// read returns the next frame.
func (c *rawClient) read() (head, []byte) {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	h, err := c.frames.head()
	if err != nil {
		c.Fatal(err)
	}
	body, err := c.frames.body(h.body)
	if err != nil {
		c.Fatal(err)
	}
	return h, body
}

// ends waits until the server closes the connection.
func (c *rawClient) ends() {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if h, err := c.frames.head(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		c.Fatalf("got %+v, %v, want the end of the connection", h, err)
	}
}

// requestOf returns the frame of a request of com.acme.Arith. Rest has the encoded arguments and
// the attachments.
func requestOf(number uint64, flags byte, method, types string, rest ...[]byte) []byte {
	var body []byte
	for _, text := range []string{version, "com.acme.Arith", "1.0.0", method, types} {
		body = hessian.AppendText(body, text)
	}
	body = append(body, bytes.Join(rest, nil)...)
	h := head{flags: request | hessian2 | flags, number: number}
	return append(h.append(nil, len(body)), body...)
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var noAttachments = hessian.AppendPairs(nil)
