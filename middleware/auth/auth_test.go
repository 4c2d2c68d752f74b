// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A grpcError is an error with a status, as those of grpc-go.
type grpcError struct{ text string }

func (e *grpcError) Error() string          { return "rpc error: " + e.text }
func (e *grpcError) GRPCStatus() *grpcError { return e }
func (e *grpcError) Code() uint32           { return uint32(yodel.Unauthenticated) }
func (e *grpcError) Message() string        { return e.text }

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const whoAmI yodel.Method[struct{}, string] = "Test.WhoAmI"

const secret = "sesame-open-1234"

type userKey struct{}

// check knows one token.
func check(ctx context.Context, _, token string) (context.Context, error) {
	if token != secret {
		return nil, fmt.Errorf("wrong token %q", token)
	}
	return context.WithValue(ctx, userKey{}, "Ali"), nil
}

// serve runs a server whose one method tells the caller's name, for the length of the test.
func serve(t *testing.T, network *mem.Network, o *yodel.ServerOptions) {
	t.Helper()
	l, err := network.Listen("server")
	if err != nil {
		t.Fatal(err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := yodel.NewServer(o)
	whoAmI.Handle(s, func(ctx context.Context, _ *struct{}) (*string, error) {
		name, _ := ctx.Value(userKey{}).(string)
		return &name, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// dial returns a client for the length of the test.
func dial(t *testing.T, network *mem.Network, o *yodel.ClientOptions) *yodel.Client {
	t.Helper()
	if o == nil {
		o = &yodel.ClientOptions{}
	}
	o.Transport = network
	c := yodel.NewClient(discovery.Static("server"), o)
	t.Cleanup(c.Close)
	return c
}

func call(t *testing.T, c *yodel.Client, md yodel.Metadata) (string, error) {
	t.Helper()
	name, err := whoAmI.Do(t.Context(), c, &yodel.Call{Metadata: md}, &struct{}{})
	if err != nil {
		return "", err
	}
	return *name, nil
}

func token(t string) yodel.Metadata { return yodel.Metadata{"authorization": t} }

func TestCheckLetsInOnlyCallersWithAValidToken(t *testing.T) {
	fails := func(err error) func(context.Context, string, string) (context.Context, error) {
		return func(context.Context, string, string) (context.Context, error) { return nil, err }
	}
	const prefix = "Test.WhoAmI: server: "
	for _, test := range []struct {
		name  string
		check func(context.Context, string, string) (context.Context, error) // nil is check
		md    yodel.Metadata
		user  string
		err   *yodel.Error // nil is success
	}{
		{name: "valid", md: token(secret), user: "Ali"},
		{name: "valid bearer", md: token("Bearer " + secret), user: "Ali"},
		{name: "valid bearer in small letters", md: token("bearer " + secret), user: "Ali"},
		{name: "the same context", check: fails(nil), md: token("x")},
		{name: "none", err: &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: prefix + "the call has no token"}},
		{name: "empty", md: token(""), err: &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: prefix + "the call has no token"}},
		{name: "empty bearer", md: token("Bearer "), err: &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: prefix + "the call has no token"}},
		{name: "wrong", md: token("wrong"), err: &yodel.Error{Code: yodel.PermissionDenied, ID: "YDL3102", Message: prefix + "the token is not accepted"}},
		{
			name: "expired", check: fails(yodel.Errorf(yodel.Unauthenticated, "it has expired")), md: token(secret),
			err: &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: prefix + "it has expired"},
		},
		{
			name: "a role is missing", check: fails(fmt.Errorf("roles: %w", yodel.Errorf(yodel.PermissionDenied, "ask an admin"))), md: token(secret),
			err: &yodel.Error{Code: yodel.PermissionDenied, ID: "YDL3102", Message: prefix + "ask an admin"},
		},
		{
			name: "an error of its own", check: fails(&yodel.Error{Code: yodel.ResourceExhausted, Message: "pay first", Details: []yodel.Detail{{Type: "price", Value: []byte{7}}}}), md: token(secret),
			err: &yodel.Error{Code: yodel.ResourceExhausted, Message: "pay first", Details: []yodel.Detail{{Type: "price", Value: []byte{7}}}},
		},
		{
			name: "a status of grpc-go", check: fails(fmt.Errorf("issuer: %w", &grpcError{secret + " has expired"})), md: token(secret),
			err: &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: prefix + "… has expired"},
		},
		{
			name: "a bare code", check: fails(yodel.Unavailable), md: token(secret),
			err: &yodel.Error{Code: yodel.Unavailable, Message: "Test.WhoAmI: the token is not accepted"},
		},
		{
			name: "the token in the error", check: fails(yodel.Errorf(yodel.Unauthenticated, "%s has expired", secret)), md: token(secret),
			err: &yodel.Error{Code: yodel.Unauthenticated, ID: "YDL3101", Message: prefix + "… has expired"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.check == nil {
				test.check = check
			}
			network := mem.New()
			serve(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(test.check)}})
			user, err := call(t, dial(t, network, nil), test.md)
			if test.err == nil {
				if err != nil || user != test.user {
					t.Errorf("got %q and %v, want %q", user, err, test.user)
				}
				return
			}
			e, ok := errors.AsType[*yodel.Error](err)
			if !ok || e.Code != test.err.Code || e.ID != test.err.ID || e.Message != test.err.Message || !reflect.DeepEqual(e.Details, test.err.Details) {
				t.Fatalf("got %v, want %v", err, test.err)
			}
			if !yodel.NotProcessed(err) {
				t.Error("the error does not say that the call was not executed")
			}
		})
	}
}

func TestCheckIsToldTheMethod(t *testing.T) {
	network := mem.New()
	var asked atomic.Value
	serve(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		auth.Check(func(_ context.Context, method, token string) (context.Context, error) {
			asked.Store(method + " " + token)
			return nil, nil
		}),
	}})
	if _, err := call(t, dial(t, network, nil), token(secret)); err != nil || asked.Load() != "Test.WhoAmI "+secret {
		t.Errorf("asked about %v (%v)", asked.Load(), err)
	}
}

func TestBuiltInMethodsAreCoveredUnlessExempt(t *testing.T) {
	network := mem.New()
	serve(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(check, string(inspect.Health))}})
	c := dial(t, network, nil)
	for _, method := range []string{string(inspect.Info), string(inspect.Stats), string(inspect.Ping)} {
		if err := c.Call(t.Context(), method, &struct{}{}, nil); !errors.Is(err, yodel.Unauthenticated) {
			t.Errorf("%s: got %v, want unauthenticated", method, err)
		}
	}
	if health, err := inspect.Health.Call(t.Context(), c, &inspect.Empty{}); err != nil || !health.Serving {
		t.Errorf("health: got %v, %v, want serving", health, err)
	}
}

// explosive is JSON whose decoder and decompressor break the server.
type explosive struct {
	yodel.Codec
	decoded atomic.Int32
}

func (e *explosive) Name() string { return "explosive" }

func (e *explosive) Decode(src []byte, v any) error {
	if _, request := v.(*struct{}); request {
		e.decoded.Add(1)
		panic("boom")
	}
	return e.Codec.Decode(src, v)
}

func (e *explosive) Append(dst []byte, v any) ([]byte, error) { return e.Codec.Append(dst, v) }

type bomb struct{ decompressed atomic.Int32 }

func (b *bomb) Name() string { return "bomb" }

// Append makes what is compressed smaller, or it would not be sent as compressed.
func (b *bomb) Append(dst, src []byte) ([]byte, error) { return append(dst, src[:len(src)/2]...), nil }

func (b *bomb) Decompress(dst, src []byte, _ int) ([]byte, error) {
	b.decompressed.Add(1)
	return append(dst, src...), nil
}

func TestNothingOfAStrangersBodyIsDecoded(t *testing.T) {
	network := mem.New()
	codec, compressor := &explosive{Codec: yodel.JSON}, &bomb{}
	serve(t, network, &yodel.ServerOptions{
		Codecs: []yodel.Codec{codec}, Compressors: []compress.Compressor{compressor}, CompressAbove: 1,
		Middleware: []yodel.Middleware{auth.Check(check)},
	})
	c := dial(t, network, &yodel.ClientOptions{Codec: codec, Compressor: compressor, CompressAbove: 1})
	if _, err := call(t, c, nil); !errors.Is(err, yodel.Unauthenticated) {
		t.Errorf("got %v, want unauthenticated", err)
	}
	if codec.decoded.Load() != 0 || compressor.decompressed.Load() != 0 {
		t.Error("the body was decompressed or decoded")
	}
	// With a token it is, so that the test would notice.
	if _, err := call(t, c, token(secret)); !errors.Is(err, yodel.Internal) || codec.decoded.Load() != 1 || compressor.decompressed.Load() != 1 {
		t.Errorf("got %v after %d decodings and %d decompressions", err, codec.decoded.Load(), compressor.decompressed.Load())
	}
}

func TestStrangersCannotLearnWhichMethodsExist(t *testing.T) {
	t.Run("from errors", func(t *testing.T) {
		network := mem.New()
		serve(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(check)}})
		c := dial(t, network, &yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token("wrong")}})
		said := func(method string, args any) string {
			err := c.Call(t.Context(), method, args, nil)
			return strings.ReplaceAll(err.Error(), method, "METHOD")
		}
		for _, args := range []any{&struct{}{}, yodel.Values{1}, []int{7}} {
			existing, missing := said(string(whoAmI), args), said("Test.WhoAreYou", args)
			if existing != missing || !strings.Contains(existing, "YDL3102") {
				t.Errorf("of a method that exists it says\n%s\nand of one that does not\n%s", existing, missing)
			}
		}
	})
	t.Run("from frames", func(t *testing.T) {
		// A server each: what a connection is granted depends on how many others there are.
		after := func(method string) string {
			network := mem.New()
			serve(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(check)}})
			return framesAfter(t, network, method)
		}
		existing, missing := after(string(whoAmI)), after("Test.WhoAreY")
		if existing != missing {
			t.Errorf("naming a method that exists is answered with\n%s\nand one that does not with\n%s", existing, missing)
		}
	})
}

// framesAfter connects, names a method, and returns the server's frames until the answer to a ping.
func framesAfter(t *testing.T, network *mem.Network, method string) string {
	t.Helper()
	conn, err := network.Dial(t.Context(), "server")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	out := wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})
	out = wire.AppendMethod(out, 0, 7, &wire.Binding{Name: []byte(method), Codec: []byte("json")})
	ping := len(out)
	out = wire.Finish(append(wire.Begin(out, &wire.Header{Type: wire.Ping}), "12345678"...), ping)
	if _, err := conn.Write(out); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len(wire.Preface))); err != nil {
		t.Fatal(err)
	}
	var frames strings.Builder
	for {
		header := make([]byte, wire.HeaderSize)
		if _, err := io.ReadFull(conn, header); err != nil {
			t.Fatal(err)
		}
		h := wire.ParseHeader(header)
		payload := make([]byte, h.Len)
		if _, err := io.ReadFull(conn, payload); err != nil {
			t.Fatal(err)
		}
		if h.Type == wire.Settings { // they name the server, which is another one each time
			continue
		}
		fmt.Fprintf(&frames, "type %d arg %d id %d payload %x\n", h.Type, h.Arg, h.ID, payload)
		if h.Type == wire.Pong {
			return frames.String()
		}
	}
}

func TestTokensAreNotLogged(t *testing.T) {
	network := mem.New()
	var logged bytes.Buffer
	o := &yodel.ServerOptions{
		Logger:     slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Middleware: []yodel.Middleware{auth.Check(check)},
		Connect: auth.Conn(func(_ context.Context, _ *yodel.Peer, token string) error {
			if token == "wrong-5678" {
				return fmt.Errorf("wrong token %q", token)
			}
			return nil
		}),
	}
	t.Run("errors", func(t *testing.T) { // ends with the server, so that all has been logged
		serve(t, network, o)
		_, denied := call(t, dial(t, network, &yodel.ClientOptions{ConnMetadata: auth.ConnToken("wrong-5678")}), nil)
		_, refused := call(t, dial(t, network, &yodel.ClientOptions{ConnMetadata: auth.ConnToken(secret)}), token("wrong-9012"))
		if denied == nil || refused == nil || strings.Contains(fmt.Sprintf("%+v %+v", denied, refused), "wrong-") {
			t.Errorf("got %+v and %+v, want errors without tokens", denied, refused)
		}
	})
	if strings.Contains(logged.String(), "wrong-") || strings.Contains(logged.String(), secret) {
		t.Errorf("a token was logged:\n%s", logged.String())
	}
}

func TestTheClientSendsItsToken(t *testing.T) {
	network := mem.New()
	serve(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{auth.Check(check)}})
	users := yodel.Metadata{"tenant": "blue"}
	var sent yodel.Metadata
	below := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			sent = maps.Clone(call.Metadata)
			call.Metadata["below"] = "may write"
			return next(ctx, call)
		}
	}
	c := dial(t, network, &yodel.ClientOptions{Middleware: []yodel.Middleware{auth.Token(secret), below}})
	for _, test := range []struct {
		name       string
		md         yodel.Metadata
		want, sent yodel.Metadata // md afterwards
	}{
		{"no metadata", nil, nil, token(secret)},
		{"the user's metadata", users, yodel.Metadata{"tenant": "blue"}, yodel.Metadata{"tenant": "blue", "authorization": secret}},
	} {
		for range 2 {
			call := &yodel.Call{Metadata: test.md}
			if _, err := whoAmI.Do(t.Context(), c, call, &struct{}{}); err != nil {
				t.Errorf("%s: got %v, want success", test.name, err)
			}
			if !maps.Equal(call.Metadata, test.want) || !maps.Equal(sent, test.sent) {
				t.Errorf("%s: sent %v and left %v, want %v and %v", test.name, sent, call.Metadata, test.sent, test.want)
			}
		}
	}
	if _, err := call(t, c, token("my own")); !errors.Is(err, yodel.PermissionDenied) || sent["authorization"] != "my own" {
		t.Errorf("got %v after sending %v, want the call to keep its own token", err, sent)
	}
}

func TestACallWhoseTokenCannotBeHadIsNotSent(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want string
		code yodel.Code
	}{
		{"no code", errors.New("the issuer is down"), "unauthenticated: Test.WhoAmI: no token to send: the issuer is down [YDL3101]", yodel.Unauthenticated},
		{"its own code", yodel.Errorf(yodel.Unavailable, "no issuer"), "unavailable: Test.WhoAmI: no token to send: unavailable: no issuer", yodel.Unavailable},
		{"the caller's end", context.Canceled, "canceled: Test.WhoAmI: no token to send: context canceled", yodel.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			middleware := auth.TokenFunc(func(context.Context) (string, error) { return "", test.err })
			err := middleware(func(context.Context, *yodel.Call) error {
				t.Error("it was sent")
				return nil
			})(t.Context(), &yodel.Call{Method: string(whoAmI)})
			if err == nil || err.Error() != test.want || !errors.Is(err, test.code) || !errors.Is(err, test.err) || !yodel.NotProcessed(err) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestConnLetsInOnlyPeersWithAValidToken(t *testing.T) {
	for _, test := range []struct {
		name  string
		token string
		code  yodel.Code // 0 is success
		text  string
		id    string
	}{
		{name: "valid", token: secret},
		{name: "valid bearer", token: "Bearer " + secret},
		{name: "none", code: yodel.Unauthenticated, text: "the connection has no token", id: "[YDL3101]"},
		{name: "wrong", token: "wrong", code: yodel.PermissionDenied, text: "the token is not accepted", id: "[YDL3102]"},
		{name: "its own error", token: "old-1234", code: yodel.Unauthenticated, text: "it has expired", id: "[YDL3101]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				var asked atomic.Int32
				serve(t, network, &yodel.ServerOptions{
					Connect: auth.Conn(func(_ context.Context, peer *yodel.Peer, token string) error {
						asked.Add(1)
						if peer.Conn == nil || peer.Addr == nil {
							t.Errorf("the peer is %+v", peer)
						}
						switch token {
						case secret:
							return nil
						case "old-1234":
							return yodel.Errorf(yodel.Unauthenticated, "it has expired")
						}
						return errors.New("wrong")
					}),
				})
				o := &yodel.ClientOptions{}
				if test.token != "" {
					o.ConnMetadata = auth.ConnToken(test.token)
				}
				c := dial(t, network, o)
				for i := range 3 {
					_, err := call(t, c, nil)
					if yodel.CodeOf(err) != test.code {
						t.Fatalf("call %d: got %v, want code %v", i+1, err, test.code)
					}
					if err == nil {
						continue
					}
					if !strings.Contains(err.Error(), test.text) || !strings.HasSuffix(err.Error(), test.id) || !yodel.NotProcessed(err) {
						t.Errorf("got %v, want it not executed and to say %q %s", err, test.text, test.id)
					}
				}
				if test.code == 0 && asked.Load() != 1 {
					t.Errorf("asked %d times for one connection", asked.Load())
				}
			})
		})
	}
}

func TestARefusedClientComesBackLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		var asked atomic.Int32
		serve(t, network, &yodel.ServerOptions{
			Connect: auth.Conn(func(context.Context, *yodel.Peer, string) error {
				asked.Add(1)
				return errors.New("wrong")
			}),
		})
		c := dial(t, network, &yodel.ClientOptions{ConnMetadata: auth.ConnToken("wrong")})
		if _, err := call(t, c, nil); err == nil {
			t.Error("the call succeeded")
		}
		if time.Sleep(time.Minute); asked.Load() > 120 {
			t.Errorf("it connected %d times in a minute", asked.Load())
		}
	})
}
