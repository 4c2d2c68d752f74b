// SPDX-License-Identifier: Apache-2.0

package h2http

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/h2"
)

// request returns the request of a stream, or nil if it is malformed.
func (h *Handler) request(w *response) *http.Request {
	s := w.stream
	header := headerOf(s.Fields)
	r := &http.Request{
		Method: s.Method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: s.Authority, RemoteAddr: h.Remote, RequestURI: s.Path, TLS: h.TLS,
	}
	if r.Host == "" {
		r.Host = header.Get("Host")
	}
	switch {
	case strings.Contains(r.Host, "@"): // RFC 9113, section 8.3.1
		return nil
	case s.Method == http.MethodConnect:
		r.URL, r.RequestURI = &url.URL{Host: r.Host}, r.Host
	case s.Scheme != "http" && s.Scheme != "https":
		return nil
	default:
		var err error
		if r.URL, err = url.ParseRequestURI(s.Path); err != nil {
			return nil
		}
	}
	if cookies := header["Cookie"]; len(cookies) > 1 {
		header["Cookie"] = []string{strings.Join(cookies, "; ")} // RFC 9113, section 8.2.3
	}
	r.Trailer = announced(header)
	w.head = s.Method == http.MethodHead
	b := &body{stream: s, to: w, trailer: r.Trailer, asks: takeContinue(header)}
	w.body = b
	if r.Body = b; s.Whole() && len(s.Body()) == 0 && s.Trailers() == nil {
		r.Body = http.NoBody
	} else {
		r.ContentLength = s.Length
	}
	return r.WithContext(w.ctx)
}

// headerOf returns the header that has these fields.
func headerOf(fields []h2.Field) http.Header {
	header := make(http.Header, len(fields))
	values := make([]string, len(fields)) // one allocation for all fields that occur once
	for i := range fields {
		name := canonical(fields[i].Name)
		if known, ok := header[name]; ok {
			header[name] = append(known, fields[i].Value)
			continue
		}
		values[i] = fields[i].Value
		header[name] = values[i : i+1 : i+1]
	}
	return header
}

// canonicalNames has the names of common fields of requests that package net/textproto allocates.
var canonicalNames = map[string]string{
	"te": "Te", "grpc-timeout": "Grpc-Timeout", "grpc-encoding": "Grpc-Encoding", "grpc-accept-encoding": "Grpc-Accept-Encoding",
	"connect-protocol-version": "Connect-Protocol-Version", "connect-timeout-ms": "Connect-Timeout-Ms", "origin": "Origin",
	"content-type": "Content-Type", "user-agent": "User-Agent", "accept": "Accept", "accept-encoding": "Accept-Encoding",
	"content-length": "Content-Length", "authorization": "Authorization", "traceparent": "Traceparent", "cookie": "Cookie",
}

func canonical(name string) string {
	if known, ok := canonicalNames[name]; ok {
		return known
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// announced returns the fields that the header Trailer of a request names, with no values yet, and
// removes that header.
func announced(header http.Header) http.Header {
	var trailer http.Header
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			switch name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); name {
			case "Transfer-Encoding", "Trailer", "Content-Length": // they cannot be in a trailer
			default:
				if trailer == nil {
					trailer = make(http.Header)
				}
				trailer[name] = nil
			}
		}
	}
	delete(header, "Trailer")
	return trailer
}

// takeContinue removes the header "Expect: 100-continue". It reports whether it was there.
func takeContinue(header http.Header) bool {
	for _, values := range header["Expect"] {
		for value := range strings.SplitSeq(values, ",") {
			if strings.EqualFold(strings.TrimSpace(value), "100-continue") {
				delete(header, "Expect")
				return true
			}
		}
	}
	return false
}

// A body is the body of a request.
type body struct {
	stream  *h2.Stream
	to      *response
	trailer http.Header // with the names that the request has announced
	asks    bool        // the client waits until the handler reads
	over    bool        // Read has returned io.EOF
	closed  atomic.Bool
}

var errClosed = errors.New("h2http: read of a body that was closed")

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.asks {
		b.asks = false
		b.to.goOn()
	}
	switch {
	case b.closed.Load():
		return 0, errClosed
	case b.over:
		return 0, io.EOF
	}
	n, err := b.stream.Read(p)
	if err == io.EOF { //nolint:errorlint // h2 returns it bare
		b.over = true
		for _, f := range b.stream.Trailers() {
			name := canonical(f.Name)
			if known, ok := b.trailer[name]; ok {
				b.trailer[name] = append(known, f.Value)
			}
		}
	}
	return n, err
}

// Close implements io.Closer. It may be called during a Read, which goes on.
func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}
