// SPDX-License-Identifier: Apache-2.0

// Package grpc calls gRPC servers:
//
//	client := yodel.NewClient(discovery.Static("grpc://10.0.0.7:50051", "10.0.0.8:8972"), &yodel.ClientOptions{
//		Codec: protobuf.Codec,
//		Wires: []yodel.Wire{grpc.Wire},
//	})
//
// Package protocol/http serves gRPC clients.
//
// A method "shop.Cart.Add" is called at the path /shop.Cart/Add. The codec names the content type:
// "protobuf" is application/grpc+proto, and all other codecs have their own names. All kinds of
// methods can be called. Metadata, the deadline, the trailer and the header of the reply, codes and
// details of errors travel as in gRPC. Calls with an attachment, with several values, and one-way
// calls fail before they are sent.
//
// A request was certainly not executed if the server refused its stream or had said GOAWAY before,
// or if it says so in the trailer yodel-not-processed.
package grpc

import (
	"context"
	"encoding/base64"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httplink"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// Wires for ClientOptions.Wires.
var (
	// Wire speaks gRPC over HTTP/2. Its name is "grpc".
	Wire yodel.Wire = wire{name: "grpc", protocol: &plain}
	// Web speaks gRPC-Web over HTTP/2. Its name is "grpc-web".
	Web yodel.Wire = wire{name: "grpc-web", protocol: &web}
	// Web1 speaks gRPC-Web over HTTP/1.1. Its name is "grpc-web+http1".
	Web1 yodel.Wire = wire{name: "grpc-web+http1", protocol: &web, http1: true}
)

type wire struct {
	name     string
	protocol *httplink.Envelopes
	http1    bool
}

// Name implements yodel.Wire.
func (w wire) Name() string { return w.name }

// Connect implements yodel.Wire.
func (w wire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	l, err := httplink.Connect(ctx, nc, ep, w.http1)
	if err != nil {
		return nil, err
	}
	return &link{l, w.protocol}, nil
}

type link struct {
	*httplink.Link
	protocol *httplink.Envelopes
}

// Do implements yodel.Link.
func (l *link) Do(ctx context.Context, call *yodel.Call) error {
	return l.Link.Do(ctx, call, l.protocol)
}

// The two forms of the protocol.
var (
	plain = httplink.Envelopes{
		Media: "application/grpc", Family: httpwire.GRPC, Encoding: "Grpc-Encoding", Accept: "Grpc-Accept-Encoding", Status: "Grpc-Status",
		Header: http.Header{"Te": {"trailers"}}, SetTimeout: setTimeout,
		Outcome: func(r *http.Response, _ []byte, messages bool) (yodel.Metadata, *yodel.Error) {
			if !messages && r.Trailer.Get("Grpc-Status") == "" {
				return httpwire.GRPC.Metadata(r.Header), status(r.Header)
			}
			return httpwire.GRPC.Metadata(r.Trailer), status(r.Trailer)
		},
	}
	web = httplink.Envelopes{
		Media: "application/grpc-web", Family: httpwire.Web, Encoding: "Grpc-Encoding", Accept: "Grpc-Accept-Encoding", Status: "Grpc-Status",
		Last: httpwire.FlagTrailer, Header: http.Header{"X-Grpc-Web": {"1"}}, SetTimeout: setTimeout,
		Outcome: func(r *http.Response, last []byte, messages bool) (yodel.Metadata, *yodel.Error) {
			if last == nil && messages {
				return nil, status(nil)
			} else if last == nil {
				return httpwire.Web.Metadata(r.Header), status(r.Header)
			}
			h := parse(last)
			return httpwire.Web.Metadata(h), status(h)
		},
	}
)

func setTimeout(h http.Header, d time.Duration) { h["Grpc-Timeout"] = []string{httpwire.Timeout(d)} }

// parse parses the last envelope of gRPC-Web: lines of headers.
func parse(last []byte) http.Header {
	h := make(http.Header)
	for line := range strings.SplitSeq(string(last), "\n") {
		if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\r"), ":"); ok {
			h.Add(textproto.TrimString(name), textproto.TrimString(value))
		}
	}
	return h
}

// status returns the outcome of a call, or nil for success.
func status(h http.Header) *yodel.Error {
	text := h.Get("Grpc-Status")
	if text == "0" {
		return nil
	}
	e := &yodel.Error{Code: yodel.Unknown, Message: httpwire.UnescapeMessage(h.Get("Grpc-Message"))}
	code, err := strconv.ParseUint(text, 10, 32)
	switch {
	case text == "":
		e.Code, e.Message = yodel.Internal, "the reply ends without a status"
		return e
	case err != nil:
		e.Message = "the reply has a malformed status"
		return e
	case code <= math.MaxUint16:
		e.Code = yodel.Code(code)
	}
	httpwire.GetError(h, e)
	if details := h.Get("Grpc-Status-Details-Bin"); details != "" {
		if b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "=")); err == nil {
			_ = httpwire.ParseStatus(b, e) // without the details, the error has its code and message
		}
	}
	return e
}
