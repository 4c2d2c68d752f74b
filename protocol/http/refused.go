// SPDX-License-Identifier: Apache-2.0

package http

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// This file reads what is left of a request that the server has answered before its end. Without
// that, the stream of HTTP/2 is reset after the response, and some proxies then drop the response.
// In HTTP/1, net/http reads the rest itself, without a limit of time.

// Bounds of the rest of a request. What a client of HTTP/2 has sent without an answer is on the way
// already, and at most a window of flow control, which is 128 KiB on a port of the server and 1 MiB
// in net/http. A client that sends more, or waits for the response before it ends its request, gets
// the response and a reset.
const (
	mostRest = 1 << 20
	restTime = 100 * time.Millisecond
)

// A requestBody is the body of a request. It notices whether the body was read to its end.
type requestBody struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended.Store(true)
	}
	return n, err
}

// finish reads the rest of the request before the response ends, within mostRest and restTime. Only
// the first call has an effect.
func (x *exchange) finish() {
	if x.finished || x.body.ended.Load() || x.r.ContentLength == 0 || x.r.Context().Err() != nil {
		return
	}
	x.finished = true
	switch {
	case x.control.SetReadDeadline(time.Now().Add(restTime)) != nil:
		return // the wait would have no end
	case x.r.ProtoMajor == 1 && x.r.Header.Get("Expect") != "":
		return // reading would ask for a body that the client has not sent
	}
	_, err := io.CopyN(io.Discard, x.r.Body, mostRest)
	if errors.Is(err, io.EOF) {
		x.unpace()
	}
}
