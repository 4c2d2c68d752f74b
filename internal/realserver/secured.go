// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
)

// Secured is Between with TLS on the side of the clients. The proxy accepts only clients with the
// right certificate. Secured also returns the TLS configuration with which clients connect.
func Secured(t testing.TB, addr string) (*Proxy, *tls.Config) {
	t.Helper()
	certificate, key := identity(t)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(certificate)
	server := &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: known, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
	}
	client := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: known, MinVersion: tls.VersionTLS12}
	return between(t, addr, func(l net.Listener) net.Listener { return tls.NewListener(l, server) }), client
}
