// SPDX-License-Identifier: Apache-2.0

// Package auth lets in callers that have a valid token, for each call or once for each connection.
//
// For each call, the client puts a token into the metadata (Token, TokenFunc) and the server looks
// at it (Check). Check belongs outermost: whatever stands above it also runs for strangers. It sees
// a call before the body is decoded, and whether or not the method exists, so that a stranger can
// neither feed a decoder nor learn the names of methods. It covers the built-in methods like any
// other.
//
// For each connection, which costs the calls nothing, the client sends the token when it connects
// (ConnToken) and the server looks at it then (Conn). Every call on the connection has the rights
// of that token, until the connection ends.
//
// The token is a secret that travels as it is: use it over TLS. It stands under the key
// "authorization", bare or behind the word Bearer, as HTTP and gRPC write it. This package writes
// it neither into an error nor into a log.
package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// key is where a token stands in metadata.
const key = "authorization"

// Check makes a server ask check about every call. The context that check returns, with whatever it
// learned of the caller, is the method's; nil stands for the one that it was given. Methods in
// exempt are open to everybody, for example "yodel.Health".
//
// A call without a token fails with Unauthenticated (YDL3101) and check is not asked. An error of
// check's with a code goes to the caller with its code and message; of any other the caller learns
// nothing but PermissionDenied (YDL3102). All of them say that the call was not executed.
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
			if known != nil {
				ctx = known
			}
			return next(ctx, call)
		}
	}
}

// Conn returns a function for yodel.ServerOptions.Connect that asks check about every connection.
// Its errors are those of Check, and every call on the connection fails with them.
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

// Token makes a client send token with every call. A call that has one keeps it.
//
// It allocates nothing for a call without metadata of its own: the map with the token is used again
// by later calls, unless somebody below has changed it.
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

// lone is maps with a token and nothing else, to be used again.
type lone struct {
	token string
	maps  sync.Pool
}

func (l *lone) take() yodel.Metadata {
	return l.maps.Get().(yodel.Metadata) //nolint:forcetypeassert // the pool holds nothing else
}

// giveBack is kept out of the handler, as what it needs of the stack would stand under the whole
// call.
//
//go:noinline
func (l *lone) giveBack(md yodel.Metadata) {
	if len(md) == 1 && md[key] == l.token {
		l.maps.Put(md)
	}
}

// TokenFunc makes a client send with every call what token returns, which is called for each,
// concurrently. When it fails, the call does, and is not sent. A call that has a token keeps it.
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
			md := make(yodel.Metadata, len(users)+1) // the user's is not changed, and what is below may change this one
			maps.Copy(md, users)
			md[key] = t
			call.Metadata = md
			err = next(ctx, call)
			call.Metadata = users
			return err
		}
	}
}

// ConnToken is for yodel.ClientOptions.ConnMetadata: it sends token when the client connects.
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

// refused is what the caller gets when check returned err.
func refused(err error, token, what string) *yodel.Error {
	e := &yodel.Error{Code: yodel.PermissionDenied, Message: what}
	if own, ok := errors.AsType[*yodel.Error](err); ok {
		*e = *own
		e.Message = strings.ReplaceAll(e.Message, token, "…")
	} else if code, ok := errors.AsType[yodel.Code](err); ok {
		e.Code = code
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

// unobtained is the error of a call whose token could not be had.
func unobtained(method string, err error) *yodel.Error {
	e := &yodel.Error{Code: yodel.CodeOf(err), ID: "YDL3101", NotProcessed: true, Cause: err}
	e.Message = method + ": no token to send: " + err.Error()
	if e.Code == yodel.Unknown {
		e.Code = yodel.Unauthenticated
	}
	if e.Code != yodel.Unauthenticated {
		e.ID = "" // of another situation
	}
	return e
}
