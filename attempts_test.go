// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

func TestTheCodeOfTheLastAttemptCounts(t *testing.T) {
	network := mem.New()
	h := startHooked(t, network, &yodel.ServerOptions{Middleware: []yodel.Middleware{
		hookBefore(func(context.Context, *yodel.Call) error {
			return &yodel.Error{Code: yodel.PermissionDenied, ID: "YDL3102", Message: "no", NotProcessed: true}
		}),
	}}, nil)
	for range 4 { // at least one of them begins with the endpoint that cannot be reached
		c := yodel.NewClient(discovery.Static("nobody", "server"), &yodel.ClientOptions{Transport: h.network})
		for range 2 {
			if _, err := inspect.Ping.Call(t.Context(), c, &inspect.Empty{}); !errors.Is(err, yodel.PermissionDenied) {
				t.Errorf("got %v, want permission_denied", err)
			}
		}
		c.Close()
	}
}

// hookAgain makes n attempts of each call.
func hookAgain(n int) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) (err error) {
			for range n {
				if err = next(ctx, call); err == nil {
					return nil
				}
			}
			return err
		}
	}
}

func TestACallWasNotExecutedWhenNoAttemptWas(t *testing.T) {
	t.Attr("rerun", "never")
	for _, test := range []struct {
		name     string
		executed int // which attempt is executed; 0 is none
		id       string
	}{
		{"none", 0, "YDL3002"},
		{"the first", 1, "YDL3002"},
		{"the fourth", 4, "YDL3002"},
		{"the last", 5, "YDL3002"},
		{"the first, and the last error has no ID", 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			attempts := 0
			h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
				hookBefore(func(context.Context, *yodel.Call) error {
					if attempts++; attempts != test.executed {
						return &yodel.Error{Code: yodel.ResourceExhausted, ID: test.id, Message: "not now", NotProcessed: true}
					}
					return nil
				}),
			}}, &yodel.ClientOptions{Middleware: []yodel.Middleware{hookAgain(5)}})
			if err := h.server.Handle("Hook.Fail", func() error { return yodel.Errorf(yodel.ResourceExhausted, "half done") }); err != nil {
				t.Fatal(err)
			}
			err := h.client.Call(t.Context(), "Hook.Fail", yodel.Values{}, nil)
			var report *introspect.CallReport
			if !errors.As(err, &report) || len(report.Attempts) != 5 {
				t.Fatalf("got %+v, want an error with a report of 5 attempts", err)
			}
			if want := test.executed == 0; yodel.NotProcessed(err) != want {
				t.Errorf("got %+v, not processed: %t, want %t", err, !want, want)
			}
		})
	}
}

func TestEndpointMiddlewareChangesEveryAttempt(t *testing.T) {
	var log hookLog
	h := startHooked(t, mem.New(), &yodel.ServerOptions{Middleware: []yodel.Middleware{
		hookBefore(func(_ context.Context, call *yodel.Call) error {
			log.add(call.Metadata["span"])
			return yodel.Errorf(yodel.Unavailable, "not now")
		}),
	}}, &yodel.ClientOptions{
		Middleware: []yodel.Middleware{hookAgain(3)},
		EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(_ context.Context, call *yodel.Call) error {
			call.Metadata = yodel.Metadata{"span": strings.Repeat("I", call.Attempt+1)}
			return nil
		}))},
	})
	if _, err := h.double(t); !errors.Is(err, yodel.Unavailable) {
		t.Errorf("got %v, want unavailable", err)
	}
	log.is(t, "I", "II", "III")
}

func TestErrorsOfEndpointMiddlewareStayWhatTheyAre(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		code yodel.Code
	}{
		{"an error of yodel's", errHook, yodel.FailedPrecondition},
		{"a wrapped one", fmt.Errorf("breaker: %w", errHook), yodel.FailedPrecondition},
		{"a code", yodel.Aborted, yodel.Aborted},
		{"any error", errors.New("breaker is open"), yodel.Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := startHooked(t, mem.New(), nil, &yodel.ClientOptions{
				EndpointMiddleware: []yodel.EndpointMiddleware{hookBelow(hookBefore(func(context.Context, *yodel.Call) error { return test.err }))},
			})
			_, err := h.double(t)
			if !errors.Is(err, test.err) || yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.err.Error()) {
				t.Errorf("got %v, want %v", err, test.err)
			}
		})
	}
}

func TestTheReportOfAnAsynchronousCallSaysHowLongEachAttemptTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHooked(t, mem.New(), nil, nil)
		if err := h.server.Handle("Hook.Fail", func() error {
			time.Sleep(3 * time.Second)
			return errHook
		}); err != nil {
			t.Fatal(err)
		}
		if err := h.client.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		h.client.Go(t.Context(), &yodel.Call{Method: "Hook.Fail", Args: yodel.Values{}}, func(err error) { ended <- err })
		err := <-ended
		var report *introspect.CallReport
		if !errors.As(err, &report) || len(report.Attempts) != 1 || report.Attempts[0].Took != 3*time.Second {
			t.Errorf("got %+v, want one attempt of 3s", err)
		}
	})
}
