// SPDX-License-Identifier: Apache-2.0

// Package grpcgo runs code that protoc-gen-go-grpc has generated on yodel, unchanged:
//
//	pb.RegisterGreeterServer(grpcgo.Registrar(server), &greeter{})
//
//	client := pb.NewGreeterClient(grpcgo.Conn(yodelClient))
//
// The services are methods of the yodel server, in all protocols that it speaks: gRPC with package
// protocol/http, and yodel's own. The calls go through the yodel client with its registry, balancer
// and middleware, to servers of both kinds. Metadata, headers, trailers, deadlines, status codes
// and details are those of grpc-go. Interceptors of servers run as middleware: see Unary and
// Stream.
package grpcgo

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/nesting"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// metadataOf returns metadata as grpc-go has it. A key that ends in "-bin" has base64 in yodel and
// any bytes in grpc-go.
func metadataOf(md yodel.Metadata) metadata.MD {
	out := make(metadata.MD, len(md))
	for key, value := range md {
		if !strings.HasSuffix(key, "-bin") {
			out[key] = []string{value}
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			if b, err := httpwire.Binary(part); err == nil {
				out[key] = append(out[key], string(b))
			}
		}
	}
	return out
}

// isDropped reports whether a key names a header that each hop of gRPC sets by itself. Handlers and
// callers may pass on what they have received: grpc-go drops such keys without an error, too.
func isDropped(key string) bool {
	switch key = strings.ToLower(key); key {
	case "content-length", "content-type", "grpc-accept-encoding", "grpc-encoding", "grpc-message", "grpc-message-type", "grpc-status",
		"grpc-timeout", "te", "user-agent":
		return true
	}
	return strings.HasPrefix(key, ":")
}

// yodelMetadata is the reverse of metadataOf. Several values of a key are joined with ", ".
func yodelMetadata(md metadata.MD) yodel.Metadata {
	if len(md) == 0 {
		return nil
	}
	out := make(yodel.Metadata, len(md))
	for key, values := range md {
		if isDropped(key) {
			continue
		}
		if strings.HasSuffix(key, "-bin") {
			encoded := make([]string, len(values))
			for i, value := range values {
				encoded[i] = base64.RawStdEncoding.EncodeToString([]byte(value))
			}
			out[key] = strings.Join(encoded, ",")
			continue
		}
		out[key] = strings.Join(values, ", ")
	}
	return out
}

// statusOf returns an error of yodel as one of grpc-go's kind.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		if st, ok := status.FromError(err); ok {
			return st.Err()
		}
		return status.FromContextError(err).Err()
	}
	p := status.New(cmp.Or(codes.Code(e.Code), codes.Unknown), e.Message).Proto()
	for _, d := range e.Details {
		p.Details = append(p.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: d.Value})
	}
	return status.FromProto(p).Err()
}

// codec is the codec "protobuf". It also encodes and decodes *any, because the streams of stubs
// have messages of types that this package does not know: an *any that it decodes has the bytes.
type codec struct{}

func (codec) Name() string { return "protobuf" }

func (codec) Append(dst []byte, v any) ([]byte, error) {
	if p, ok := v.(*any); ok {
		v = *p
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message of Protocol Buffers", v)
	}
	if err := checkNesting(m); err != nil {
		return nil, err
	}
	if err := nesting.CheckBytes(proto.Size(m)); err != nil {
		return nil, fmt.Errorf("protobuf: encode %T: %w", m, err)
	}
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(dst, m)
}

func (codec) Decode(src []byte, v any) error {
	if p, ok := v.(*any); ok {
		*p = append([]byte(nil), src...)
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message of Protocol Buffers", v)
	}
	return proto.Unmarshal(src, m)
}

// outgoing returns the metadata that a caller has put into its context.
func outgoing(ctx context.Context) yodel.Metadata {
	md, _ := metadata.FromOutgoingContext(ctx)
	return yodelMetadata(md)
}
