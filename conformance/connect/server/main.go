// SPDX-License-Identifier: Apache-2.0

// Command server is the server that the conformance tests of Connect call. It is a yodel server
// with the codecs and compressions that the protocols name. The test runner describes on standard
// input what it needs, and reads the address on standard output.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/compress/klauspost/snappyframe"
	"github.com/yodel-rpc/yodel/compress/klauspost/zstd"
	"github.com/yodel-rpc/yodel/compress/zlib"
	pb "github.com/yodel-rpc/yodel/conformance/connect/internal/conformancev1"
	"github.com/yodel-rpc/yodel/conformance/connect/internal/pipe"
	"github.com/yodel-rpc/yodel/protocol/http"
	transport "github.com/yodel-rpc/yodel/transport/tls"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, in io.Reader, out io.Writer) error {
	request := new(pb.ServerCompatRequest)
	if err := pipe.Read(in, request); err != nil {
		return fmt.Errorf("read the request of the test runner: %w", err)
	}
	l, err := listen(request)
	if err != nil {
		return err
	}
	response := &pb.ServerCompatResponse{Host: "127.0.0.1", PemCert: request.GetServerCreds().GetCert()}
	response.Port = uint32(l.Addr().(*net.TCPAddr).Port)
	if err := pipe.Write(out, response); err != nil {
		return err
	}
	limit := int(request.GetMessageReceiveLimit())
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:        []yodel.Codec{protobuf.Codec, protobuf.JSON},
		Compressors:   []compress.Compressor{gzip.Compressor, zstd.Compressor, zlib.Compressor, snappyframe.Compressor},
		CompressAbove: 1,
		Protocols:     []yodel.Protocol{http.New(&http.Options{MaxRequest: limit})},
		Limits:        yodel.Limits{MaxDecompressed: limit},
	})
	register(s)
	return s.Serve(ctx, l)
}

// listen listens with the certificates of the request.
func listen(request *pb.ServerCompatRequest) (net.Listener, error) {
	if !request.GetUseTls() {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	certificate, err := tls.X509KeyPair(request.GetServerCreds().GetCert(), request.GetServerCreds().GetKey())
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if trusted := request.GetClientTlsCert(); len(trusted) > 0 {
		if config.ClientCAs = x509.NewCertPool(); !config.ClientCAs.AppendCertsFromPEM(trusted) {
			return nil, errors.New("the certificate of the client is malformed")
		}
	}
	return (&transport.Transport{Server: config}).Listen("127.0.0.1:0")
}
