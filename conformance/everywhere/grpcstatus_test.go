// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// A grpcError has a status as errors of grpc-go do. It is also that status, and its message of
// Protocol Buffers. Package protocol/grpcgo tests those of grpc-go.
type grpcError struct {
	code    grpcCode
	text    string
	details []*grpcDetail
}

type (
	grpcCode   uint32
	grpcDetail struct {
		url   string
		value []byte
	}
)

func (e *grpcError) Error() string             { return "rpc error: desc = " + e.text }
func (e *grpcError) GRPCStatus() *grpcError    { return e }
func (e *grpcError) Code() grpcCode            { return e.code }
func (e *grpcError) Message() string           { return e.text }
func (e *grpcError) Proto() *grpcError         { return e }
func (e *grpcError) GetDetails() []*grpcDetail { return e.details }
func (d *grpcDetail) GetTypeUrl() string       { return d.url } //nolint:revive // the name of generated code
func (d *grpcDetail) GetValue() []byte         { return d.value }

// grpcAbsent is absent as an error of grpc-go.
var grpcAbsent = &grpcError{grpcCode(absent.Code), absent.Message, []*grpcDetail{{"type.googleapis.com/" + absent.Details[0].Type, absent.Details[0].Value}}}

// failingAsGRPC is a middleware that fails all calls of the methods.
var failingAsGRPC = plain(func() yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if strings.HasPrefix(strings.ReplaceAll(call.Method, "/", "."), "All.") {
				return grpcAbsent
			}
			return next(ctx, call)
		}
	}
})

// checkGRPC wants the caller to get all of grpcAbsent that the wire carries.
func checkGRPC(ctx context.Context, c *Cell) error {
	_, err := c.Call(ctx, yodel.Call{})
	switch e, ok := errors.AsType[*yodel.Error](err); {
	case err == nil && c.executed.Load() == 1: // the middleware that fails is not there
		return NotHeld("the call succeeds")
	case isPlanned(err): // the method fails without a status of grpc-go
		return NotHeld("the error is %w, want that of grpc-go", err)
	case yodel.CodeOf(err) != absent.Code:
		return fmt.Errorf("the code is %v, want %v: %w", yodel.CodeOf(err), absent.Code, err)
	case !ok && c.Side == "client" && errors.Is(err, grpcAbsent): // it has not left the caller
		return nil
	case !strings.Contains(err.Error(), absent.Message) || strings.Contains(err.Error(), "desc ="):
		return fmt.Errorf("the error is %w, want the text %q", err, absent.Message)
	case c.Wire.details && (!ok || len(e.Details) != 1 || e.Details[0].Type != absent.Details[0].Type || string(e.Details[0].Value) != string(absent.Details[0].Value)):
		return fmt.Errorf("the error is %#v, want the details %v", e, absent.Details)
	}
	return nil
}
