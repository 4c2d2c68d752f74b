// SPDX-License-Identifier: Apache-2.0

// Command client is the client that the conformance tests of Connect judge. It makes the calls that
// the test runner describes on standard input with a yodel client, and reports their outcomes on
// standard output.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/compress/klauspost/snappyframe"
	"github.com/yodel-rpc/yodel/compress/klauspost/zstd"
	"github.com/yodel-rpc/yodel/compress/zlib"
	pb "github.com/yodel-rpc/yodel/conformance/connect/internal/conformancev1"
	"github.com/yodel-rpc/yodel/conformance/connect/internal/pipe"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	transport "github.com/yodel-rpc/yodel/transport/tls"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// atOnce is how many calls are made at the same time.
const atOnce = 16

// run makes calls until in ends.
func run(in io.Reader, out io.Writer) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	places := make(chan struct{}, atOnce)
	var writing sync.Mutex
	for {
		request := new(pb.ClientCompatRequest)
		if err := pipe.Read(in, request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request of the test runner: %w", err)
		}
		places <- struct{}{}
		calls.Go(func() {
			defer func() { <-places }()
			response := answer(request)
			writing.Lock()
			defer writing.Unlock()
			if err := pipe.Write(out, response); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
}

// answer makes the call of a request.
func answer(request *pb.ClientCompatRequest) *pb.ClientCompatResponse {
	response := &pb.ClientCompatResponse{TestName: request.GetTestName()}
	client, err := newClient(request)
	if err != nil {
		response.Result = &pb.ClientCompatResponse_Error{Error: &pb.ClientErrorResult{Message: err.Error()}}
		return response
	}
	defer client.Close()
	c := &caller{client: client, request: request, result: new(pb.ClientResponseResult)}
	c.do()
	response.Result = &pb.ClientCompatResponse_Response{Response: c.result}
	return response
}

// newClient returns a client that calls the server of a request as the request says.
func newClient(request *pb.ClientCompatRequest) (*yodel.Client, error) {
	wire, err := wireOf(request)
	if err != nil {
		return nil, err
	}
	limit := int(request.GetMessageReceiveLimit())
	o := &yodel.ClientOptions{
		Codec: protobuf.Codec, Wires: []yodel.Wire{wire}, CompressAbove: 1,
		Limits: yodel.Limits{MaxDecompressed: limit, MaxMessage: limit},
	}
	if limit > 0 {
		o.Limits.MaxMessage = max(limit, 1<<20)
	}
	if request.GetCodec() == pb.Codec_CODEC_JSON {
		o.Codec = protobuf.JSON
	}
	switch request.GetCompression() { //nolint:exhaustive // the configuration names these
	case pb.Compression_COMPRESSION_GZIP:
		o.Compressor = gzip.Compressor
	case pb.Compression_COMPRESSION_ZSTD:
		o.Compressor = zstd.Compressor
	case pb.Compression_COMPRESSION_DEFLATE:
		o.Compressor = zlib.Compressor
	case pb.Compression_COMPRESSION_SNAPPY:
		o.Compressor = snappyframe.Compressor
	}
	if trusted := request.GetServerTlsCert(); len(trusted) > 0 {
		config := &tls.Config{
			RootCAs: x509.NewCertPool(), NextProtos: []string{"h2"}, CurvePreferences: []tls.CurveID{tls.X25519}, ClientSessionCache: sessionsOf(request),
		}
		if request.GetHttpVersion() == pb.HTTPVersion_HTTP_VERSION_1 {
			config.NextProtos = []string{"http/1.1"}
		}
		if !config.RootCAs.AppendCertsFromPEM(trusted) {
			return nil, errors.New("the certificate of the server is malformed")
		}
		if creds := request.GetClientTlsCreds(); creds != nil {
			certificate, err := tls.X509KeyPair(creds.GetCert(), creds.GetKey())
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{certificate}
		}
		o.Transport = &transport.Transport{Client: config}
	}
	addr := fmt.Sprintf("%s:%d", request.GetHost(), request.GetPort())
	return yodel.NewClient(discovery.Static(wire.Name()+"://"+addr), o), nil
}

// sessions are the TLS sessions of the clients, one cache for each port of a server.
var sessions sync.Map

// sessionsOf returns the cache for the server of a request. Its clients resume the session of an
// earlier client, because a full handshake costs more than the rest of a call.
func sessionsOf(request *pb.ClientCompatRequest) tls.ClientSessionCache {
	cache, _ := sessions.LoadOrStore(request.GetPort(), tls.NewLRUClientSessionCache(0))
	return cache.(tls.ClientSessionCache) //nolint:forcetypeassert // the map has no other values
}

// wireOf returns the Wire for a request.
func wireOf(request *pb.ClientCompatRequest) (yodel.Wire, error) {
	http1 := request.GetHttpVersion() == pb.HTTPVersion_HTTP_VERSION_1
	switch protocol := request.GetProtocol(); protocol { //nolint:exhaustive // there are no others
	case pb.Protocol_PROTOCOL_GRPC:
		return grpc.Wire, nil
	case pb.Protocol_PROTOCOL_GRPC_WEB:
		if http1 {
			return grpc.Web1, nil
		}
		return grpc.Web, nil
	case pb.Protocol_PROTOCOL_CONNECT:
		return connect.Wire(&connect.Options{HTTP1: http1, Get: request.GetUseGetHttpMethod()}), nil
	default:
		return nil, fmt.Errorf("the client has no protocol %v", protocol)
	}
}

// metadata returns headers as metadata.
func metadata(headers []*pb.Header) yodel.Metadata {
	md := make(yodel.Metadata)
	for _, h := range headers {
		md[strings.ToLower(h.GetName())] = strings.Join(h.GetValue(), ", ")
	}
	return md
}

// headers returns metadata as headers.
func headers(md yodel.Metadata) (headers []*pb.Header) {
	for key, value := range md {
		headers = append(headers, &pb.Header{Name: key, Value: []string{value}})
	}
	return headers
}

// failure returns an error as the test runner wants it.
func failure(err error) *pb.Error {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		e = &yodel.Error{Code: yodel.Unknown, Message: err.Error()}
		if errors.Is(err, context.Canceled) {
			e.Code = yodel.Canceled
		}
	}
	told := &pb.Error{Code: pb.Code(e.Code), Message: &e.Message}
	for _, d := range e.Details {
		told.Details = append(told.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: d.Value})
	}
	return told
}
