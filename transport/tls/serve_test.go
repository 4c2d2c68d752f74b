// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	"bytes"
	"context"
	stdtls "crypto/tls"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A shyListener hides the type of a listener, as a listener that limits connections does.
type shyListener struct{ net.Listener }

// A server with a tls.Transport speaks TLS on every listener, also if it is not one of Listen. It
// runs TLS once. Clients without TLS get no call through.
func TestServeSpeaksTLSOnEveryListener(t *testing.T) {
	network := mem.New()
	transport := newAuthority(t).transport(t, network)
	for name, listen := range map[string]func(addr string) (net.Listener, error){
		"of the transport below": network.Listen,
		"of Listen":              transport.Listen,
		"of Listen, wrapped": func(addr string) (net.Listener, error) {
			l, err := transport.Listen(addr)
			return shyListener{l}, err
		},
		"of crypto/tls": func(addr string) (net.Listener, error) {
			l, err := network.Listen(addr)
			return stdtls.NewListener(l, transport.Server), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := listen("localhost:1")
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			s := yodel.NewServer(&yodel.ServerOptions{Transport: transport, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			whoami.Handle(s, func(ctx context.Context, _ *struct{}) (*string, error) {
				if yodel.CallFrom(ctx).Peer().TLS() == nil {
					return new("a caller without TLS"), nil
				}
				return new("a caller with TLS"), nil
			})
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(ctx, l) }()
			if got, err := ask(t, transport); err != nil || *got != "a caller with TLS" {
				t.Errorf("with TLS: got %v, %v", got, err)
			}
			if got, err := ask(t, network); !yodel.NotProcessed(err) {
				t.Errorf("without TLS: got %v, %v, want an error that says that nothing was executed", got, err)
			}
			stop()
			if err := <-ended; err != nil {
				t.Errorf("Serve: %v", err)
			}
			if said := "msg=\"yodel: listening\" addr=localhost:1 transport=mem+tls"; !strings.Contains(log.String(), said) {
				t.Errorf("the log lacks %s:\n%s", said, &log)
			}
		})
	}
}

// ask makes a call to the server at localhost:1.
func ask(t *testing.T, transport yodel.Transport) (*string, error) {
	t.Helper()
	c := yodel.NewClient(discovery.Static("localhost:1"), &yodel.ClientOptions{
		Transport: transport, Timeout: 20 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	defer c.Close()
	return whoami.Call(t.Context(), c, &struct{}{})
}

// A server whose tls.Transport has no certificate serves nothing, instead of plain text.
func TestServeNeedsACertificate(t *testing.T) {
	l, err := mem.New().Listen("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Transport: &tls.Transport{}, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	checkError(t, s.Serve(ctx, l), "no certificate")
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

// Servers of yodeltest have no network, so options with a tls.Transport work as they are.
func TestServersOfTestsNeedNoTLS(t *testing.T) {
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Transport: &tls.Transport{}})
	whoami.Handle(s.Server, func(context.Context, *struct{}) (*string, error) { return new("nobody"), nil })
	if got, err := whoami.Call(t.Context(), yodeltest.NewClient(t, nil, s), &struct{}{}); err != nil || *got != "nobody" {
		t.Errorf("got %v, %v", got, err)
	}
}
