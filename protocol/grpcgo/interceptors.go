// SPDX-License-Identifier: Apache-2.0

package grpcgo

import (
	"context"
	"reflect"
	"strings"

	"google.golang.org/grpc"

	"github.com/yodel-rpc/yodel"
)

// Unary returns middleware of a server that runs an interceptor of grpc-go in unary calls. Streams
// pass it. As in grpc-go, the request is decoded first. It is nil if other code has registered the
// method with Server.HandleCall. UnaryServerInfo.Server is nil.
//
// The middleware runs for all methods of the server, in all protocols. The full method of one that
// was not registered by Registrar is a slash and its name, such as "/Arith.Mul".
func Unary(intercept grpc.UnaryServerInterceptor) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Streams() {
				return next(ctx, call)
			}
			t := newTransport(ctx, call)
			if err := t.decodeRequest(); err != nil {
				return err
			}
			var passed failure
			info := &grpc.UnaryServerInfo{FullMethod: t.Method()}
			reply, err := intercept(t.ctx, call.Args, info, func(ctx context.Context, request any) (any, error) { //nolint:contextcheck // it is made from ctx
				call.Args = request
				if err := next(ctx, call); err != nil {
					return nil, passed.status(err)
				}
				return call.Reply, nil
			})
			t.finish()
			if err == nil {
				call.Reply = reply
			}
			return passed.original(err)
		}
	}
}

// decodeRequest decodes the request for an interceptor.
func (t *transport) decodeRequest() error {
	if err := t.call.Decode(); err != nil || t.call.Args != nil {
		return err
	}
	service, method, _ := strings.Cut(t.call.Method, "/")
	types := typesOf(service, method)
	if types == nil {
		return nil
	}
	t.decoded = true
	return t.call.DecodeInto(reflect.New(types[0]).Interface())
}

// Stream returns middleware of a server that runs an interceptor of grpc-go in streams. Unary calls
// pass it. The stream that the interceptor passes on is that of the method if Registrar has
// registered it. Other methods get its context, and send and receive their messages without it. The
// interceptor gets no server.
func Stream(intercept grpc.StreamServerInterceptor) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if !call.Streams() {
				return next(ctx, call)
			}
			t := newTransport(ctx, call)
			var passed failure
			kind := call.Kind()
			info := &grpc.StreamServerInfo{FullMethod: t.Method(), IsClientStream: kind != "feed", IsServerStream: kind != "upload"}
			err := intercept(nil, t.stream(), info, func(_ any, st grpc.ServerStream) error { //nolint:contextcheck // st has the context
				t.outer = st
				return passed.status(next(st.Context(), call))
			})
			t.finish()
			return passed.original(err)
		}
	}
}

// A failure is the error of a call, which interceptors see as a status.
type failure struct{ err, as error }

func (f *failure) status(err error) error {
	f.err, f.as = err, statusOf(err)
	return f.as
}

// original returns the error of the call if the interceptor has passed it on, with all of it that a
// status does not have. Otherwise it returns err.
func (f *failure) original(err error) error {
	if err != nil && err == f.as { //nolint:errorlint // as it is
		return f.err
	}
	return err
}
