// SPDX-License-Identifier: Apache-2.0

package http

import (
	"errors"
	"fmt"
	"maps"
	std "net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
	"github.com/yodel-rpc/yodel/protocol/internal/rpcxwire"
)

// This file serves the requests of rpcx's HTTP gateway: the body is the message, and headers are
// the rest of a frame.

// Headers of rpcx, as net/http writes them.
const (
	rpcxPrefix    = "X-Rpcx-"
	rpcxVersion   = "X-Rpcx-Version"
	rpcxMessageID = "X-Rpcx-Messageid"
	rpcxOneWay    = "X-Rpcx-Oneway" // any value means true
	rpcxSerialize = "X-Rpcx-Serializetype"
	rpcxCompress  = "X-Rpcx-Compresstype"
	rpcxPath      = "X-Rpcx-Servicepath"
	rpcxMethod    = "X-Rpcx-Servicemethod"
	rpcxMeta      = "X-Rpcx-Meta" // the query of a URL
	rpcxStatus    = "X-Rpcx-Messagestatustype"
	rpcxError     = "X-Rpcx-Errormessage"
	rpcxJSONRPC   = "X-Jsonrpc-2.0"
)

// An rpcxRequest has the headers of a request.
type rpcxRequest struct {
	path, method string
	serialize    byte
	metadata     map[string]string
}

// isRPCX reports whether a request is one of rpcx's gateway.
func (p *Protocol) isRPCX(h std.Header) bool {
	if !p.opts.RPCX {
		return false
	}
	for name := range h {
		if strings.HasPrefix(name, rpcxPrefix) {
			return true
		}
	}
	return false
}

// isRPCXJSON reports whether a request is JSON-RPC 2.0 for a server of rpcx.
func (p *Protocol) isRPCXJSON(h std.Header) bool { return p.opts.RPCX && h.Get(rpcxJSONRPC) == "true" }

// serveRPCX serves a request of rpcx's gateway.
func (x *exchange) serveRPCX() {
	if m := x.r.Method; m != std.MethodPost && m != std.MethodGet && m != std.MethodPut {
		x.reject(std.StatusMethodNotAllowed, "GET, POST, PUT", "calls of rpcx need the method POST, GET or PUT") // as rpcx, without its headers
		return
	}
	h := x.r.Header
	if h.Get(rpcxPath) == "" {
		h.Set(rpcxPath, strings.TrimPrefix(x.r.URL.Path, "/"))
	}
	for _, name := range [...]string{rpcxVersion, rpcxMessageID, rpcxPath, rpcxMethod, rpcxSerialize} {
		if value := h.Get(name); value != "" {
			x.w.Header()[name] = []string{value}
		}
	}
	q, err := parseRPCX(h)
	if err != nil {
		x.refuseRPCX(std.StatusOK, err.Error()) // rpcx answers 200 here
		return
	}
	e := x.beginRPCX(q)
	defer x.end()
	if e == nil {
		e = x.readBody()
	}
	if e == nil {
		e = x.run(!x.v.Call().OneWay)
	}
	x.sendRPCX(q, e)
}

// parseRPCX returns the headers of a request, or the reason that rpcx gives for refusing them.
func parseRPCX(h std.Header) (*rpcxRequest, error) {
	q := &rpcxRequest{path: h.Get(rpcxPath), method: h.Get(rpcxMethod)}
	if id := h.Get(rpcxMessageID); id != "" {
		if _, err := strconv.ParseUint(id, 10, 64); err != nil {
			return nil, err
		}
	}
	var serialize int
	var err error
	if text := h.Get(rpcxSerialize); text != "" {
		if serialize, err = strconv.Atoi(text); err != nil {
			return nil, err
		}
	}
	if compress := h.Get(rpcxCompress); compress != "" {
		if _, err = strconv.Atoi(compress); err != nil {
			return nil, err
		}
	}
	if q.metadata, err = rpcxMetadata(h); err != nil {
		return nil, err
	}
	switch {
	case q.path == "":
		return nil, errors.New("empty servicepath")
	case q.method == "":
		return nil, errors.New("empty servicemethod")
	case h.Get(rpcxSerialize) == "":
		return nil, errors.New("empty serialized type")
	case serialize < 0 || serialize > 15:
		return nil, fmt.Errorf("there is no serialize type %d", serialize)
	}
	q.serialize = byte(serialize)
	return q, nil
}

// rpcxMetadata returns the metadata of a request.
func rpcxMetadata(h std.Header) (map[string]string, error) {
	query, err := url.ParseQuery(h.Get(rpcxMeta))
	if err != nil {
		return nil, err
	}
	metadata := make(map[string]string, len(query)+1)
	for key, values := range query {
		metadata[key] = values[0]
	}
	if auth := h.Get("Authorization"); auth != "" {
		metadata[rpcxwire.KeyAuth] = auth
	}
	return metadata, nil
}

// addRPCX adds the metadata of a request of JSON-RPC to md, which has that of its other headers.
func addRPCX(md yodel.Metadata, h std.Header) error {
	metadata, err := rpcxMetadata(h)
	if err != nil {
		return err
	}
	delete(metadata, rpcxwire.KeyAuth) // md has it
	delete(md, strings.ToLower(rpcxMeta))
	delete(md, strings.ToLower(rpcxJSONRPC))
	maps.Copy(md, metadata)
	return nil
}

// beginRPCX begins the call. If it returns an error, the call must not be executed.
func (x *exchange) beginRPCX(q *rpcxRequest) *yodel.Error {
	call := x.start(q.path+"."+q.method, x.session.Codec(rpcxwire.Codecs()[q.serialize]))
	rpcxwire.Describe(call, maps.All(q.metadata), len(q.metadata), time.Now())
	call.OneWay = x.r.Header.Get(rpcxOneWay) != ""
	if httpwire.FromPage(x.r.Header) {
		httpwire.Disown(call)
	}
	return x.bound(call)
}

// sendRPCX sends the outcome of a call.
func (x *exchange) sendRPCX(q *rpcxRequest, e *yodel.Error) {
	meta := make(url.Values)
	for _, pair := range metakeys.Pairs(x.v, x.limits, rpcxwire.Obstacle) {
		meta.Set(pair[0], pair[1])
	}
	h := x.w.Header()
	if e == nil || len(meta) > 0 {
		h[rpcxMeta] = []string{meta.Encode()}
	}
	if e != nil {
		status := std.StatusInternalServerError
		if e.Code == yodel.Unauthenticated {
			status = std.StatusUnauthorized
		}
		x.refuseRPCX(status, rpcxwire.TextOf(x.session, x.v, q.path, q.method, q.serialize, e))
		return
	}
	h["Content-Type"] = []string{"text/plain; charset=utf-8"} // as rpcx, whatever the codec is
	h["X-Content-Type-Options"] = []string{"nosniff"}
	x.within(len(x.reply))
	if _, err := x.w.Write(x.reply); err != nil { //nolint:gosec // the reply of a method, which the client has asked for
		_ = x.v.Fail(err) // the client has gone
	}
}

// refuseRPCX sends an error, which is in headers.
func (x *exchange) refuseRPCX(status int, text string) {
	h := x.w.Header()
	h[rpcxStatus] = []string{"Error"}
	h[rpcxError] = []string{strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' ' // a header cannot have control characters
		}
		return r
	}, text)}
	x.w.WriteHeader(status)
}
