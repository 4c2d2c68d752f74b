// SPDX-License-Identifier: Apache-2.0

// Package tls encrypts connections and authenticates their ends, over TCP or over any other
// transport. It uses the configurations of crypto/tls:
//
//	import (
//		stdtls "crypto/tls"
//		"github.com/yodel-rpc/yodel/transport/tls"
//	)
//
//	certificate, err := tls.Reload("server.crt", "server.key")
//	transport := &tls.Transport{Server: &stdtls.Config{GetCertificate: certificate.GetCertificate}}
//
// For mutual TLS the server sets ClientCAs, and the client Certificates or GetClientCertificate.
package tls

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Transport runs TLS over another transport. It may be used concurrently. Its fields and
// configurations must not be changed once it is in use.
//
// It uses TLS 1.3, unless the MinVersion of a configuration allows 1.2. It never uses older
// versions.
//
// With TLS 1.3 a client finishes its handshake before the server checks the client's certificate.
// If the server refuses it, Dial succeeds and the first Read fails.
//
// If a handshake fails because of TLS, the error is a *yodel.Error with the ID YDL1108, which names
// the failed check. The caller of the client gets it, and the server logs it in one line. A client
// that does not speak TLS receives a TLS alert, from which it can tell that the server does.
type Transport struct {
	// Server is the configuration for Listen. It needs a certificate. With ClientCAs and the
	// default ClientAuth, every client must present a certificate from one of them. The same
	// defaults apply to a configuration that GetConfigForClient returns, which must not be changed
	// afterwards. Default: Listen fails.
	Server *tls.Config
	// Client is the configuration for Dial. Without a ServerName, the server must prove that it is
	// the host of the address. Default: the trusted roots of this machine.
	Client *tls.Config
	// Over is the transport for the encrypted bytes. Default: yodel.TCP.
	Over yodel.Transport
	// HandshakeTimeout closes an accepted connection whose client does not finish its handshake in
	// time. The context of Dial bounds its handshake. Default: 10 s.
	HandshakeTimeout time.Duration
}

// Dial connects to addr and carries out the handshake.
func (t *Transport) Dial(ctx context.Context, addr string) (net.Conn, error) {
	raw, err := t.over().Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	config := withDefaults(t.Client)
	if config.ServerName == "" {
		config.ServerName = hostOf(addr)
	}
	c := &conn{Conn: tls.Client(raw, config), peer: server, addr: addr, now: config.Time}
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, failed(err, server, addr, config.Time)
	}
	c.ready.Store(true)
	return c, nil
}

// Listen accepts connections at addr. Their first Read or Write carries out the handshake.
func (t *Transport) Listen(addr string) (net.Listener, error) {
	if _, err := t.NewListener(nil); err != nil {
		return nil, err
	}
	inner, err := t.over().Listen(addr)
	if err != nil {
		return nil, err
	}
	return t.NewListener(inner)
}

// NewListener accepts the connections of inner and runs TLS over them, as Listen does. Connections
// with a method ConnectionState, as those of Listen and of crypto/tls have, use TLS already:
// NewListener does not change them. Server.Serve calls it if the Transport is in its options.
func (t *Transport) NewListener(inner net.Listener) (net.Listener, error) {
	config := serverDefaults(t.Server)
	if len(config.Certificates) == 0 && config.GetCertificate == nil && config.GetConfigForClient == nil {
		return nil, errors.New("listen with TLS: Transport.Server has no certificate")
	}
	if choose := config.GetConfigForClient; choose != nil {
		config.GetConfigForClient = chosenDefaults(choose)
	}
	timeout := t.HandshakeTimeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	return &listener{inner, config, timeout}, nil
}

func (t *Transport) over() yodel.Transport {
	if t.Over == nil {
		return yodel.TCP
	}
	return t.Over
}

// serverDefaults is withDefaults for the side that listens. It also offers the protocols over HTTP,
// in case the server has them, and makes certificates of clients mandatory if ClientCAs are set.
func serverDefaults(config *tls.Config) *tls.Config {
	config = withDefaults(config)
	if config.NextProtos == nil {
		config.NextProtos = []string{"h2", "http/1.1"} // clients of gRPC and browsers ask for it; the server looks at the first bytes
	}
	if config.ClientCAs != nil && config.ClientAuth == tls.NoClientCert {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config
}

// chosenDefaults applies the defaults to the configurations that choose returns. While choose
// returns the same configuration, chosenDefaults reuses its copy, because the copy has the keys of
// session tickets.
func chosenDefaults(choose func(*tls.ClientHelloInfo) (*tls.Config, error)) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	type pair struct{ chosen, copied *tls.Config }
	var last atomic.Pointer[pair]
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := choose(hello)
		if chosen == nil || err != nil {
			return nil, err
		}
		if p := last.Load(); p != nil && p.chosen == chosen {
			return p.copied, nil
		}
		p := &pair{chosen, serverDefaults(chosen)}
		last.Store(p)
		return p.copied, nil
	}
}

// withDefaults copies a configuration, which may be nil, and raises its minimum version.
func withDefaults(config *tls.Config) *tls.Config {
	if config == nil {
		config = new(tls.Config)
	}
	config = config.Clone()
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	return config
}

func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

type listener struct {
	net.Listener
	config  *tls.Config
	timeout time.Duration // for a handshake
}

func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if _, secure := raw.(interface{ ConnectionState() tls.ConnectionState }); secure || err != nil {
		return raw, err
	}
	return &conn{Conn: tls.Server(raw, l.config), peer: client, addr: raw.RemoteAddr().String(), now: l.config.Time, timeout: l.timeout}, nil
}

// A conn bounds the time that a slow peer can take. This concerns the handshake, which the first
// Read or Write of an accepted connection carries out, and Close.
type conn struct {
	*tls.Conn
	peer    string // client or server
	addr    string // of the peer
	now     func() time.Time
	timeout time.Duration // for the handshake
	ready   atomic.Bool   // whether the handshake has ended
	heard   atomic.Bool   // whether the peer has sent data since then
}

func (c *conn) Read(b []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	switch {
	case err != nil && !c.heard.Load():
		return n, c.refused(err)
	case n > 0 && !c.heard.Load():
		c.heard.Store(true)
	}
	return n, err
}

// refused returns the error of the first Read. With TLS 1.3 a client learns there that the server
// has refused its certificate.
func (c *conn) refused(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return failed(err, c.peer, c.addr, c.now)
	}
	return err
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *conn) handshake() error {
	if c.ready.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		c.hint(err)
		return failed(err, c.peer, c.addr, c.now)
	}
	c.ready.Store(true)
	return nil
}

// Close sends the TLS close notification, so that the peer can detect truncation. If the peer does
// not read, the buffer may be full, and crypto/tls alone would wait five seconds.
func (c *conn) Close() error {
	cut := time.AfterFunc(100*time.Millisecond, func() { _ = c.NetConn().Close() })
	defer cut.Stop()
	return c.Conn.Close()
}
