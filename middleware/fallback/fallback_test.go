// SPDX-License-Identifier: Apache-2.0

package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type Quote struct {
	Price int
	Tags  []string
}

const (
	get   yodel.Method[string, Quote]    = "Quote.Get"
	touch yodel.Method[string, struct{}] = "Quote.Touch"
	watch yodel.Feed[string, Quote]      = "Quote.Watch"
)

// A service answers with an error, if it has one.
type service struct {
	err      atomic.Pointer[yodel.Error]
	executed atomic.Int32
}

func (s *service) fails(code yodel.Code) {
	s.err.Store(&yodel.Error{Code: code, Message: "it is " + code.String()})
}

func (s *service) get(context.Context, *string) (*Quote, error) {
	s.executed.Add(1)
	if err := s.err.Load(); err != nil {
		return nil, err
	}
	return &Quote{Price: 7}, nil
}

// serve runs a service, on a server with middleware.
func serve(t *testing.T, ms ...yodel.Middleware) (*service, *yodeltest.Server) {
	t.Helper()
	s, server := &service{}, yodeltest.NewServer(t, &yodel.ServerOptions{Middleware: ms})
	get.Handle(server.Server, s.get)
	touch.Handle(server.Server, func(ctx context.Context, in *string) (*struct{}, error) {
		_, err := s.get(ctx, in)
		return nil, err
	})
	watch.Handle(server.Server, func(ctx context.Context, in *string, _ yodel.Send[Quote]) error {
		_, err := s.get(ctx, in)
		return err
	})
	server.Handle("Quote.Range", func(string) (int, string, error) {
		_, err := s.get(t.Context(), nil)
		return 1, "one", err
	})
	return s, server
}

func client(t *testing.T, server *yodeltest.Server, m yodel.Middleware) *yodel.Client {
	t.Helper()
	return yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{m}}, server)
}

func TestFallsBackWhenTheServiceIsNotAvailable(t *testing.T) {
	s, server := serve(t)
	c := client(t, server, fallback.To(Quote{Price: 1}))
	for code := yodel.Code(0); code <= yodel.Unauthenticated; code++ {
		s.err.Store(nil)
		if code != 0 {
			s.fails(code)
		}
		call := &yodel.Call{}
		quote, err := get.Do(t.Context(), c, call, new("GOOG"))
		switch code {
		case 0:
			if err != nil || quote.Price != 7 || call.Trailer[fallback.Key] != "" {
				t.Errorf("a success: got %+v, %v, trailer %v", quote, err, call.Trailer)
			}
		case yodel.Unavailable, yodel.DeadlineExceeded, yodel.ResourceExhausted:
			if err != nil || quote.Price != 1 || call.Trailer[fallback.Key] != code.String() {
				t.Errorf("%v: got %+v, %v, trailer %v, want the fallback", code, quote, err, call.Trailer)
			}
		default:
			if !errors.Is(err, code) {
				t.Errorf("%v: got %+v, %v, want the error", code, quote, err)
			}
		}
	}
}

// What is wrong with the message, or canceled, is the caller's own affair.
func TestDoesNotFallBackForTheCaller(t *testing.T) {
	s, server := serve(t)
	s.err.Store(&yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL2202", Message: "too large"})
	c := client(t, server, fallback.To(Quote{}))
	if _, err := get.Call(t.Context(), c, new("GOOG")); !errors.Is(err, yodel.ResourceExhausted) {
		t.Errorf("a reply that is too large: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c = client(t, server, fallback.With(&fallback.Options{Reply: Quote{}, Codes: []yodel.Code{yodel.Canceled}}))
	if _, err := get.Call(ctx, c, new("GOOG")); !errors.Is(err, yodel.Canceled) {
		t.Errorf("canceled: got %v", err)
	}
	s.fails(yodel.Unavailable)
	if _, err := watch.Call(t.Context(), c, new("GOOG")).Next(); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("a stream: got %v", err)
	}
}

func TestTheReplyMustFit(t *testing.T) {
	s, server := serve(t)
	s.fails(yodel.Unavailable)
	var price int
	var name string
	for _, test := range []struct {
		name         string
		method       string
		reply, wants any
		fits         bool
	}{
		{"a value", "Quote.Get", Quote{Price: 1}, new(Quote), true},
		{"a pointer", "Quote.Get", &Quote{Price: 1}, new(Quote), true},
		{"as it is sent", "Quote.Get", &yodel.Encoded{Body: []byte(`{"Price":1}`)}, new(Quote), true},
		{"to be left as it is", "Quote.Get", Quote{Price: 1}, new(yodel.Encoded), true},
		{"anything", "Quote.Get", Quote{Price: 1}, new(any), true},
		{"nobody wants it", "Quote.Get", "x", nil, true},
		{"nothing for nobody", "Quote.Get", nil, nil, true},
		{"nothing for nothing", "Quote.Touch", nil, new(struct{}), true},
		{"values", "Quote.Range", yodel.Values{1, "one"}, yodel.Values{&price, &name}, true},
		{"nothing", "Quote.Get", nil, new(Quote), false},
		{"a nil pointer", "Quote.Get", (*Quote)(nil), new(Quote), false},
		{"another type", "Quote.Get", 1, new(Quote), false},
		{"a pointer to a pointer", "Quote.Get", new(&Quote{}), new(Quote), false},
		{"one value for two", "Quote.Range", 1, yodel.Values{&price, &name}, false},
		{"fewer values", "Quote.Range", yodel.Values{1}, yodel.Values{&price, &name}, false},
		{"other values", "Quote.Range", yodel.Values{"one", 1}, yodel.Values{&price, &name}, false},
		{"values for one", "Quote.Get", yodel.Values{Quote{}}, new(Quote), false},
		{"bytes that are none", "Quote.Get", &yodel.Encoded{Body: []byte(`7`)}, new(Quote), false},
	} {
		args := any("GOOG")
		if test.method == "Quote.Range" {
			args = yodel.Values{"GOOG"}
		}
		err := client(t, server, fallback.To(test.reply)).Call(t.Context(), test.method, args, test.wants)
		if test.fits {
			if got := fmt.Sprintf("%+v", test.wants); err != nil || strings.HasPrefix(got, "&{Price:") && got != "&{Price:1 Tags:[]}" {
				t.Errorf("%s: got %s, %v", test.name, got, err)
			}
			continue
		}
		e, ok := err.(*yodel.Error)
		if !ok || e.ID != "YDL3501" || e.Code != yodel.Internal || !errors.Is(err, yodel.Unavailable) || e.NotProcessed {
			t.Errorf("%s: got %v, want YDL3501 with the cause", test.name, err)
		}
	}
	if price != 1 || name != "one" {
		t.Errorf("the values are %d and %q", price, name)
	}
}

func TestCallersShareNoMemory(t *testing.T) {
	s, server := serve(t)
	s.fails(yodel.Unavailable)
	c := client(t, server, fallback.To(&Quote{Tags: []string{"a", "b"}}))
	first, err := get.Call(t.Context(), c, new("GOOG"))
	if err != nil {
		t.Fatal(err)
	}
	first.Tags[0] = "changed"
	second, err := get.Call(t.Context(), c, new("GOOG"))
	if err != nil || second.Tags[0] != "a" {
		t.Errorf("got %+v, %v", second, err)
	}
}

func TestOnlyNamedMethodsAndCodes(t *testing.T) {
	s, server := serve(t)
	s.fails(yodel.Unavailable)
	c := client(t, server, fallback.To(Quote{}, "Quote.Other"))
	if _, err := get.Call(t.Context(), c, new("GOOG")); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("another method: got %v", err)
	}
	c = client(t, server, fallback.With(&fallback.Options{Reply: Quote{}, Codes: []yodel.Code{yodel.NotFound}}))
	if _, err := get.Call(t.Context(), c, new("GOOG")); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("another code: got %v", err)
	}
	s.fails(yodel.NotFound)
	if _, err := get.Call(t.Context(), c, new("GOOG")); err != nil {
		t.Errorf("the code: got %v", err)
	}
}

func TestForcedCallsAreNotMade(t *testing.T) {
	s, server := serve(t)
	var force atomic.Bool
	c := client(t, server, fallback.With(&fallback.Options{Reply: Quote{Price: 1}, Force: &force}))
	for _, forced := range []bool{false, true, false} {
		force.Store(forced)
		before, call := s.executed.Load(), &yodel.Call{}
		quote, err := get.Do(t.Context(), c, call, new("GOOG"))
		if err != nil || (quote.Price == 1) != forced || (s.executed.Load() == before) != forced || (call.Trailer[fallback.Key] == "forced") != forced {
			t.Errorf("forced %v: got %+v, %v, trailer %v", forced, quote, err, call.Trailer)
		}
	}
	force.Store(true)
	_, err := watch.Call(t.Context(), c, new("GOOG")).Next()
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != "YDL3501" || !e.NotProcessed {
		t.Errorf("a stream: got %v, want YDL3501", err)
	}
}

func TestTheFunctionChooses(t *testing.T) {
	s, server := serve(t)
	s.fails(yodel.Unavailable)
	own := errors.New("our own")
	for _, test := range []struct {
		name  string
		reply any
		err   error
		wants error
	}{
		{"a reply", &Quote{Price: 3}, nil, nil},
		{"an error", nil, own, own},
		{"both", &Quote{}, own, own},
		{"neither", nil, nil, yodel.Internal},
	} {
		c := client(t, server, fallback.Func(func(_ context.Context, call *yodel.Call, err error) (any, error) {
			if call.Method != "Quote.Get" || *call.Args.(*string) != "GOOG" || !errors.Is(err, yodel.Unavailable) {
				t.Errorf("it is given %s(%v) and %v", call.Method, call.Args, err)
			}
			return test.reply, test.err
		}))
		quote, err := get.Call(t.Context(), c, new("GOOG"))
		if !errors.Is(err, test.wants) || err == nil && quote.Price != 3 {
			t.Errorf("%s: got %+v, %v, want %v", test.name, quote, err, test.wants)
		}
	}
}

// The header of a reply is that of the call which has made the reply.
func TestHeaderOfAFallback(t *testing.T) {
	named := func(name string, err error) *yodeltest.Server {
		s := yodeltest.NewServer(t, nil)
		get.Handle(s.Server, func(ctx context.Context, _ *string) (*Quote, error) {
			yodel.CallFrom(ctx).SetHeader(yodel.Metadata{"by": name})
			return &Quote{Price: 7}, err
		})
		return s
	}
	broken, spare := named("broken", yodel.Errorf(yodel.Unavailable, "no")), named("spare", nil)
	for want, m := range map[string]yodel.Middleware{
		"":      fallback.To(&Quote{Price: 1}),
		"spare": fallback.Caller(yodeltest.NewClient(t, nil, spare)),
	} {
		call := &yodel.Call{}
		if _, err := get.Do(t.Context(), client(t, broken, m), call, new("GOOG")); err != nil || call.Header()["by"] != want {
			t.Errorf("want the header of %q, got %v, %v", want, call.Header(), err)
		}
	}
}

func TestAnotherCallerIsCalled(t *testing.T) {
	s, server := serve(t)
	s.fails(yodel.Unavailable)
	spare, spareServer := serve(t)
	c := client(t, server, fallback.Caller(yodeltest.NewClient(t, nil, spareServer)))
	call := &yodel.Call{}
	if quote, err := get.Do(t.Context(), c, call, new("GOOG")); err != nil || quote.Price != 7 || call.Trailer[fallback.Key] != "unavailable" {
		t.Errorf("got %+v, %v, trailer %v", quote, err, call.Trailer)
	}
	spare.fails(yodel.NotFound)
	_, err := get.Call(t.Context(), c, new("GOOG"))
	if !errors.Is(err, yodel.NotFound) || !errors.Is(err, yodel.Unavailable) || yodel.CodeOf(err) != yodel.NotFound ||
		err.Error() != "not_found: Quote.Get: the fallback failed: it is not_found; the call had failed: it is unavailable" {
		t.Errorf("both fail: got %v", err)
	}
}

// On a server a reply stands for the method's, and another service for the server.
func TestServersFallBack(t *testing.T) {
	_, spareServer := serve(t)
	for _, test := range []struct {
		name  string
		m     yodel.Middleware
		price int
		id    string
	}{
		{"reply", fallback.To(Quote{Price: 1}), 1, ""},
		{"caller", fallback.Caller(yodeltest.NewClient(t, nil, spareServer)), 7, ""},
		{"nothing", fallback.To(nil), 0, "YDL3501"},
	} {
		s, server := serve(t, test.m)
		s.fails(yodel.Unavailable)
		call := &yodel.Call{}
		quote, err := get.Do(t.Context(), yodeltest.NewClient(t, nil, server), call, new("GOOG"))
		if test.id != "" {
			if e, ok := errors.AsType[*yodel.Error](err); !ok || e.ID != test.id {
				t.Errorf("%s: got %+v, %v", test.name, quote, err)
			}
			continue
		}
		if err != nil || quote.Price != test.price || call.Trailer[fallback.Key] != "unavailable" {
			t.Errorf("%s: got %+v, %v, trailer %v", test.name, quote, err, call.Trailer)
		}
	}
}

func TestASuccessAllocatesNothing(t *testing.T) {
	h := fallback.To(Quote{}, "Quote.Get")(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{Method: "Quote.Get"}
	if n := testing.AllocsPerRun(100, func() {
		if err := h(ctx, call); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations for each call, want 0", n)
	}
}

func BenchmarkSuccess(b *testing.B) {
	h := fallback.To(Quote{}, "Quote.Get")(func(context.Context, *yodel.Call) error { return nil })
	ctx, call := context.Background(), &yodel.Call{Method: "Quote.Get"}
	b.ReportAllocs()
	for b.Loop() {
		if err := h(ctx, call); err != nil {
			b.Fatal(err)
		}
	}
}
