// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/yodel-rpc/yodel/examples/grpc/shoppb"
)

// region service

// stock is a service as it was written for grpc-go. It does not change.
type stock struct {
	shoppb.UnimplementedStockServer
}

// Reserve reserves an item for as long as its caller waits.
func (*stock) Reserve(ctx context.Context, in *shoppb.Item) (*shoppb.Reservation, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md.Get("user")) == 0 {
		return nil, status.Error(codes.Unauthenticated, "no user")
	}
	if in.GetCount() > 10 {
		short, err := status.New(codes.FailedPrecondition, "too few").WithDetails(&shoppb.Shortage{Left: 10})
		if err != nil {
			return nil, err
		}
		return nil, short.Err()
	}
	until, _ := ctx.Deadline()
	return &shoppb.Reservation{Item: in, Minutes: int64(math.Round(time.Until(until).Minutes()))}, nil
}

// Watch sends what is left of an item.
func (*stock) Watch(in *shoppb.Item, stream grpc.ServerStreamingServer[shoppb.Item]) error {
	for left := range in.GetCount() {
		if err := stream.Send(&shoppb.Item{Name: in.GetName(), Count: left}); err != nil {
			return err
		}
	}
	return nil
}

// endregion service

// prices is a service that stays on grpc-go.
type prices struct {
	shoppb.UnimplementedPricesServer
}

// Get returns the price of some items.
func (*prices) Get(_ context.Context, in *shoppb.Item) (*shoppb.Price, error) {
	return &shoppb.Price{Cents: int64(in.GetCount()) * 50}, nil
}

// region caller

// order calls the service. It is code of a caller, and does not change either.
func order(ctx context.Context, stock shoppb.StockClient) (outcome, served string, err error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "user", "ann"), time.Hour)
	defer cancel()
	var trailer metadata.MD
	reply, err := stock.Reserve(ctx, &shoppb.Item{Name: "apple", Count: 3}, grpc.Trailer(&trailer))
	if err != nil {
		return "", "", err
	}
	_, refused := stock.Reserve(ctx, &shoppb.Item{Name: "apple", Count: 30})
	left := int32(0)
	for _, detail := range status.Convert(refused).Details() {
		if short, ok := detail.(*shoppb.Shortage); ok {
			left = short.GetLeft()
		}
	}
	stream, err := stock.Watch(ctx, &shoppb.Item{Name: "apple", Count: 2})
	if err != nil {
		return "", "", err
	}
	messages := 0
	for ; ; messages++ {
		if _, err = stream.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", "", err
		}
	}
	outcome = fmt.Sprintf("%d for %d minutes, %v: %d left, %d messages", reply.GetItem().GetCount(), reply.GetMinutes(), status.Code(refused), left, messages)
	return outcome, strings.Join(trailer.Get("served-by"), ""), nil
}

// endregion caller
