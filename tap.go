// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"cmp"
	"context"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is the built-in feed yodel.Tap, which sends the calls of a server while they end.

// tapped reports whether a tap is open, so that all calls are timed.
func (s *Server) tapped() bool { return s.live != nil && s.live.taps.Any() }

// caller returns the name of the caller, or its address.
func (c *serverCall) caller() string { return cmp.Or(c.as.caller, c.peer.Addr.String()) }

// tap shows a call that has ended to the open taps.
func (c *serverCall) tap(took time.Duration, code Code) {
	ended := &diagnose.Ended{Method: c.call.Method, Took: took, Failed: code != 0, Caller: c.caller}
	ended.Describe = func() introspect.Tapped { return c.describe(took, code) }
	c.server.live.taps.Show(ended, clock())
}

// describe describes the call for a tap.
func (c *serverCall) describe(took time.Duration, code Code) introspect.Tapped {
	call := &c.call
	traffic := call.Traffic()
	m := introspect.Tapped{
		At: time.Now().Round(0).UTC(), Method: shorten(call.Method, maxReportShort), Peer: c.caller(),
		In: traffic.BytesIn, Out: traffic.BytesOut, Trace: shorten(call.Trace, maxReportText),
	}
	if took != mux.Untimed {
		m.Took = took
	}
	if code != 0 {
		m.Code = code.String()
	}
	if c.err != nil {
		m.Message = shorten(asError(c.err).Message, maxReportText)
	}
	return m
}

// serveTap is the handler of yodel.Tap.
func (s *Server) serveTap(ctx context.Context, q *introspect.TapQuery, send Send[introspect.Tapped]) error {
	if s.live == nil {
		return failure("YDL3103", "yodel.Tap: this server does not share its diagnostics")
	}
	t, err := s.live.taps.Open(q)
	if err != nil {
		return Errorf(ResourceExhausted, "%d taps are open, which is the limit", diagnose.MaxTaps)
	}
	defer s.live.taps.Close(t)
	return t.Run(ctx, CallFrom(ctx).Draining(), send)
}
