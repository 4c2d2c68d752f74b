// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gogo "github.com/gogo/protobuf/types"
	"github.com/smallnest/rpcx/log"
	"github.com/smallnest/rpcx/server"
	"github.com/smallnest/rpcx/share"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/conformance/rolling"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	log.SetDummyLogger()
	if role := os.Getenv(roleVariable); role != "" {
		play(role)
		return
	}
	rolling.Child(map[string]rolling.Serve{"rpcx": serveRolling})
	yodeltest.VerifyNoLeaks(m)
}

type (
	Args  struct{ A, B int }
	Reply struct{ C int }
	Box   struct{ Data []byte }
)

// Arith is a service for servers of rpcx and of yodel.
type Arith struct {
	metadata func(ctx context.Context) (in, out map[string]string) // a reply has the pairs of out
	began    chan struct{}
	release  chan struct{}
	noted    chan int
	running  atomic.Int32
}

func newArith() *Arith {
	return &Arith{began: make(chan struct{}, 2000), release: make(chan struct{}), noted: make(chan int, 2000)}
}

func (*Arith) Mul(_ context.Context, args *Args, reply *Reply) error {
	reply.C = args.A * args.B
	return nil
}

func (*Arith) Fail(context.Context, *Args, *Reply) error { return errors.New("boom") }

func (*Arith) Half(_ context.Context, args *Args, reply *Reply) error {
	reply.C = args.A
	return errors.New("only half of it")
}

func (*Arith) Panic(context.Context, *Args, *Reply) error { panic("oh") }

func (a *Arith) Note(_ context.Context, args *Args, _ *Reply) error {
	a.noted <- args.A
	return nil
}

func (a *Arith) Wait(ctx context.Context, args *Args, reply *Reply) error {
	a.began <- struct{}{}
	select {
	case <-a.release:
		reply.C = args.A
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sleep returns after args.B milliseconds.
func (*Arith) Sleep(_ context.Context, args *Args, reply *Reply) error {
	<-time.After(time.Duration(args.B) * time.Millisecond)
	reply.C = args.A
	return nil
}

// Left returns how many milliseconds are left until the deadline.
func (*Arith) Left(ctx context.Context, _ *Args, reply *Reply) error {
	if at, ok := ctx.Deadline(); ok {
		reply.C = int(time.Until(at).Milliseconds())
	}
	return nil
}

// Metadata returns the metadata of the request with the reply.
func (a *Arith) Metadata(ctx context.Context, _ *Args, _ *Reply) error {
	in, out := a.metadata(ctx)
	for key, value := range in {
		if len(key) > 0 && key[0] != '_' {
			out[key] = value
		}
	}
	return nil
}

func (*Arith) Bytes(_ context.Context, in, out *[]byte) error {
	*out = bytes.Clone(*in)
	return nil
}

func (*Arith) Box(_ context.Context, in, out *Box) error {
	out.Data = bytes.Clone(in.Data)
	return nil
}

func (*Arith) Proto(_ context.Context, in, out *wrapperspb.BytesValue) error {
	out.Value = bytes.Clone(in.Value)
	return nil
}

// Gogo has messages that gogo/protobuf has generated.
func (*Arith) Gogo(_ context.Context, in, out *gogo.BytesValue) error {
	out.Value = bytes.Clone(in.Value)
	return nil
}

// A yodelServer is a server of yodel that speaks rpcx.
type yodelServer struct {
	*yodel.Server
	*Arith
	addr string
	stop func() error
}

func serveYodel(t testing.TB, addr string, o yodel.ServerOptions) *yodelServer {
	t.Helper()
	return serveProtocols(t, addr, o)
}

// serveProtocols is serveYodel with further protocols.
func serveProtocols(t testing.TB, addr string, o yodel.ServerOptions, more ...yodel.Protocol) *yodelServer {
	t.Helper()
	o.Codecs = []yodel.Codec{msgpack.Codec, protobuf.Codec}
	o.Compressors = []compress.Compressor{gzip.Compressor}
	o.Protocols = []yodel.Protocol{rpcx.Protocol, http.New(&http.Options{RPCX: true, ExposeErrors: true})}
	o.Protocols = append(o.Protocols, more...)
	o.Logger = slog.New(slog.DiscardHandler)
	s := &yodelServer{Server: yodel.NewServer(&o), Arith: newArith()}
	s.metadata = func(ctx context.Context) (in, out map[string]string) {
		call := yodel.CallFrom(ctx)
		call.Trailer = make(yodel.Metadata)
		return call.Metadata, call.Trailer
	}
	if err := s.RegisterName("Arith", s.Arith); err != nil {
		t.Fatal(err)
	}
	transport := o.Transport
	if transport == nil {
		transport = yodel.TCP
	}
	l, err := transport.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = s.stop() }) // tests that care call it
	return s
}

// rpcxMetadata returns the metadata of a call in a server of rpcx.
func rpcxMetadata(ctx context.Context) (in, out map[string]string) {
	in, _ = ctx.Value(share.ReqMetaDataKey).(map[string]string)
	out, _ = ctx.Value(share.ResMetaDataKey).(map[string]string)
	return in, out
}

// An rpcxServer is a server of rpcx.
type rpcxServer struct {
	*server.Server
	*Arith
	addr string
}

func serveRPCX(t testing.TB, network, addr string, config *tls.Config) *rpcxServer {
	t.Helper()
	s := &rpcxServer{Server: server.NewServer(), Arith: newArith()}
	s.DisableHTTPGateway, s.DisableJSONRPC = true, true
	s.metadata = rpcxMetadata
	if err := s.RegisterName("Arith", s.Arith, ""); err != nil {
		t.Fatal(err)
	}
	listenOn := "tcp"
	if network == "unix" {
		listenOn = "unix"
	}
	l, err := net.Listen(listenOn, addr)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	if config != nil {
		l = tls.NewListener(l, config)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeListener(network, l) }()
	t.Cleanup(func() {
		_ = s.Close()
		_ = l.Close() // the server may have closed it
		<-ended
	})
	return s
}

var sizes = []int{0, 1024, 1025, 1 << 20, 16<<20 - 64}

func payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i / 100)
	}
	return b
}

// A sample is a message in one codec.
type sample struct {
	method string
	args   any
	reply  any
	data   func() []byte // of the reply
}

func sampleOf(codec string, data []byte) sample {
	switch codec {
	case "raw":
		reply := new([]byte)
		return sample{"Bytes", &data, reply, func() []byte { return *reply }}
	case "protobuf":
		reply := new(wrapperspb.BytesValue)
		return sample{"Proto", &wrapperspb.BytesValue{Value: data}, reply, func() []byte { return reply.Value }}
	case "gogo":
		reply := new(gogo.BytesValue)
		return sample{"Gogo", &gogo.BytesValue{Value: data}, reply, func() []byte { return reply.Value }}
	}
	reply := new(Box)
	return sample{"Box", &Box{data}, reply, func() []byte { return reply.Data }}
}

// fits returns the sizes whose messages fit into the limits in a codec.
func fits(codec string) (fit []int) {
	for _, n := range sizes {
		if codec == "json" && n > 11<<20 { // base64
			n = 11 << 20
		}
		fit = append(fit, n)
	}
	return fit
}

func (s sample) check(t *testing.T, want []byte, err error) {
	t.Helper()
	if err != nil || !bytes.Equal(s.data(), want) {
		t.Errorf("%s with %d bytes: got %d bytes, %v", s.method, len(want), len(s.data()), err)
	}
}

// hundred returns 100 pairs of metadata.
func hundred() map[string]string {
	pairs := map[string]string{"empty": "", "ünïcödé": "世界\x00\xff"}
	for i := range 98 {
		pairs[fmt.Sprint("key", i)] = fmt.Sprint("value", i)
	}
	return pairs
}
