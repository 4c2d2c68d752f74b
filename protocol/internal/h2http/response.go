// SPDX-License-Identifier: Apache-2.0

package h2http

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel/internal/h2"
)

// chunkSize is up to how many bytes of a response wait for more, or for the end of the handler. It
// is that of net/http.
const chunkSize = 4 << 10

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// A response is the http.ResponseWriter of a request.
type response struct {
	of      *Handler
	stream  *h2.Stream
	ctx     context.Context //nolint:containedctx // of the request
	head    bool            // the request has the method HEAD
	body    *body           // of the request
	header  http.Header
	wrote   bool       // WriteHeader was called
	sent    bool       // the header was sent
	ended   bool       // the header has ended the stream
	status  int        // of WriteHeader
	fields  []h2.Field // of the header, as it was when WriteHeader was called
	length  int64      // what content-length says, or -1
	dated   bool       // the header has Date, or must not have it
	typed   bool       // the same for Content-Type, which is also not guessed for a compressed body
	measure bool       // Content-Length may be added
	written int64
	chunk   *[chunkSize]byte // nil if nothing waits
	n       int              // how much of chunk waits
	trailer []string         // the canonical names of the trailer's fields
	over    bool             // the handler has returned
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(code int) {
	switch {
	case w.wrote:
		return
	case code < 100 || code > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", code)) // as net/http
	case code < 200:
		fields, _ := w.take(code)
		_ = w.stream.Inform(fields) // if it fails, so do later writes
		return
	}
	w.wrote, w.status = true, code
	fields, h := w.take(code)
	w.fields = fields
	_, w.dated = h["Date"]
	_, w.typed = h["Content-Type"]
	w.typed = w.typed || h.Get("Content-Encoding") != ""
	length, measured := h["Content-Length"]
	w.measure = !measured
	if len(length) > 0 {
		if n, err := strconv.ParseUint(length[0], 10, 63); err == nil {
			w.length = int64(n) // of 63 bits
			w.fields = append(w.fields, h2.Field{Name: "content-length", Value: length[0]})
		} else {
			w.measure = true
		}
	}
	for _, names := range h["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			w.announce(textproto.TrimString(name))
		}
	}
	if slices.Contains(h["Connection"], "close") {
		w.of.Drain()
	}
}

// take returns the fields of the header as it is now, except Content-Length.
func (w *response) take(code int) (fields []h2.Field, h http.Header) {
	h = w.header
	fields = append(make([]h2.Field, 0, len(h)+4), h2.Field{Name: ":status", Value: statusText(code)})
	for name, values := range h {
		if !strings.HasPrefix(name, http.TrailerPrefix) && name != "Content-Length" {
			fields = appendFields(fields, name, values)
		}
	}
	slices.SortStableFunc(fields[1:], func(a, b h2.Field) int { return strings.Compare(a.Name, b.Name) })
	return fields, h
}

func statusText(code int) string {
	if code == http.StatusOK {
		return "200"
	}
	return strconv.Itoa(code)
}

// announce adds a name to those of the trailer, if it may be there.
func (w *response) announce(name string) {
	switch name = canonical(strings.ToLower(name)); name {
	case "", "Transfer-Encoding", "Trailer", "Content-Length", "Connection": // RFC 9110, section 6.5.1
	default:
		if !slices.Contains(w.trailer, name) {
			w.trailer = append(w.trailer, name)
		}
	}
}

// goOn answers "Expect: 100-continue".
func (w *response) goOn() {
	_ = w.stream.Inform([]h2.Field{{Name: ":status", Value: "100"}}) // if it fails, the client knows more already
}

// hasBody reports whether a response with the status may have a body.
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

var errTooLong = errors.New("h2http: the handler has written more than Content-Length says")

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if err := w.begin(len(p)); err != nil {
		return 0, err
	}
	if len(p) > chunkSize-w.n {
		if err := w.flush(); err != nil {
			return 0, err
		}
		if len(p) >= chunkSize {
			return w.send(p)
		}
	}
	if len(p) > 0 {
		w.n += copy(w.room(), p)
	}
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (w *response) WriteString(s string) (int, error) {
	if len(s) > chunkSize-w.n {
		return w.Write([]byte(s))
	}
	if err := w.begin(len(s)); err != nil {
		return 0, err
	}
	if s != "" {
		w.n += copy(w.room(), s)
	}
	return len(s), nil
}

var errOver = errors.New("h2http: a write after the handler has returned")

// begin counts n bytes that the handler writes.
func (w *response) begin(n int) error {
	if w.over {
		return errOver
	}
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if !hasBody(w.status) {
		return http.ErrBodyNotAllowed
	}
	if w.written += int64(n); w.length >= 0 && w.written > w.length {
		return errTooLong
	}
	return nil
}

// room returns the rest of the chunk.
func (w *response) room() []byte {
	if w.chunk == nil {
		w.chunk = chunks.Get().(*[chunkSize]byte) //nolint:forcetypeassert // the pool holds nothing else
	}
	return w.chunk[w.n:]
}

// waiting returns the bytes that wait. They are valid until free.
func (w *response) waiting() []byte {
	if w.chunk == nil {
		return nil
	}
	return w.chunk[:w.n]
}

// free gives the chunk back.
func (w *response) free() {
	if w.chunk != nil {
		chunks.Put(w.chunk)
		w.chunk, w.n = nil, 0
	}
}

// flush sends what waits.
func (w *response) flush() error {
	if w.n == 0 {
		return nil
	}
	_, err := w.send(w.waiting())
	w.free()
	return err
}

// complete adds the fields to the header that the handler has not set. P is the beginning of the
// body, or all of it if the response is whole.
func (w *response) complete(p []byte, whole bool) []h2.Field {
	w.sent = true
	if hasBody(w.status) {
		if w.measure && whole && (len(p) > 0 || !w.head) {
			w.fields = append(w.fields, h2.Field{Name: "content-length", Value: strconv.Itoa(len(p))})
		}
		if !w.typed && len(p) > 0 {
			w.fields = append(w.fields, h2.Field{Name: "content-type", Value: http.DetectContentType(p), Form: h2.Repeated})
		}
	}
	if !w.dated {
		w.fields = append(w.fields, h2.Field{Name: "date", Value: w.of.date()})
	}
	return w.fields
}

// send sends the header, if it was not sent, and a part of the body.
func (w *response) send(p []byte) (int, error) {
	if !w.sent {
		if fields := w.complete(p, false); w.head {
			w.ended = true
			return len(p), w.stream.Reply(fields, nil, nil)
		} else if err := w.stream.Header(fields); err != nil {
			return 0, err
		}
	}
	if len(p) == 0 || w.head {
		return len(p), nil
	}
	return w.stream.Write(p)
}

// TryWrite writes and flushes a part of the body that consists of two pieces, and reports whether
// it has. It does nothing if the client does not take all of it at once, or if the header was not
// sent.
func (w *response) TryWrite(head, body []byte) bool {
	if !w.sent || w.n > 0 || w.head || w.over || w.length >= 0 || !w.stream.TryWrite(head, body) {
		return false
	}
	w.written += int64(len(head) + len(body))
	return true
}

// finish ends the response when the handler has returned.
func (w *response) finish() {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	p := w.waiting()
	w.over = true
	defer w.free()
	trailer := w.trailers()
	switch {
	case w.ended:
	case !w.sent && w.head:
		_ = w.stream.Reply(w.complete(p, true), nil, nil) // if it fails, the client has gone
	case !w.sent:
		_ = w.stream.Reply(w.complete(p, true), p, trailer) // as above
	default:
		if len(p) > 0 {
			if _, err := w.stream.Write(p); err != nil {
				return
			}
		}
		_ = w.stream.End(trailer) // as above
	}
}

// trailers returns the fields of the trailer.
func (w *response) trailers() (fields []h2.Field) {
	for name, values := range w.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			name = canonical(strings.ToLower(name))
			w.header[name] = values
			w.announce(name)
		}
	}
	if len(w.trailer) == 0 {
		return nil
	}
	slices.Sort(w.trailer)
	fields = make([]h2.Field, 0, len(w.trailer))
	for _, name := range w.trailer {
		fields = appendFields(fields, name, w.header[name])
	}
	return fields
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends what waits, and the header if there is nothing else.
func (w *response) FlushError() error {
	if w.over {
		return errOver
	}
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if w.n > 0 {
		return w.flush()
	}
	if _, err := w.send(nil); err != nil {
		return err
	}
	return w.stream.Err()
}

// SetReadDeadline is for http.ResponseController.
func (w *response) SetReadDeadline(at time.Time) error {
	w.stream.SetReadDeadline(at)
	return nil
}

// SetWriteDeadline is for http.ResponseController.
func (w *response) SetWriteDeadline(at time.Time) error {
	w.stream.SetWriteDeadline(at)
	return nil
}

// EnableFullDuplex is for http.ResponseController. HTTP/2 always has it.
func (*response) EnableFullDuplex() error { return nil }

// CloseNotify implements http.CloseNotifier, which old handlers use.
func (w *response) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}
