// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/yodel-rpc/yodel"
)

// region adapter

// handle registers a unary method of a handler of connect-go, which does not change.
func handle[In, Out any](s *yodel.Server, method yodel.Method[In, Out],
	f func(context.Context, *connect.Request[In]) (*connect.Response[Out], error),
) {
	method.Handle(s, func(ctx context.Context, in *In) (*Out, error) {
		call, request := yodel.CallFrom(ctx), connect.NewRequest(in)
		for key, value := range call.Metadata {
			request.Header().Set(key, value)
		}
		response, err := f(ctx, request)
		if e, ok := errors.AsType[*connect.Error](err); ok {
			call.Trailer = metadata(e.Meta())
			return nil, errorOf(e)
		} else if err != nil {
			return nil, err
		}
		call.SetHeader(metadata(response.Header()))
		call.Trailer = metadata(response.Trailer())
		return response.Msg, nil
	})
}

// errorOf returns an error of connect-go as one of yodel. The codes have the same numbers.
func errorOf(e *connect.Error) *yodel.Error {
	out := &yodel.Error{Code: yodel.Code(e.Code()), Message: e.Message(), Cause: e} //nolint:gosec // there are 17
	for _, d := range e.Details() {
		out.Details = append(out.Details, yodel.Detail{Type: d.Type(), Value: d.Bytes()})
	}
	return out
}

func metadata(h http.Header) yodel.Metadata {
	md := make(yodel.Metadata, len(h))
	for key, values := range h {
		md[strings.ToLower(key)] = strings.Join(values, ", ")
	}
	return md
}

// endregion adapter
