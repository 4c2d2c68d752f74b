// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// This file has the server of gRPC's negative HTTP/2 tests, as described in grpc/grpc's
// doc/http2-interop-test-descriptions.md.

const (
	largeRequest = 271828
	largeReply   = 314159
)

// A negativeServer answers each request with a large reply, and misbehaves on the way.
type negativeServer struct {
	streams uint32 // SETTINGS_MAX_CONCURRENT_STREAMS; 0 for none
	padding bool   // data is padded
	ping    bool   // a ping is sent before each frame
	answer  func(c *negativeConn, stream uint32)

	mu    sync.Mutex
	conns []*negativeConn
}

// A negativeConn is a connection of a negativeServer. One goroutine uses it.
type negativeConn struct {
	server *negativeServer
	conn   net.Conn
	framer *http2.Framer
	// Windows for what the server sends.
	window, initial int64
	windows         map[uint32]int64
	blocked         map[uint32][]byte // replies that wait for a window

	open, most int // streams
	requests   int

	pings, acked atomic.Int64 // the test waits for them
}

func (s *negativeServer) serve(t *testing.T) (addr string) {
	t.Helper()
	l := listen(t)
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c := &negativeConn{
				server: s, conn: conn, framer: http2.NewFramer(conn, conn), window: 65535, initial: 65535,
				windows: make(map[uint32]int64), blocked: make(map[uint32][]byte),
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			group.Go(func() {
				defer conn.Close()
				_ = c.serve() // it ends with an error when the client leaves
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.conn.Close()
		}
		s.mu.Unlock()
		group.Wait()
	})
	return l.Addr().String()
}

func (c *negativeConn) serve() error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.conn, preface); err != nil {
		return err
	}
	var settings []http2.Setting
	if n := c.server.streams; n > 0 {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: n})
	}
	if err := c.framer.WriteSettings(settings...); err != nil {
		return err
	}
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return err
		}
		if err := c.handle(frame); err != nil {
			return err
		}
	}
}

func (c *negativeConn) handle(frame http2.Frame) error {
	id := frame.Header().StreamID
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if frame.IsAck() {
			return nil
		}
		if n, ok := frame.Value(http2.SettingInitialWindowSize); ok {
			c.initial = int64(n)
		}
		return c.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if frame.IsAck() {
			c.acked.Add(1)
			return nil
		}
		return c.framer.WritePing(true, frame.Data)
	case *http2.WindowUpdateFrame:
		if id == 0 {
			c.window += int64(frame.Increment)
		} else if _, open := c.windows[id]; open {
			c.windows[id] += int64(frame.Increment)
		}
		return c.unblock()
	case *http2.HeadersFrame:
		c.requests++
		c.open++
		c.most = max(c.most, c.open)
		c.windows[id] = c.initial
		return c.ended(id, frame.StreamEnded())
	case *http2.DataFrame:
		if n := frame.Header().Length; n > 0 {
			if err := errors.Join(c.framer.WriteWindowUpdate(0, n), c.framer.WriteWindowUpdate(id, n)); err != nil {
				return err
			}
		}
		return c.ended(id, frame.StreamEnded())
	}
	return nil
}

// ended answers a request that has ended.
func (c *negativeConn) ended(id uint32, ended bool) error {
	if ended {
		c.server.answer(c, id)
		return c.unblock()
	}
	return nil
}

// reply is an encoded reply of a size.
func reply(size int) []byte {
	b, err := proto.Marshal(&testpb.SimpleResponse{Payload: &testpb.Payload{Body: make([]byte, size)}})
	if err != nil {
		panic(err) // it is a valid message
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...) //nolint:gosec // it is small
}

func (c *negativeConn) headers(id uint32, end bool, fields ...string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return err
		}
	}
	return errors.Join(c.pinging(), c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end}))
}

func (c *negativeConn) begin(id uint32) error {
	return c.headers(id, false, ":status", "200", "content-type", "application/grpc")
}

// pinging sends a ping if the server does so before each frame.
func (c *negativeConn) pinging() error {
	if !c.server.ping {
		return nil
	}
	return c.framer.WritePing(false, [8]byte{byte(c.pings.Add(1))})
}

// data sends some data, which fits into the windows.
func (c *negativeConn) data(id uint32, b []byte) error {
	if err := c.pinging(); err != nil {
		return err
	}
	var pad []byte
	if c.server.padding {
		pad = make([]byte, 255)
		c.window -= 256
		c.windows[id] -= 256
	}
	c.window -= int64(len(b))
	c.windows[id] -= int64(len(b))
	return c.framer.WriteDataPadded(id, false, b, pad)
}

// respond sends a whole reply, as the windows allow it.
func (c *negativeConn) respond(id uint32) {
	if c.begin(id) == nil {
		c.blocked[id] = reply(largeReply)
	}
}

// unblock sends as much of the replies as the windows allow.
func (c *negativeConn) unblock() error {
	piece := int64(16 << 10)
	if c.server.padding {
		piece = 5 // as in the tests of grpc/grpc, the padding is larger than the data
	}
	for id, rest := range c.blocked {
		for len(rest) > 0 {
			n := min(piece, int64(len(rest)), c.window-256, c.windows[id]-256)
			if n <= 0 {
				break
			}
			if err := c.data(id, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		if c.blocked[id] = rest; len(rest) > 0 {
			continue
		}
		delete(c.blocked, id)
		delete(c.windows, id)
		c.open--
		if err := c.headers(id, true, "grpc-status", "0"); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for each connection, once they have ended.
func (s *negativeServer) each(f func(c *negativeConn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		f(c)
	}
}

// large makes a call with a large request, and returns the size of the reply.
func large(ctx context.Context, client testpb.TestServiceClient) (int, error) {
	reply, err := client.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: largeReply, Payload: &testpb.Payload{Body: make([]byte, largeRequest)}})
	return len(reply.GetPayload().GetBody()), err
}

// A negativeCase has what a client has to do with a server.
type negativeCase struct {
	server negativeServer
	calls  int        // one after the other
	code   codes.Code // of each call
	check  func(t *testing.T, conns []*negativeConn)
}

var reset = func(before func(c *negativeConn, id uint32) error) func(c *negativeConn, id uint32) {
	return func(c *negativeConn, id uint32) {
		_ = errors.Join(before(c, id), c.framer.WriteRSTStream(id, http2.ErrCodeNo)) // if it fails, the client does
		c.open--
	}
}

func negativeCases() map[string]*negativeCase {
	return map[string]*negativeCase{
		"goaway": {
			server: negativeServer{answer: func(c *negativeConn, id uint32) {
				c.respond(id)
				_ = c.framer.WriteGoAway(id, http2.ErrCodeNo, nil)
			}},
			calls: 2,
			check: func(t *testing.T, conns []*negativeConn) {
				var got []int // a third connection may replace the second, for calls to come
				for _, c := range conns {
					got = append(got, c.requests)
				}
				if !slices.Equal(slices.DeleteFunc(got, func(n int) bool { return n == 0 }), []int{1, 1}) {
					t.Errorf("the calls by connection are %d, want one on each of two", got)
				}
			},
		},
		"rst_after_header": {server: negativeServer{answer: reset((*negativeConn).begin)}, calls: 1, code: codes.Internal},
		"rst_during_data": {server: negativeServer{answer: reset(func(c *negativeConn, id uint32) error {
			return errors.Join(c.begin(id), c.data(id, reply(largeReply)[:10000]))
		})}, calls: 1, code: codes.Internal},
		"rst_after_data": {server: negativeServer{answer: reset(func(c *negativeConn, id uint32) error {
			return errors.Join(c.begin(id), c.data(id, reply(100)))
		})}, calls: 1, code: codes.Internal},
		"ping": {
			server: negativeServer{ping: true, answer: (*negativeConn).respond}, calls: 1,
			check: func(t *testing.T, conns []*negativeConn) {
				if n := conns[0].pings.Load(); n < 10 {
					t.Errorf("the server has sent %d pings", n)
				}
			},
		},
		"data_frame_padding":        {server: negativeServer{padding: true, answer: (*negativeConn).respond}, calls: 1},
		"no_df_padding_sanity_test": {server: negativeServer{answer: (*negativeConn).respond}, calls: 1},
	}
}

// A yodel client keeps to HTTP/2 when the server does unusual things.
func TestNegativeHTTP2(t *testing.T) {
	for name, test := range negativeCases() {
		t.Run(name, func(t *testing.T) {
			if test.check != nil {
				t.Cleanup(func() { test.check(t, test.server.conns) }) // the last one, after the connections have ended
			}
			client := testpb.NewTestServiceClient(clientOf(t, "grpc://"+test.server.serve(t)))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for range test.calls {
				n, err := large(ctx, client)
				if status.Code(err) != test.code || test.code == codes.OK && n != largeReply {
					t.Errorf("got %d bytes and %v, want %v", n, err, test.code)
				}
			}
			test.server.awaitPongs(t)
		})
	}
}

// awaitPongs waits until the clients have answered all pings.
func (s *negativeServer) awaitPongs(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(20 * time.Second)
	s.each(func(c *negativeConn) {
		for c.acked.Load() < c.pings.Load() {
			if time.Now().After(end) {
				t.Fatalf("the client has answered %d of %d pings", c.acked.Load(), c.pings.Load())
			}
			<-tick.C
		}
	})
}

// A client has no more streams open than the server allows.
func TestNegativeMaxStreams(t *testing.T) {
	server := negativeServer{streams: 1, answer: (*negativeConn).respond}
	t.Cleanup(func() {
		requests := 0
		server.each(func(c *negativeConn) {
			requests += c.requests
			if c.most > 1 {
				t.Errorf("the client had %d streams open", c.most)
			}
		})
		if requests != 16 {
			t.Errorf("the server got %d requests, want 16", requests)
		}
	})
	client := testpb.NewTestServiceClient(clientOf(t, "grpc://"+server.serve(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if n, err := large(ctx, client); err != nil || n != largeReply {
		t.Fatalf("the first call: got %d bytes and %v", n, err)
	}
	var group sync.WaitGroup
	for range 15 {
		group.Go(func() {
			if n, err := large(ctx, client); err != nil || n != largeReply {
				t.Errorf("got %d bytes and %v", n, err)
			}
		})
	}
	group.Wait()
}
