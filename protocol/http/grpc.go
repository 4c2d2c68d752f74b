// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/base64"
	"fmt"
	"io"
	std "net/http"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// A kind is a protocol with envelopes, which the content type of a request names.
type kind struct {
	media string // the content type, as the response has it
	codec string // yodel's name
	serve func(*exchange, kind)
}

// kindOf returns the protocol of a request. Its serve is nil for protocols without envelopes.
func kindOf(r *std.Request) kind {
	media := httpwire.ContentType(r.Header.Get("Content-Type"))
	for _, family := range [...]struct {
		prefix string
		serve  func(*exchange, kind)
	}{
		{"application/grpc-web-text", (*exchange).serveWebText},
		{"application/grpc-web", (*exchange).serveWeb},
		{"application/grpc", (*exchange).serveGRPC},
		{"application/connect+", (*exchange).serveConnect},
	} {
		subtype, ok := strings.CutPrefix(media, family.prefix)
		if ok && (subtype == "" || subtype[0] == '+' || strings.HasSuffix(family.prefix, "+")) {
			return kind{media, httpwire.Codec(strings.TrimPrefix(subtype, "+")), family.serve}
		}
	}
	return kind{}
}

// A grpcCall is a call by gRPC or gRPC-Web.
type grpcCall struct {
	*stream
	kind kind
	web  bool
}

// serveGRPC serves a call by gRPC, as described in its document PROTOCOL-HTTP2.
func (x *exchange) serveGRPC(k kind) {
	if x.r.ProtoMajor < 2 {
		std.Error(x.w, "gRPC needs HTTP/2", std.StatusHTTPVersionNotSupported)
		return
	}
	x.serveCall(k, x.r.Body, x.w, false)
}

// serveWeb serves a call by gRPC-Web, as described in its document PROTOCOL-WEB.
func (x *exchange) serveWeb(k kind) { x.serveCall(k, x.r.Body, x.w, true) }

// serveWebText is serveWeb for the variant in base64.
func (x *exchange) serveWebText(k kind) {
	x.serveCall(k, base64.NewDecoder(base64.StdEncoding, x.r.Body), textWriter{x.w}, true)
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
	codec := x.session.Codec(k.codec)
	if codec == nil {
		std.Error(x.w, "the server does not have the codec of "+k.media, std.StatusUnsupportedMediaType)
		return
	}
	h := x.r.Header
	plain, e := x.negotiate(h.Get("Grpc-Encoding"), h.Get("Grpc-Accept-Encoding"))
	if refused := x.begin(codec); e == nil {
		e = refused
	}
	defer x.end()
	x.v.Plain = plain
	g := &grpcCall{kind: k, web: web}
	g.stream = x.newStream(in, out, g.head)
	defer g.close()
	timeout, err := httpwire.ParseTimeout(h.Get("Grpc-Timeout"))
	if x.limit(timeout); e == nil && err != nil {
		e = yodel.Errorf(yodel.InvalidArgument, "%s: the header grpc-timeout is malformed", x.v.Call().Method)
	}
	if e == nil {
		e = g.execute()
	}
	g.finish(e)
}

// head writes the header of the response.
func (g *grpcCall) head() error {
	h := g.w.Header()
	if err := g.setHeader("", g.v.Call().Header()); err != nil {
		return err
	}
	h["Content-Type"] = []string{g.kind.media}
	if g.compressor != nil {
		h["Grpc-Encoding"] = []string{g.encoding()}
	}
	if all := g.compressions(); all != "" {
		h["Grpc-Accept-Encoding"] = []string{all}
	}
	return nil
}

// finish writes the trailer of the response.
func (g *grpcCall) finish(e *yodel.Error) {
	if err := g.start(); err != nil && e == nil {
		e = g.v.Fail(err)
	}
	prefix, h := std.TrailerPrefix, g.w.Header()
	if g.web {
		prefix, h = "", make(std.Header)
	}
	if err := g.setMetadata(h, prefix, g.v.Call().Trailer); err != nil && e == nil {
		e = g.v.Fail(err)
	}
	if e == nil {
		h[prefix+"Grpc-Status"] = []string{"0"}
	} else {
		h[prefix+"Grpc-Status"] = []string{fmt.Sprint(uint8(e.Code))}
		h[prefix+"Grpc-Message"] = []string{httpwire.EscapeMessage(e.Message)}
		if len(e.Details) > 0 {
			h[prefix+"Grpc-Status-Details-Bin"] = []string{base64.RawStdEncoding.EncodeToString(httpwire.AppendStatus(nil, e))}
		}
		httpwire.SetError(h, prefix, e)
	}
	_ = g.control.SetWriteDeadline(g.allowed(0))
	if g.web {
		var lines strings.Builder
		for name, values := range h {
			fmt.Fprintf(&lines, "%s: %s\r\n", strings.ToLower(name), values[0])
		}
		_ = g.write(httpwire.FlagTrailer, []byte(lines.String())) // if it fails, the client has gone
	}
}
