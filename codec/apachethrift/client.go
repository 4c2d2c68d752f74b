// SPDX-License-Identifier: Apache-2.0

package apachethrift

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
)

// Client returns a client for generated code, which calls the methods of a service through a yodel
// client. So callers keep the generated methods:
//
//	paints := testthrift.NewPaintsClient(apachethrift.Client(client, codec, "Paints"))
//	paint, err := paints.Mix(ctx, &testthrift.Paint{Name: "sky"})
//
// Codec is from New, and is that of the Wire of package protocol/thrift, by which client must reach
// its servers. Client may be called by several goroutines, unlike Apache's own. Declared exceptions
// are returned as Apache's client returns them, unless WireOptions.Throws has them: leave it empty.
// Any other error is the *yodel.Error of the call, and no TApplicationException.
func Client(client yodel.Caller, codec yodel.Codec, service string) thrift.TClient {
	return &caller{client, codec, service}
}

type caller struct {
	client  yodel.Caller
	codec   yodel.Codec
	service string
}

// Call implements thrift.TClient. A nil result is that of a oneway method.
func (c *caller) Call(ctx context.Context, method string, args, result thrift.TStruct) (thrift.ResponseMeta, error) {
	reply := new(yodel.Encoded)
	call := &yodel.Call{Method: c.service + "." + method, Codec: c.codec, Args: args, Reply: reply, OneWay: result == nil}
	if result == nil {
		call.Reply = nil
	}
	err := c.client.Do(ctx, call)
	if result == nil {
		return thrift.ResponseMeta{}, err
	}
	id, value := int16(0), reply.Body
	if err != nil {
		if id, value = exceptionOf(err); id == 0 {
			return thrift.ResponseMeta{}, err
		}
	}
	return thrift.ResponseMeta{}, c.fill(ctx, result, id, value)
}

// exceptionOf returns the number and the encoding of the declared exception that err is, or zero.
func exceptionOf(err error) (id int16, encoded []byte) {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		return 0, nil
	}
	for _, d := range e.Details {
		if _, err := fmt.Sscanf(d.Type, "thrift.exception.%d", &id); err == nil && id > 0 {
			return id, d.Value
		}
	}
	return 0, nil
}

// fill reads the result of a method from the encoding of one of its fields. The result of a void
// method has no field.
func (c *caller) fill(ctx context.Context, result thrift.TStruct, id int16, value []byte) (err error) {
	own, ok := c.codec.(*codec)
	if !ok {
		return fmt.Errorf("apachethrift: the codec of Client is not from New, but %T", c.codec)
	}
	var b []byte
	if len(value) > 0 {
		if b, err = thriftwire.AppendFieldOf(nil, own.format, value, id, 0); err != nil {
			return fmt.Errorf("apachethrift: the reply: %w", err)
		}
	}
	b = append(b, byte(thriftwire.Stop))
	r := thriftwire.Reader{Format: own.format, Bytes: b}
	if _, err = rest(&r, thriftwire.Struct); err == nil {
		err = result.Read(ctx, own.protocols.GetProtocol(&thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(b)}))
	}
	if err != nil {
		return fmt.Errorf("apachethrift: the reply: %w", err)
	}
	return nil
}
