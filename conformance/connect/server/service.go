// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/yodel-rpc/yodel"
	pb "github.com/yodel-rpc/yodel/conformance/connect/internal/conformancev1"
)

const service = "connectrpc.conformance.v1.ConformanceService/"

// The methods of the conformance service.
const (
	unary           yodel.Method[pb.UnaryRequest, pb.UnaryResponse]                     = service + "Unary"
	idempotentUnary yodel.Method[pb.IdempotentUnaryRequest, pb.IdempotentUnaryResponse] = service + "IdempotentUnary"
	serverStream    yodel.Feed[pb.ServerStreamRequest, pb.ServerStreamResponse]         = service + "ServerStream"
	clientStream    yodel.Upload[pb.ClientStreamRequest, pb.ClientStreamResponse]       = service + "ClientStream"
	bidiStream      yodel.Duplex[pb.BidiStreamRequest, pb.BidiStreamResponse]           = service + "BidiStream"
)

func register(s *yodel.Server) {
	unary.Handle(s, func(ctx context.Context, in *pb.UnaryRequest) (*pb.UnaryResponse, error) {
		payload, err := answer(ctx, in.GetResponseDefinition(), in)
		return &pb.UnaryResponse{Payload: payload}, err
	})
	idempotentUnary.Handle(s, func(ctx context.Context, in *pb.IdempotentUnaryRequest) (*pb.IdempotentUnaryResponse, error) {
		payload, err := answer(ctx, in.GetResponseDefinition(), in)
		return &pb.IdempotentUnaryResponse{Payload: payload}, err
	})
	s.MarkReadOnly(string(idempotentUnary))
	clientStream.Handle(s, func(ctx context.Context, recv yodel.Recv[pb.ClientStreamRequest]) (*pb.ClientStreamResponse, error) {
		var definition *pb.UnaryResponseDefinition
		var requests []proto.Message
		for in, err := range recv {
			if err != nil {
				return nil, err
			}
			if len(requests) == 0 {
				definition = in.GetResponseDefinition()
			}
			requests = append(requests, in)
		}
		payload, err := answer(ctx, definition, requests...)
		return &pb.ClientStreamResponse{Payload: payload}, err
	})
	serverStream.Handle(s, func(ctx context.Context, in *pb.ServerStreamRequest, send yodel.Send[pb.ServerStreamResponse]) error {
		r := newResponder(ctx, in.GetResponseDefinition(), func(p *pb.ConformancePayload) error {
			return send(&pb.ServerStreamResponse{Payload: p})
		})
		return r.rest(in)
	})
	bidiStream.Handle(s, serveBidi)
}

// serveBidi answers each request at once if the first one asks for that, and otherwise all of them
// at the end.
func serveBidi(ctx context.Context, recv yodel.Recv[pb.BidiStreamRequest], send yodel.Send[pb.BidiStreamResponse]) error {
	var r *responder
	var requests []proto.Message
	full := false
	for {
		in, err := recv.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if r == nil {
			full = in.GetFullDuplex()
			r = newResponder(ctx, in.GetResponseDefinition(), func(p *pb.ConformancePayload) error {
				return send(&pb.BidiStreamResponse{Payload: p})
			})
		}
		if requests = append(requests, in); !full {
			continue
		}
		if len(r.data) == 0 {
			break
		}
		if err := r.next(requests...); err != nil {
			return err
		}
		requests = nil
	}
	if r == nil {
		return nil
	}
	return r.rest(requests...)
}

// A responder sends the responses of a definition.
type responder struct {
	ctx   context.Context //nolint:containedctx // of the handler
	send  func(*pb.ConformancePayload) error
	delay time.Duration
	data  [][]byte
	sent  int
	err   *pb.Error
}

func newResponder(ctx context.Context, d *pb.StreamResponseDefinition, send func(*pb.ConformancePayload) error) *responder {
	setMetadata(ctx, d.GetResponseHeaders(), d.GetResponseTrailers())
	r := &responder{ctx: ctx, send: send, data: d.GetResponseData(), err: d.GetError()}
	r.delay = time.Duration(d.GetResponseDelayMs()) * time.Millisecond
	if len(r.data) > 0 {
		_ = yodel.CallFrom(ctx).SendHeader() // an error is that of the next message
	}
	return r
}

// next sends one response, which contains the requests.
func (r *responder) next(requests ...proto.Message) error {
	payload := &pb.ConformancePayload{Data: r.data[0]}
	if len(requests) > 0 {
		var err error
		if payload.RequestInfo, err = info(r.ctx, r.sent == 0, requests...); err != nil {
			return err
		}
	}
	if err := sleep(r.ctx, r.delay); err != nil {
		return err
	}
	r.data = r.data[1:]
	r.sent++
	return r.send(payload)
}

// rest sends the responses that are left, the first one with the requests, and returns the error of
// the definition.
func (r *responder) rest(requests ...proto.Message) error {
	for len(r.data) > 0 {
		if err := r.next(requests...); err != nil {
			return err
		}
		requests = nil
	}
	if r.err == nil {
		return nil
	}
	if r.sent > 0 {
		return failure(r.err)
	}
	payload, err := info(r.ctx, true, requests...)
	if err != nil {
		return err
	}
	return failure(r.err, payload)
}

// answer returns the only response to the requests.
func answer(ctx context.Context, d *pb.UnaryResponseDefinition, requests ...proto.Message) (*pb.ConformancePayload, error) {
	setMetadata(ctx, d.GetResponseHeaders(), d.GetResponseTrailers())
	payload, err := info(ctx, true, requests...)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, time.Duration(d.GetResponseDelayMs())*time.Millisecond); err != nil {
		return nil, err
	}
	if e := d.GetError(); e != nil {
		return nil, failure(e, payload)
	}
	return &pb.ConformancePayload{Data: d.GetResponseData(), RequestInfo: payload}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setMetadata sets the header and the trailer of the reply.
func setMetadata(ctx context.Context, header, trailer []*pb.Header) {
	call := yodel.CallFrom(ctx)
	call.SetHeader(metadata(header))
	call.Trailer = metadata(trailer)
}

func metadata(headers []*pb.Header) yodel.Metadata {
	md := make(yodel.Metadata)
	for _, h := range headers {
		md[strings.ToLower(h.GetName())] = strings.Join(h.GetValue(), ", ")
	}
	return md
}

// info returns what the server has seen of a request.
func info(ctx context.Context, all bool, requests ...proto.Message) (*pb.ConformancePayload_RequestInfo, error) {
	call := yodel.CallFrom(ctx)
	seen := new(pb.ConformancePayload_RequestInfo)
	if all {
		for key, value := range call.Metadata {
			seen.RequestHeaders = append(seen.RequestHeaders, &pb.Header{Name: key, Value: []string{value}})
		}
		if !call.Deadline.IsZero() {
			seen.TimeoutMs = proto.Int64(time.Until(call.Deadline).Milliseconds())
		}
	}
	for _, request := range requests {
		packed, err := anypb.New(request)
		if err != nil {
			return nil, err
		}
		seen.Requests = append(seen.Requests, packed)
	}
	return seen, nil
}

// failure returns the error of a definition, with further details.
func failure(e *pb.Error, details ...proto.Message) error {
	told := &yodel.Error{Code: yodel.Code(e.GetCode()), Message: e.GetMessage()}
	for _, d := range e.GetDetails() {
		told.Details = append(told.Details, yodel.Detail{Type: string(d.MessageName()), Value: d.GetValue()})
	}
	for _, d := range details {
		packed, err := anypb.New(d)
		if err != nil {
			return err
		}
		told.Details = append(told.Details, yodel.Detail{Type: string(packed.MessageName()), Value: packed.GetValue()})
	}
	return told
}
