// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	std "net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// inside is a word that only errors for the program itself contain.
const inside = "db-7.internal"

// A grpcError is an error with a status, as those of grpc-go.
type grpcError struct{ text string }

func (e *grpcError) Error() string          { return "rpc error: " + e.text }
func (e *grpcError) GRPCStatus() *grpcError { return e }
func (e *grpcError) Code() uint32           { return uint32(yodel.FailedPrecondition) }
func (e *grpcError) Message() string        { return e.text }

// A failure is an error that a handler returns, and what clients get.
type failure struct {
	err  func(ctx context.Context) error
	code yodel.Code
	text string // that the client gets; empty if the error is hidden
}

// failures returns errors of all kinds. Back and foreign are clients of a server that fails with an
// error that it has written for its own callers. Gone is a client of an address at which no server
// listens.
func failures(back, foreign, gone *yodel.Client) map[string]failure {
	call := func(c *yodel.Client) func(context.Context) error {
		return func(ctx context.Context) error { _, err := fail.Call(ctx, c, &text{inside}); return err }
	}
	all := map[string]failure{
		"plain":             {func(context.Context) error { return errors.New("dial " + inside) }, yodel.Internal, ""},
		"own type":          {func(context.Context) error { return &net.AddrError{Err: "bad", Addr: inside} }, yodel.Internal, ""},
		"another server":    {call(back), yodel.Internal, ""},
		"over gRPC":         {call(foreign), yodel.Internal, ""},
		"no server":         {call(gone), yodel.Unavailable, ""},
		"own":               {func(context.Context) error { return yodel.Errorf(yodel.NotFound, "no such cart") }, yodel.NotFound, "no such cart"},
		"own, made by hand": {func(context.Context) error { return &yodel.Error{Code: yodel.Aborted, Message: "try again"} }, yodel.Aborted, "try again"},
		"own, with a cause": {func(context.Context) error {
			return &yodel.Error{Code: yodel.NotFound, Message: "no cart", Cause: errors.New(inside)}
		}, yodel.NotFound, "no cart"},
		"status": {func(context.Context) error { return &grpcError{"too few"} }, yodel.FailedPrecondition, "too few"},
		"code":   {func(context.Context) error { return yodel.OutOfRange }, yodel.OutOfRange, ""},
		"joined": {func(ctx context.Context) error { return errors.Join(errors.New(inside), yodel.NotFound) }, yodel.NotFound, ""},
		"own, joined": {func(context.Context) error {
			return errors.Join(errors.New(inside), yodel.Errorf(yodel.NotFound, "no cart"))
		}, yodel.NotFound, "no cart"},
		"ended by its own": {func(context.Context) error { return context.DeadlineExceeded }, yodel.DeadlineExceeded, ""},
		"own, after another": {func(ctx context.Context) error {
			return yodel.Errorf(yodel.Unavailable, "no stock: %v", call(back)(ctx) != nil)
		}, yodel.Unavailable, "no stock: true"},
	}
	for name, f := range maps.Clone(all) {
		all[name+", wrapped"] = failure{func(ctx context.Context) error { return fmt.Errorf("%s: %w", inside, f.err(ctx)) }, f.code, f.text}
	}
	// The program's own error has the text of a call's error in it.
	for verb, quote := range map[string]func(err error) error{
		"v":     func(err error) error { return yodel.Errorf(yodel.Aborted, "not paid: %v", err) },
		"w":     func(err error) error { return yodel.Errorf(yodel.Aborted, "not paid: %w", err) },
		"s":     func(err error) error { return yodel.Errorf(yodel.Aborted, "not paid: %s, %d left", err, 3) },
		"q":     func(err error) error { return yodel.Errorf(yodel.Aborted, "not paid: %q", err) },
		"two w": func(err error) error { return yodel.Errorf(yodel.Aborted, "not paid: %w: %w", yodel.NotFound, err) },
		"nested": func(err error) error {
			return yodel.Errorf(yodel.Aborted, "not paid: %v", yodel.Errorf(yodel.Internal, "bank: %w", err))
		},
		"inner": func(err error) error {
			return yodel.Errorf(yodel.Aborted, "not paid: %v", fmt.Errorf("bank at %s: %w", inside, err))
		},
	} {
		all["quoted by %"+verb] = failure{func(ctx context.Context) error { return quote(call(back)(ctx)) }, yodel.Aborted, "not paid: "}
	}
	for name, c := range map[string]*yodel.Client{"over gRPC": foreign, "no server": gone} {
		all[name+", quoted"] = failure{func(ctx context.Context) error {
			return yodel.Errorf(yodel.Aborted, "not paid: %w", call(c)(ctx))
		}, yodel.Aborted, "not paid: "}
	}
	return all
}

// ways are ways in which clients get an error, over each protocol of package http. They return all
// that a client receives.
var ways = map[string]func(t *testing.T, addr, kind string) (whole string, code yodel.Code){
	"gRPC":       func(t *testing.T, addr, kind string) (string, yodel.Code) { return wired(t, "grpc", addr, kind, false) },
	"gRPC, feed": func(t *testing.T, addr, kind string) (string, yodel.Code) { return wired(t, "grpc", addr, kind, true) },
	"Connect": func(t *testing.T, addr, kind string) (string, yodel.Code) {
		return wired(t, "connect", addr, kind, false)
	},
	"Connect, feed": func(t *testing.T, addr, kind string) (string, yodel.Code) {
		return wired(t, "connect", addr, kind, true)
	},
	"JSON": func(t *testing.T, addr, kind string) (string, yodel.Code) {
		return posted(t, "http://"+addr+"/Edge/Fail", fmt.Sprintf("{%q: %q}", "text", kind))
	},
	"a route": func(t *testing.T, addr, kind string) (string, yodel.Code) {
		return posted(t, "http://"+addr+"/fail", fmt.Sprintf("{%q: %q}", "text", kind))
	},
	"JSON-RPC": func(t *testing.T, addr, kind string) (string, yodel.Code) {
		return posted(t, "http://"+addr+"/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"Edge.Fail","params":{"text":%q}}`, kind))
	},
	"rpcx": func(t *testing.T, addr, kind string) (string, yodel.Code) {
		return posted(t, "http://"+addr+"/", fmt.Sprintf("{%q: %q}", "text", kind),
			"X-RPCX-ServicePath", "Edge", "X-RPCX-ServiceMethod", "Fail", "X-RPCX-SerializeType", "1", "X-RPCX-MessageID", "1")
	},
}

const (
	edge     yodel.Method[text, text] = "Edge.Fail"
	edgeFeed yodel.Feed[text, text]   = "Edge.Feed"
)

// wired calls with a client of yodel over another protocol.
func wired(t *testing.T, scheme, addr, kind string, feed bool) (whole string, code yodel.Code) {
	t.Helper()
	c := yodel.NewClient(discovery.Static(scheme+"://"+addr), &yodel.ClientOptions{Codec: yodel.JSON, Wires: []yodel.Wire{grpc.Wire, connect.Wire(nil)}})
	defer c.Close()
	var err error
	if feed {
		for _, e := range edgeFeed.Call(t.Context(), c, &text{kind}) {
			err = e
		}
	} else {
		_, err = edge.Call(t.Context(), c, &text{kind})
	}
	e, _ := errors.AsType[*yodel.Error](err)
	if e == nil {
		t.Fatalf("got the error %v", err)
	}
	return fmt.Sprintf("%+v %v", e, e.Details), e.Code
}

// posted sends a request of HTTP. The code is 0, because each protocol has it elsewhere.
func posted(t *testing.T, url, body string, header ...string) (whole string, code yodel.Code) {
	t.Helper()
	r, err := std.NewRequestWithContext(t.Context(), std.MethodPost, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := std.Client{Transport: new(std.Transport)}
	defer client.CloseIdleConnections()
	reply, err := client.Do(r)
	must(t, err)
	defer reply.Body.Close()
	all, err := io.ReadAll(reply.Body)
	must(t, err)
	return fmt.Sprint(reply.StatusCode, reply.Header, reply.Trailer, string(all)), 0
}

// serveEdge serves methods that fail as the request says.
func serveEdge(t *testing.T, p *http.Options, log io.Writer) (s *site, all map[string]failure) {
	t.Helper()
	back := newSite(t, nil, yodel.ServerOptions{})
	toBack, toNone := yodel.Dial(back.addr), yodel.Dial("127.0.0.1:1")
	foreign := yodel.NewClient(discovery.Static("grpc://"+back.addr), &yodel.ClientOptions{Codec: yodel.JSON, Wires: []yodel.Wire{grpc.Wire}})
	t.Cleanup(func() { toBack.Close(); foreign.Close(); toNone.Close() })
	all = failures(toBack, foreign, toNone)
	s = newSite(t, p, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(log, nil))})
	edge.Handle(s.Server, func(ctx context.Context, in *text) (*text, error) { return nil, all[in.Text].err(ctx) })
	edgeFeed.Handle(s.Server, func(ctx context.Context, in *text, _ yodel.Send[text]) error { return all[in.Text].err(ctx) })
	return s, all
}

// number is that of an error which the client does not see.
var number = regexp.MustCompile(`see hidden error (\d+)`)

func TestClientsSeeOnlyErrorsThatWereWrittenForThem(t *testing.T) {
	options := &http.Options{JSONRPC: "/rpc", RPCX: true, Routes: []http.Route{{Pattern: "POST /fail", Method: string(edge)}}}
	var log lockedBuffer
	s, all := serveEdge(t, options, &log)
	numbers := 0 // of hidden errors
	embedded := httptest.NewServer(http.New(options).Handler(s.Server))
	t.Cleanup(embedded.Close)
	for _, addr := range []string{s.addr, strings.TrimPrefix(embedded.URL, "http://")} {
		for way, try := range ways {
			if addr != s.addr && (strings.HasPrefix(way, "gRPC") || strings.HasPrefix(way, "Connect")) {
				continue // the Wires speak HTTP/2, and httptest's server does not without TLS
			}
			for kind, f := range all {
				whole, code := try(t, addr, kind)
				if n := number.FindStringSubmatch(whole); n != nil {
					numbers++
					if !strings.Contains(log.String(), `hiddenError=`+n[1]+" ") {
						t.Errorf("%s, %s: the log does not have the error with the number %s", way, kind, n[1])
					}
				}
				switch {
				case strings.Contains(whole, inside), strings.Contains(whole, "127.0.0.1:1:"):
					t.Errorf("%s, %s: the client sees the inside: %s", way, kind, whole)
				case code != 0 && code != f.code:
					t.Errorf("%s, %s: got the code %v, want %v: %s", way, kind, code, f.code, whole)
				case f.text != "" && !strings.Contains(whole, f.text):
					t.Errorf("%s, %s: the client does not see %q: %s", way, kind, f.text, whole)
				case f.text == "" && !strings.Contains(whole, "the server's log"):
					t.Errorf("%s, %s: the client does not learn that the server's log has more: %s", way, kind, whole)
				}
			}
		}
	}
	if numbers == 0 {
		t.Error("no client got a number")
	}
	if got := log.String(); !strings.Contains(got, inside) || !strings.Contains(got, `hiddenError=1 `) {
		t.Errorf("the log does not have the hidden errors: %s", got)
	}
	if n := strings.Count(log.String(), "a call failed"); n > 12 {
		t.Errorf("callers made the server write %d lines", n)
	}
}

func TestExposeErrors(t *testing.T) {
	s, all := serveEdge(t, &http.Options{ExposeErrors: true, JSONRPC: "/rpc"}, io.Discard)
	for _, way := range []string{"gRPC", "gRPC, feed", "Connect", "JSON", "JSON-RPC"} {
		for _, kind := range []string{"plain", "another server", "own, wrapped"} {
			if whole, _ := ways[way](t, s.addr, kind); !strings.Contains(whole, inside) {
				t.Errorf("%s, %s: %v is not in %s", way, kind, all[kind].err(t.Context()), whole)
			}
		}
	}
}
