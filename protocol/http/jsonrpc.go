// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"maps"
	std "net/http"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
	"github.com/yodel-rpc/yodel/protocol/internal/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// This file serves JSON-RPC over HTTP: the body of each POST to Options.JSONRPC is a request or a
// batch.

// pairCost is about how many bytes a pair of metadata takes in a map.
const pairCost = 96

// serveJSONRPC serves one message.
func (x *exchange) serveJSONRPC() {
	encoding, rpcx := x.r.Header.Get("Content-Encoding"), x.router.protocol.isRPCXJSON(x.r.Header)
	switch {
	case x.r.Method != std.MethodPost:
		x.reject(std.StatusMethodNotAllowed, std.MethodPost, "JSON-RPC needs the method POST")
		return
	case !rpcx && httpwire.ContentType(x.r.Header.Get("Content-Type")) != "application/json", encoding != "" && encoding != "identity":
		x.reject(std.StatusUnsupportedMediaType, "application/json", "JSON-RPC needs the content type application/json, without compression")
		return
	}
	md := x.family.Metadata(x.r.Header)
	if rpcx {
		if err := addRPCX(md, x.r.Header); err != nil {
			x.reject(std.StatusBadRequest, "", "the header X-RPCX-Meta is malformed")
			return
		}
	}
	if err := fits(md, &x.limits); err != nil {
		x.reject(std.StatusRequestHeaderFieldsTooLarge, "", "the metadata of the request "+err.Error())
		return
	}
	timeout, e := x.connectTimeout()
	if e == nil {
		e = httpwire.Options(x.r.Header, new(yodel.Call)) // the calls get them later
	}
	if e != nil {
		x.answer(std.StatusBadRequest, e)
		return
	}
	message, e := x.readMessage()
	defer func() { x.session.Release(x.reserved) }()
	if e == nil {
		// Each call has a map of its own. A message has no more calls than opening braces.
		n := bytes.Count(message, []byte("{")) * len(md) * pairCost
		if x.session.Reserve(n) {
			x.reserved += n
		} else {
			e = x.noMemory()
		}
	}
	if e != nil {
		x.refuseMessage(e)
		return
	}
	x.sendMessage(x.do(message, md, deadlineIn(timeout)))
}

// readMessage reads the body, and counts its memory in x.reserved.
func (x *exchange) readMessage() (message []byte, e *yodel.Error) {
	n := x.r.ContentLength
	if n > int64(x.most) {
		return nil, x.tooLarge(n)
	} else if n < 0 {
		message, x.reserved, e = x.readUnsized()
		return message, e
	}
	body := x.paced(x.r.Body)
	message, err := framebody.Read(nil, body, int(n), x.session)
	if err != nil {
		return nil, x.unread(err)
	}
	x.reserved = cap(message)
	return message, x.readEnd(body)
}

// refuseMessage answers a request whose message was not read.
func (x *exchange) refuseMessage(e *yodel.Error) {
	if e.Code != yodel.ResourceExhausted { // the body has not come
		x.answer(httpwire.Status(e.Code), e)
		return
	}
	x.sendMessage(jsonrpc.Fault(&jsonrpc.TooLargeError{Size: x.most + 1, Memory: !x.large}))
}

// do executes a message. The metadata of the reply to a single request becomes the header of the
// response.
func (x *exchange) do(message []byte, md yodel.Metadata, deadline time.Time) (reply []byte) {
	batch := bytes.HasPrefix(bytes.TrimLeft(message, " \t\r\n"), []byte("["))
	server := jsonrpc.Server{
		Session: x.session, Wait: true, Version1: true,
		Prepare: func(v *yodel.Served) {
			call := v.Call()
			call.Metadata, call.Deadline = maps.Clone(md), deadline
			_ = httpwire.Options(x.r.Header, call) // it was checked
			x.show(v)
		},
		Ran: func(v *yodel.Served) {
			call := v.Call()
			switch {
			case call.OneWay:
			case batch:
				metakeys.LeaveOut(v, "the replies of a batch have no metadata")
			default:
				x.setMetadata(v, x.w.Header(), "", call.Header())
				x.setMetadata(v, x.w.Header(), "Trailer-", call.Trailer)
			}
		},
	}
	return server.Do(x.r.Context(), message)
}

// sendMessage sends a reply. It is empty if all requests were notifications.
func (x *exchange) sendMessage(reply []byte) {
	if len(reply) == 0 {
		x.w.WriteHeader(std.StatusNoContent)
		return
	}
	x.w.Header()["Content-Type"] = []string{"application/json"}
	x.within(len(reply))
	_, _ = x.w.Write(reply) //nolint:gosec // JSON, and sent as such; if it fails, the client has gone
}
