// SPDX-License-Identifier: Apache-2.0

// Package connect calls servers that speak Connect:
//
//	client := yodel.NewClient(discovery.Static("connect://10.0.0.7:8080"), &yodel.ClientOptions{
//		Codec: protobuf.Codec,
//		Wires: []yodel.Wire{connect.Wire(nil)},
//	})
//
// Package protocol/http serves Connect clients.
//
// A method "shop.Cart.Add" is called at the path /shop.Cart/Add. The codec names the content type:
// "protobuf" is application/proto, and all other codecs have their own names. All kinds of methods
// can be called. Metadata, the deadline, the trailer and the header of the reply, codes and details
// of errors travel as in Connect. Calls with an attachment, with several values, and one-way calls
// fail before they are sent.
package connect

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httplink"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// Options configures a Wire. The zero value and nil mean the defaults.
type Options struct {
	// HTTP1 makes the client speak HTTP/1.1. A connection then carries one call at a time, and a
	// duplex method receives all messages before it sends any. Default: HTTP/2.
	HTTP1 bool
	// Get sends unary calls with Call.Idempotent as GET requests, which caches understand. Only
	// methods that change nothing may be called so. Default: all calls are POST requests.
	Get bool
}

// Wire returns a Wire for ClientOptions.Wires. Its name is "connect", or "connect+http1" with
// Options.HTTP1. Options may be nil, and must not be changed afterwards.
func Wire(options *Options) yodel.Wire {
	w := new(wire)
	if options != nil {
		w.opts = *options
	}
	return w
}

type wire struct{ opts Options }

// Name implements yodel.Wire.
func (w *wire) Name() string {
	if w.opts.HTTP1 {
		return "connect+http1"
	}
	return "connect"
}

// Connect implements yodel.Wire.
func (w *wire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	l, err := httplink.Connect(ctx, nc, ep, w.opts.HTTP1)
	if err != nil {
		return nil, err
	}
	return &link{l, w.opts.Get}, nil
}

type link struct {
	*httplink.Link
	get bool
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	if call.Kind() == "unary" {
		return l.DoUnary(ctx, call, l.get && call.Idempotent)
	}
	return l.Link.Do(ctx, call, &streams)
}

// streams is the part of the protocol with envelopes.
var streams = httplink.Envelopes{
	Media: "application/connect", Family: httpwire.Connect, Encoding: "Connect-Content-Encoding", Accept: "Connect-Accept-Encoding",
	Last: httpwire.FlagEnd, Header: http.Header{"Connect-Protocol-Version": {"1"}},
	SetTimeout: func(h http.Header, d time.Duration) { h["Connect-Timeout-Ms"] = []string{httpwire.Millis(d)} },
	Outcome:    outcome,
}

// outcome returns the trailer and the error of the last message of a stream.
func outcome(_ *http.Response, last []byte, _ bool) (yodel.Metadata, *yodel.Error) {
	if last == nil {
		return nil, yodel.Errorf(yodel.Internal, "the stream ends without an outcome")
	}
	var end httpwire.EndOfStream
	if err := json.Unmarshal(last, &end); err != nil {
		return nil, yodel.Errorf(yodel.Internal, "the end of the stream is malformed: %w", err)
	}
	h := make(http.Header, len(end.Metadata))
	for key, values := range end.Metadata {
		h[http.CanonicalHeaderKey(key)] = values
	}
	trailer := httpwire.Connect.Metadata(h)
	if end.Error == nil {
		return trailer, nil
	}
	e, ok := end.Error.Err()
	if !ok {
		e = &yodel.Error{Code: yodel.Unknown, Message: end.Error.Message}
	}
	httpwire.GetError(h, e)
	return trailer, e
}
