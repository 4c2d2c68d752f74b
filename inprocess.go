// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"slices"

	"github.com/yodel-rpc/yodel/internal/expiry"
	"github.com/yodel-rpc/yodel/internal/isolate"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// This file executes calls that do not come from a connection of the server.

// Do executes call on this server, without a connection. A Server is a Caller so that tests,
// consoles and programs that are both client and server can call its methods like a client: the
// call passes through middleware and observers, is subject to the limits, and is counted and
// recorded. Arguments and reply are encoded in the call's codec, JSON by default, so that caller
// and handler share no memory. The context passes on its deadline and its cancellation, but no
// values. Do does not call ServerOptions.Connect. Streams fail with Unimplemented. Do may be called
// concurrently. Shutdown waits for the calls.
func (s *Server) Do(ctx context.Context, call *Call) error {
	if ctx == nil {
		return refusal("YDL2008", "%s: the context is nil", call.Method)
	}
	ctx = isolate.Context(ctx)
	if call.kind() != wire.Unary {
		return refusal("YDL2006", "%s: a server calls its own unary methods only, not streams", call.Method)
	}
	codec := call.Codec
	if codec == nil {
		codec = JSON
	}
	var body []byte
	as := &format{Codec: codec}
	_, f := as.Encode(&body, call.Method, call.Args, true)
	if f == nil {
		f = as.CheckReply(call.Method, call.Reply)
	}
	if f != nil {
		return faultError(f)
	}
	ses, err := s.enterLocal(call.Method)
	if err != nil {
		return err
	}
	defer s.conns.Forget(ses)
	v := ses.Begin(call.Method, codec, nil)
	defer v.End()
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // the handler's context has the same deadline
			v.Cancel()
		}
	})
	defer stop()
	handOver(call, v.Call())
	v.Call().Deadline = expiry.Earliest(ctx, call.Deadline)
	if e := v.Admit(len(body), true); e != nil {
		return e
	}
	v.Body, v.Several, v.Owned = body, several(call.Args), true
	e := v.Run()
	if e == nil {
		e = v.replyTo(call, as)
	}
	call.Trailer, call.ReplyAttachment = v.Call().Trailer, v.Call().ReplyAttachment
	if md := v.Call().Header(); md != nil {
		call.SetHeader(md)
	}
	if e != nil {
		return causedAtEnd(ctx, e)
	}
	return nil
}

// handOver copies the fields that a caller sets to the call that the server executes.
func handOver(c, to *Call) {
	to.Metadata, to.Attachment, to.Deadline = c.Metadata, slices.Clone(c.Attachment), c.Deadline
	to.OneWay, to.Key, to.IdempotencyKey = c.OneWay, c.Key, c.IdempotencyKey
	to.Criticality, to.Tenant, to.Trace, to.Explain, to.Attempt = c.Criticality, c.Tenant, c.Trace, c.Explain, c.Attempt
}

// replyTo decodes the reply of a call that succeeded into c.Reply, which may be nil.
func (v *Served) replyTo(c *Call, as *format) *Error {
	if c.OneWay || c.Reply == nil {
		return nil
	}
	body, _, e := v.AppendReply(nil)
	if e != nil {
		return e
	}
	if err := as.Fill(body, v.in.as.Positional, c.Reply); err != nil {
		return unfit(c, as, err)
	}
	return nil
}

// enterLocal returns the session of the calls of this process. While such a call is open, the
// session counts as a connection of the server.
func (s *Server) enterLocal(method string) (*Session, error) {
	ses := s.local()
	if !s.conns.Use(ses) {
		return nil, refusal("YDL3004", "%s: the server has been shut down", method)
	}
	return ses, nil
}

// ServeSession calls serve with a Session for requests that do not come from a connection of the
// server, for example those of an http.Server that other code runs. It returns when serve and the
// functions that serve passed to Session.Go have returned. Peer describes the client. Its Conn may
// be nil. The Session has no Conn and no Reader, and its methods Next, Write and AsConn must not be
// called. It counts as one of ServerOptions.MaxConns, and ServerOptions.Connect may refuse its
// first call.
//
// ServeSession fails, and does not call serve, after Shutdown was called, and while MaxConns
// connections are open. Shutdown closes Session.Draining and waits for serve. ServeSession may be
// called concurrently, and does not need Serve.
func (s *Server) ServeSession(peer *Peer, serve func(*Session)) error {
	if err := s.conns.Admit(); err != nil {
		return err
	}
	peer.requests = &s.calls
	ses := newSession(s, nil, peer)
	closing, err := s.conns.Enter(ses, nil)
	if err != nil {
		return err
	}
	defer s.conns.Forget(ses)
	defer ses.awaitCalls()
	if closing {
		return ErrServerClosed
	}
	serve(ses)
	return nil
}
