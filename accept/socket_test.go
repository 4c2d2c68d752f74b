// SPDX-License-Identifier: Apache-2.0

//go:build linux

package accept_test

import (
	"context"
	stdtls "crypto/tls"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/accept"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/testca"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// patience is how long a call may take before the test gives up.
const patience = 20 * time.Second

const touch yodel.Method[string, string] = "Door.Touch"

// A transportFrom dials TCP from a local address of its own. On Linux every address of 127.0.0.0/8
// is local.
type transportFrom struct {
	yodel.Transport

	local net.IP
}

func (f transportFrom) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: f.local}}
	return d.DialContext(ctx, "tcp", addr)
}

// TestFiltersDecideAboutConnections connects through real sockets from two addresses, of which the
// server lets one in.
func TestFiltersDecideAboutConnections(t *testing.T) {
	allow, err := accept.Allow("127.0.0.0/30")
	if err != nil {
		t.Fatal(err)
	}
	deny, err := accept.Deny("127.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	for name, filter := range map[string]func(net.Conn) error{"Allow": allow, "Deny": deny} {
		t.Run(name, func(t *testing.T) {
			var executed atomic.Int32
			addr := serve(t, filter, &executed)
			if err := call(t, addr, net.IPv4(127, 0, 0, 2)); err != nil {
				t.Errorf("from 127.0.0.2: %v", err)
			}
			if err := call(t, addr, net.IPv4(127, 0, 0, 9)); !yodel.NotProcessed(err) {
				t.Errorf("from 127.0.0.9: got %v, want an error that says that nothing was executed", err)
			}
			if n := executed.Load(); n != 1 {
				t.Errorf("%d calls were executed, want 1", n)
			}
		})
	}
}

// serve serves on a port of its own until the test ends.
func serve(t *testing.T, filter func(net.Conn) error, executed *atomic.Int32) (addr string) {
	t.Helper()
	l, err := yodel.TCP.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{Accept: filter, Logger: slog.New(slog.DiscardHandler)})
	touch.Handle(s, func(_ context.Context, in *string) (*string, error) {
		executed.Add(1)
		return in, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// call makes one call from a local address.
func call(t *testing.T, addr string, local net.IP) error {
	t.Helper()
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{
		Transport: transportFrom{yodel.TCP, local}, Logger: slog.New(slog.DiscardHandler),
	})
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := touch.Call(ctx, c, new("x"))
	return err
}

// TestARateIsDecidedBeforeTLS floods a server from one address. The server begins no handshake for
// the connections that it refuses, logs few of them, and serves another address.
func TestARateIsDecidedBeforeTLS(t *testing.T) {
	ca := testca.New(t)
	certificate := ca.Certificate(t, "server")
	var handshakes, refused atomic.Int32
	var lines countedLines
	rate := &accept.Rate{PerSecond: 1000, PerAddress: 0.001, AddressBurst: 3}
	s := yodel.NewServer(&yodel.ServerOptions{
		Accept: rate.Accept,
		Logger: slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnConn: func(e introspect.ConnEvent) {
			if e.Kind == introspect.Refused {
				refused.Add(1)
			}
		},
		Transport: &tls.Transport{Server: &stdtls.Config{GetCertificate: func(*stdtls.ClientHelloInfo) (*stdtls.Certificate, error) {
			handshakes.Add(1)
			return &certificate, nil
		}}},
	})
	touch.Handle(s, func(_ context.Context, in *string) (*string, error) { return in, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	config := &stdtls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1"}
	const flood = 200
	for range flood {
		nc, err := transportFrom{local: net.IPv4(127, 0, 0, 9)}.Dial(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = stdtls.Client(nc, config).HandshakeContext(t.Context()) // most fail
		_ = nc.Close()
	}
	c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{
		Transport: &tls.Transport{Client: config, Over: transportFrom{yodel.TCP, net.IPv4(127, 0, 0, 2)}},
	})
	defer c.Close()
	if _, err := touch.Call(t.Context(), c, new("x")); err != nil {
		t.Errorf("a call from another address: %v", err)
	}
	stats := rate.Stats()
	if stats != (accept.RateStats{Accepted: 4, RefusedByAddress: flood - 3}) || refused.Load() != flood-3 {
		t.Errorf("the statistics are %+v, and OnConn was told of %d", stats, refused.Load())
	}
	if n := handshakes.Load(); n > 4 {
		t.Errorf("there were %d handshakes, want at most 4", n)
	}
	if n := lines.n.Load(); n == 0 || n > 10 {
		t.Errorf("the server has logged %d lines, want 1 to 10", n)
	}
}

// countedLines counts lines of a log.
type countedLines struct{ n atomic.Int32 }

func (c *countedLines) Write(b []byte) (int, error) {
	c.n.Add(1)
	return len(b), nil
}
