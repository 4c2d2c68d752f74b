// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// A rawHTTP2 is a client of HTTP/2 that sends frames.
type rawHTTP2 struct {
	t    testing.TB
	conn net.Conn
	next uint32
	out  []byte
}

func dialHTTP2(t testing.TB, addr string) *rawHTTP2 {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	c := &rawHTTP2{t: t, conn: conn, next: 1, out: []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}
	c.frame(4, 0, 0, "")
	return c
}

func (c *rawHTTP2) frame(kind, flags byte, stream uint32, payload string) {
	c.out = append(c.out, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	c.out = append(binary.BigEndian.AppendUint32(c.out, stream), payload...)
}

// flush sends the frames. It reports whether the connection takes them.
func (c *rawHTTP2) flush() bool {
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	return err == nil
}

const endStream, endHeaders = 1, 4

// An openedRequest is how far a client gets with a request before it resets the stream.
type openedRequest struct {
	path, media string
	body        string
	whole       bool // the request is complete
	length      int  // the header Content-Length; 0 for none
}

// reset opens a stream and resets it at once.
func (c *rawHTTP2) reset(r openedRequest) {
	id := c.next
	c.next += 2
	c.request(id, r)
	c.frame(3, 0, id, "\x00\x00\x00\x08") // CANCEL
}

func (c *rawHTTP2) request(id uint32, r openedRequest) {
	var block strings.Builder
	fields := []string{":method", "POST", ":scheme", "http", ":path", r.path, ":authority", "a", "content-type", r.media}
	if r.length > 0 {
		fields = append(fields, "content-length", fmt.Sprint(r.length))
	}
	for i, text := range fields {
		if i%2 == 0 {
			block.WriteByte(0) // a literal
		}
		if len(text) < 127 {
			block.WriteByte(byte(len(text)))
		} else {
			block.Write(binary.AppendUvarint([]byte{127}, uint64(len(text)-127)))
		}
		block.WriteString(text)
	}
	flags := byte(endHeaders)
	if r.whole && r.body == "" {
		flags |= endStream
	}
	c.frame(1, flags, id, block.String())
	if r.body != "" {
		flags = 0
		if r.whole {
			flags = endStream
		}
		c.frame(0, flags, id, r.body)
	}
}

// awaitPong waits until the server has handled all frames. It returns the streams that the server
// has reset meanwhile, with their error codes.
func (c *rawHTTP2) awaitPong() (resets map[uint32]byte) {
	c.t.Helper()
	resets, err := c.pong()
	must(c.t, err)
	return resets
}

// pong is awaitPong for a connection that may end.
func (c *rawHTTP2) pong() (resets map[uint32]byte, err error) {
	c.frame(6, 0, 0, "a ping. ")
	if !c.flush() {
		return nil, net.ErrClosed
	}
	resets = make(map[uint32]byte)
	var head [9]byte
	for head[3] != 6 || head[4] != 1 {
		if _, err := io.ReadFull(c.conn, head[:]); err != nil {
			return nil, fmt.Errorf("waiting for the answer to a ping: %w", err)
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c.conn, payload); err != nil {
			return nil, err
		}
		if head[3] == 3 {
			resets[binary.BigEndian.Uint32(head[5:])] = payload[3]
		}
	}
	return resets, nil
}

// envelope returns a message of gRPC or Connect.
func envelopeOf(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

func liveHeap() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// siteWithHeap returns a site whose handlers may end unseen, and the heap before its first request.
func siteWithHeap(t *testing.T) (s *site, before int64) {
	t.Helper()
	percent := debug.SetGCPercent(99) // so that package spares allocates no reserve
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	s = newSite(t, nil, yodel.ServerOptions{})
	go func() {
		for { // the handlers of the site report their ends
			select {
			case <-s.ended:
			case <-t.Context().Done():
				return
			}
		}
	}()
	before = liveHeap()
	for range 5 { // until the memory of the test before is free
		<-time.After(20 * time.Millisecond)
		before = min(before, liveHeap())
	}
	return s, before
}

// Of a connection that has ended nothing stays in memory, however far its requests had come.
func TestConnectionsThatEndAreForgotten(t *testing.T) {
	const conns = 300
	envelope := envelopeOf(`{"text":"hello"}`)
	for name, r := range map[string]openedRequest{
		"header only":      {path: "/Test/Echo", media: "application/json"},
		"part of the body": {path: "/Test/Echo", media: "application/grpc+json", body: envelope[:10]},
		"an open stream":   {path: "/Test/Chat", media: "application/grpc+json", body: envelope},
		"a whole request":  {path: "/Test/Watch", media: "application/grpc+json", body: envelope, whole: true},
		"no request":       {},
	} {
		t.Run(name, func(t *testing.T) {
			s, before := siteWithHeap(t)
			for range conns {
				c := dialHTTP2(t, s.addr)
				if r.path != "" {
					c.request(1, r)
				}
				c.awaitPong()
				must(t, c.conn.Close())
			}
			left := int64(0)
			eventually(t, "the connections are forgotten", func() bool {
				left = liveHeap() - before
				return left < conns*4_000
			})
			t.Logf("%d bytes are left of each connection", left/conns)
		})
	}
}

// Of a request that the client has reset nothing stays in memory, however far the request had come,
// although its connection lives on and the times for slow clients are long.
func TestResetRequestsAreForgotten(t *testing.T) {
	const requests = 750 // per connection; 5,000 in a row would end it
	paths := []string{"/Test/Echo", "/Test/Watch", "/Test/Gather", "/Test/Chat", "/Test/Nothing"}
	message := `{"text":"hello"}`
	envelope := envelopeOf(message)
	large := envelopeOf(strings.Repeat("x", 20_000))[:1000]
	for _, test := range []struct {
		name     string
		requests []openedRequest
	}{
		{"header only", []openedRequest{
			{media: "application/json"}, {media: "application/json", length: 1000}, {media: "application/grpc+json"}, {media: "application/connect+json"},
		}},
		{"part of the body", []openedRequest{
			{media: "application/json", body: message[:5]}, {media: "application/json", body: message[:5], length: len(message)},
			{media: "application/grpc+json", body: envelope[:3]}, {media: "application/grpc+json", body: envelope[:10]}, {media: "application/grpc+json", body: large},
			{media: "application/connect+json", body: envelope[:3]}, {media: "application/connect+json", body: envelope[:10]}, {media: "application/connect+json", body: large},
		}},
		{"all but the end", []openedRequest{
			{media: "application/json", body: message}, {media: "application/grpc+json", body: envelope}, {media: "application/connect+json", body: envelope},
		}},
		{"whole", []openedRequest{
			{media: "application/json", whole: true}, {media: "application/json", body: message, whole: true}, {media: "application/json", body: message, length: len(message), whole: true},
			{media: "application/grpc+json", body: envelope, whole: true}, {media: "application/connect+json", body: envelope, whole: true},
		}},
	} {
		for _, conns := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d connections", test.name, conns), func(t *testing.T) {
				s, _ := siteWithHeap(t)
				flood := func() (clients []*rawHTTP2) {
					var all sync.WaitGroup
					for range conns {
						c := dialHTTP2(t, s.addr)
						clients = append(clients, c)
						all.Go(func() {
							for n := range requests {
								r := test.requests[n%len(test.requests)]
								r.path = paths[n/len(test.requests)%len(paths)]
								if c.reset(r); n%250 == 249 { // so many at once that the server reads many resets first
									c.flush()
								}
							}
						})
					}
					all.Wait()
					for _, c := range clients {
						c.awaitPong()
					}
					return clients
				}
				for _, c := range flood() { // the runtime keeps a part of each goroutine that has ended
					must(t, c.conn.Close())
				}
				eventually(t, "the first connections end", func() bool { return s.Stats().Conns == 0 })
				before := liveHeap()
				flood()
				left := int64(0)
				eventually(t, "the requests are forgotten", func() bool {
					left = liveHeap() - before
					return left < int64(conns)*500_000
				})
				t.Logf("%d KiB are left of each connection", left>>10/int64(conns))
			})
		}
	}
}

// A connection on which thousands of requests are reset in a row ends, and the log says why. One
// whose client gets a reply or a message of a stream now and then lives on.
func TestManyResetsInARowEndTheConnection(t *testing.T) {
	for name, test := range map[string]struct {
		between openedRequest // after every 1000 requests
		ends    bool
	}{
		"only resets":        {openedRequest{path: "/Test/Echo", media: "application/json"}, true},
		"a reply":            {openedRequest{path: "/Test/Echo", media: "application/json", body: `{"text":"hello"}`, whole: true}, false},
		"a message of gRPC":  {openedRequest{path: "/Test/Endless", media: "application/grpc+json", body: envelopeOf(`{"text":"hello"}`), whole: true}, false},
		"an unfinished call": {openedRequest{path: "/Test/Long", media: "application/json", body: `{"text":"hello"}`, whole: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var log testserve.Log
			s := newSite(t, nil, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			c := dialHTTP2(t, s.addr)
			requests := 8000
			if test.ends { // each second permits 1,000 more, and a busy machine takes some
				requests = 200_000
			}
			c.request(c.next, openedRequest{path: "/Test/Echo", media: "application/grpc+json", body: envelopeOf("{}"), whole: true})
			c.next += 2 // the connection knows the method then
			var ended error
			for i := 0; i < requests && ended == nil; i++ {
				if i%1000 == 0 {
					c.request(c.next, test.between)
					c.next += 2
				}
				// No handler runs before the message is there, so even a busy machine takes many.
				if c.reset(openedRequest{path: "/Test/Echo", media: "application/grpc+json"}); i%200 == 199 {
					_, ended = c.pong()
				}
			}
			if (ended != nil) != test.ends {
				t.Errorf("the connection has ended: %v\n%s", ended, log.String())
			}
			if test.ends {
				const reason = "resets too many streams"
				eventually(t, "the log has the reason", func() bool { return strings.Contains(log.String(), reason) })
				if n := strings.Count(log.String(), reason); n != 1 {
					t.Errorf("the log has %d lines about it:\n%s", n, log.String())
				}
			}
			// others are served
			s.post(client(t, true), "/Test/Echo", `{"text":"hello"}`, "Content-Type", "application/json").is(t, std.StatusOK, `{"text":"hello"}`)
		})
	}
}
