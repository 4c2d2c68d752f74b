// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	pb "github.com/yodel-rpc/yodel/conformance/connect/internal/conformancev1"
)

// A caller makes one call.
type caller struct {
	client  *yodel.Client
	request *pb.ClientCompatRequest
	result  *pb.ClientResponseResult
	call    yodel.Call
	cancel  context.CancelFunc
}

// do makes the call and stores its outcome in c.result.
func (c *caller) do() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if ms := c.request.GetTimeoutMs(); ms > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer done()
	}
	c.cancel = cancel
	c.call.Metadata = metadata(c.request.GetRequestHeaders())
	c.call.Idempotent = c.request.GetUseGetHttpMethod()
	method := c.request.GetService() + "/" + c.request.GetMethod()
	var err error
	switch c.request.GetStreamType() { //nolint:exhaustive // the others are duplex
	case pb.StreamType_STREAM_TYPE_UNARY:
		err = c.unary(ctx, method)
	case pb.StreamType_STREAM_TYPE_SERVER_STREAM:
		err = c.feed(ctx, method)
	case pb.StreamType_STREAM_TYPE_CLIENT_STREAM:
		err = c.upload(ctx, method)
	default:
		err = c.duplex(ctx, method)
	}
	if err != nil {
		c.result.Error = failure(err)
	}
	c.result.ResponseHeaders, c.result.ResponseTrailers = headers(c.call.Header()), headers(c.call.Trailer)
}

// wait waits before a message is sent.
func (c *caller) wait() { time.Sleep(time.Duration(c.request.GetRequestDelayMs()) * time.Millisecond) }

// cancelLater cancels the call after its last message was sent, if the request says so.
func (c *caller) cancelLater() {
	if timing, ok := c.request.GetCancel().GetCancelTiming().(*pb.ClientCompatRequest_Cancel_AfterCloseSendMs); ok {
		time.AfterFunc(time.Duration(timing.AfterCloseSendMs)*time.Millisecond, c.cancel)
	} else if c.request.GetCancel() != nil && c.request.GetCancel().GetCancelTiming() == nil {
		c.cancel()
	}
}

// received stores a message, and reports whether the call goes on.
func (c *caller) received(p *pb.ConformancePayload) {
	c.result.Payloads = append(c.result.Payloads, p)
	if n := c.request.GetCancel().GetAfterNumResponses(); n > 0 && len(c.result.Payloads) == int(n) {
		c.cancel()
	}
}

// message decodes the message of the request with this number.
func message[T any, M interface {
	*T
	proto.Message
}](c *caller, i int) (*T, error) {
	m := new(T)
	return m, proto.Unmarshal(c.request.GetRequestMessages()[i].GetValue(), M(m))
}

func (c *caller) unary(ctx context.Context, method string) error {
	c.wait()
	c.cancelLater()
	if c.request.GetMethod() == "IdempotentUnary" {
		in, err := message[pb.IdempotentUnaryRequest](c, 0)
		if err != nil {
			return err
		}
		out, err := yodel.Method[pb.IdempotentUnaryRequest, pb.IdempotentUnaryResponse](method).Do(ctx, c.client, &c.call, in)
		if err == nil {
			c.received(out.GetPayload())
		}
		return err
	}
	if c.request.GetMethod() == "Unimplemented" {
		_, err := yodel.Method[pb.UnimplementedRequest, pb.UnimplementedResponse](method).Do(ctx, c.client, &c.call, &pb.UnimplementedRequest{})
		return err
	}
	in, err := message[pb.UnaryRequest](c, 0)
	if err != nil {
		return err
	}
	out, err := yodel.Method[pb.UnaryRequest, pb.UnaryResponse](method).Do(ctx, c.client, &c.call, in)
	if err == nil {
		c.received(out.GetPayload())
	}
	return err
}

func (c *caller) feed(ctx context.Context, method string) error {
	in, err := message[pb.ServerStreamRequest](c, 0)
	if err != nil {
		return err
	}
	c.wait()
	c.cancelLater()
	for out, err := range (yodel.Feed[pb.ServerStreamRequest, pb.ServerStreamResponse](method)).Do(ctx, c.client, &c.call, in) {
		if err != nil {
			return err
		}
		c.received(out.GetPayload())
	}
	return nil
}

func (c *caller) upload(ctx context.Context, method string) error {
	m := yodel.Upload[pb.ClientStreamRequest, pb.ClientStreamResponse](method)
	out, err := m.Do(ctx, c.client, &c.call, func(send yodel.Send[pb.ClientStreamRequest]) error {
		for i := range c.request.GetRequestMessages() {
			in, err := message[pb.ClientStreamRequest](c, i)
			if err != nil {
				return err
			}
			c.wait()
			if err = send(in); err != nil {
				c.result.NumUnsentRequests = int32(len(c.request.GetRequestMessages()) - i)
				return err
			}
		}
		if c.request.GetCancel().GetBeforeCloseSend() != nil {
			c.cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		c.cancelLater()
		return nil
	})
	if err == nil {
		c.received(out.GetPayload())
	}
	return err
}

func (c *caller) duplex(ctx context.Context, method string) error {
	m := yodel.Duplex[pb.BidiStreamRequest, pb.BidiStreamResponse](method)
	return m.Do(ctx, c.client, &c.call, func(recv yodel.Recv[pb.BidiStreamResponse], send yodel.Send[pb.BidiStreamRequest]) error {
		full := c.request.GetStreamType() == pb.StreamType_STREAM_TYPE_FULL_DUPLEX_BIDI_STREAM
		for i := range c.request.GetRequestMessages() {
			in, err := message[pb.BidiStreamRequest](c, i)
			if err != nil {
				return err
			}
			c.wait()
			if err = send(in); err != nil {
				c.result.NumUnsentRequests = int32(len(c.request.GetRequestMessages()) - i)
				if errors.Is(err, io.EOF) {
					break // receive the outcome
				}
				return err
			}
			if !full {
				continue
			}
			out, err := recv.Next()
			if errors.Is(err, io.EOF) {
				c.result.NumUnsentRequests = int32(len(c.request.GetRequestMessages()) - i - 1)
				return nil
			} else if err != nil {
				return err
			}
			c.received(out.GetPayload())
		}
		if c.request.GetCancel().GetBeforeCloseSend() != nil {
			c.cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		if err := send.End(); err != nil {
			return err
		}
		c.cancelLater()
		for out, err := range recv {
			if err != nil {
				return err
			}
			c.received(out.GetPayload())
		}
		return nil
	})
}
