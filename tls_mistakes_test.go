// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// A TLS handshake that fails is one line on each side, with and without retry: the caller's error
// names the check that failed, and the server's log has one warning per connection.
func TestTLSMistakesAreToldOnBothSides(t *testing.T) {
	ca, stranger := newAuthority(t, "our authority"), newAuthority(t, "some authority")
	good := func(name string) []stdtls.Certificate {
		return []stdtls.Certificate{ca.certify(t, name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))}
	}
	day := time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC)
	both := &stdtls.Config{Certificates: good("localhost"), ClientCAs: ca.pool}
	plain := "a plain client or server"
	for name, test := range map[string]struct {
		server *stdtls.Config // nil for no TLS
		client *stdtls.Config // nil for no TLS
		want   string         // the caller's error
		log    string         // the server's warning
	}{
		"the server's certificate has expired": {
			&stdtls.Config{Certificates: []stdtls.Certificate{ca.certify(t, "localhost", day.AddDate(0, -1, 0), day)}}, &stdtls.Config{RootCAs: ca.pool},
			"ADDR: TLS: the server's certificate expired at 2025-06-01T12:00:00Z",
			`reason="TLS: the client refused the handshake: bad certificate" id=YDL1108`,
		},
		"the server's certificate is not valid yet": {
			&stdtls.Config{Certificates: []stdtls.Certificate{ca.certify(t, "localhost", day.AddDate(80, 0, 0), day.AddDate(90, 0, 0))}}, &stdtls.Config{RootCAs: ca.pool},
			"ADDR: TLS: the server's certificate is valid from 2105-06-01T12:00:00Z on",
			`reason="TLS: the client refused the handshake: bad certificate" id=YDL1108`,
		},
		"another authority": {
			&stdtls.Config{Certificates: good("localhost")}, &stdtls.Config{RootCAs: stranger.pool},
			`ADDR: TLS: the server's certificate is signed by an authority that this client does not trust ("our authority")`,
			`reason="TLS: the client refused the handshake: bad certificate" id=YDL1108`,
		},
		"another host": {
			&stdtls.Config{Certificates: good("localhost")}, &stdtls.Config{RootCAs: ca.pool, ServerName: "shop.example"},
			"ADDR: TLS: the server's certificate is valid for localhost, not shop.example",
			`reason="TLS: the client refused the handshake: bad certificate" id=YDL1108`,
		},
		"no client certificate": {
			both, &stdtls.Config{RootCAs: ca.pool},
			"ADDR: TLS: the server refused the handshake: certificate required",
			`reason="TLS: client didn't provide a certificate" id=YDL1108`,
		},
		"a client certificate of another authority": {
			both, &stdtls.Config{RootCAs: ca.pool, Certificates: []stdtls.Certificate{stranger.certify(t, "client", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))}},
			// Go's client shows none that the server would not trust
			"ADDR: TLS: the server refused the handshake: certificate required",
			`reason="TLS: client didn't provide a certificate" id=YDL1108`,
		},
		"a client certificate that has expired": {
			both, &stdtls.Config{RootCAs: ca.pool, Certificates: []stdtls.Certificate{ca.certify(t, "client", day.AddDate(0, -1, 0), day)}},
			"ADDR: TLS: the server refused the handshake: expired certificate",
			`reason="TLS: the client's certificate expired at 2025-06-01T12:00:00Z" id=YDL1108`,
		},
		plain + ", and the server has TLS": {
			&stdtls.Config{Certificates: good("localhost")}, nil,
			"ADDR: the server does not speak yodel: a TLS alert; is TLS set up on one side only?",
			`reason="TLS: the client does not speak TLS: it began with yodel without TLS" id=YDL1108`,
		},
		plain + ", and the client has TLS": {
			nil, &stdtls.Config{RootCAs: ca.pool},
			"ADDR: TLS: the server does not speak TLS: it began with yodel without TLS",
			`sent="a TLS handshake; is TLS set up on one side only?" id=YDL1101`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := &logged{}
			so := &yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(log, nil))}
			l := listen(t)
			if test.server != nil {
				_ = l.Close()
				var err error
				l, err = (&tls.Transport{Server: test.server}).Listen("127.0.0.1:0")
				must(t, err)
			}
			serveOn(t, newServer(t, so), l)
			o := yodel.ClientOptions{}
			if test.client != nil {
				config := test.client.Clone()
				if config.ServerName == "" {
					config.ServerName = "localhost"
				}
				o.Transport = &tls.Transport{Client: config}
			}
			id := " [YDL1108]"
			if test.client == nil {
				id = " [YDL1101]"
			}
			if got := tlsError(t, &o, l.Addr()); got != "unavailable: Arith.Mul: "+test.want+id {
				t.Errorf("without retry it is\n%s\nwant\n%s", got, test.want+id)
			}
			log.wait(t, test.log)

			o.Middleware = []yodel.Middleware{retry.With(&retry.Options{Times: 3, Backoff: time.Nanosecond})}
			want := "unavailable: Arith.Mul: 3 attempts at ADDR failed, all: " + strings.TrimPrefix(test.want, "ADDR: ") + " [YDL1003]"
			if got := tlsError(t, &o, l.Addr()); got != want {
				t.Errorf("with retry it is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// tlsError returns the error of a call, with ADDR in place of the address.
func tlsError(t *testing.T, o *yodel.ClientOptions, addr net.Addr) string {
	t.Helper()
	_, err := Mul.Call(t.Context(), newClient(t, o, addr.String()), &Args{1, 2})
	if err == nil {
		t.Fatal("there is no error")
	}
	if len(err.Error()) > 300 || !yodel.NotProcessed(err) {
		t.Errorf("it is too long, or does not say that the call was not executed: %v", err)
	}
	again := regexp.MustCompile(` \(connecting again in [^)]*\)`)
	return again.ReplaceAllString(strings.ReplaceAll(err.Error(), addr.String(), "ADDR"), "")
}

// A health check that connects and closes without a word is not a mistake, and is not logged.
func TestAProbeOfATLSPortIsNotLogged(t *testing.T) {
	ca, log := newAuthority(t, "our authority"), &logged{}
	ended := make(chan error, 1)
	l, err := (&tls.Transport{Server: &stdtls.Config{
		Certificates: []stdtls.Certificate{ca.certify(t, "localhost", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))},
	}}).Listen("127.0.0.1:0")
	must(t, err)
	serveOn(t, newServer(t, &yodel.ServerOptions{
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnConn: func(e introspect.ConnEvent) {
			if e.Kind != introspect.Accepted {
				ended <- e.Err
			}
		},
	}), l)
	nc, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	must(t, nc.Close())
	_ = receive(t, ended, "the connection ends")
	if lines := log.lines(); len(lines) > 0 {
		t.Errorf("it is logged: %s", lines)
	}
}

// logged is what was logged, for a test to read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(strings.Split(l.text.String(), "\n"), func(line string) bool { return line == "" })
}

// wait waits until there is one warning for each connection so far, and checks that it says what is
// wanted.
func (l *logged) wait(t *testing.T, want string) {
	t.Helper()
	var warnings []string
	until(t, "the server logs "+want, func() bool {
		warnings = slices.DeleteFunc(l.lines(), func(line string) bool { return !strings.Contains(line, "level=WARN") })
		return len(warnings) > 0
	})
	if !strings.HasSuffix(warnings[0], want) {
		t.Errorf("the server logged %s\nwant %s", warnings[0], want)
	}
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(200, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert, key, pool}
}

// certify signs a certificate for a name, valid from one time to another.
func (ca *authority) certify(t testing.TB, name string, from, to time.Time) stdtls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	must(t, err)
	return stdtls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
