// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	"context"
	stdtls "crypto/tls"
	"log/slog"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// whoami answers with the name in the certificate of the caller.
const whoami yodel.Method[struct{}, string] = "Identity.WhoAmI"

// TestHandlersSeeTheCertificateOfTheirCaller makes calls with mutual TLS through real sockets. Two
// clients are told apart by their certificates, and a client without one gets no call through.
func TestHandlersSeeTheCertificateOfTheirCaller(t *testing.T) {
	ca := newAuthority(t)
	serverSide := &tls.Transport{Server: &stdtls.Config{
		Certificates: []stdtls.Certificate{ca.certificate(t, "server").pair(t)}, ClientCAs: ca.pool,
	}}
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	whoami.Handle(s, func(ctx context.Context, _ *struct{}) (*string, error) {
		state := yodel.CallFrom(ctx).Peer().TLS()
		if state == nil || len(state.VerifiedChains) == 0 {
			return nil, yodel.Errorf(yodel.Unauthenticated, "the connection has no verified certificate")
		}
		return &state.PeerCertificates[0].Subject.CommonName, nil
	})
	l, err := serverSide.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	for name, certificates := range map[string][]stdtls.Certificate{
		"billing":  {ca.certificate(t, "billing").pair(t)},
		"shipping": {ca.certificate(t, "shipping").pair(t)},
		"":         nil,
	} {
		c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{
			Transport: &tls.Transport{Client: &stdtls.Config{RootCAs: ca.pool, Certificates: certificates}},
			Timeout:   20 * time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		got, err := whoami.Call(t.Context(), c, &struct{}{})
		c.Close()
		switch {
		case name == "":
			if !yodel.NotProcessed(err) {
				t.Errorf("without a certificate: got %v, %v, want an error that says that nothing was executed", got, err)
			}
		case err != nil || *got != name:
			t.Errorf("got %v, %v, want %s", got, err, name)
		}
	}
}
