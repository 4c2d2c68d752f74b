// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/yodel-rpc/yodel/examples/connect/shoppb"
	"github.com/yodel-rpc/yodel/examples/connect/shoppb/shoppbconnect"
)

// region service

// stock is a handler as it was written for connect-go.
type stock struct{}

// Reserve reserves an item for as long as its caller waits.
func (stock) Reserve(ctx context.Context, r *connect.Request[shoppb.Item]) (*connect.Response[shoppb.Reservation], error) {
	if r.Header().Get("User") == "" {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("no user"))
	}
	if r.Msg.GetCount() > 10 {
		short := connect.NewError(connect.CodeFailedPrecondition, errors.New("too few"))
		if detail, err := connect.NewErrorDetail(&shoppb.Shortage{Left: 10}); err == nil {
			short.AddDetail(detail)
		}
		return nil, short
	}
	until, _ := ctx.Deadline()
	minutes := int32(math.Round(time.Until(until).Minutes()))
	return connect.NewResponse(&shoppb.Reservation{Item: r.Msg, Minutes: minutes}), nil
}

// Count returns what is left of an item.
func (stock) Count(_ context.Context, r *connect.Request[shoppb.Item]) (*connect.Response[shoppb.Item], error) {
	return connect.NewResponse(&shoppb.Item{Name: r.Msg.GetName(), Count: 10}), nil
}

// Watch sends what is left of an item.
func (stock) Watch(_ context.Context, r *connect.Request[shoppb.Item], stream *connect.ServerStream[shoppb.Item]) error {
	for left := range r.Msg.GetCount() {
		if err := stream.Send(&shoppb.Item{Name: r.Msg.GetName(), Count: left}); err != nil {
			return err
		}
	}
	return nil
}

// endregion service

// order calls the service with a client of connect-go.
func order(ctx context.Context, stock shoppbconnect.StockClient) (outcome, served string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	// region caller
	request := connect.NewRequest(&shoppb.Item{Name: "apple", Count: 3})
	request.Header().Set("User", "ann")
	reply, err := stock.Reserve(ctx, request)
	// endregion caller
	if err != nil {
		return "", "", err
	}
	served = reply.Trailer().Get("Served-By")
	request = connect.NewRequest(&shoppb.Item{Name: "apple", Count: 30})
	request.Header().Set("User", "ann")
	_, refused := stock.Reserve(ctx, request)
	left := new(shoppb.Shortage)
	if e, ok := errors.AsType[*connect.Error](refused); ok && len(e.Details()) == 1 {
		if value, err := e.Details()[0].Value(); err == nil {
			left, _ = value.(*shoppb.Shortage)
		}
	}
	count, err := stock.Count(ctx, connect.NewRequest(&shoppb.Item{Name: "apple"}))
	if err != nil {
		return "", "", err
	}
	stream, err := stock.Watch(ctx, connect.NewRequest(&shoppb.Item{Name: "apple", Count: 2}))
	if err != nil {
		return "", "", err
	}
	messages := 0
	for stream.Receive() {
		messages++
	}
	err = errors.Join(stream.Err(), stream.Close())
	return outcomeOf(reply.Msg, connect.CodeOf(refused), left, count.Msg, messages), served, err
}

func outcomeOf(r *shoppb.Reservation, refused fmt.Stringer, left *shoppb.Shortage, count *shoppb.Item, messages int) string {
	return fmt.Sprintf("%d for %d minutes, %v: %d left, %d counted, %d messages", r.GetItem().GetCount(), r.GetMinutes(), refused, left.GetLeft(), count.GetCount(), messages)
}
