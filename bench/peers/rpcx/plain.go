// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"

	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/protocol"

	"github.com/yodel-rpc/yodel/bench/peer"
)

// plainService is registered by reflection.
type plainService struct{}

func (plainService) Say(_ context.Context, in, out *peer.PlainMessage) error {
	peer.AnswerPlain(in, out)
	return nil
}

// gobType is a number that rpcx does not use: it has no gob.
const gobType protocol.SerializeType = 10

// gobCodec is what its users register. A message of rpcx stands alone, so each has a coder of its
// own.
type gobCodec struct{}

func (gobCodec) Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobCodec) Decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

var plainTypes = map[string]protocol.SerializeType{"gob": gobType, "json": protocol.JSON, "msgpack": protocol.MsgPack}

// A plainClient calls the service that is registered by reflection.
type plainClient struct{ *client.Client }

func dialPlain(o peer.Options) (peer.Client, error) {
	option := client.DefaultOption
	var known bool
	if option.SerializeType, known = plainTypes[o.Codec]; !known || o.Async || o.Conns > 1 || len(o.Addrs) > 1 {
		return nil, fmt.Errorf("rpcx does plain structs synchronously over one connection here: %+v", o)
	}
	c := client.NewClient(option)
	return plainClient{c}, c.Connect("tcp", o.Addrs[0])
}

func (c plainClient) Caller() (func() error, error) {
	in := peer.NewPlain()
	return func() error {
		out := new(peer.PlainMessage)
		if err := c.Call(context.Background(), "Plain", "Say", in, out); err != nil {
			return err
		}
		return peer.CheckPlain(out)
	}, nil
}
