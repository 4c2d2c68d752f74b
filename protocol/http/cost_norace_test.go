// SPDX-License-Identifier: Apache-2.0

//go:build !race

package http_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	std "net/http"
	"slices"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/servercost"
)

// A connection of HTTP/1.1 costs little more than in a server of net/http, which serves it: an idle
// one about 1.5 times the memory, and a request about 1.3 times the processor time.
func TestHTTP1CostsLittleMoreThanInNetHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds")
	}
	const conns, requests = 500, 40
	theirs, ours := dialCosted(t, "net/http", conns), dialCosted(t, "yodel", conns)
	var ratios []float64
	for range 5 {
		ratios = append(ratios, ours.processor(t, requests)/theirs.processor(t, requests))
	}
	slices.Sort(ratios)
	memory := float64(ours.memory(t)) / float64(theirs.memory(t))
	t.Logf("a request takes %.2f of the processor time in net/http, and an idle connection %.2f of the memory", ratios, memory)
	if median := ratios[len(ratios)/2]; median > 1.6 {
		t.Errorf("a request takes %.2f of the processor time in net/http", median)
	}
	if memory > 1.7 {
		t.Errorf("an idle connection takes %.2f of the memory in net/http", memory)
	}
}

// A costed is a server in a process of its own with connections to it.
type costed struct {
	*servercost.Server
	conns  []*costedConn
	before servercost.Usage
}

// A costedConn is a connection of HTTP/1.1.
type costedConn struct {
	net.Conn
	reader *bufio.Reader
}

func dialCosted(t *testing.T, kind string, conns int) *costed {
	t.Helper()
	s := &costed{Server: servercost.Start(t, kind)}
	s.before = s.Used(t)
	for range conns {
		c, err := net.Dial("tcp", s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		s.conns = append(s.conns, &costedConn{c, bufio.NewReader(c)})
	}
	s.request(t, 10)
	return s
}

// request makes requests over each connection.
func (s *costed) request(t *testing.T, times int) {
	t.Helper()
	var all sync.WaitGroup
	for _, c := range s.conns {
		all.Go(func() {
			for range times {
				if err := c.request(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

const costedBody = 100

func (c *costedConn) request() error {
	if _, err := fmt.Fprintf(c, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%0*d", costedBody, costedBody, 1); err != nil {
		return err
	}
	r, err := std.ReadResponse(c.reader, nil)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if n, err := io.Copy(io.Discard, r.Body); err != nil || n != costedBody {
		return fmt.Errorf("got %d bytes of %d, %w", n, costedBody, err)
	}
	return nil
}

// processor returns the processor time of requests over each connection, in seconds.
func (s *costed) processor(t *testing.T, times int) float64 {
	t.Helper()
	before := s.Used(t).Processor
	s.request(t, times)
	return (s.Used(t).Processor - before).Seconds()
}

// memory returns how much memory an idle connection takes.
func (s *costed) memory(t *testing.T) int64 {
	t.Helper()
	return (s.Used(t).Memory - s.before.Memory) / int64(len(s.conns))
}
