// SPDX-License-Identifier: Apache-2.0

// Package auth admits callers that have a valid token, for each call or once for each connection.
//
// For each call, the client adds a token to the metadata (Token, TokenFunc) and the server verifies
// it (Check). Put Check outermost, because middleware above it also runs for unauthenticated
// callers. It sees a call before the body is decoded, and whether or not the method exists. So an
// unauthenticated caller can neither reach a decoder nor learn the names of methods. It covers the
// built-in methods too.
//
// For each connection, which costs calls nothing, the client sends the token when it connects
// (ConnToken) and the server verifies it then (Conn). Every call on the connection has the rights
// of that token, until the connection ends.
//
// A check function says who the caller is with WithIdentity. Handlers and other middleware get it
// with IdentityFrom. Certificate does the same for clients with TLS certificates.
//
// The token is sent in plain text, so use TLS. Its metadata key is "authorization". Its value is
// the token alone, or the word Bearer and the token, as in HTTP and gRPC. This package never writes
// the token into an error or a log.
package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/grpcstatus"
)

// key is the metadata key of the token.
const key = "authorization"

// Check makes a server call check for every call. The method gets the context that check returns,
// which carries the identity of the caller: see WithIdentity. If check returns a nil context, the
// method gets the original one. Methods in exempt are open to everyone, for example "yodel.Health".
//
// A call without a token fails with Unauthenticated (YDL3101), and check is not called. If check
// returns an error with a code, the caller gets its code and message. For any other error the
// caller gets only PermissionDenied (YDL3102). All these errors say that the call was not executed.
func Check(check func(ctx context.Context, method, token string) (context.Context, error), exempt ...string) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if slices.Contains(exempt, call.Method) {
				return next(ctx, call)
			}
			token := tokenIn(call.Metadata)
			if token == "" {
				return missing(call.Method + ": the call has no token")
			}
			known, err := check(ctx, call.Method, token)
			if err != nil {
				return refused(err, token, call.Method+": the token is not accepted")
			}
			return next(adopt(ctx, known, call), call)
		}
	}
}

// Conn returns a function for yodel.ServerOptions.Connect that calls check for every connection.
// Its errors are those of Check. If check fails, every call on the connection fails with its error.
func Conn(check func(ctx context.Context, peer *yodel.Peer, token string) error) func(context.Context, *yodel.Peer) error {
	return func(ctx context.Context, peer *yodel.Peer) error {
		token := tokenIn(peer.Metadata)
		if token == "" {
			return missing("the connection has no token")
		}
		if err := check(ctx, peer, token); err != nil {
			return refused(err, token, "the token is not accepted")
		}
		return nil
	}
}

// Token makes a client send token with every call. A call that has a token already keeps it.
//
// It allocates nothing for a call without metadata of its own: later calls reuse the map with the
// token, unless other middleware has changed it.
func Token(token string) yodel.Middleware {
	others := TokenFunc(func(context.Context) (string, error) { return token, nil })
	unused := &lone{token: token, maps: sync.Pool{New: func() any { return yodel.Metadata{key: token} }}}
	return func(next yodel.Handler) yodel.Handler {
		withMetadata := others(next)
		return func(ctx context.Context, call *yodel.Call) error {
			if len(call.Metadata) > 0 || token == "" {
				return withMetadata(ctx, call)
			}
			users := call.Metadata
			md := unused.take()
			call.Metadata = md
			err := next(ctx, call)
			call.Metadata = users
			unused.giveBack(md)
			return err
		}
	}
}

// lone holds maps with only a token, for reuse.
type lone struct {
	token string
	maps  sync.Pool
}

func (l *lone) take() yodel.Metadata {
	return l.maps.Get().(yodel.Metadata) //nolint:forcetypeassert // the pool holds nothing else
}

// giveBack is not inlined into the handler, because its stack frame would then stay in use during
// the whole call.
//
//go:noinline
func (l *lone) giveBack(md yodel.Metadata) {
	if len(md) == 1 && md[key] == l.token {
		l.maps.Put(md)
	}
}

// TokenFunc makes a client send the result of token with every call. Token is called for each call,
// concurrently. If it fails, the call fails and is not sent. A call that has a token already keeps
// it.
func TokenFunc(token func(ctx context.Context) (string, error)) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			users := call.Metadata
			if users[key] != "" {
				return next(ctx, call)
			}
			t, err := token(ctx)
			if err != nil {
				return unobtained(call.Method, err)
			}
			// the user's map is not changed, and middleware below may change this one
			md := make(yodel.Metadata, len(users)+1)
			maps.Copy(md, users)
			md[key] = t
			call.Metadata = md
			err = next(ctx, call)
			call.Metadata = users
			return err
		}
	}
}

// ConnToken is for yodel.ClientOptions.ConnMetadata: the client sends token when it connects.
func ConnToken(token string) yodel.Metadata { return yodel.Metadata{key: token} }

// tokenIn returns the token in md, or "".
func tokenIn(md yodel.Metadata) string {
	const scheme = "Bearer "
	token := md[key]
	if len(token) >= len(scheme) && (token[:len(scheme)] == scheme || strings.EqualFold(token[:len(scheme)], scheme)) {
		token = token[len(scheme):]
	}
	return token
}

func missing(what string) *yodel.Error {
	return &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: what, NotProcessed: true}
}

// refused returns the caller's error for an error of check.
func refused(err error, token, what string) *yodel.Error {
	e := &yodel.Error{Code: yodel.PermissionDenied, Message: what}
	if own, ok := errors.AsType[*yodel.Error](err); ok {
		*e = *own
		e.Message = without(token, e.Message)
	} else if code, ok := errors.AsType[yodel.Code](err); ok {
		e.Code = code
	} else if st := grpcstatus.Of(err); st != nil {
		e.Code, e.Message = yodel.Code(st.Code), without(token, st.Message)
		st.Details(func(name string, value []byte) { e.Details = append(e.Details, yodel.Detail{Type: name, Value: value}) })
	}
	switch {
	case e.ID != "":
	case e.Code == yodel.Unauthenticated:
		e.ID = "YDL3101"
	case e.Code == yodel.PermissionDenied:
		e.ID = "YDL3102"
	}
	e.NotProcessed, e.Cause = true, err
	return e
}

// without returns text with … in place of a token. There may be no token.
func without(token, text string) string {
	if token == "" {
		return text
	}
	return strings.ReplaceAll(text, token, "…")
}

// unobtained returns the error of a call for which no token could be obtained.
func unobtained(method string, err error) *yodel.Error {
	e := &yodel.Error{Code: yodel.CodeOf(err), ID: "YDL3101", NotProcessed: true, Cause: err}
	e.Message = method + ": no token to send: " + err.Error()
	if e.Code == yodel.Unknown {
		e.Code = yodel.Unauthenticated
	}
	if e.Code != yodel.Unauthenticated {
		e.ID = "" // the ID belongs to another situation
	}
	return e
}
