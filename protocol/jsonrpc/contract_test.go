// SPDX-License-Identifier: Apache-2.0

package jsonrpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/rpc"
	std "net/rpc/jsonrpc"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/refusing"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A caller is a client that a test of the contract uses.
type caller struct {
	mu      sync.Mutex
	conn    net.Conn
	last    int
	pending map[int]chan answer
	err     error
}

type answer struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func newCaller(conn net.Conn) yodel.Caller {
	c := &caller{conn: conn, pending: make(map[int]chan answer)}
	go func() {
		replies := json.NewDecoder(conn)
		for {
			var a answer
			err := replies.Decode(&a)
			c.mu.Lock()
			if err != nil {
				c.err = err
				for _, p := range c.pending {
					close(p)
				}
				c.pending = nil
				c.mu.Unlock()
				return
			}
			if p := c.pending[a.ID]; p != nil {
				p <- a
				delete(c.pending, a.ID)
			}
			c.mu.Unlock()
		}
	}()
	return c
}

// Do implements yodel.Caller.
func (c *caller) Do(_ context.Context, call *yodel.Call) error {
	p := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.last++
	request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.last, "method": call.Method, "params": []any{call.Args}})
	if err == nil {
		c.pending[c.last] = p
		_, err = c.conn.Write(request)
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	a, ok := <-p
	switch {
	case !ok:
		return errors.New("the connection has ended")
	case a.Error != nil:
		return &yodel.Error{Code: codes[a.Error.Code], Message: a.Error.Message}
	}
	return json.Unmarshal(a.Result, call.Reply)
}

// codes are the error codes of the documentation.
var codes = map[int]yodel.Code{
	-32001: yodel.Canceled, -32002: yodel.Unknown, -32003: yodel.InvalidArgument, -32004: yodel.DeadlineExceeded, -32005: yodel.NotFound,
	-32006: yodel.AlreadyExists, -32007: yodel.PermissionDenied, -32008: yodel.ResourceExhausted, -32009: yodel.FailedPrecondition,
	-32010: yodel.Aborted, -32011: yodel.OutOfRange, -32012: yodel.Unimplemented, -32603: yodel.Internal, -32014: yodel.Unavailable,
	-32015: yodel.DataLoss, -32016: yodel.Unauthenticated,
}

func TestProtocolKeepsTheContract(t *testing.T) {
	yodeltest.TestProtocol(t, yodeltest.Protocol{Protocol: jsonrpc.Protocol, Codes: true, Middleware: refusing.All}, newCaller)
}

// A caller1 is a client of net/rpc/jsonrpc.
type caller1 struct{ *rpc.Client }

// Do implements yodel.Caller.
func (c caller1) Do(_ context.Context, call *yodel.Call) error {
	return c.Call(call.Method, call.Args, call.Reply)
}

func TestProtocolKeepsTheContractWithVersion1(t *testing.T) {
	yodeltest.TestProtocol(t, yodeltest.Protocol{Protocol: jsonrpc.Protocol, Middleware: refusing.All}, func(conn net.Conn) yodel.Caller {
		return caller1{std.NewClient(trimmed{conn})}
	})
}

// A trimmed does not send the newline behind a request, without which the request is complete.
type trimmed struct{ net.Conn }

func (c trimmed) Write(b []byte) (int, error) {
	if _, err := c.Conn.Write(bytes.TrimSuffix(b, []byte("\n"))); err != nil {
		return 0, err
	}
	return len(b), nil
}
