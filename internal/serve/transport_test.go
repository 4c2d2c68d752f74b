// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/yodel-rpc/yodel/internal/serve"
)

func TestTheTransportOfAListenerIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := serve.Transport(l, l); got != "tcp" {
		t.Errorf("a plain listener: %s", got)
	}
	if got := serve.Transport(l, tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS13})); got != "tcp+tls" {
		t.Errorf("a listener with TLS: %s", got)
	}
}
