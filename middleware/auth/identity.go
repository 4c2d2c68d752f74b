// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"cmp"
	"context"
	"crypto/x509"
	"slices"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/internal/caller"
)

// An Identity is who makes a call, as the server has verified it. It never contains what a caller
// merely claims.
type Identity struct {
	// Subject names the caller, and distinguishes it from all other callers.
	Subject string
	// Tenant is the customer to whom the caller belongs. If it is set, Check and Certificate put it
	// into Call.Tenant, in place of the tenant that the caller has named.
	Tenant string
	// Claims are further facts by name, such as the claims of a JWT.
	Claims map[string]any
}

// WithIdentity returns a context with the identity of the caller. The check functions of Check and
// Certificate return such a context. The methods and the middleware below get the identity with
// IdentityFrom, rate.User limits by it, and rules select by it. The identity must not be changed
// afterwards. It stays in this process: calls that a handler makes do not carry it.
func WithIdentity(ctx context.Context, id *Identity) context.Context {
	return caller.With(ctx, id.Subject, id)
}

// IdentityFrom returns the identity of the caller, or nil if the server does not know it. Ctx is
// the context of a handler, or of middleware below Check or Certificate.
func IdentityFrom(ctx context.Context) *Identity {
	_, id := caller.From(ctx)
	known, _ := id.(*Identity)
	return known
}

// Certificate makes a server require a verified certificate of the client for every call: see
// CertificateOf. The method gets the context that check returns, as with Check. A nil check admits
// every verified certificate, and the identity is IdentityOf the certificate. Methods in exempt are
// open to everyone.
//
// A call without such a certificate fails with Unauthenticated (YDL3101), and check is not called.
// Errors of check are treated as those of Check.
func Certificate(check func(ctx context.Context, method string, cert *x509.Certificate) (context.Context, error), exempt ...string) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if slices.Contains(exempt, call.Method) {
				return next(ctx, call)
			}
			cert := CertificateOf(call)
			if cert == nil {
				return missing(call.Method + ": the connection has no verified certificate of the client")
			}
			if check == nil {
				return next(WithIdentity(ctx, IdentityOf(cert)), call)
			}
			known, err := check(ctx, call.Method, cert)
			if err != nil {
				return refused(err, "", call.Method+": the certificate is not accepted")
			}
			return next(adopt(ctx, known, call), call)
		}
	}
}

// adopt returns the context of a call that has been admitted, and sets the tenant of the call.
// Known is the context that the check function has returned, or nil.
func adopt(ctx, known context.Context, call *yodel.Call) context.Context {
	if known == nil {
		return ctx
	}
	if id := IdentityFrom(known); id != nil {
		call.Tenant = cmp.Or(id.Tenant, call.Tenant)
	}
	return known
}

// CertificateOf returns the certificate of the client that has made a call, or nil. The server's
// TLS stack has verified the certificate against tls.Config.ClientCAs. A certificate that the
// client has shown, and that was not verified, is not returned.
func CertificateOf(call *yodel.Call) *x509.Certificate {
	peer := call.Peer()
	if peer == nil {
		return nil
	}
	state := peer.TLS()
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.VerifiedChains[0][0]
}

// IdentityOf returns the identity that a verified certificate stands for. Its Subject is the SPIFFE
// ID, or else the first DNS name, or else the common name.
func IdentityOf(cert *x509.Certificate) *Identity {
	name := cert.Subject.CommonName
	if len(cert.DNSNames) > 0 {
		name = cert.DNSNames[0]
	}
	return &Identity{Subject: cmp.Or(SPIFFE(cert), name)}
}

// SPIFFE returns the SPIFFE ID of a verified certificate, for example "spiffe://acme.example/web",
// or "". A certificate with several URIs has none.
func SPIFFE(cert *x509.Certificate) string {
	if len(cert.URIs) != 1 || cert.URIs[0].Scheme != "spiffe" {
		return ""
	}
	return cert.URIs[0].String()
}
