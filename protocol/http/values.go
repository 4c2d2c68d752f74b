// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"encoding/json"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/jsonrpc"
)

// This file serves methods with several arguments or results, which JSON has as an array.

// spread makes the server turn a JSON array into the values of a method with several arguments. The
// reply is then not compressed, because collect has to change it.
func (x *exchange) spread(codec yodel.Codec) {
	if !x.v.Positional() || codec.Name() != "json" {
		return
	}
	x.v.Plain, x.v.Several = true, true
	in, _ := x.v.Types()
	x.v.Transform = func(body []byte) ([]byte, error) {
		if body = bytes.TrimSpace(body); !json.Valid(body) || len(body) == 0 || body[0] != '[' {
			e := yodel.Errorf(yodel.InvalidArgument, "%s: the method takes several values: the request must be a JSON array of them", x.v.Call().Method)
			e.NotProcessed = true
			return nil, e
		}
		request := new(yodel.Encoded)
		request.SetValues(jsonrpc.Elements(body, len(in)+1)...) // the server refuses more than len(in)
		return request.Body, nil
	}
}

// collect turns the results of a method with several results into JSON.
func (x *exchange) collect() *yodel.Error {
	if !x.v.Several {
		return nil
	}
	values, err := (&yodel.Encoded{Body: x.reply, Several: true}).Values()
	if err != nil {
		return x.v.Fail(err)
	}
	if len(values) == 1 {
		x.reply = values[0]
		return nil
	}
	results := make([]json.RawMessage, len(values))
	for i, value := range values {
		results[i] = value
	}
	if x.reply, err = json.Marshal(results); err != nil {
		return x.v.Fail(err)
	}
	return nil
}
