// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/coalesce"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/outlier"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	yodeltls "github.com/yodel-rpc/yodel/transport/tls"
)

// A harm is what user code does to the goroutine that runs it, while it is armed.
type harm struct {
	how   string
	armed atomic.Bool
	done  atomic.Int64
}

// secret is the value of panics. It must not reach the other side.
const secret = "the secret of a panic"

func (h *harm) do() {
	if h == nil || !h.armed.Load() {
		return
	}
	h.done.Add(1)
	if h.how == "panics" {
		panic(secret)
	}
	runtime.Goexit()
}

// Saying and Said are messages whose methods do harm when they are encoded or decoded: Saying is
// the request of All.Say, and Said is its reply.
type (
	Saying said
	Said   said
	said   struct {
		Text string `json:"text" thrift:"1"`
	}
)

const say yodel.Method[Saying, Said] = "All.Say"

// inMessages is what the methods of messages do. The tests that set it do not run in parallel.
var inMessages struct{ encodeSaying, decodeSaying, encodeSaid, decodeSaid atomic.Pointer[harm] }

// MarshalJSON implements json.Marshaler.
func (s Saying) MarshalJSON() ([]byte, error) {
	inMessages.encodeSaying.Load().do()
	return json.Marshal(said(s))
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Saying) UnmarshalJSON(b []byte) error {
	inMessages.decodeSaying.Load().do()
	return json.Unmarshal(b, (*said)(s))
}

// MarshalJSON implements json.Marshaler.
func (s Said) MarshalJSON() ([]byte, error) {
	inMessages.encodeSaid.Load().do()
	return json.Marshal(said(s))
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Said) UnmarshalJSON(b []byte) error {
	inMessages.decodeSaid.Load().do()
	return json.Unmarshal(b, (*said)(s))
}

// GobEncode implements gob.GobEncoder.
func (s Saying) GobEncode() ([]byte, error) { return s.MarshalJSON() }

// GobDecode implements gob.GobDecoder.
func (s *Saying) GobDecode(b []byte) error { return s.UnmarshalJSON(b) }

// GobEncode implements gob.GobEncoder.
func (s Said) GobEncode() ([]byte, error) { return s.MarshalJSON() }

// GobDecode implements gob.GobDecoder.
func (s *Said) GobDecode(b []byte) error { return s.UnmarshalJSON(b) }

// JavaClassName implements an interface of hessian2.
func (Saying) JavaClassName() string { return "all.Saying" }

// JavaClassName implements an interface of hessian2.
func (Said) JavaClassName() string { return "all.Said" }

// A harmfulError does harm in one of its methods.
type harmfulError struct {
	at string
	*harm
}

func (e harmfulError) Error() string {
	if e.at == "Error" {
		e.do()
	}
	return "it failed"
}

func (e harmfulError) Unwrap() error {
	if e.at == "Unwrap" {
		e.do()
	}
	return errors.New("the cause")
}

func (e harmfulError) GRPCStatus() *grpcError {
	if e.at == "GRPCStatus" {
		e.do()
	}
	return nil
}

// A harmfulCompressor does harm in one of its methods, or in none.
type harmfulCompressor struct {
	compress.Compressor
	compress, decompress *harm
}

func (c harmfulCompressor) Append(dst, src []byte) ([]byte, error) {
	c.compress.do()
	return c.Compressor.Append(dst, src)
}

func (c harmfulCompressor) Decompress(dst, src []byte, limit int) ([]byte, error) {
	c.decompress.do()
	return c.Compressor.Decompress(dst, src, limit)
}

// A harmfulLog does harm when a line is written to it.
type harmfulLog struct {
	slog.Handler
	*harm
}

func (h harmfulLog) Enabled(context.Context, slog.Level) bool  { return true }
func (h harmfulLog) Handle(context.Context, slog.Record) error { h.do(); return nil }

// A codePlace is where the framework or a middleware calls user code.
type codePlace struct {
	name string
	// Needs reports whether a wire has the place. Nil means that every wire has.
	needs func(w *Wire) bool
	put   func(t *testing.T, tr *Trial, h *harm)
	// Connecting says that the harm is done while a connection begins.
	connecting bool
	// Alone says that put changes what other parts of the test see.
	alone bool
}

// compress makes both sides compress. A side whose compressor is nil has one that does no harm.
func (tr *Trial) compress(client, server *harmfulCompressor) {
	harmless := &harmfulCompressor{gzip.Compressor, nil, nil}
	if client == nil {
		client = harmless
	}
	if server == nil {
		server = harmless
	}
	tr.Client.Compressor, tr.Client.CompressAbove = client, 1
	tr.Options.Compressors, tr.Options.CompressAbove = []compress.Compressor{server}, 1
}

// secure makes both sides use TLS. It returns the configuration of the client.
func (tr *Trial) secure(t *testing.T) (client *tls.Config) {
	t.Helper()
	s := httptest.NewTLSServer(nil) // it has a certificate
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	tr.tls = &tls.Config{Certificates: s.TLS.Certificates}
	client = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	tr.Client.Transport = &yodeltls.Transport{Client: client}
	return client
}

// failing makes the methods fail while h is armed.
func (tr *Trial) failing(h *harm) {
	tr.fail = func(int) error {
		if h.armed.Load() {
			return yodel.Errorf(yodel.FailedPrecondition, "not now")
		}
		return nil
	}
}

// before does harm above or below other middleware.
func before(h *harm) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			h.do()
			return next(ctx, call)
		}
	}
}

// after does harm when the call has been executed.
func after(h *harm) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			defer h.do()
			return next(ctx, call)
		}
	}
}

func compresses(w *Wire) bool { return w.compresses }
func hasMethods(w *Wire) bool { return w.codec == nil || w.codec == gob.Codec } // other codecs call no methods of messages
func isClient(w *Wire) bool   { return w.dial == nil }

// observers do harm in one of their functions.
func observers(h *harm) map[string]yodel.Observer {
	return map[string]yodel.Observer{
		"Start":   {Start: func(ctx context.Context, _ *yodel.Call) context.Context { h.do(); return ctx }},
		"Message": {Message: func(context.Context, *yodel.Call, bool, int) { h.do() }},
		"Attempt": {Attempt: func(context.Context, *yodel.Call, *introspect.Attempt) { h.do() }},
		"End":     {End: func(context.Context, *yodel.Call, error) { h.do() }},
		"Notable": {Notable: func(context.Context, *yodel.Call, error) { h.do() }},
	}
}

// observerPlaces returns the functions of an observer, which set adds to one side.
func observerPlaces(set func(tr *Trial, o yodel.Observer)) (places []codePlace) {
	for name := range observers(nil) {
		p := codePlace{name: "Observer." + name, put: func(_ *testing.T, tr *Trial, h *harm) {
			set(tr, observers(h)[name])
			if name == "Notable" {
				tr.failing(h)
			}
		}}
		if name == "Message" {
			p.needs = carriesStreams
		}
		places = append(places, p)
	}
	return places
}

// middlewareWithCode are the middleware that call functions of their users, and those below which
// user code may end without returning.
var middlewareWithCode = map[string]func(t *testing.T, tr *Trial, h *harm) []yodel.Middleware{
	"auth.Check": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware { return []yodel.Middleware{checked(h)} },
	"rate.By": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{rate.With(&rate.Limit{PerSecond: 1e6, By: func(context.Context, *yodel.Call) rate.Key { h.do(); return rate.Key{} }})}
	},
	"cache.Key": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware { return []yodel.Middleware{cached(h)} },
	"fallback.Func": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{
			fallback.Func(func(context.Context, *yodel.Call, error) (any, error) { h.do(); return &Told{1}, nil }),
			func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					if h.armed.Load() {
						return yodel.Errorf(yodel.Unavailable, "not now")
					}
					return next(ctx, call)
				}
			},
		}
	},
	"fault.If": func(t *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{injected(t, fault.Rule{Name: "all", Code: yodel.DataLoss, If: func(context.Context, *yodel.Call) bool { h.do(); return false }})}
	},

	"below auth": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{checked(nil), before(h)}
	},
	"below limit": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{limit.With(&limit.Options{Limit: 2, Queue: 8, Interval: time.Minute}), before(h)}
	},
	"below rate": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{rate.PerSecond(1e6), before(h)}
	},
	"below cache": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{cached(nil), before(h)}
	},
	"below fallback": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{fallback.To(&Told{1}), before(h)}
	},
	"below fault": func(t *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{injected(t, fault.Rule{Name: "all", Delay: time.Microsecond}), before(h)}
	},
	"below mirror": func(t *testing.T, tr *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{mirrored(t, tr), before(h)}
	},
	"below timeout": func(_ *testing.T, _ *Trial, h *harm) []yodel.Middleware {
		return []yodel.Middleware{timeout.After(time.Minute), before(h)}
	},
}

// checked accepts every token, and does harm.
func checked(h *harm) yodel.Middleware {
	return auth.Check(func(ctx context.Context, _, _ string) (context.Context, error) { h.do(); return ctx, nil })
}

// cached remembers no reply for long, and does harm.
func cached(h *harm) yodel.Middleware {
	return cache.With(&cache.Options{For: time.Nanosecond, Methods: []string{string(unary)}, Key: func(context.Context, *yodel.Call) string { h.do(); return "" }})
}

// injected is a middleware with one fault.
func injected(t *testing.T, r fault.Rule) yodel.Middleware {
	t.Helper()
	i := new(fault.Injector)
	if err := i.Set(r); err != nil {
		t.Fatal(err)
	}
	return i.Calls
}

// onServer returns the places on a server.
func onServer() (places []codePlace) {
	places = []codePlace{
		{name: "a handler", put: func(_ *testing.T, tr *Trial, h *harm) { tr.act = h.do }},
		{name: "a middleware", put: func(_ *testing.T, tr *Trial, h *harm) { tr.Options.Middleware = []yodel.Middleware{before(h)} }},
		{name: "a middleware, afterwards", put: func(_ *testing.T, tr *Trial, h *harm) { tr.Options.Middleware = []yodel.Middleware{after(h)} }},
		{name: "Accept", connecting: true, needs: accepts, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Options.Accept = func(net.Conn) error { h.do(); return nil }
		}},
		{name: "Connect", connecting: true, needs: accepts, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Options.Connect = func(context.Context, *yodel.Peer) error { h.do(); return nil }
		}},
		{name: "OnConn", connecting: true, needs: accepts, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Options.OnConn = func(introspect.ConnEvent) { h.do() }
		}},
		{name: "Compressor.Append", needs: compresses, put: func(_ *testing.T, tr *Trial, h *harm) { tr.compress(nil, &harmfulCompressor{gzip.Compressor, h, nil}) }},
		{name: "Compressor.Decompress", needs: compresses, put: func(_ *testing.T, tr *Trial, h *harm) { tr.compress(nil, &harmfulCompressor{gzip.Compressor, nil, h}) }},
		{name: "encoding a reply", alone: true, needs: hasMethods, put: func(_ *testing.T, _ *Trial, h *harm) { inMessages.encodeSaid.Store(h) }},
		{name: "decoding a request", alone: true, needs: hasMethods, put: func(_ *testing.T, _ *Trial, h *harm) { inMessages.decodeSaying.Store(h) }},
		{name: "the log", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.log = slog.New(harmfulLog{slog.DiscardHandler, h})
			tr.act = func() {
				if h.armed.Load() {
					panic(secret)
				}
			}
		}},
		{name: "GetConfigForClient of TLS", connecting: true, needs: isClient, put: func(t *testing.T, tr *Trial, h *harm) {
			tr.secure(t)
			tr.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { h.do(); return nil, nil }
		}},
		{name: "VerifyConnection of TLS", connecting: true, needs: isClient, put: func(t *testing.T, tr *Trial, h *harm) {
			tr.secure(t)
			tr.tls.VerifyConnection = func(tls.ConnectionState) error { h.do(); return nil }
		}},
		{name: "once.Caller", needs: func(w *Wire) bool { return w.keys }, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Options.Keys = once.With(&once.Options{Caller: func(context.Context, *yodel.Call) string { h.do(); return "" }})
		}},
		{name: "once.Final", needs: func(w *Wire) bool { return w.keys }, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Options.Keys = once.With(&once.Options{Final: func(error) bool { h.do(); return true }})
			tr.failing(h)
		}},
		{name: "below once", needs: func(w *Wire) bool { return w.keys }, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Options.Keys = once.With(nil)
			tr.act = h.do
		}},
	}
	for _, at := range []string{"Error", "Unwrap", "GRPCStatus"} {
		places = append(places, codePlace{name: at + " of an error", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.fail = func(int) error {
				if h.armed.Load() {
					return harmfulError{at, h}
				}
				return nil
			}
		}})
	}
	for _, p := range observerPlaces(func(tr *Trial, o yodel.Observer) { tr.Options.Observers = []yodel.Observer{o} }) {
		if p.name != "Observer.Attempt" { // servers make no attempts
			places = append(places, p)
		}
	}
	for name, of := range middlewareWithCode {
		p := codePlace{name: name, put: func(t *testing.T, tr *Trial, h *harm) {
			tr.Options.Middleware = of(t, tr, h)
		}}
		if strings.Contains(name, "auth") {
			p.needs = func(w *Wire) bool { return isClient(w) && w.keys } // it has metadata
			p.put = func(t *testing.T, tr *Trial, h *harm) {
				tr.Client.Middleware = []yodel.Middleware{auth.Token("a token")}
				tr.Options.Middleware = of(t, tr, h)
			}
		}
		places = append(places, p)
	}
	return places
}

// accepts says that calls come over connections that the server accepts.
func accepts(w *Wire) bool { return w.Name != "in process" && w.Name != "server to client" }

// onClient returns the places on a client.
func onClient() (places []codePlace) {
	places = []codePlace{
		{name: "a middleware", put: func(_ *testing.T, tr *Trial, h *harm) { tr.Client.Middleware = []yodel.Middleware{before(h)} }},
		{name: "a middleware, afterwards", put: func(_ *testing.T, tr *Trial, h *harm) { tr.Client.Middleware = []yodel.Middleware{after(h)} }},
		{name: "OnConn", connecting: true, put: func(_ *testing.T, tr *Trial, h *harm) { tr.Client.OnConn = func(introspect.ConnEvent) { h.do() } }},
		{name: "VerifyConnection of TLS", connecting: true, put: func(t *testing.T, tr *Trial, h *harm) {
			tr.secure(t).VerifyConnection = func(tls.ConnectionState) error { h.do(); return nil }
		}},
		{name: "GetClientCertificate of TLS", connecting: true, put: func(t *testing.T, tr *Trial, h *harm) {
			client := tr.secure(t)
			tr.tls.ClientAuth = tls.RequestClientCert
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { h.do(); return new(tls.Certificate), nil }
		}},
		{name: "Compressor.Append", needs: compresses, put: func(_ *testing.T, tr *Trial, h *harm) { tr.compress(&harmfulCompressor{gzip.Compressor, h, nil}, nil) }},
		{name: "Compressor.Decompress", needs: compresses, put: func(_ *testing.T, tr *Trial, h *harm) { tr.compress(&harmfulCompressor{gzip.Compressor, nil, h}, nil) }},
		{name: "encoding a request", alone: true, needs: hasMethods, put: func(_ *testing.T, _ *Trial, h *harm) { inMessages.encodeSaying.Store(h) }},
		{name: "decoding a reply", alone: true, needs: hasMethods, put: func(_ *testing.T, _ *Trial, h *harm) { inMessages.decodeSaid.Store(h) }},
		{name: "the callback of Go", put: func(_ *testing.T, tr *Trial, h *harm) { tr.called = h.do }},
		{name: "below retry", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.Middleware = []yodel.Middleware{retry.Times(2), before(h)}
		}},
		{name: "below hedge", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.Middleware = []yodel.Middleware{hedge.After(time.Millisecond), before(h)}
		}},
		{name: "coalesce.Key", needs: func(w *Wire) bool { return w.Name != "net rpc" }, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.Middleware = []yodel.Middleware{coalesce.With(&coalesce.Options{Methods: []string{string(unary)}, Key: func(context.Context, *yodel.Call) string { h.do(); return "k" }})}
		}},
		{name: "below coalesce", needs: func(w *Wire) bool { return w.Name != "net rpc" }, put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.Middleware = []yodel.Middleware{coalesce.Calls(string(unary)), before(h)}
		}},
		{name: "breaker.Failure", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.EndpointMiddleware = []yodel.EndpointMiddleware{breaker.With(&breaker.Options{Open: time.Millisecond, MaxOpen: time.Millisecond, Failure: func(error) bool { h.do(); return false }})}
			tr.failing(h)
		}},
		{name: "outlier.Failure", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.EndpointMiddleware = []yodel.EndpointMiddleware{outlier.Eject(&outlier.Options{Failure: func(error) bool { h.do(); return false }})}
			tr.failing(h)
		}},
		{name: "the log", put: func(_ *testing.T, tr *Trial, h *harm) {
			tr.Client.Logger = slog.New(harmfulLog{slog.DiscardHandler, h})
			tr.Client.Observers = []yodel.Observer{{End: func(context.Context, *yodel.Call, error) {
				if h.armed.Load() {
					panic(secret)
				}
			}}}
		}},
	}
	places = append(places, observerPlaces(func(tr *Trial, o yodel.Observer) { tr.Client.Observers = []yodel.Observer{o} })...)
	for name, of := range middlewareWithCode {
		if strings.Contains(name, "auth") {
			continue // it checks calls on a server
		}
		places = append(places, codePlace{name: name, put: func(t *testing.T, tr *Trial, h *harm) {
			tr.Client.Middleware = of(t, tr, h)
		}})
	}
	return places
}

// User code panics or ends its goroutine, at each place where it is called and over every wire. The
// process lives, and every call ends. A server counts the panics, and its callers learn nothing of
// them. Afterwards all calls succeed and no slot is missing.
func TestUserCodeCannotLoseACallOverAnyWire(t *testing.T) {
	server, client := onServer(), onClient()
	for i := range Wires {
		w := &Wires[i]
		for side, places := range map[string][]codePlace{"server": server, "client": client} {
			if side == "client" && !isClient(w) {
				continue
			}
			for k, p := range places {
				for j, how := range []string{"panics", "exits"} {
					if left := inTurn() && (i+k+j)%2 == 0; !left && (p.needs == nil || p.needs(w)) {
						t.Run(w.Name+"/"+side+"/"+p.name+"/"+how, func(t *testing.T) {
							if !p.alone {
								t.Parallel()
							}
							tryCode(t, w, side, p, how)
						})
					}
				}
			}
		}
	}
}

// slots is how many calls may be open. All calls of a round fit in it.
const slots = 8

// tryCode makes calls while code at p does harm, and when it does no more.
func tryCode(t *testing.T, w *Wire, side string, p codePlace, how string) {
	t.Helper()
	h := &harm{how: how}
	tr := new(Trial)
	tr.Options.Limits.MaxOpen, tr.Client.Limits.MaxOpen = slots, slots // one that is lost is missed soon
	tr.more = func(s *yodel.Server) {
		say.Handle(s, func(_ context.Context, in *Saying) (*Said, error) { return &Said{in.Text}, tr.do(0) })
	}
	p.put(t, tr, h)
	defer func() {
		inMessages.encodeSaying.Store(nil)
		inMessages.decodeSaying.Store(nil)
		inMessages.encodeSaid.Store(nil)
		inMessages.decodeSaid.Store(nil)
	}()
	tr.start()
	h.armed.Store(p.connecting)
	c := w.caller(t, tr, 1)
	if !p.connecting {
		if err := everyCall(t, w, tr, c); err != nil {
			t.Fatalf("before any harm: %v", err)
		}
		h.armed.Store(true)
	}
	// There is more harm than there are slots, even if it is done to one call of a round only.
	for round := 0; round < 3 || !p.connecting && h.done.Load() <= slots && round < 2*slots; round++ {
		if err := everyCall(t, w, tr, c); err != nil && side == "server" && strings.Contains(err.Error(), secret) {
			t.Errorf("the caller learns what code of the server panicked with: %v", err)
		}
	}
	h.armed.Store(false)
	if h.done.Load() == 0 {
		t.Error("no harm was done")
	}
	// A panic of the log is not counted, nor is that of a reply which rpcx encodes again to send it
	// beside the error.
	if counted, done := tr.server.Stats().Panics, uint64(h.done.Load()); side == "server" && how == "panics" && 2*counted < done {
		t.Errorf("the server has counted %d panics of %d", counted, done)
	}
	var err error
	if late := until(bounded(t), func() bool { err = everyCall(t, w, tr, c); return err == nil }); late != nil {
		t.Fatalf("afterwards: %v", err)
	}
	for range 2 {
		if err := everyCall(t, w, tr, c); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// everyCall makes one call of each kind that w carries, each on a goroutine of its own.
func everyCall(t *testing.T, w *Wire, tr *Trial, c yodel.Caller) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	key := ""
	if w.keys {
		key = fmt.Sprint("key ", tr.keys.Add(1))
	}
	calls := map[string]func() error{
		"unary": func() error { _, err := call(ctx, c, key); return err },
		"say": func() error {
			_, err := say.Call(ctx, c, &Saying{strings.Repeat("text that becomes smaller by compression, ", 50)})
			return err
		},
		"Go": func() error { return callGo(ctx, tr, c) },
	}
	if w.streams {
		calls["feed"] = func() error { return callFeed(feed)(ctx, c) }
		calls["upload"] = func() error { return callUpload(upload)(ctx, c) }
		calls["duplex"] = func() error { return callDuplex(duplex)(ctx, c) }
	}
	ended := make(chan error, len(calls))
	for kind, do := range calls {
		go func() {
			err := errors.New("it panicked, or ended its goroutine, on the caller's")
			defer func() {
				_ = recover()
				if err != nil {
					err = fmt.Errorf("%s: %w", kind, err)
				}
				ended <- err
			}()
			err = do()
		}()
	}
	var errs []error
	for range calls {
		select {
		case err := <-ended:
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call hung until its deadline: %v", err)
			}
			errs = append(errs, err)
		case <-time.After(patience):
			buffer := make([]byte, 1<<20)
			t.Fatalf("a call does not end\n%s", buffer[:runtime.Stack(buffer, true)])
		}
	}
	return errors.Join(errs...)
}

// callGo makes an asynchronous call.
func callGo(ctx context.Context, tr *Trial, c yodel.Caller) error {
	if s, ok := c.(*spread); ok {
		c = s.clients[0]
	}
	client, ok := c.(interface {
		Go(ctx context.Context, call *yodel.Call, done func(error))
	})
	if !ok {
		_, err := call(ctx, c, "")
		return err
	}
	told := make(chan error, 1)
	client.Go(ctx, &yodel.Call{Method: string(unary), Args: &Ask{N: 1}, Reply: new(Told)}, func(err error) {
		told <- err
		if tr.called != nil {
			tr.called()
		}
	})
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the callback is not called: %w", context.Cause(ctx))
	}
}

// call makes one call of the unary method.
func call(ctx context.Context, c yodel.Caller, key string) (int64, error) {
	told, err := unary.Do(ctx, c, &yodel.Call{IdempotencyKey: key}, &Ask{N: 1})
	return number(told), err
}
