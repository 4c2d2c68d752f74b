// SPDX-License-Identifier: Apache-2.0

package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/custom/middleware"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const (
	outer yodel.Method[struct{}, string] = "Outer.ID"
	inner yodel.Method[struct{}, string] = "Inner.ID"
)

// chain is a middleware with a log that a test reads.
func chain(log *bytes.Buffer) []yodel.Middleware {
	return []yodel.Middleware{middleware.RequestID(slog.New(slog.NewTextHandler(log, nil)))}
}

func TestAHandlerPassesTheIDOn(t *testing.T) {
	var log bytes.Buffer
	behind, front := yodeltest.NewServer(t, nil), yodeltest.NewServer(t, nil)
	inner.Handle(behind.Server, func(ctx context.Context, _ *struct{}) (*string, error) {
		return new(yodel.CallFrom(ctx).Metadata[middleware.Key]), nil
	})
	toInner := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: chain(&log)}, behind)
	outer.Handle(front.Server, func(ctx context.Context, _ *struct{}) (*string, error) {
		got, err := inner.Call(ctx, toInner, &struct{}{})
		if err != nil {
			return nil, err
		}
		if want := yodel.CallFrom(ctx).Metadata[middleware.Key]; want == "" || *got != want {
			t.Errorf("the inner call has the id %q, and the outer one %q", *got, want)
		}
		return got, nil
	})
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: chain(&log)}, front)

	seen := map[string]bool{}
	for range 2 {
		id, err := outer.Call(t.Context(), c, &struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		seen[*id] = true
	}
	if len(seen) != 2 {
		t.Errorf("two calls have the ids %v", seen)
	}
	if log.Len() > 0 {
		t.Errorf("calls that succeeded are in the log:\n%s", &log)
	}
}

func TestFailedCallsAreLoggedWithTheirID(t *testing.T) {
	for _, given := range []yodel.Metadata{{middleware.Key: "my-id"}, nil} {
		var log bytes.Buffer
		var id string
		h := chain(&log)[0](func(_ context.Context, call *yodel.Call) error {
			id = call.Metadata[middleware.Key]
			return yodel.Errorf(yodel.NotFound, "no such item")
		})
		err := h(t.Context(), &yodel.Call{Method: "Shop.Price", Metadata: given})
		want := "request-id=" + id + " method=Shop.Price err.code=not_found"
		if !errors.Is(err, yodel.NotFound) || id == "" || !strings.Contains(log.String(), want) {
			t.Errorf("given %v: got %v, and want %q in the log:\n%s", given, err, want, &log)
		}
		if given != nil && id != given[middleware.Key] {
			t.Errorf("the id %v became %q", given, id)
		}
	}
}

func TestTheCallerKeepsItsMetadata(t *testing.T) {
	var log bytes.Buffer
	given := yodel.Metadata{"color": "red"}
	call := &yodel.Call{Metadata: given}
	h := chain(&log)[0](func(_ context.Context, call *yodel.Call) error {
		if call.Metadata[middleware.Key] == "" || call.Metadata["color"] != "red" {
			t.Errorf("the call has the metadata %v", call.Metadata)
		}
		return nil
	})
	if err := h(t.Context(), call); err != nil || len(given) != 1 || len(call.Metadata) != 1 {
		t.Errorf("got %v; the caller's metadata is %v, and that of its call %v", err, given, call.Metadata)
	}
}
