// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/json"

	"github.com/yodel-rpc/yodel"
)

// This file serves methods with several arguments or results, which JSON has as an array.

// spread turns a JSON array into the values of a method with several arguments. The reply is then
// not compressed, because collect has to change it.
func (x *exchange) spread(codec yodel.Codec) *yodel.Error {
	if !x.v.Positional() || codec.Name() != "json" {
		return nil
	}
	x.v.Plain = true
	if e := x.decompress(); e != nil {
		return e
	}
	var values []json.RawMessage
	if err := json.Unmarshal(x.v.Body, &values); err != nil {
		e := yodel.Errorf(yodel.InvalidArgument, "%s: the method takes several values: the request must be a JSON array of them: %v", x.v.Call().Method, err)
		e.NotProcessed = true
		return e
	}
	request := new(yodel.Encoded)
	encoded := make([][]byte, len(values))
	for i, value := range values {
		encoded[i] = value
	}
	request.SetValues(encoded...)
	x.v.Body, x.v.Several = request.Body, true
	return nil
}

// decompress decompresses the request, before it is split into values.
func (x *exchange) decompress() *yodel.Error {
	if !x.v.Compressed {
		return nil
	}
	most := x.limits.MaxDecompressed
	if !x.session.Reserve(most) {
		return x.noMemory()
	}
	var body []byte
	var err error
	if e := x.guarded("the compressor", func() { body, err = x.compressor.Decompress(nil, x.v.Body, most) }); e != nil {
		x.session.Release(most)
		return e
	}
	x.session.Release(most - len(body))
	x.reserved += len(body)
	if err != nil {
		return x.undecompressed(err)
	}
	x.v.Body, x.v.Compressed = body, false
	return nil
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
