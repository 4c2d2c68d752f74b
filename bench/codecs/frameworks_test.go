// SPDX-License-Identifier: Apache-2.0

package codecs_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"testing"
	"time"

	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/protocol"
	"github.com/smallnest/rpcx/server"
	"github.com/smallnest/rpcx/share"

	"github.com/yodel-rpc/yodel"
	gencodecodec "github.com/yodel-rpc/yodel/codec/gencode"
	"github.com/yodel-rpc/yodel/discovery"
)

// All frameworks find the method by reflection, call it over one connection of loopback TCP, and
// decode into a new reply each time.

// A service is what yodel and rpcx register.
type service[In, Out any] struct{ serve func(in *In, out *Out) }

func (s *service[In, Out]) Do(_ context.Context, in *In, out *Out) error {
	s.serve(in, out)
	return nil
}

// A netService is what net/rpc registers.
type netService[In, Out any] struct{ serve func(in *In, out *Out) }

func (s *netService[In, Out]) Do(in *In, out *Out) error {
	s.serve(in, out)
	return nil
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func (w *work[In, Out]) throughYodel(tb testing.TB, codec yodel.Codec) caller {
	tb.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{codec}})
	if err := s.RegisterName("Work", &service[In, Out]{w.serve}); err != nil {
		tb.Fatal(err)
	}
	l, served := listen(tb), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { served <- s.Serve(ctx, l) }()
	c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{Codec: codec})
	tb.Cleanup(func() {
		c.Close()
		stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	method := yodel.Method[In, Out]("Work.Do")
	return func(ctx context.Context) error {
		out, err := method.Call(ctx, c, w.in)
		if err != nil {
			return err
		}
		return w.check(out)
	}
}

func (w *work[In, Out]) throughNetRPC(tb testing.TB, f format) caller {
	tb.Helper()
	s := rpc.NewServer()
	if err := s.RegisterName("Work", &netService[In, Out]{w.serve}); err != nil {
		tb.Fatal(err)
	}
	l, served := listen(tb), make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return // closed before a client came
		}
		switch f.name {
		case "gob":
			s.ServeConn(conn)
		case "json":
			s.ServeCodec(jsonrpc.NewServerCodec(conn))
		default:
			s.ServeCodec(&serverCodec{newNetCodec(conn, f.yodel)})
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	var c *rpc.Client
	switch f.name {
	case "gob":
		c = rpc.NewClient(conn)
	case "json":
		c = jsonrpc.NewClient(conn)
	default:
		c = rpc.NewClientWithCodec(&clientCodec{newNetCodec(conn, f.yodel)})
	}
	tb.Cleanup(func() {
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			tb.Error(err)
		}
		<-served
	})
	return func(context.Context) error {
		out := new(Out)
		if err := c.Call("Work.Do", w.in, out); err != nil {
			return err
		}
		return w.check(out)
	}
}

func (w *work[In, Out]) throughRPCX(tb testing.TB, codec protocol.SerializeType) caller {
	tb.Helper()
	s := server.NewServer()
	if err := s.RegisterName("Work", &service[In, Out]{w.serve}, ""); err != nil {
		tb.Fatal(err)
	}
	l, served := listen(tb), make(chan error, 1)
	go func() { served <- s.ServeListener("tcp", l) }()
	select {
	case <-s.Started:
	case err := <-served:
		tb.Fatal(err)
	}
	discovery, err := client.NewPeer2PeerDiscovery("tcp@"+l.Addr().String(), "")
	if err != nil {
		tb.Fatal(err)
	}
	option := client.DefaultOption
	option.SerializeType = codec
	c := client.NewXClient("Work", client.Failtry, client.RandomSelect, discovery, option)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(c.Close(), s.Shutdown(ctx)); err != nil {
			tb.Error(err)
		}
		if err := <-served; !errors.Is(err, server.ErrServerClosed) {
			tb.Error(err)
		}
	})
	return func(ctx context.Context) error {
		out := new(Out)
		if err := c.Call(ctx, "Do", w.in, out); err != nil {
			return err
		}
		return w.check(out)
	}
}

// Codecs that rpcx does not have, as its users would register them.
const (
	gobOfRPCX protocol.SerializeType = 10 + iota
	gencodeOfRPCX
	vtprotobufOfRPCX
)

// registerCodecs is to be called before a server or a client runs: rpcx reads its table of codecs
// without a lock.
func registerCodecs() {
	share.RegisterCodec(gobOfRPCX, gobRPCX{})
	share.RegisterCodec(gencodeOfRPCX, gencodeRPCX{})
	share.RegisterCodec(vtprotobufOfRPCX, vtprotobufRPCX{})
}

type gobRPCX struct{}

func (gobRPCX) Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobRPCX) Decode(src []byte, v any) error { return gob.NewDecoder(bytes.NewReader(src)).Decode(v) }

type gencodeRPCX struct{}

func (gencodeRPCX) Encode(v any) ([]byte, error) { return gencodecodec.Trusting.Append(nil, v) }

func (gencodeRPCX) Decode(src []byte, v any) error { return gencodecodec.Trusting.Decode(src, v) }

type vtprotobufRPCX struct{}

func (vtprotobufRPCX) Encode(v any) ([]byte, error) {
	m, ok := v.(interface{ MarshalVT() ([]byte, error) })
	if !ok {
		return nil, notGenerated(v)
	}
	return m.MarshalVT()
}

func (vtprotobufRPCX) Decode(src []byte, v any) error {
	m, ok := v.(interface {
		Reset()
		UnmarshalVT(src []byte) error
	})
	if !ok {
		return notGenerated(v)
	}
	m.Reset()
	return m.UnmarshalVT(src)
}

func notGenerated(v any) error { return fmt.Errorf("%T has no methods of vtprotobuf", v) }
