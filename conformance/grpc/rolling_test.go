// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/conformance/rolling"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Methods of servers that restart. The metadata of a call have its ID. Each message to an upload or
// a duplex has the ID too, and each message from a feed or a duplex is the answer.
const (
	rollingUnary  yodel.Method[wrapperspb.Int64Value, wrapperspb.StringValue] = "rolling.Work/Unary"
	rollingFeed   yodel.Feed[wrapperspb.Int64Value, wrapperspb.StringValue]   = "rolling.Work/Feed"
	rollingUpload yodel.Upload[wrapperspb.Int64Value, wrapperspb.StringValue] = "rolling.Work/Upload"
	rollingDuplex yodel.Duplex[wrapperspb.Int64Value, wrapperspb.StringValue] = "rolling.Work/Duplex"
)

// rollingMessages is how many messages an upload, a feed or a duplex has in each direction.
const rollingMessages = 3

// The kinds of streams.
var (
	feedDesc   = &grpc.StreamDesc{ServerStreams: true}
	uploadDesc = &grpc.StreamDesc{ClientStreams: true}
	duplexDesc = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
)

// serveRolling returns a server that executes a call when it begins.
func serveRolling(o *yodel.ServerOptions, execute rolling.Execute) (*yodel.Server, error) {
	o.Codecs = []yodel.Codec{protobuf.Codec}
	o.Protocols = []yodel.Protocol{http.New(nil)}
	s := yodel.NewServer(o)
	begin := func(ctx context.Context) (*wrapperspb.StringValue, error) {
		id, err := strconv.ParseInt(yodel.CallFrom(ctx).Metadata["rolling-id"], 10, 64)
		if err != nil {
			return nil, err
		}
		return wrapperspb.String(execute(id)), nil
	}
	rollingUnary.Handle(s, func(ctx context.Context, _ *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
		return begin(ctx)
	})
	rollingFeed.Handle(s, func(ctx context.Context, _ *wrapperspb.Int64Value, send yodel.Send[wrapperspb.StringValue]) error {
		answer, err := begin(ctx)
		for range rollingMessages {
			if err == nil {
				err = send(answer)
			}
		}
		return err
	})
	rollingUpload.Handle(s, func(ctx context.Context, recv yodel.Recv[wrapperspb.Int64Value]) (*wrapperspb.StringValue, error) {
		answer, err := begin(ctx)
		if err != nil {
			return nil, err
		}
		got := 0
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
			got++
		}
		if got != rollingMessages {
			return nil, yodel.Errorf(yodel.DataLoss, "%d messages arrived, want %d", got, rollingMessages)
		}
		return answer, nil
	})
	rollingDuplex.Handle(s, func(ctx context.Context, recv yodel.Recv[wrapperspb.Int64Value], send yodel.Send[wrapperspb.StringValue]) error {
		answer, err := begin(ctx)
		if err != nil {
			return err
		}
		for _, err := range recv {
			if err == nil {
				err = send(answer)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return s, nil
}

// rollingClient returns a client of grpc-go that knows the addresses, with a load balancer of
// grpc-go. It makes no attempts but those that grpc-go makes by itself.
func rollingClient(t testing.TB, balancer string, addrs ...string) *grpc.ClientConn {
	t.Helper()
	r := manual.NewBuilderWithScheme("rolling")
	var state resolver.State
	for _, addr := range addrs {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: addr})
	}
	r.InitialState(state)
	c, err := grpc.NewClient("rolling:///work", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"`+balancer+`": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// converse makes a call with streams in one direction or both, as the code does that grpc-go
// generates.
func converse(ctx context.Context, c *grpc.ClientConn, desc *grpc.StreamDesc, method string, id int64) (answer string, err error) {
	stream, err := c.NewStream(ctx, desc, method)
	if err != nil {
		return "", err
	}
	messages := 1
	if desc.ClientStreams {
		messages = rollingMessages
	}
	return finish(stream, desc, id, messages)
}

// finish sends the messages of a call, and returns its answer.
func finish(stream grpc.ClientStream, desc *grpc.StreamDesc, id int64, messages int) (answer string, err error) {
	out := new(wrapperspb.StringValue)
	for range messages {
		if err := stream.SendMsg(wrapperspb.Int64(id)); err != nil && !errors.Is(err, io.EOF) { // EOF: RecvMsg has the reason
			return "", err
		}
		if desc.ClientStreams && desc.ServerStreams {
			if err := stream.RecvMsg(out); err != nil {
				return "", err
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	for i := 0; ; i++ {
		more := new(wrapperspb.StringValue)
		switch err := stream.RecvMsg(more); {
		case err == nil && i < rollingMessages:
			out = more
			if !desc.ServerStreams {
				return out.GetValue(), nil
			}
		case errors.Is(err, io.EOF):
			return out.GetValue(), nil
		default:
			return "", fmt.Errorf("after %d messages: %w", i, err)
		}
	}
}

// dialRolling returns a Call for a caller. Half of the callers make unary calls, and the others
// feeds, uploads and duplexes.
func dialRolling(c *grpc.ClientConn, caller int) rolling.Call {
	return func(ctx context.Context, id int64) (string, error) {
		ctx = metadata.AppendToOutgoingContext(ctx, "rolling-id", fmt.Sprint(id))
		switch caller % 6 {
		case 1:
			return converse(ctx, c, feedDesc, "/rolling.Work/Feed", id)
		case 3:
			return converse(ctx, c, uploadDesc, "/rolling.Work/Upload", id)
		case 5:
			return converse(ctx, c, duplexDesc, "/rolling.Work/Duplex", id)
		}
		out := new(wrapperspb.StringValue)
		err := c.Invoke(ctx, "/rolling.Work/Unary", wrapperspb.Int64(id), out)
		return out.GetValue(), err
	}
}

// rollingPlan has all callers share a client, as those of a program do.
func rollingPlan() rolling.Plan {
	var shared *grpc.ClientConn
	return rolling.Plan{Kind: "grpc", Announced: true, Dial: func(t testing.TB, addrs []string, caller int) rolling.Call {
		if shared == nil {
			shared = rollingClient(t, "round_robin", addrs...)
		}
		return dialRolling(shared, caller)
	}}
}

// An unchanged client of grpc-go loses no call of any kind while servers are replaced one after the
// other: it is told which calls will be executed.
func TestRollingRestarts(t *testing.T) {
	t.Attr("rerun", "never")
	t.Run("drain", func(t *testing.T) { rolling.Run(t, rollingPlan()) })
	t.Run("handover", func(t *testing.T) {
		p := rollingPlan()
		p.Handover = true
		rolling.Run(t, p)
	})
}

// Servers that do not drain lose calls, and the test notices it.
func TestRollingRestartsWithoutADrain(t *testing.T) {
	t.Attr("rerun", "never")
	rolling.Control(t, rollingPlan())
}
