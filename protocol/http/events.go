// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// acceptsEvents reports whether the client wants server-sent events.
func (x *exchange) acceptsEvents() bool {
	for part := range strings.SplitSeq(x.r.Header.Get("Accept"), ",") {
		if httpwire.ContentType(part) == "text/event-stream" {
			return true
		}
	}
	return false
}

// An events is a feed as server-sent events, as the HTML standard describes them: each message is
// the data of an event. The last event is "end" or "error". Its data is the last message of a
// stream by Connect.
type events struct {
	*exchange
	begun bool
}

// serveEvents serves a feed in JSON as server-sent events.
func (x *exchange) serveEvents(e *yodel.Error) {
	st := &events{exchange: x}
	timeout, wrong := x.connectTimeout()
	x.limit(timeout)
	x.v.Compressed, x.v.Plain = x.compressed, true
	if e == nil {
		e = wrong
	}
	if e == nil {
		e = x.source()
	}
	if e == nil {
		x.v.Compressed = x.v.Compressed && len(x.v.Body) > 0
		x.v.Stream = st
		e = x.run(false)
	}
	if e != nil && !st.begun {
		x.sendUnary("json", e)
		return
	}
	st.start()
	name := "end"
	if e != nil {
		name = "error"
	}
	data := x.lastMessage(e)
	x.within(len(data))
	_, _ = fmt.Fprintf(x.w, "event: %s\ndata: %s\n\n", name, data) //nolint:gosec // an event stream, not HTML; if it fails, the client has gone
}

// start writes the header of the response, once.
func (st *events) start() {
	if st.begun {
		return
	}
	st.begun = true
	h := st.w.Header()
	h["Content-Type"], h["Cache-Control"] = []string{"text/event-stream"}, []string{"no-store"}
	h["X-Accel-Buffering"] = []string{"no"} // nginx would hold events back until it has several KiB of them
	st.setHeader("", st.v.Call().Header())
}

// SendHeader sends the header of the response at once.
func (st *events) SendHeader() error {
	st.start()
	return st.control.Flush()
}

// lines makes a JSON text data of an event. JSON may have line breaks outside of strings only, so
// that each of them may become another one.
var lines = strings.NewReplacer("\r\n", "\ndata: ", "\r", "\ndata: ", "\n", "\ndata: ")

// Send implements yodel.Messages.
func (st *events) Send(ctx context.Context, body []byte, _ bool) error {
	st.start()
	defer st.until(ctx, st.control.SetWriteDeadline)()
	_, err := fmt.Fprintf(st.w, "data: %s\n\n", lines.Replace(string(body)))
	if err == nil {
		err = st.control.Flush()
	}
	if err != nil {
		return ended(ctx, err)
	}
	return nil
}

// Receive implements yodel.Messages. A feed has no messages from the client.
func (*events) Receive(ctx context.Context) ([]byte, bool, error) {
	<-ctx.Done()
	return nil, false, context.Cause(ctx)
}

// End implements yodel.Messages.
func (*events) End() {}
