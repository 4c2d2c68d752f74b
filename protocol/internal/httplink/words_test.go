// SPDX-License-Identifier: Apache-2.0

package httplink

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Frames of HTTP/2, from RFC 9113.
const (
	noSettings   = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	goAwayHead   = "\x00\x00\x08\x07\x00\x00\x00\x00\x00"
	resetHead    = "\x00\x00\x04\x03\x00\x00\x00\x00\x01"
	typeData     = 0
	typeHeaders  = 1
	typePing     = 6
	endStream    = 1
	ping         = "\x00\x00\x08\x06\x00\x00\x00\x00\x00" + "question"
	prefaceSize  = 24
	frameHead    = 9
	noneOfThem   = "\x00\x00\x00\x00"
	theFirst     = "\x00\x00\x00\x01"
	withoutError = "\x00\x00\x00\x00"
	calmDown     = "\x00\x00\x00\x0b"
)

// A step is where a server acts: before a request, and after a part of one.
type step int

const (
	atOnce      step = iota // when the client has sent the preface
	afterHeader             // of the request
	withinBody              // after the first part of it
	afterBody               // after all of it
)

// serveOnce accepts one connection. At a step, it sends frames, and closes the connection if closes
// is set. It reads on otherwise. Known is closed when the client has read frames that end with a
// PING.
func serveOnce(t *testing.T, http1 bool, at step, frames string, closes bool) (addr string, known chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended, known := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r := bufio.NewReader(c)
		await := untilFrame
		if http1 {
			await = untilText
		}
		if await(c, r, at) != nil {
			return
		}
		_, err = io.WriteString(c, frames)
		if strings.HasSuffix(frames, ping) && readUntil(r, func(kind, flags byte) bool { return kind == typePing && flags == 1 }) == nil {
			close(known)
		}
		if err == nil && !closes {
			_, _ = io.Copy(io.Discard, r) // until the client closes it
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String(), known
}

// untilFrame reads a connection of HTTP/2 until a step.
func untilFrame(c net.Conn, r *bufio.Reader, at step) error {
	_, _ = io.WriteString(c, noSettings)
	if _, err := r.Discard(prefaceSize); err != nil || at == atOnce {
		return err
	}
	return readUntil(r, func(kind, flags byte) bool {
		last := flags&endStream != 0
		return at == afterHeader && kind == typeHeaders || at == withinBody && kind == typeData || at == afterBody && last && kind <= typeHeaders
	})
}

// readUntil reads frames until one for which is returns true.
func readUntil(r *bufio.Reader, is func(kind, flags byte) bool) error {
	for {
		head := make([]byte, frameHead)
		if _, err := io.ReadFull(r, head); err != nil {
			return err
		}
		if _, err := r.Discard(int(head[0])<<16 | int(head[1])<<8 | int(head[2])); err != nil {
			return err
		}
		if is(head[3], head[4]) {
			return nil
		}
	}
}

// untilText reads a connection of HTTP/1 until a step.
func untilText(_ net.Conn, r *bufio.Reader, at step) error {
	if at == atOnce {
		return nil
	}
	request, err := http.ReadRequest(r)
	if err != nil || at == afterHeader {
		return err
	}
	n := int64(1)
	if at == afterBody {
		n = request.ContentLength
	}
	_, err = io.CopyN(io.Discard, request.Body, n)
	return err
}

// Net/http does not export the errors that say that a server has not processed a request: the Link
// knows them by their last words. This test makes each of them with real connections. If it fails
// with a new release of Go, look for the new words in net/http and adapt link.go. A request that is
// wrongly said to be lost fails. One that is wrongly said to be unprocessed is executed twice.
func TestWordsOfUnprocessedRequests(t *testing.T) {
	for name, test := range map[string]struct {
		http1       bool
		at          step
		frames      string
		closes      bool
		ended       bool // the request is made when net/http has noticed that the connection is not usable
		body        int
		unprocessed bool
	}{
		"closed before the request":             {at: atOnce, closes: true, ended: true, unprocessed: true},
		"closed after the header":               {at: afterHeader, closes: true, body: 1 << 20},
		"closed within the body":                {at: withinBody, closes: true, body: 1 << 20},
		"closed after the body":                 {at: afterBody, closes: true, body: 10},
		"closed after a request without a body": {at: afterBody, closes: true},
		"GOAWAY before the request":             {at: atOnce, frames: goAwayHead + noneOfThem + withoutError + ping, unprocessed: true},
		"GOAWAY that leaves out the request":    {at: afterHeader, frames: goAwayHead + noneOfThem + withoutError, body: 1 << 20, unprocessed: true},
		"GOAWAY with an error leaves it out":    {at: afterHeader, frames: goAwayHead + noneOfThem + calmDown, body: 10}, // net/http does not want it repeated
		"GOAWAY that names the request":         {at: afterBody, frames: goAwayHead + theFirst + withoutError, closes: true, body: 10},
		"REFUSED_STREAM":                        {at: afterHeader, frames: resetHead + "\x00\x00\x00\x07", body: 1 << 20, unprocessed: true},
		"REFUSED_STREAM after the body":         {at: afterBody, frames: resetHead + "\x00\x00\x00\x07", body: 10, unprocessed: true},
		"INTERNAL_ERROR":                        {at: afterHeader, frames: resetHead + "\x00\x00\x00\x02", body: 1 << 20},
		"HTTP 1: closed before the request":     {http1: true, at: atOnce, closes: true, ended: true, unprocessed: true},
		"HTTP 1: closed after the header":       {http1: true, at: afterHeader, closes: true, body: 1 << 20},
		"HTTP 1: closed within the body":        {http1: true, at: withinBody, closes: true, body: 8 << 20},
		"HTTP 1: closed after the body":         {http1: true, at: afterBody, closes: true, body: 10},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			addr, known := serveOnce(t, test.http1, test.at, test.frames, test.closes)
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			l := &Link{Authority: "test", closing: make(chan struct{}), done: make(chan struct{})}
			transport := &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { return nc, nil },
				Protocols:   new(http.Protocols),
			}
			transport.Protocols.SetHTTP1(test.http1)
			transport.Protocols.SetUnencryptedHTTP2(!test.http1)
			if test.http1 {
				l.turn = make(chan struct{}, 1)
			}
			if l.conn, err = transport.NewClientConn(ctx, "http", "test:80"); err != nil {
				t.Fatal(err)
			}
			defer l.conn.Close()
			unusable := make(chan struct{}, 10)
			l.conn.SetStateHook(func(c *http.ClientConn) {
				if c.Err() != nil {
					unusable <- struct{}{}
				}
			})
			if strings.HasSuffix(test.frames, ping) {
				<-known
			}
			if test.ended && l.conn.Err() == nil {
				select {
				case <-unusable:
				case <-ctx.Done():
					t.Fatal("net/http does not notice the end of its connection")
				}
			}
			x := &exchange{link: l, ctx: ctx, call: &yodel.Call{Method: "Test.Echo"}, header: make(http.Header)}
			response, err := x.send(http.MethodPost, x.url(), strings.NewReader(strings.Repeat("x", test.body)))
			if err == nil {
				response.Body.Close()
				t.Fatalf("got the response %s", response.Status)
			}
			if yodel.NotProcessed(err) != test.unprocessed || ctx.Err() != nil {
				t.Errorf("got %v, want an error that says that the server has not processed it: %t", err, test.unprocessed)
			}
		})
	}
}
