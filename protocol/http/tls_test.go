// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"io"
	std "net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// ALPN chooses the version of HTTP, and handlers see the TLS connection.
func TestTLS(t *testing.T) {
	source := httptest.NewTLSServer(nil) // its certificate
	source.Close()
	l, err := (&tls.Transport{Server: &stdtls.Config{Certificates: source.TLS.Certificates}}).Listen("127.0.0.1:0")
	must(t, err)
	page := func(w std.ResponseWriter, r *std.Request) {
		_, _ = io.WriteString(w, r.Proto+" "+r.TLS.NegotiatedProtocol)
	}
	s := newSiteOn(t, l, &http.Options{Handler: std.HandlerFunc(page)}, yodel.ServerOptions{})
	must(t, s.HandleCall("Test.TLS", func(_ context.Context, call *yodel.Call) error {
		call.Reply = call.Peer().TLS() != nil
		return nil
	}))
	pool := x509.NewCertPool()
	pool.AddCert(source.Certificate())
	for _, test := range []struct {
		name   string
		offers []string
		want   string
	}{
		{"a browser", []string{"h2", "http/1.1"}, "HTTP/2.0 h2"},
		{"a client of gRPC", []string{"h2"}, "HTTP/2.0 h2"},
		{"a client of HTTP/1", []string{"http/1.1"}, "HTTP/1.1 http/1.1"},
		{"a client without ALPN", nil, "HTTP/1.1 "},
	} {
		t.Run(test.name, func(t *testing.T) {
			transport := &std.Transport{TLSClientConfig: &stdtls.Config{RootCAs: pool, NextProtos: test.offers}, Protocols: new(std.Protocols)}
			transport.Protocols.SetHTTP2(slices.Contains(test.offers, "h2"))
			transport.Protocols.SetHTTP1(slices.Contains(test.offers, "http/1.1"))
			if test.offers == nil {
				transport.Protocols = nil
			}
			defer transport.CloseIdleConnections()
			c := &std.Client{Transport: transport}
			ask := func(method, path, contentType string, body []byte) (string, std.Header) {
				r, err := std.NewRequestWithContext(t.Context(), method, "https://"+s.addr+path, bytes.NewReader(body))
				must(t, err)
				r.Header.Set("Content-Type", contentType)
				response, err := c.Do(r)
				must(t, err)
				defer response.Body.Close()
				b, err := io.ReadAll(response.Body)
				must(t, err)
				return string(b), response.Trailer
			}
			if got, _ := ask("GET", "/page", "", nil); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if got, _ := ask("POST", "/Test/TLS", "application/json", []byte("{}")); got != "true" {
				t.Errorf("the handler's peer has TLS: %s", got)
			}
			if test.want[:6] != "HTTP/2" {
				return
			}
			got, trailer := ask("POST", "/Test/Echo", "application/grpc+json", envelope(0, `{"text":"x"}`))
			if got != string(envelope(0, `{"text":"x"}`)) || trailer.Get("Grpc-Status") != "0" {
				t.Errorf("gRPC: got %q, trailer %v", got, trailer)
			}
		})
	}
}
