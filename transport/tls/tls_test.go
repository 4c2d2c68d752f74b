// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	"context"
	stdtls "crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var _ yodel.Transport = (*tls.Transport)(nil)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestTransportOverTCP(t *testing.T) {
	yodeltest.TestTransport(t, newAuthority(t).transport(t, nil), "127.0.0.1:0")
}

func TestTransportOverMemoryWithBothSidesProven(t *testing.T) {
	ca := newAuthority(t)
	both := ca.transport(t, mem.New())
	both.Server.ClientCAs = ca.pool
	both.Client.Certificates = []stdtls.Certificate{ca.certificate(t, "client").pair(t)}
	yodeltest.TestTransport(t, both, "localhost:0")
}

func TestDialTrustsOnlyTheHostOfTheAddress(t *testing.T) {
	ca, network := newAuthority(t), mem.New()
	server := ca.transport(t, network) // its certificate is for localhost and 127.0.0.1
	tests := []struct {
		name, addr string
		client     *stdtls.Config
		want       string // part of the error
	}{
		{"host", "localhost:1", &stdtls.Config{RootCAs: ca.pool}, ""},
		{"IP address", "127.0.0.1:1", &stdtls.Config{RootCAs: ca.pool}, ""},
		{"no port", "localhost", &stdtls.Config{RootCAs: ca.pool}, ""},
		{"another host", "example.com:1", &stdtls.Config{RootCAs: ca.pool}, "example.com:1: TLS: the server's certificate is valid for localhost, not example.com [YDL1108]"},
		{"another host by choice", "example.com:1", &stdtls.Config{RootCAs: ca.pool, ServerName: "localhost"}, ""},
		{"another authority", "localhost:1", &stdtls.Config{RootCAs: newAuthority(t).pool}, "the server's certificate is signed by an authority that this client does not trust (\"authority\")"},
		{"this machine's authorities", "localhost:1", nil, "does not trust"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			serve(t, server, test.addr)
			err := exchange(t, &tls.Transport{Client: test.client, Over: network}, test.addr)
			checkError(t, err, test.want)
		})
	}
}

func TestClientCAsAskForACertificate(t *testing.T) {
	ca := newAuthority(t)
	tests := []struct {
		name string
		mode stdtls.ClientAuthType
		show []stdtls.Certificate
		want string // part of the server's error
	}{
		{"shown", 0, []stdtls.Certificate{ca.certificate(t, "client").pair(t)}, ""},
		{"not shown", 0, nil, "client didn't provide a certificate"},
		{"of another authority", 0, []stdtls.Certificate{newAuthority(t).certificate(t, "client").pair(t)}, "the client's certificate is signed by an authority that this server does not trust"},
		{"not shown, as is allowed", stdtls.VerifyClientCertIfGiven, nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			transport := ca.transport(t, mem.New())
			transport.Server.ClientCAs, transport.Server.ClientAuth = ca.pool, test.mode
			transport.Client.Certificates = test.show
			server, client := accept(t, transport)
			_, err := server.Write([]byte("welcome"))
			checkError(t, err, test.want)
			_, err = client.Read(make([]byte, 7))
			if (err == nil) != (test.want == "") {
				t.Errorf("the client got %v", err)
			}
		})
	}
}

func TestOldVersionsAreRefused(t *testing.T) {
	tests := []struct {
		name           string
		server, client uint16 // MinVersion of the one, MaxVersion of the other
		want           string
	}{
		{"1.3", 0, 0, ""},
		{"1.2 by default", 0, stdtls.VersionTLS12, "protocol version"},
		{"1.2 when asked for", stdtls.VersionTLS12, stdtls.VersionTLS12, ""},
		{"1.1 even when asked for", stdtls.VersionTLS10, stdtls.VersionTLS11, "version"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			network := mem.New()
			transport := newAuthority(t).transport(t, network)
			transport.Server.MinVersion = test.server
			serve(t, transport, "localhost:1")

			// A client of crypto/tls itself, which the transport's own defaults do not touch.
			raw, err := network.Dial(t.Context(), "localhost:1")
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			config := transport.Client.Clone()
			config.ServerName, config.MinVersion, config.MaxVersion = "localhost", stdtls.VersionTLS10, test.client
			checkError(t, stdtls.Client(raw, config).HandshakeContext(t.Context()), test.want)
		})
	}
	t.Run("a client refuses 1.2 by default", func(t *testing.T) {
		transport := newAuthority(t).transport(t, mem.New())
		transport.Server.MinVersion, transport.Server.MaxVersion = stdtls.VersionTLS12, stdtls.VersionTLS12
		serve(t, transport, "localhost:1")
		checkError(t, exchange(t, transport, "localhost:1"), "protocol version")
	})
}

// A configuration that the server chooses for each client has the same defaults as the one that the
// transport was given.
func TestAChosenConfigurationHasTheDefaults(t *testing.T) {
	ca := newAuthority(t)
	network := mem.New()
	transport := ca.transport(t, network)
	chosen := transport.Server.Clone()
	chosen.MinVersion, chosen.ClientCAs = stdtls.VersionTLS10, ca.pool
	transport.Server.GetConfigForClient = func(*stdtls.ClientHelloInfo) (*stdtls.Config, error) { return chosen, nil }
	t.Run("no version before 1.2", func(t *testing.T) {
		serve(t, transport, "localhost:1")
		raw, err := network.Dial(t.Context(), "localhost:1")
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		config := transport.Client.Clone()
		config.ServerName, config.MinVersion, config.MaxVersion = "localhost", stdtls.VersionTLS10, stdtls.VersionTLS11
		checkError(t, stdtls.Client(raw, config).HandshakeContext(t.Context()), "version")
	})
	t.Run("a certificate of the client", func(t *testing.T) {
		server, client := accept(t, transport)
		_, err := server.Write([]byte("welcome"))
		checkError(t, err, "client didn't provide a certificate")
		if _, err := client.Read(make([]byte, 7)); err == nil {
			t.Error("the client was let in without a certificate")
		}
	})
	if chosen.ClientAuth != stdtls.NoClientCert || chosen.MinVersion != stdtls.VersionTLS10 {
		t.Error("the configuration of the user was changed")
	}
}

func TestListenNeedsACertificate(t *testing.T) {
	for name, server := range map[string]*stdtls.Config{"no configuration": nil, "an empty one": {}} {
		if l, err := (&tls.Transport{Server: server, Over: mem.New()}).Listen("localhost:1"); err == nil {
			_ = l.Close()
			t.Errorf("with %s: got no error", name)
		}
	}
}

func TestASilentClientIsGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		set, want time.Duration
		use       func(net.Conn) error
	}{
		"by default":    {0, 10 * time.Second, func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }},
		"when set":      {time.Second, time.Second, func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }},
		"while writing": {time.Second, time.Second, func(c net.Conn) error { _, err := c.Write(make([]byte, 1)); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				transport := newAuthority(t).transport(t, network)
				transport.HandshakeTimeout = test.set
				listener, err := transport.Listen("localhost:1")
				if err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
				silent, err := network.Dial(t.Context(), "localhost:1")
				if err != nil {
					t.Fatal(err)
				}
				server, err := listener.Accept() // does not wait
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err = test.use(server)
				if took := time.Since(began); took != test.want || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v after %v, want a timeout after %v", err, took, test.want)
				}
				if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("the client got %v, want the end of its connection", err)
				}
			})
		})
	}
}

func TestTheHandshakeTimeoutEndsWithTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := newAuthority(t).transport(t, mem.New())
		serve(t, transport, "localhost:1")
		conn, err := transport.Dial(t.Context(), "localhost:1")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		time.Sleep(time.Hour) // of fake time
		if err := echo(conn); err != nil {
			t.Errorf("got %v an hour after the handshake", err)
		}
	})
}

func TestDialEndsWhenTheServerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		listener, err := network.Listen("localhost:1")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err = (&tls.Transport{Over: network}).Dial(ctx, "localhost:1")
		if took := time.Since(began); took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v after %v, want the context's error after 1s", err, took)
		}
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(server); err != nil {
			t.Errorf("got %v, want the end of the connection that was given up", err)
		}
	})
}

func TestDialClosesWhatIsNoTLS(t *testing.T) {
	network := mem.New()
	listener, err := network.Listen("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed := make(chan error, 1)
	go func() {
		_, err := (&tls.Transport{Over: network}).Dial(t.Context(), "localhost:1")
		dialed <- err
	}()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := server.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	checkError(t, <-dialed, "localhost:1: TLS: the server does not speak TLS: it began with an HTTP reply")
	_ = server.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.ReadAll(server); err != nil {
		t.Errorf("got %v, want the end of the connection that was given up", err)
	}
}

func TestConnectionsTellWhoThePeerIs(t *testing.T) {
	ca := newAuthority(t)
	transport := ca.transport(t, mem.New())
	transport.Server.ClientCAs = ca.pool
	transport.Client.Certificates = []stdtls.Certificate{ca.certificate(t, "billing").pair(t)}
	server, _ := accept(t, transport)
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	peers := server.(interface{ ConnectionState() stdtls.ConnectionState }).ConnectionState().PeerCertificates
	if len(peers) == 0 || peers[0].Subject.CommonName != "billing" {
		t.Errorf("got %v, want the certificate of billing", peers)
	}
}

// accept returns both ends of a connection. The server's is still to finish its handshake, which
// the client's then takes part in.
func accept(t *testing.T, transport *tls.Transport) (server net.Conn, client *dialing) {
	t.Helper()
	listener, err := transport.Listen("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	client = &dialing{done: make(chan struct{})}
	go func() {
		defer close(client.done)
		client.conn, client.err = transport.Dial(t.Context(), "localhost:1")
	}()
	server, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Close()
		if <-client.done; client.err == nil {
			_ = client.conn.Close()
		}
	})
	return server, client
}

// A dialing is a connection that is being dialed.
type dialing struct {
	done chan struct{}
	conn net.Conn
	err  error
}

func (d *dialing) Read(b []byte) (int, error) {
	if <-d.done; d.err != nil {
		return 0, d.err
	}
	return d.conn.Read(b)
}

// serve echoes at addr until the test ends.
func serve(t *testing.T, transport *tls.Transport, addr string) {
	t.Helper()
	listener, err := transport.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func exchange(t *testing.T, transport *tls.Transport, addr string) error {
	t.Helper()
	conn, err := transport.Dial(t.Context(), addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	return echo(conn)
}

func echo(conn net.Conn) error {
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v, want no error", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

// transport returns one that proves to be localhost, and trusts ca alone.
func (ca authority) transport(t *testing.T, over yodel.Transport) *tls.Transport {
	t.Helper()
	return &tls.Transport{
		Server: &stdtls.Config{Certificates: []stdtls.Certificate{ca.certificate(t, "localhost").pair(t)}},
		Client: &stdtls.Config{RootCAs: ca.pool},
		Over:   over,
	}
}
