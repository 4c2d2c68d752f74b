// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	stdtls "crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/retry"
	connectrpc "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	thriftrpc "github.com/yodel-rpc/yodel/protocol/thrift"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// Who makes one of these mistakes is told which one, in words that fit: the whole text is compared.
// hidden is a struct of which no codec sees anything.
type hidden struct{ a, b int } //nolint:unused // that is the mistake

func TestMistakesAreExplained(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Arith.Try", echo)
	addr, empty := serve(t, s), serve(t, yodel.NewServer(nil))
	gobs := serve(t, newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}}))
	at := func(addr string, o *yodel.ClientOptions, call *yodel.Call) error {
		if call.Method == "" {
			call.Method = "Arith.Mul"
		}
		if call.Args == nil {
			call.Args = &Args{1, 2}
		}
		return newClient(t, o, addr).Do(t.Context(), call)
	}
	from := func(r discovery.Resolver) error {
		c := yodel.NewClient(r, &yodel.ClientOptions{DialTimeout: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		defer c.Close()
		return c.Call(t.Context(), "Arith.Mul", &Args{1, 2}, nil)
	}
	const reply = "internal: Arith.Mul: the reply cannot be decoded into "
	for name, mistake := range map[string]struct {
		make func() error
		want string
	}{
		"no port": {
			func() error { return at("localhost", nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "localhost" is no address: missing port in address; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a URL": {
			func() error { return at("tcp://"+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "tcp://ADDR" is no address: too many colons in address; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"an address of rpcx": {
			func() error { return at("tcp@"+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "tcp@ADDR" is no address: there is an @ before the host: the network of rpcx's addresses, as in tcp@host:port, is left out here; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a port that does not exist": {
			func() error { return at("127.0.0.1:80000", nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "127.0.0.1:80000" is no address: ports go from 0 to 65535; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a port that does not exist, to listen at": {
			func() error { return yodel.NewServer(nil).ListenAndServe(t.Context(), ":80000") },
			`invalid_argument: ":80000" is no address: ports go from 0 to 65535; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a nil client behind an interface": {
			func() error { _, err := Mul.Call(t.Context(), nil, &Args{}); return err },
			`invalid_argument: Arith.Mul: the client is nil [YDL2008]`,
		},
		"two addresses in one": {
			func() error { return at(addr+","+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "ADDR,ADDR" is no address: it has a comma or a space, and each address stands by itself; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a space": {
			func() error { return at(" "+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: " ADDR" is no address: it has a comma or a space, and each address stands by itself; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"no service": {
			func() error { return at(addr, nil, &yodel.Call{Method: "Mul"}) },
			`unimplemented: Mul: ADDR: this server has no such method; did you mean "Arith.Mul"? [YDL2001]`,
		},
		"no method": {
			func() error { return at(addr, nil, &yodel.Call{Method: "Arith.Mod"}) },
			`unimplemented: Arith.Mod: ADDR: service "Arith" has no method "Mod" [YDL2002]`,
		},
		"nothing registered": {
			func() error { return at(empty, nil, &yodel.Call{}) },
			`unimplemented: Arith.Mul: ADDR: this server has no service "Arith": no methods were registered [YDL2001]`,
		},
		"a feed that is none": {
			func() error {
				_, err := yodel.Feed[Args, Args]("Arith.Mul").Call(t.Context(), newClient(t, nil, addr), &Args{}).Next()
				return err
			},
			`invalid_argument: Arith.Mul: ADDR: the method is a unary method of yodel_test.Args to yodel_test.Reply; the call is for a feed [YDL2006]`,
		},
		"a feed that takes any message": {
			func() error {
				must(t, s.HandleStream("Any.Feed", "feed", func(context.Context, *yodel.Call, func(any) error, func(any) error) error { return nil }))
				return at(addr, nil, &yodel.Call{Method: "Any.Feed"})
			},
			`invalid_argument: Any.Feed: ADDR: the method is a feed of any message to any message; the call is for a unary method [YDL2006]`,
		},
		"no upload": {
			func() error {
				handle(t, s, "Arith.Up", func(context.Context, yodel.Recv[int]) (*int, error) { return new(int), nil })
				return at(addr, nil, &yodel.Call{Method: "Arith.Up"})
			},
			`invalid_argument: Arith.Up: ADDR: the method is an upload of int to int; the call is for a unary method [YDL2006]`,
		},
		"the reply by value": {
			func() error { return at(addr, nil, &yodel.Call{Reply: Reply{}}) },
			reply + `yodel_test.Reply: give a pointer to it [YDL2102]`,
		},
		"the reply by value, in gob": {
			func() error { return at(gobs, &yodel.ClientOptions{Codec: gob.Codec}, &yodel.Call{Reply: Reply{}}) },
			reply + `yodel_test.Reply: give a pointer to it [YDL2102]`,
		},
		"a reply that is a nil pointer": {
			func() error { return at(addr, nil, &yodel.Call{Reply: (*Reply)(nil)}) },
			reply + `a nil *yodel_test.Reply: give a pointer to it [YDL2102]`,
		},
		"a nil request": {
			func() error { return at(addr, nil, &yodel.Call{Args: (*Args)(nil), Reply: &Reply{}}) },
			`invalid_argument: Arith.Mul: the request is a nil *yodel_test.Args [YDL2103]`,
		},
		"a result by value": {
			func() error {
				return at(addr, nil, &yodel.Call{Method: "Arith.DivMod", Args: yodel.Values{7, 2}, Reply: yodel.Values{new(int), 0}})
			},
			`internal: Arith.DivMod: result 2 cannot be decoded into int: give a pointer to it [YDL2102]`,
		},
		"a type that hides all": {
			func() error {
				return s.Handle("Arith.Sub", func(context.Context, *hidden) (*Reply, error) { return nil, nil })
			},
			`invalid_argument: handle Arith.Sub: yodel_test.hidden has no exported fields, so that nothing of it would be sent [YDL4001]`,
		},
		"TLS on the client alone": {
			func() error { return at(addr, &yodel.ClientOptions{Transport: new(tls.Transport)}, &yodel.Call{}) },
			`unavailable: Arith.Mul: ADDR: TLS: the server does not speak TLS: it began with yodel without TLS [YDL1108]`,
		},
		"a nil function": {
			func() error { return s.Handle("Arith.Sub", (func(int) int)(nil)) },
			`invalid_argument: handle Arith.Sub: the func(int) int is nil [YDL4001]`,
		},
		"no function": {
			func() error { return s.Handle("Arith.Sub", 7) },
			`invalid_argument: handle Arith.Sub: int is not a function [YDL4001]`,
		},
		"no address": {
			func() error { return from(discovery.Static()) },
			`unavailable: Arith.Mul: no instance is known: the client was given no address: yodel.Dial and discovery.Static take at least one [YDL1001]`,
		},
		"no resolver": {
			func() error { return from(nil) },
			`unavailable: Arith.Mul: no instance is known: NewClient was given no resolver [YDL1001]`,
		},
		"a typo in the name of a service": {
			func() error { return from(inventory(t, nil).Service("Inventry")) },
			`unavailable: Arith.Mul: no instance is known of service "Inventry" in this process's memory (keys yodel/Inventry/…); did you mean "Inventory"? [YDL1001]`,
		},
		"the name of another service": {
			func() error { return from(inventory(t, nil).Service("Billing")) },
			`unavailable: Arith.Mul: no instance is known of service "Billing" in this process's memory (keys yodel/Billing/…); the services there are "Inventory" [YDL1001]`,
		},
		"another prefix than the servers'": {
			func() error { return from(inventory(t, &registry.Options{Prefix: "shop"}).Service("Billing")) },
			`unavailable: Arith.Mul: no instance is known of service "Billing" in this process's memory (keys shop/Billing/…); the registry knows no other service there [YDL1001]`,
		},
		"a folder that does not exist": {
			func() error { return from(file.New("/proc/nope", nil).Service("Inventory")) },
			`unavailable: Arith.Mul: the resolver of service "Inventory" in the folder /proc/nope (keys yodel/Inventory/…) named no instances within 50ms; it failed: /proc/nope does not exist; a server makes the folder, if it is given the same path: file does not exist [YDL1201]`,
		},
		"nothing to register": {
			func() error { return s.Register(nil) },
			`invalid_argument: register: nil has no methods [YDL4001]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := mistake.make()
			if err == nil {
				t.Fatal("there is no error")
			}
			got := err.Error()
			for _, addr := range []string{addr, empty, gobs} {
				got = strings.ReplaceAll(got, addr, "ADDR")
			}
			if got != mistake.want && (strings.HasSuffix(mistake.want, "]") || !strings.HasPrefix(got, mistake.want)) {
				t.Errorf("got\n%s\nwant\n%s", got, mistake.want)
			}
		})
	}
}

// An element of a list of options that is nil is refused when the client or the server is made, not
// by the first call.
func TestNilMiddlewareIsRefused(t *testing.T) {
	for want, create := range map[string]func(){
		"yodel: ClientOptions.Middleware[1] is nil": func() {
			pass := func(next yodel.Handler) yodel.Handler { return next }
			yodel.NewClient(discovery.Static(), &yodel.ClientOptions{Middleware: []yodel.Middleware{pass, nil}})
		},
		"yodel: ClientOptions.EndpointMiddleware[0] is nil": func() {
			yodel.NewClient(discovery.Static(), &yodel.ClientOptions{EndpointMiddleware: []yodel.EndpointMiddleware{nil}})
		},
		"yodel: ServerOptions.Middleware[0] is nil": func() {
			yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{nil}})
		},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("it panics with %s, want %s", got, want)
				}
			}()
			create()
		}()
	}
}

// Two codecs or compressors of one name are refused. A codec of the user may replace JSON.
func TestElementsOfOneNameAreRefused(t *testing.T) {
	yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{yodel.JSON, gob.Codec}})
	for want, o := range map[string]*yodel.ServerOptions{
		`yodel: element 2 of ServerOptions.Codecs has the name "gob" of an earlier element`:       {Codecs: []yodel.Codec{gob.Codec, yodel.JSON, gob.Codec}},
		`yodel: element 1 of ServerOptions.Compressors has the name "gzip" of an earlier element`: {Compressors: []compress.Compressor{gzip.Compressor, gzip.Compressor}},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("it panics with %s, want %s", got, want)
				}
			}()
			yodel.NewServer(o)
		}()
	}
}

// The text of a handler's error is what the handler said. Its long form and a log name the method
// and the server as well.
func TestAHandlersErrorNamesMethodAndServerInALog(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Arith.Div", func(*Args) (*Reply, error) { return nil, errors.New("divide by zero") })
	addr := serve(t, s)
	err := newClient(t, nil, addr).Call(t.Context(), "Arith.Div", &Args{1, 0}, &Reply{})
	if got := err.Error(); got != "unknown: divide by zero" {
		t.Errorf("the text is %q", got)
	}
	log := &logged{}
	slog.New(slog.NewTextHandler(log, nil)).Info("x", "err", err)
	for _, text := range []string{fmt.Sprintf("%+v", err), log.lines()[0]} {
		if !strings.Contains(text, "Arith.Div") || !strings.Contains(text, addr) {
			t.Errorf("it does not name the method and %s: %s", addr, text)
		}
	}
}

// inventory returns a registry in which the service Inventory is announced, unless o has another
// prefix.
func inventory(t testing.TB, o *registry.Options) *registry.Registry {
	t.Helper()
	r := memory.New(o)
	if o == nil {
		must(t, r.Announce(t.Context(), "Inventory", discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute))
		t.Cleanup(func() { must(t, r.Withdraw(context.Background(), "Inventory", "127.0.0.1:1")) })
	}
	return r
}

// A client's log says which resolver failed, and when it works again.
func TestTheLogNamesTheResolverThatFailed(t *testing.T) {
	log := &logged{}
	r := &failingResolver{}
	c := yodel.NewClient(r, &yodel.ClientOptions{Logger: slog.New(slog.NewTextHandler(log, nil))})
	defer c.Close()
	until(t, "the resolver works again", func() bool { return len(log.lines()) == 2 })
	for i, want := range []string{
		`level=WARN msg="yodel: the resolver failed, and is asked again; it has named no instances yet" resolver="the list" err="connection refused"`,
		`level=INFO msg="yodel: the resolver works again" resolver="the list" instances=1`,
	} {
		if line := log.lines()[i]; !strings.HasSuffix(line, want) {
			t.Errorf("got\n%s\nwant\n%s", line, want)
		}
	}
}

// A failingResolver fails once.
type failingResolver struct{ asked atomic.Int32 }

func (r *failingResolver) String() string { return "the list" }

func (r *failingResolver) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	if r.asked.Add(1) == 1 {
		return errors.New("connection refused")
	}
	update([]discovery.Instance{{Addr: "127.0.0.1:1"}})
	<-ctx.Done()
	return nil
}

// The services of a registry are listed in the background: however long that takes, a call waits at
// most for a moment, and only with the first set of instances.
func TestAListOfServicesHoldsUpNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := yodel.NewClient(hangingLister{}, nil)
		defer c.Close()
		for i, want := range []time.Duration{250 * time.Millisecond, 0} {
			began := time.Now()
			err := c.Call(t.Context(), "Arith.Mul", &Args{1, 2}, nil)
			if took := time.Since(began); yodel.CodeOf(err) != yodel.Unavailable || took != want {
				t.Errorf("call %d: got %v after %v, want it after %v", i+1, err, took, want)
			}
		}
	})
}

// A hangingLister has no instances, and never lists its services.
type hangingLister struct{}

func (hangingLister) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	update(nil)
	<-ctx.Done()
	return nil
}

func (hangingLister) Describe() yodel.Description { return yodel.Description{Services: hang} }

func hang(ctx context.Context) (string, []string, error) {
	<-ctx.Done()
	return "", nil, ctx.Err()
}

// A function that is nil is refused when it is registered, not when somebody calls it.
func TestNilFunctionsAreRefused(t *testing.T) {
	s := newServer(t, nil)
	for name, register := range map[string]func(){
		"Try.Method": func() { yodel.Method[int, int]("Try.Method").Handle(s, nil) },
		"Try.Feed":   func() { yodel.Feed[int, int]("Try.Feed").Handle(s, nil) },
		"Try.Upload": func() { yodel.Upload[int, int]("Try.Upload").Handle(s, nil) },
		"Try.Duplex": func() { yodel.Duplex[int, int]("Try.Duplex").Handle(s, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				want := "yodel: invalid_argument: register " + name + ": the function is nil [YDL4001]"
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("it panics with\n%s\nwant\n%s", got, want)
				}
			}()
			register()
		})
	}
}

// One record of several that is not usable costs no call.
func TestAnAddressThatIsNoneIsPassedOver(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	for range 4 { // a new client begins anywhere
		c := newClient(t, nil, "localhost", addr, "tcp://"+addr)
		for range 6 {
			if _, err := Mul.Call(t.Context(), c, &Args{1, 2}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// When all instances have withdrawn and none answers, the error says so, and not why the last one
// failed.
func TestTheErrorSaysThatAllInstancesHaveWithdrawn(t *testing.T) {
	addr := closed(t)
	r := newSettable(addr)
	c := yodel.NewClient(r, nil)
	defer c.Close()
	until(t, "the instance is known", func() bool { return len(c.Endpoints()) == 1 })
	r.set()
	want := "unavailable: Arith.Mul: no instance is known [YDL1001]"
	until(t, "the resolver names none", func() bool {
		_, err := Mul.Call(t.Context(), c, &Args{1, 2})
		return err != nil && err.Error() == want
	})
}

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

// The answer to an unknown method of JSON-RPC says that no method was executed.
func TestAnUnknownMethodOfJSONRPCIsNotProcessed(t *testing.T) {
	nc, err := net.Dial("tcp", serve(t, newServer(t, &yodel.ServerOptions{Protocols: []yodel.Protocol{jsonrpc.Protocol}})))
	must(t, err)
	defer nc.Close()
	_, err = fmt.Fprintln(nc, `{"jsonrpc":"2.0","id":1,"method":"Arith.Nothing","params":{}}`)
	must(t, err)
	line, err := bufio.NewReader(nc).ReadString('\n')
	must(t, err)
	if !strings.Contains(line, "-32601") || !strings.Contains(line, `"notProcessed":true`) {
		t.Errorf("got %s", line)
	}
}

// A brokenError panics when it is asked what it says.
type brokenError struct{ text *string }

func (e brokenError) Error() string { return *e.text }

func TestBrokenErrorsOfHandlersStayInTheirCall(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Nil", func(context.Context, *Empty) (*Empty, error) {
		var none *yodel.Error
		return nil, none
	})
	handle(t, s, "Panics", func(context.Context, *Empty) (*Empty, error) { return nil, brokenError{} })
	c := connect(t, s, nil)
	if err := c.Call(t.Context(), "Nil", &Empty{}, nil); yodel.CodeOf(err) != yodel.Internal {
		t.Errorf("a nil *Error: got %v, want internal", err)
	}
	wantError(t, c.Call(t.Context(), "Panics", &Empty{}, nil), yodel.Internal, "YDL5001")
	if _, err := Mul.Call(t.Context(), c, &Args{2, 3}); err != nil {
		t.Errorf("a call afterwards: %v", err)
	}
}

// If the server speaks another protocol than the Wire, the error says so, and says that the call
// was not executed.
func TestWiresRecognizeServersOfOtherProtocols(t *testing.T) {
	wires := []struct {
		wire  yodel.Wire
		codec yodel.Codec
	}{
		{grpc.Wire, yodel.JSON}, {grpc.Web1, yodel.JSON}, {connectrpc.Wire(nil), yodel.JSON},
		{connectrpc.Wire(&connectrpc.Options{HTTP1: true}), yodel.JSON},
		{netrpc.Wire(gob.Codec), gob.Codec}, {netrpc.WireHTTP(gob.Codec, "/rpc"), gob.Codec},
		{jsonrpc.Wire(yodel.JSON), yodel.JSON}, {rpcx.Wire(nil), yodel.JSON},
		{thriftrpc.Wire(thrift.Codec, &thriftrpc.WireOptions{Service: "Arith"}), thrift.Codec}, {dubbo.Wire(hessian2.Codec, nil), hessian2.Codec},
	}
	ca := newAuthority(t, "authority")
	secure, err := (&tls.Transport{Server: &stdtls.Config{
		Certificates: []stdtls.Certificate{ca.certify(t, "localhost", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))},
	}}).Listen("127.0.0.1:0")
	must(t, err)
	serveOn(t, newServer(t, nil), secure)
	for server, test := range map[string]struct{ addr, want string }{
		"yodel": {serve(t, newServer(t, nil)), "yodel's own protocol alone; does ServerOptions.Protocols lack this one?"},
		"TLS":   {secure.Addr().String(), "a TLS alert; is TLS set up on one side only?"},
		"web":   {speak(t, false, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), `it answered "HTTP/1.1 400 Bad Request"`},
	} {
		for _, w := range wires {
			name := w.wire.Name()
			t.Run(name+" to "+server, func(t *testing.T) {
				if server == "web" && strings.Contains(name, "+http") {
					t.Skip("it speaks HTTP/1")
				}
				c := newClient(t, &yodel.ClientOptions{Codec: w.codec, Wires: []yodel.Wire{w.wire}}, name+"://"+test.addr)
				err := c.Call(t.Context(), "Arith.Mul", &[]string{"a"}, new(string))
				e := wantError(t, err, yodel.Unavailable, "YDL1101")
				if !e.NotProcessed || !strings.Contains(e.Message, "the server does not speak "+name+": ") || !strings.Contains(e.Message, test.want) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// If a server of HTTP breaks its answer off, the call may have been executed.
func TestABrokenAnswerOfHTTPMayHaveBeenExecuted(t *testing.T) {
	w, l := connectrpc.Wire(&connectrpc.Options{HTTP1: true}), listen(t)
	defer l.Close()
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Read(make([]byte, 4096))
			_, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Le"))
			_ = nc.Close()
		}
	}()
	c := newClient(t, &yodel.ClientOptions{Wires: []yodel.Wire{w}}, w.Name()+"://"+l.Addr().String())
	if _, err := Mul.Call(t.Context(), c, &Args{1, 2}); err == nil || yodel.NotProcessed(err) {
		t.Errorf("got %v", err)
	}
}

// HTTP/2 over TLS needs a protocol that TLS negotiates. The error says so.
func TestHTTP2WithoutNextProtosIsNamed(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	for _, protocols := range [][]string{nil, {"h2"}} {
		config := &stdtls.Config{RootCAs: pool, NextProtos: protocols}
		c := newClient(t, &yodel.ClientOptions{Transport: &tls.Transport{Client: config}, Wires: []yodel.Wire{grpc.Wire}}, "grpc://"+server.Listener.Addr().String())
		_, err := Mul.Call(t.Context(), c, &Args{1, 2})
		if protocols != nil {
			if yodel.CodeOf(err) != yodel.Unimplemented { // as the server says
				t.Errorf("with NextProtos: got %v", err)
			}
			continue
		}
		if e := wantError(t, err, yodel.Unavailable, "YDL1101"); !e.NotProcessed || !strings.Contains(e.Message, `put "h2" into NextProtos`) {
			t.Errorf("got %v", err)
		}
	}
}
