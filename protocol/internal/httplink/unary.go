// SPDX-License-Identifier: Apache-2.0

package httplink

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
	"github.com/yodel-rpc/yodel/protocol/internal/linkerror"
)

// DoUnary makes one attempt of a unary call by Connect, as yodel.Link describes it. If get is set,
// it sends a GET request.
func (l *Link) DoUnary(ctx context.Context, call *yodel.Call, get bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x, err := l.newExchange(ctx, call, httpwire.Connect)
	if err != nil {
		return err
	}
	x.header["Connect-Protocol-Version"] = []string{"1"}
	if x.encoding != "" {
		x.header["Accept-Encoding"] = []string{x.encoding}
	}
	args, compressed, err := call.AppendArgs(nil)
	if err != nil {
		return err
	}
	if err := x.begin(); err != nil {
		return err
	}
	defer l.finish()
	if d := x.left(); d > 0 {
		x.header["Connect-Timeout-Ms"] = []string{httpwire.Millis(d)}
	}
	response, err := x.sendUnary(args, compressed, get) //nolint:contextcheck // the exchange has the context
	if err != nil {
		return err
	}
	defer response.Body.Close()  // it was read
	return x.takeUnary(response) //nolint:contextcheck // the call has the context
}

// sendUnary sends the request.
func (x *exchange) sendUnary(args []byte, compressed, get bool) (*http.Response, error) {
	if get {
		at := x.url()
		at.RawQuery = "connect=v1&base64=1" // in the order that caches prefer
		if compressed {
			at.RawQuery += "&compression=" + url.QueryEscape(x.encoding)
		}
		at.RawQuery += "&encoding=" + url.QueryEscape(x.subtype) + "&message=" + base64.RawURLEncoding.EncodeToString(args)
		delete(x.header, "Connect-Protocol-Version") // it is in the query
		return x.send(http.MethodGet, at, nil)
	}
	x.header["Content-Type"] = []string{"application/" + x.subtype}
	if compressed {
		x.header["Content-Encoding"] = []string{x.encoding}
	}
	return x.send(http.MethodPost, x.url(), bytes.NewReader(args))
}

// takeUnary reads the response.
func (x *exchange) takeUnary(response *http.Response) error {
	h, call := response.Header, x.call
	header := httpwire.Connect.Metadata(h)
	for key := range header {
		if strings.HasPrefix(key, trailerPrefix) {
			delete(header, key)
		}
	}
	if len(header) > 0 {
		call.SetHeader(header)
	}
	if trailer := httpwire.Connect.Prefixed(h, trailerPrefix); len(trailer) > 0 {
		call.Trailer = trailer
	}
	body, err := x.readAll(response.Body)
	defer func() { x.link.ep.Release(cap(body)) }()
	if err != nil {
		return err
	}
	sent := h.Get("Content-Encoding")
	if sent == "identity" {
		sent = ""
	}
	if sent != "" && sent != x.encoding {
		return yodel.Errorf(yodel.Internal, "%s: the reply has the compression %.40q, which the client does not accept", call.Method, sent)
	}
	media := httpwire.ContentType(h.Get("Content-Type"))
	if response.StatusCode != http.StatusOK {
		return x.unaryError(response, media, body, sent)
	}
	subtype, ok := strings.CutPrefix(media, "application/")
	switch {
	case !ok || httpwire.Codec(subtype) != httpwire.Codec(x.subtype) && call.Kind() == "unary" && !isCodec(subtype):
		return yodel.Errorf(yodel.Unknown, "%s: the reply has the content type %.60q", call.Method, media)
	case httpwire.Codec(subtype) != httpwire.Codec(x.subtype):
		return yodel.Errorf(yodel.Internal, "%s: the reply has the content type %.60q", call.Method, media)
	}
	return call.TakeReply(body, sent != "" && len(body) > 0)
}

// isCodec reports whether a content type names one of the codecs that Connect describes.
func isCodec(subtype string) bool { return subtype == "proto" || subtype == "json" }

const trailerPrefix = "trailer-"

// readAll reads the body of a response. Its memory grows as the bytes arrive. The caller releases
// the capacity of the result, also if there is an error.
func (x *exchange) readAll(from io.Reader) (b []byte, err error) {
	most, ep := x.link.Limits.MaxMessage, x.link.ep
	for {
		if len(b) == cap(b) {
			size := max(2*cap(b), 4<<10)
			if !ep.Reserve(size) {
				return b, linkerror.NoMemory(ep.Addr())
			}
			old := cap(b)
			b = append(make([]byte, 0, size), b...)
			ep.Release(old)
		}
		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b) > most:
			return b, linkerror.LargeReply(x.call.Method, ep.Addr(), fmt.Sprintf("more than %d", most), most)
		case err == io.EOF:
			return b, nil
		case err != nil:
			return b, x.failed(err)
		}
	}
}

// maxReason is how much of the text in a response becomes a part of an error, in bytes. MaxStatus
// is how much of the body is read for it.
const (
	maxReason = 120
	maxStatus = 1 << 10
)

// statusError returns the error for a status of HTTP. If the body is a text, the error has its
// first line, and if it is an error in JSON, its message. A server that does not take the content
// type has not executed the call. If it says which ones it takes, it does not have the codec.
// Otherwise the specifications ask for Unknown.
func statusError(call *yodel.Call, response *http.Response, body []byte) *yodel.Error {
	e := yodel.Errorf(httpwire.CodeOf(response.StatusCode), "%s: the server answered with HTTP status %.60s", call.Method, response.Status)
	reason := ""
	switch httpwire.ContentType(response.Header.Get("Content-Type")) {
	case "text/plain":
		reason, _, _ = strings.Cut(string(body), "\n")
	case "application/json":
		var said httpwire.JSONError
		_ = json.Unmarshal(body, &said) // without it, the status says what is known
		reason = said.Message
	}
	if reason = strings.TrimSpace(reason[:min(len(reason), maxReason)]); reason != "" {
		e.Message += ": " + strings.ToValidUTF8(reason, "\uFFFD")
	}
	if response.StatusCode == http.StatusUnsupportedMediaType {
		e.NotProcessed = true
		if response.Header.Get("Accept-Post") != "" {
			e.Code, e.ID = yodel.Unimplemented, "YDL2003"
		}
	}
	return e
}

// maxError is the largest size of an error in JSON after decompression, in bytes.
const maxError = 64 << 10

// unaryError returns the error of a response.
func (x *exchange) unaryError(response *http.Response, media string, body []byte, encoding string) error {
	if encoding != "" {
		var err error
		if body, err = x.call.Compressing().Decompress(nil, body, maxError); err != nil {
			body = nil // the status says what is known
		}
	}
	e := statusError(x.call, response, body)
	refused, id := e.NotProcessed, e.ID
	var said httpwire.JSONError
	if media == "application/json" && json.Unmarshal(body, &said) == nil {
		if told, ok := said.Err(); ok {
			if e.ID != "" { // the server does not have the codec: its code is only that of the status
				told.Code = e.Code
			}
			e = told
		} else if said.Message != "" {
			e.Message = said.Message
		}
	}
	httpwire.GetError(response.Header, e)
	e.NotProcessed, e.ID = e.NotProcessed || refused, cmp.Or(e.ID, id)
	return e
}
