// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"net/rpc"
	stdjsonrpc "net/rpc/jsonrpc"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// A way is one way to reach the service, with what its protocol carries.
type way struct {
	name, by string // the protocol, and whose client it is
	dial     func(addr string) client

	codes, metadata, deadline, feed bool
	drains                          bool // the protocol tells clients that a server drains
}

// A client calls the service. Its functions are for one goroutine at a time.
type client struct {
	call  func(ctx context.Context, method string, a, b int64) (int64, error)
	see   func(ctx context.Context, user string) (Seen, error)         // nil: the client sends no metadata
	count func(ctx context.Context, a, b int64) (sum int64, err error) // nil: the client has no streams
}

// ways returns all ways. Those of yodel's clients differ in the Wire only.
func ways() []way {
	arith := &thrift.WireOptions{Service: "Arith"} // requests do not name it
	all := []way{{name: "yodel", by: "yodel", dial: native, codes: true, metadata: true, deadline: true, feed: true, drains: true}}
	for _, over := range []struct {
		name string
		wire yodel.Wire
	}{
		{"gRPC", grpc.Wire}, {"gRPC-Web", grpc.Web}, {"Connect", connect.Wire(nil)},
	} {
		all = append(all, way{
			name: over.name, by: "yodel", dial: by(over.wire, yodel.JSON),
			codes: true, metadata: true, deadline: true, feed: true, drains: true,
		})
	}
	return append(all,
		way{name: "rpcx", by: "yodel", dial: by(rpcx.Wire(yodel.JSON), yodel.JSON), codes: true, metadata: true, deadline: true},
		way{name: "Thrift binary", by: "yodel", dial: by(thrift.Wire(thriftcodec.Codec, arith), thriftcodec.Codec), codes: true},
		way{name: "Thrift compact", by: "yodel", dial: by(thrift.Wire(thriftcodec.Compact, arith), thriftcodec.Compact), codes: true},
		way{name: "JSON-RPC 2.0", by: "yodel", dial: by(jsonrpc.Wire(yodel.JSON), yodel.JSON), codes: true},
		way{name: "net/rpc", by: "yodel", dial: by(netrpc.Wire(gob.Codec), gob.Codec), codes: true},
		way{name: "net/rpc", by: "net/rpc", dial: standard(rpc.Dial)},
		way{name: "JSON-RPC 1.0", by: "net/rpc/jsonrpc", dial: standard(stdjsonrpc.Dial)},
		way{name: "JSON over HTTP", by: "net/http", dial: plainHTTP, codes: true, metadata: true, deadline: true},
		way{name: "JSON-RPC over HTTP", by: "net/http", dial: jsonRPCOverHTTP},
	)
}

// native dials in yodel's own protocol.
func native(addr string) client { return calls(yodel.Dial(addr)) }

// by returns a function that dials with a Wire.
func by(wire yodel.Wire, codec yodel.Codec) func(addr string) client {
	return func(addr string) client {
		return calls(yodel.NewClient(discovery.Static(wire.Name()+"://"+addr), &yodel.ClientOptions{Codec: codec, Wires: []yodel.Wire{wire}}))
	}
}

// calls returns a client of the service. Without retries, each failed attempt is seen.
func calls(c *yodel.Client) client {
	return client{
		call: func(ctx context.Context, method string, a, b int64) (int64, error) {
			var reply Number
			err := c.Call(ctx, "Arith."+method, &Args{a, b}, &reply)
			return reply.N, err
		},
		see: func(ctx context.Context, user string) (seen Seen, err error) {
			call := &yodel.Call{Method: string(See), Args: &Args{}, Reply: &seen}
			if user != "" {
				call.Metadata = yodel.Metadata{"user": user}
			}
			err = c.Do(ctx, call)
			return seen, err
		},
		count: func(ctx context.Context, a, b int64) (sum int64, err error) {
			for n, err := range Count.Call(ctx, c, &Args{a, b}) {
				if err != nil {
					return 0, err
				}
				sum += n.N
			}
			return sum, nil
		},
	}
}

// standard returns a function that dials with a package of the standard library. After an error of
// the connection, the client dials again: that package does not.
func standard(dial func(network, addr string) (*rpc.Client, error)) func(addr string) client {
	return func(addr string) client {
		var c *rpc.Client
		return client{call: func(_ context.Context, method string, a, b int64) (int64, error) {
			var err error
			if c == nil {
				if c, err = dial("tcp", addr); err != nil {
					c = nil
					return 0, &notSent{err}
				}
			}
			var reply Number
			err = c.Call("Arith."+method, &Args{a, b}, &reply)
			var ofServer rpc.ServerError
			if err != nil && !errors.As(err, &ofServer) {
				_ = c.Close() // it has failed
				c = nil
			}
			return reply.N, err
		}}
	}
}

// notSent is the error of a call that was certainly not sent.
type notSent struct{ error }

// plainHTTP calls with POST and JSON, as a script does.
func plainHTTP(addr string) client {
	post := func(ctx context.Context, method, user string, in, out any) error {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		headers := []string{"User", user}
		if at, ok := ctx.Deadline(); ok {
			headers = append(headers, "Connect-Timeout-Ms", fmt.Sprint(time.Until(at).Milliseconds()))
		}
		status, reply, err := request(ctx, "http://"+addr+"/Arith/"+method, body, headers...)
		switch {
		case err != nil:
			return err
		case status != std.StatusOK:
			e := new(yodel.Error)
			if err := json.Unmarshal(reply, e); err != nil {
				return fmt.Errorf("status %d: %s", status, reply)
			}
			return e
		}
		return json.Unmarshal(reply, out)
	}
	return client{
		call: func(ctx context.Context, method string, a, b int64) (int64, error) {
			var reply Number
			err := post(ctx, method, "", &Args{a, b}, &reply)
			return reply.N, err
		},
		see: func(ctx context.Context, user string) (seen Seen, err error) {
			err = post(ctx, "See", user, &Args{}, &seen)
			return seen, err
		},
	}
}

// jsonRPCOverHTTP calls with JSON-RPC 2.0 in the body of a POST.
func jsonRPCOverHTTP(addr string) client {
	return client{call: func(ctx context.Context, method string, a, b int64) (int64, error) {
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "Arith." + method, "params": Args{a, b}})
		if err != nil {
			return 0, err
		}
		_, text, err := request(ctx, "http://"+addr+"/rpc", body)
		if err != nil {
			return 0, err
		}
		var reply struct {
			Result Number `json:"result"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err = json.Unmarshal(text, &reply); err == nil && reply.Error != nil {
			err = errors.New(reply.Error.Message)
		}
		return reply.Result.N, err
	}}
}

// request sends a POST with JSON and reads the response.
func request(ctx context.Context, url string, body []byte, headers ...string) (status int, reply []byte, err error) {
	r, err := std.NewRequestWithContext(ctx, std.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := std.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }() // what it held was read
	reply, err = io.ReadAll(response.Body)
	return response.StatusCode, reply, err
}

// inDoubt reports whether a failed call may have been executed.
func inDoubt(err error) bool {
	var e *yodel.Error
	var unsent *notSent
	var dial *net.OpError
	switch {
	case errors.As(err, &e):
		return !e.NotProcessed
	case errors.As(err, &unsent):
		return false
	case errors.As(err, &dial):
		return dial.Op != "dial"
	}
	return true
}
