// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	std "net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// A kind is a protocol with envelopes, which the content type of a request names.
type kind struct {
	title            string // what people call it
	media            string // the content type, as the response has it
	codec            string // yodel's name
	encoding, accept string // the headers for compressions
	bare             bool   // a response has only the headers of the protocol and of the method
	serve            func(*exchange, kind)
}

// kindOf returns the protocol of a request. Its serve is nil for protocols without envelopes.
func kindOf(r *std.Request) kind {
	media := httpwire.ContentType(r.Header.Get("Content-Type"))
	for _, family := range [...]struct {
		title, prefix, encoding, accept string
		serve                           func(*exchange, kind)
	}{
		{"gRPC-Web", "application/grpc-web-text", "Grpc-Encoding", "Grpc-Accept-Encoding", (*exchange).serveWebText},
		{"gRPC-Web", "application/grpc-web", "Grpc-Encoding", "Grpc-Accept-Encoding", (*exchange).serveWeb},
		{"gRPC", "application/grpc", "Grpc-Encoding", "Grpc-Accept-Encoding", (*exchange).serveGRPC},
		{"Connect", "application/connect+", "Connect-Content-Encoding", "Connect-Accept-Encoding", (*exchange).serveConnect},
	} {
		subtype, ok := strings.CutPrefix(media, family.prefix)
		if ok && (subtype == "" || subtype[0] == '+' || strings.HasSuffix(family.prefix, "+")) {
			codec := httpwire.Codec(strings.TrimPrefix(subtype, "+"))
			return kind{family.title, media, codec, family.encoding, family.accept, family.title == "gRPC", family.serve}
		}
	}
	return kind{}
}

// serveGRPC serves a call by gRPC, as described in its document PROTOCOL-HTTP2.
func (x *exchange) serveGRPC(k kind) {
	if x.r.ProtoMajor < 2 {
		x.reject(std.StatusHTTPVersionNotSupported, "", "gRPC needs HTTP/2")
		return
	}
	x.serveCall(k, x.r.Body, x.w, false)
}

// serveWeb serves a call by gRPC-Web, as described in its document PROTOCOL-WEB.
func (x *exchange) serveWeb(k kind) { x.serveCall(k, x.r.Body, x.w, true) }

// serveWebText is serveWeb for the variant in base64.
func (x *exchange) serveWebText(k kind) {
	x.serveCall(k, &textReader{from: x.r.Body}, textWriter{x.w}, true)
}

// A textReader decodes base64 of several parts, each of which may end with padding.
type textReader struct {
	from    io.Reader
	chars   [1 << 10]byte
	n       int // of chars
	decoded []byte
	memory  [3 << 8]byte // of decoded
}

// Read implements io.Reader.
func (r *textReader) Read(p []byte) (int, error) {
	for len(r.decoded) == 0 {
		n, err := r.from.Read(r.chars[r.n:])
		for _, c := range r.chars[r.n : r.n+n] {
			if c != '\r' && c != '\n' {
				r.chars[r.n] = c
				r.n++
			}
		}
		if whole := r.n &^ 3; whole > 0 {
			part := r.chars[:whole]
			if end := bytes.IndexByte(part, '='); end >= 0 {
				part = part[:end&^3+4]
			}
			n, wrong := base64.StdEncoding.Decode(r.memory[:], part)
			if wrong != nil {
				return 0, yodel.Errorf(yodel.InvalidArgument, "the request is not base64: %w", errMalformed)
			}
			r.decoded, r.n = r.memory[:n], copy(r.chars[:], r.chars[len(part):r.n])
		} else if err != nil {
			if errors.Is(err, io.EOF) && r.n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
	}
	n := copy(p, r.decoded)
	r.decoded = r.decoded[n:]
	return n, nil
}

// A textWriter encodes each Write as base64 by itself, as gRPC-Web allows it.
type textWriter struct{ io.Writer }

func (w textWriter) Write(b []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, base64.StdEncoding.EncodeToString(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (x *exchange) serveCall(k kind, in io.Reader, out io.Writer, web bool) {
	st, e := x.open(k, in, out)
	defer st.close()
	if x.passOn(func(e *yodel.Error) { st.endGRPC(e, web) }) {
		return
	}
	timeout, err := httpwire.ParseTimeout(x.r.Header.Get("Grpc-Timeout"))
	if x.limit(timeout); e == nil && err != nil {
		e = yodel.Errorf(yodel.Internal, "%s: the header grpc-timeout is malformed", x.v.Call().Method)
	}
	if e == nil {
		e = st.execute()
	}
	st.endGRPC(e, web)
}

// methodOf returns the name of the method that a request of gRPC or gRPC-Web calls: its path as the
// client sent it, as in grpc-go.
func methodOf(u *url.URL) string {
	path := cmp.Or(u.RawPath, u.Path)
	if u.Host != "" {
		path = u.Scheme + "://" + u.Host + path
	}
	if u.RawQuery != "" || u.ForceQuery {
		path += "?" + u.RawQuery
	}
	return strings.TrimPrefix(path, "/")
}

// namedBy returns the name of the method that a request of another protocol calls: its decoded
// path. If the path has escapes that it does not need, namedBy returns the path as the client sent
// it, which names no method: a proxy that decides by the path may read another one than the server.
func namedBy(u *url.URL) string {
	needed := url.URL{Path: u.Path}
	if path := u.RawPath; path != "" && !strings.EqualFold(path, needed.EscapedPath()) {
		return strings.TrimPrefix(path, "/")
	}
	return strings.TrimPrefix(u.Path, "/")
}

// errMalformed is the cause of the error of a request that is not in the form of its protocol.
var errMalformed = errors.New("the request is malformed")

// isUnreadable reports whether e says that the server cannot read or decode the request. Such an
// error has the code Internal in gRPC, and InvalidArgument in other protocols.
func isUnreadable(e *yodel.Error) bool {
	return e.Code == yodel.InvalidArgument && (e.AboutMessage() || errors.Is(e, errMalformed))
}

// setStatus sets the trailer and the outcome of a call of gRPC, with a prefix before each name.
func (x *exchange) setStatus(h std.Header, prefix string, e *yodel.Error) {
	x.setMetadata(x.v, h, prefix, x.v.Call().Trailer)
	if e == nil {
		h[prefix+"Grpc-Status"] = []string{"0"}
	} else {
		sent := *e
		if isUnreadable(e) {
			sent.Code = yodel.Internal
		}
		h[prefix+"Grpc-Status"] = []string{strconv.Itoa(int(sent.Code))}
		h[prefix+"Grpc-Message"] = []string{httpwire.EscapeMessage(e.Message)}
		if len(e.Details) > 0 {
			h[prefix+"Grpc-Status-Details-Bin"] = []string{base64.RawStdEncoding.EncodeToString(httpwire.AppendStatus(nil, &sent))}
		}
		httpwire.SetError(h, prefix, e, sent.Code)
	}
}

// endGRPC writes the status and the trailer of the response. In gRPC-Web they are the last message,
// because neither HTTP/1.1 nor a browser's fetch passes trailers on.
//
// If gRPC has sent neither a message nor a header, the response is Trailers-Only: one HEADERS frame
// that ends the stream. Only such a response lets a client of gRPC repeat the call, because headers
// commit it (gRFC A6).
func (st *stream) endGRPC(e *yodel.Error, web bool) {
	if call := st.v.Call(); web || len(call.Header()) > 0 {
		st.start()
	}
	prefix, h := std.TrailerPrefix, st.w.Header()
	switch {
	case web:
		prefix, h = "", make(std.Header)
	case !st.begun:
		prefix = "" // without trailers and without a body, net/http sends one frame
		st.describe()
	}
	st.setStatus(h, prefix, e)
	st.allow(0)
	if web {
		var lines strings.Builder
		for name, values := range h {
			for _, value := range values {
				fmt.Fprintf(&lines, "%s: %s\r\n", strings.ToLower(name), value)
			}
		}
		_ = st.write(httpwire.FlagTrailer, []byte(lines.String())) // if it fails, the client has gone
	}
}
