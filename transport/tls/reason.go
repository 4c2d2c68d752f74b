// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// These are the two sides of a connection, as named in messages.
const (
	server = "server"
	client = "client"
)

// failed returns the error of a handshake with the peer at addr that ended with err. If TLS is the
// reason, it returns a *yodel.Error that names the failed check in plain words. A client returns
// that error to its caller, and a server logs it. If the peer went away or the time was over, TLS
// is not known to be the reason.
func failed(err error, peer, addr string, now func() time.Time) error {
	why := reason(err, peer, now)
	if why == "" {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("the %s did not finish the TLS handshake in time: %w", peer, err)
		}
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return &yodel.Error{Code: yodel.Unavailable, ID: "YDL1108", NotProcessed: true, Message: addr + ": TLS: " + why, Cause: err}
}

// reason returns why a handshake with the peer ended with err, or "" if TLS is not the reason.
func reason(err error, peer string, now func() time.Time) string {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return validity(invalid.Cert, peer, now)
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		by := ""
		if unknown.Cert != nil && unknown.Cert.Issuer.CommonName != "" {
			by = fmt.Sprintf(" (%.60q)", unknown.Cert.Issuer.CommonName)
		}
		return fmt.Sprintf("the %s's certificate is signed by an authority that this %s does not trust%s", peer, other(peer), by)
	}
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Sprintf("the %s does not speak TLS: it began with %s", peer, speech(record.RecordHeader[:]))
	}
	op, ofNet := errors.AsType[*net.OpError](err)
	switch {
	case ofNet && op.Op == "remote error": // crypto/tls reports an alert of the peer in this way
		return fmt.Sprintf("the %s refused the handshake: %s", peer, plain(op.Err))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, net.ErrClosed):
		return ""
	case ofNet, errors.Is(err, io.EOF):
		if peer == client { // a client that connects and closes is usually a health check
			return ""
		}
		return "the server ended the connection during the handshake; is TLS set up on one side only?"
	}
	if verify, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Sprintf("the %s's %s", peer, plain(verify.Err))
	}
	return plain(err)
}

// validity says when a certificate that is not valid now is valid.
func validity(c *x509.Certificate, peer string, now func() time.Time) string {
	whose := fmt.Sprintf("the %s's certificate", peer)
	if c.IsCA {
		whose = fmt.Sprintf("the certificate of the authority behind the %s's", peer)
	}
	if now == nil {
		now = time.Now
	}
	if now().Before(c.NotBefore) {
		return fmt.Sprintf("%s is valid from %s on", whose, c.NotBefore.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s expired at %s", whose, c.NotAfter.UTC().Format(time.RFC3339))
}

// speech names the protocol of a connection that is not TLS, by its first bytes.
func speech(header []byte) string {
	for _, known := range []struct{ prefix, what string }{
		{"\xf5yode", "yodel without TLS"},
		{"HTTP/", "an HTTP reply"},
		{"GET /", "an HTTP request"},
		{"POST ", "an HTTP request"},
		{"SSH-", "SSH"},
	} {
		if bytes.HasPrefix(header, []byte(known.prefix)) {
			return known.what
		}
	}
	return fmt.Sprintf("%q", header)
}

// plain returns the text of err without the names of packages of the standard library.
func plain(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tls: "), "x509: ")
}

func other(side string) string {
	if side == server {
		return client
	}
	return server
}

// alert is the answer to a client that does not speak TLS: the fatal alert "unexpected message".
// From its first bytes any client can tell that the server speaks TLS.
var alert = []byte{0x15, 3, 1, 0, 2, 2, 10}

// hint sends the alert to a client that does not speak TLS.
func (c *conn) hint(err error) {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		raw := c.NetConn()
		_ = raw.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = raw.Write(alert) // an error does no harm, because the connection ends
	}
}
