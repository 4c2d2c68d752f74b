// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/testca"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// byName is a check in which the token is the name of the user.
func byName(ctx context.Context, _, token string) (context.Context, error) {
	return auth.WithIdentity(ctx, &auth.Identity{Subject: token, Tenant: "tenant of " + token, Claims: map[string]any{"role": "admin"}}), nil
}

// tellIdentity answers with what the server knows of the caller.
func tellIdentity(ctx context.Context, _ *struct{}) (*string, error) {
	id := auth.IdentityFrom(ctx)
	if id == nil {
		return new(string), nil
	}
	text := fmt.Sprintf("%s %v %s", id.Subject, id.Claims["role"], yodel.CallFrom(ctx).Tenant)
	return &text, nil
}

func TestHandlersAndMiddlewareGetTheIdentity(t *testing.T) {
	var seen string
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		auth.Check(byName), func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				seen = auth.IdentityFrom(ctx).Subject
				return next(ctx, call)
			}
		},
	}})
	whoAmI.Handle(s.Server, tellIdentity)
	c := yodeltest.NewClient(t, nil, s)
	// what the caller claims about itself has no effect
	md := yodel.Metadata{"authorization": "ann", "subject": "bob", "role": "root"}
	got, err := whoAmI.Do(t.Context(), c, &yodel.Call{Metadata: md, Tenant: "another"}, &struct{}{})
	if err != nil || *got != "ann admin tenant of ann" || seen != "ann" {
		t.Errorf("the method got %v (%v), and the middleware %q", got, err, seen)
	}
}

func TestTheVerifiedTenantPassesDownTheCallTree(t *testing.T) {
	inner := yodeltest.NewServer(t, nil)
	whoAmI.Handle(inner.Server, func(ctx context.Context, _ *struct{}) (*string, error) {
		text := yodel.CallFrom(ctx).Tenant
		if id := auth.IdentityFrom(ctx); id != nil {
			text += ", and the identity of another server's caller"
		}
		return &text, nil
	})
	own := yodeltest.NewClient(t, nil, inner)
	outer := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(byName)}})
	whoAmI.Handle(outer.Server, func(ctx context.Context, in *struct{}) (*string, error) { return whoAmI.Call(ctx, own, in) })
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token("ann")}}, outer)
	if got, err := whoAmI.Do(t.Context(), c, &yodel.Call{Tenant: "another"}, &struct{}{}); err != nil || *got != "tenant of ann" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestUsersHaveLimitsOfTheirOwn(t *testing.T) {
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		auth.Check(byName), rate.With(&rate.Limit{PerSecond: 0.001, Burst: 2, By: rate.User}),
	}})
	whoAmI.Handle(s.Server, tellIdentity)
	c := yodeltest.NewClient(t, nil, s)
	for _, user := range []string{"ann", "bob"} {
		for i := range 3 {
			_, err := call(t, c, token(user))
			if refused := errors.Is(err, yodel.ResourceExhausted); refused != (i == 2) || err != nil && !refused {
				t.Errorf("call %d of %s: %v", i+1, user, err)
			}
		}
	}
}

func TestUsersHavePlacesOfTheirOwn(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(byName), limit.Each(1, rate.User)}})
	whoAmI.Handle(s.Server, func(ctx context.Context, in *struct{}) (*string, error) {
		entered <- struct{}{}
		<-leave
		return tellIdentity(ctx, in)
	})
	c := yodeltest.NewClient(t, nil, s)
	ended := make(chan error, 2)
	for _, user := range []string{"ann", "bob"} {
		go func() {
			_, err := call(t, c, token(user))
			ended <- err
		}()
		<-entered
	}
	_, err := call(t, c, token("ann"))
	if !errors.Is(err, yodel.ResourceExhausted) || !yodel.NotProcessed(err) {
		t.Errorf("a second call of ann: %v", err)
	}
	close(leave)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	go func() { <-entered }()
	if _, err := call(t, c, token("ann")); err != nil {
		t.Errorf("the place of ann was not given back: %v", err)
	}
}

// TestCertificateLetsInOnlyVerifiedClients makes calls over mutual TLS through real sockets. The
// last server asks for a certificate and does not verify it.
func TestCertificateLetsInOnlyVerifiedClients(t *testing.T) {
	ca, stranger := testca.New(t), testca.New(t)
	refuse := func(ctx context.Context, method string, cert *x509.Certificate) (context.Context, error) {
		if cert.Subject.CommonName != "billing" {
			return nil, errors.New("only billing may call " + method)
		}
		return ctx, nil
	}
	for name, test := range map[string]struct {
		server *stdtls.Config
		check  func(context.Context, string, *x509.Certificate) (context.Context, error)
		client []stdtls.Certificate
		want   string
		code   yodel.Code
	}{
		"by name":    {&stdtls.Config{ClientCAs: ca.Pool}, nil, []stdtls.Certificate{ca.Certificate(t, "billing")}, "billing <nil> claimed", 0},
		"by SPIFFE":  {&stdtls.Config{ClientCAs: ca.Pool}, nil, []stdtls.Certificate{ca.Certificate(t, "x", "spiffe://acme/billing")}, "spiffe://acme/billing <nil> claimed", 0},
		"checked":    {&stdtls.Config{ClientCAs: ca.Pool}, refuse, []stdtls.Certificate{ca.Certificate(t, "billing")}, "", 0},
		"refused":    {&stdtls.Config{ClientCAs: ca.Pool}, refuse, []stdtls.Certificate{ca.Certificate(t, "web")}, "", yodel.PermissionDenied},
		"without":    {&stdtls.Config{ClientCAs: ca.Pool, ClientAuth: stdtls.VerifyClientCertIfGiven}, nil, nil, "", yodel.Unauthenticated},
		"unverified": {&stdtls.Config{ClientAuth: stdtls.RequireAnyClientCert}, nil, []stdtls.Certificate{stranger.Certificate(t, "billing")}, "", yodel.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			test.server.Certificates = []stdtls.Certificate{ca.Certificate(t, "server")}
			transport := &tls.Transport{Server: test.server}
			l, err := transport.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Certificate(test.check)}, Logger: slog.New(slog.DiscardHandler)})
			whoAmI.Handle(s, tellIdentity)
			ctx, stop := context.WithCancel(context.Background())
			served := make(chan error, 1)
			go func() { served <- s.Serve(ctx, l) }()
			defer func() {
				stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}()
			c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{
				Transport: &tls.Transport{Client: &stdtls.Config{RootCAs: ca.Pool, Certificates: test.client}},
			})
			defer c.Close()
			got, err := whoAmI.Do(t.Context(), c, &yodel.Call{Tenant: "claimed"}, &struct{}{})
			if yodel.CodeOf(err) != test.code || err == nil && *got != test.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestACertificateWithSeveralURIsHasNoSPIFFEID(t *testing.T) {
	ca := testca.New(t)
	for _, uris := range [][]string{{"spiffe://acme/a", "spiffe://acme/b"}, {"https://acme.example"}, nil} {
		cert, err := x509.ParseCertificate(ca.Certificate(t, "web", uris...).Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if id := auth.SPIFFE(cert); id != "" || auth.IdentityOf(cert).Subject != "web" {
			t.Errorf("a certificate with %v has the ID %q and stands for %q", uris, id, auth.IdentityOf(cert).Subject)
		}
	}
}
