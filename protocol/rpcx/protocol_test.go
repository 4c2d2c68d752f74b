// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/conformance/refusing"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A testClient is a client of rpcx for TestProtocol.
type testClient struct {
	conn   net.Conn
	frames *frameReader

	mu      sync.Mutex
	seq     uint64
	err     error
	pending map[uint64]chan answer
}

type answer struct {
	head     *head
	metadata map[string]string
	body     []byte
}

func newTestClient(conn net.Conn) yodel.Caller {
	c := &testClient{conn: conn, frames: &frameReader{Reader: bufio.NewReaderSize(conn, 32<<10), maxMetadata: 16 << 10, maxPairs: 128}, pending: make(map[uint64]chan answer)}
	go c.read()
	return c
}

func (c *testClient) read() {
	for {
		h, err := c.frames.next()
		var body []byte
		if err == nil {
			body, err = c.frames.body(h.payload)
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
			for _, p := range c.pending {
				close(p)
			}
			clear(c.pending)
			c.mu.Unlock()
			return
		}
		p := c.pending[h.seq]
		delete(c.pending, h.seq)
		c.mu.Unlock()
		metadata := make(map[string]string)
		for rest := h.metadata; rest != ""; {
			var key, value string
			key, value, rest, _ = cutPair(rest) // next has checked it
			metadata[key] = value
		}
		if p != nil {
			p <- answer{h, metadata, body}
		}
	}
}

// Do implements yodel.Caller.
func (c *testClient) Do(ctx context.Context, call *yodel.Call) error {
	args, err := json.Marshal(call.Args)
	if err != nil {
		return err
	}
	var metadata []byte
	for key, value := range call.Metadata {
		metadata = appendPair(metadata, key, value)
	}
	if at, ok := ctx.Deadline(); ok {
		metadata = appendPair(metadata, rpcxwire.KeyTimeout, strconv.FormatInt(time.Until(at).Milliseconds(), 10))
	}
	path, method, _ := strings.Cut(call.Method, ".")
	h := head{serialize: 1, path: path, method: method, metadata: string(metadata), payload: len(args)}
	p := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	h.seq, c.seq = c.seq, c.seq+1
	c.pending[h.seq] = p
	_, err = c.conn.Write(append(h.append(nil), args...))
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case a, ok := <-p:
		if !ok {
			return errors.New("the connection was lost")
		}
		if a.head.is(failed) {
			return errorOf(a.metadata)
		}
		if a.head.seq != h.seq || a.head.path != path || a.head.method != method {
			return fmt.Errorf("got the answer %+v to %+v", a.head, h)
		}
		return json.Unmarshal(a.body, call.Reply)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestProtocol(t *testing.T) {
	yodeltest.TestProtocol(t, yodeltest.Protocol{Protocol: Protocol, Codes: true, Deadlines: true, Metadata: true, Middleware: refusing.All}, newTestClient)
}

// A server survives any bytes.
func FuzzServe(f *testing.F) {
	for _, golden := range goldenFrames {
		f.Add(unhex(f, golden.hex))
	}
	f.Add([]byte("CONNECT /_rpcx_ HTTP/1.0\n\n"))
	s := serve(f, yodel.ServerOptions{Compressors: []compress.Compressor{gzip.Compressor}, Limits: yodel.Limits{MaxMessage: 64 << 10}})
	close(s.arith.release)
	go func() {
		for range s.arith.began {
		}
	}()
	f.Cleanup(func() { close(s.arith.began) })
	f.Fuzz(func(t *testing.T, b []byte) {
		c := dial(t, s.addr)
		_, _ = c.Write(b) // the server may close the connection
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c.Conn); errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("the connection does not end")
		}
	})
}

func FuzzMatch(f *testing.F) {
	f.Add([]byte("\x08\x00\x00"))
	f.Add([]byte("CONNECT /_rpcx_ "))
	f.Fuzz(func(t *testing.T, b []byte) {
		ok, more := Protocol.Match(b)
		if ok && more {
			t.Error("it matches, and needs more")
		}
		for n := range b { // more bytes never change a decision
			if early, undecided := Protocol.Match(b[:n]); !undecided && n > 0 && early != ok {
				t.Errorf("%d bytes decide %v, all decide %v", n, early, ok)
			}
		}
	})
}
