// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// A countingListener counts the writes of its connections.
type countingListener struct {
	net.Listener
	writes atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l}, err
}

type countingConn struct {
	net.Conn
	of *countingListener
}

func (c countingConn) Write(b []byte) (int, error) {
	c.of.writes.Add(1)
	return c.Conn.Write(b)
}

// The server writes the replies to requests that arrive together in few writes. The client gets one
// reply to each request.
func TestRepliesOfABatchLeaveTogether(t *testing.T) {
	const calls = 50
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{Protocol}, Logger: slog.New(slog.DiscardHandler)})
	if err := s.Register(new(Arith)); err != nil {
		t.Fatal(err)
	}
	s.MarkInline("Arith.Echo")
	l := &countingListener{Listener: testserve.Listen(t)}
	testserve.Run(t, s, l)
	c := dial(t, l.Addr().String())
	var batch []byte
	for i := range calls {
		payload := strconv.Itoa(i)
		h := head{seq: uint64(i), path: "Arith", method: "Echo", payload: len(payload)}
		batch = append(h.append(batch), payload...)
	}
	fewest := int32(calls)
	for range 20 { // a batch may arrive in parts, and a busy machine may interrupt it
		before := l.writes.Load()
		if _, err := c.Write(batch); err != nil {
			t.Fatal(err)
		}
		var got [calls]bool
		for range calls {
			h, _, body := c.read()
			if h.seq >= calls || got[h.seq] || body != strconv.FormatUint(h.seq, 10) {
				t.Fatalf("the reply to request %d is %q, or comes twice", h.seq, body)
			}
			got[h.seq] = true
		}
		fewest = min(fewest, l.writes.Load()-before)
	}
	if fewest > calls/5 {
		t.Errorf("%d replies left in %d writes", calls, fewest)
	}
}

// A client may send more requests than the buffers of the sockets take replies for, before it reads
// the first reply.
func TestAClientSendsAllBeforeItReads(t *testing.T) {
	const calls, size = 4000, 4000
	s := serve(t, yodel.ServerOptions{})
	s.MarkInline("Arith.Echo")
	c := dial(t, s.addr)
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	h := head{path: "Arith", method: "Echo", payload: size}
	request := append(h.append(nil), make([]byte, size)...)
	if _, err := c.Write(bytes.Repeat(request, calls)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c.Conn, make([]byte, calls*len(request))); err != nil {
		t.Fatal(err)
	}
}
