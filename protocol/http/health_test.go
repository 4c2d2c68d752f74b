// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	std "net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A bytesCodec is the codec "protobuf" of a server whose methods take no messages of it.
type bytesCodec struct{}

func (bytesCodec) Name() string                           { return "protobuf" }
func (bytesCodec) Append(_ []byte, _ any) ([]byte, error) { panic("a message was encoded") }
func (bytesCodec) Decode(_ []byte, _ any) error           { panic("a message was decoded") }
func healthSite(t *testing.T, o yodel.ServerOptions) *site {
	t.Helper()
	o.Codecs = append(o.Codecs, bytesCodec{})
	s := newSite(t, nil, o)
	must(t, http.RegisterHealth(s.Server))
	return s
}

// health calls a method of the health protocol by gRPC, with an encoded request.
func (s *site) health(c *std.Client, method, request string) (*std.Response, error) {
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
	r, err := std.NewRequestWithContext(s.t.Context(), "POST", "http://"+s.addr+"/grpc.health.v1.Health/"+method, strings.NewReader(string(prefix)+request))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/grpc")
	return c.Do(r)
}

// Conformance/grpc tests the same with clients of grpc-go.
func TestHealthOverGRPC(t *testing.T) {
	s, c := healthSite(t, yodel.ServerOptions{}), client(t, true)
	for _, test := range []struct{ method, request, reply, status string }{
		{"Check", "", "\x08\x01", "0"},
		{"Check", "\x0a\x04Test", "\x08\x01", "0"},
		{"Check", "\x10\x05\x0a\x04Test\x1d\x00\x00\x00\x00", "\x08\x01", "0"}, // with unknown fields
		{"Check", "\x0a\x05Tests", "", "5"},
		{"Check", "\x0a\x05Test", "", "3"},
		{"Check", "\x0b", "", "3"},
		{"List", "", "\x0a\x04\x12\x02\x08\x01" + "\x0a\x0a\x0a\x04Test\x12\x02\x08\x01" + "\x0a\x1b\x0a\x15grpc.health.v1.Health\x12\x02\x08\x01", "0"},
	} {
		response, err := s.health(c, test.method, test.request)
		must(t, err)
		body, err := io.ReadAll(response.Body)
		must(t, err)
		must(t, response.Body.Close())
		if got := response.Trailer.Get("Grpc-Status") + response.Header.Get("Grpc-Status"); got != test.status {
			t.Errorf("%s %q: status %s %s, want %s", test.method, test.request, got, response.Trailer.Get("Grpc-Message"), test.status)
		}
		if test.reply != "" && string(body[min(5, len(body)):]) != test.reply {
			t.Errorf("%s %q: got %q, want %q", test.method, test.request, body, test.reply)
		}
	}
}

func TestHealthInJSON(t *testing.T) {
	s, c := healthSite(t, yodel.ServerOptions{}), client(t, false)
	s.post(c, "/grpc.health.v1.Health/Check", `{}`).is(t, 200, `{"status":"SERVING"}`)
	s.post(c, "/grpc.health.v1.Health/Check", `{"service":"Test"}`).is(t, 200, `{"status":"SERVING"}`)
	s.post(c, "/grpc.health.v1.Health/List", `{}`).is(t, 200,
		`{"statuses":{"":{"status":"SERVING"},"Test":{"status":"SERVING"},"grpc.health.v1.Health":{"status":"SERVING"}}}`)
	if r := s.post(c, "/grpc.health.v1.Health/Check", `{"service":"None"}`); r.StatusCode != std.StatusNotFound {
		t.Errorf("an unknown service: got %s", r.Status)
	}
}

// A watcher learns that the server shuts down before the connection does, and Shutdown does not
// wait for the watcher.
func TestHealthWatch(t *testing.T) {
	s, c := healthSite(t, yodel.ServerOptions{}), client(t, true)
	for _, test := range []struct{ request, first, last string }{
		{"", "\x08\x01", "\x08\x02"},
		{"\x0a\x04Test", "\x08\x01", "\x08\x02"},
		{"\x0a\x04None", "\x08\x03", ""},
	} {
		response, err := s.health(c, "Watch", test.request) //nolint:bodyclose // it is closed below
		must(t, err)
		defer response.Body.Close()
		next := func() string {
			var message [7]byte
			_, err := io.ReadFull(response.Body, message[:])
			if err == io.EOF {
				return ""
			}
			must(t, err)
			return string(message[5:])
		}
		if got := next(); got != test.first {
			t.Errorf("%q: the first status is %q, want %q", test.request, got, test.first)
		}
		defer func() {
			if got := next(); got != test.last {
				t.Errorf("%q: the last status is %q, want %q", test.request, got, test.last)
			}
			if got := next(); got != "" || response.Trailer.Get("Grpc-Status") != "14" {
				t.Errorf("%q: then got %q, status %s", test.request, got, response.Trailer.Get("Grpc-Status"))
			}
		}()
	}
	must(t, s.stop())
}

func TestRegisterHealthOnce(t *testing.T) {
	s := healthSite(t, yodel.ServerOptions{})
	if err := http.RegisterHealth(s.Server); err == nil {
		t.Error("no error")
	}
}

// Middleware sees the calls, and can refuse them.
func TestHealthPassesThroughMiddleware(t *testing.T) {
	s := healthSite(t, yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "grpc.health.v1.Health/Check" {
				return yodel.Errorf(yodel.Unauthenticated, "who are you?")
			}
			return next(ctx, call)
		}
	}}})
	if r := s.post(client(t, false), "/grpc.health.v1.Health/Check", `{}`); r.StatusCode != std.StatusUnauthorized {
		t.Errorf("got %s", r.Status)
	}
}

// A server that is not ready says so over gRPC, in JSON and to a supervisor.
func TestHealthOfAServerThatIsNotReady(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	s := healthSite(t, yodel.ServerOptions{Ready: func(context.Context) error {
		if down.Load() {
			return errors.New("db-7.internal does not answer")
		}
		return nil
	}})
	admin := httptest.NewServer(http.Admin(s.Server, std.NotFoundHandler()))
	defer admin.Close()
	get := func(path string) (status int, body string) {
		r, err := admin.Client().Get(admin.URL + path)
		must(t, err)
		b, err := io.ReadAll(r.Body)
		must(t, errors.Join(err, r.Body.Close()))
		return r.StatusCode, string(b)
	}
	is := func(readyz int, status, encoded string) {
		t.Helper()
		if code, body := get("/readyz"); code != readyz || strings.Contains(body, "db-7") {
			t.Errorf("/readyz: got %d %q, want %d without the reason", code, body, readyz)
		}
		if code, body := get("/livez"); code != 200 {
			t.Errorf("/livez: got %d %q", code, body)
		}
		c := client(t, false)
		s.post(c, "/grpc.health.v1.Health/Check", `{"service":"Test"}`).is(t, 200, `{"status":"`+status+`"}`)
		s.post(c, "/yodel/Health", `{}`).is(t, 200, `{"serving":`+strconv.FormatBool(readyz == 200)+`}`)
		r, err := s.health(client(t, true), "Check", "")
		must(t, err)
		b, err := io.ReadAll(r.Body)
		must(t, errors.Join(err, r.Body.Close()))
		if got := string(b[min(5, len(b)):]); got != encoded {
			t.Errorf("over gRPC: got %q, want %q", got, encoded)
		}
	}
	is(503, "NOT_SERVING", "\x08\x02")
	watched, err := s.health(client(t, true), "Watch", "")
	must(t, err)
	defer watched.Body.Close()
	next := func(want string) {
		t.Helper()
		var message [7]byte
		_, err := io.ReadFull(watched.Body, message[:])
		must(t, err)
		if got := string(message[5:]); got != want {
			t.Errorf("a watcher got %q, want %q", got, want)
		}
	}
	next("\x08\x02")
	down.Store(false)
	next("\x08\x01")
	is(200, "SERVING", "\x08\x01")
	must(t, s.stop())
	if code, _ := get("/readyz"); code != 503 {
		t.Errorf("after the end, /readyz has status %d", code)
	}
	if code, _ := get("/metrics"); code != 404 {
		t.Errorf("/metrics has status %d, want that of its handler", code)
	}
}
