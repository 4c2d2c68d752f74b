// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// region test

// A client makes calls over one connection, one at a time.
type client struct {
	mu      sync.Mutex
	conn    net.Conn
	replies *bufio.Reader
}

// Do implements yodel.Caller.
func (c *client) Do(_ context.Context, call *yodel.Call) error {
	args, err := json.Marshal(call.Args)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err = fmt.Fprintf(c.conn, "%s %s\n", call.Method, args); err != nil {
		return err
	}
	line, err := c.replies.ReadString('\n')
	if err != nil {
		return err
	}
	reply, ok := strings.CutPrefix(line, "ok ")
	if !ok {
		return errors.New(strings.TrimSpace(line))
	}
	return json.Unmarshal([]byte(reply), call.Reply)
}

func TestLineEcho(t *testing.T) {
	p := yodeltest.Protocol{Protocol: LineEcho{}, OneAtATime: true}
	yodeltest.TestProtocol(t, p, func(conn net.Conn) yodel.Caller {
		return &client{conn: conn, replies: bufio.NewReader(conn)}
	})
}

// endregion test

// FuzzMatch checks that further bytes do not change what Match has decided.
func FuzzMatch(f *testing.F) {
	f.Add([]byte("Arith.Mul {}"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, first []byte) {
		decided, matched := false, false
		for n := range min(len(first), 512) {
			ok, more := LineEcho{}.Match(first[:n+1])
			if decided && ok != matched {
				t.Fatalf("%q: Match says %t, and %t before", first[:n+1], ok, matched)
			}
			decided, matched = decided || ok || !more, ok
		}
	})
}
