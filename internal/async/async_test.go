// SPDX-License-Identifier: Apache-2.0

package async_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/yodel-rpc/yodel/internal/async"
	"github.com/yodel-rpc/yodel/internal/guard"
)

type handlerKey struct{}

func tokens(n int) *async.Tokens {
	t := async.New(n, guard.New(slog.New(slog.DiscardHandler), errors.New),
		func(ctx context.Context) bool { return ctx.Value(handlerKey{}) != nil })
	return &t
}

func TestACallWaitsForATokenUnlessItMustNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := tokens(1)
		if !tokens.Take(t.Context()) {
			t.Fatal("a free token was not taken")
		}
		if tokens.Take(context.WithValue(t.Context(), handlerKey{}, true)) {
			t.Error("a handler took a second token")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if tokens.Take(ended) {
			t.Error("a caller that has gone took a second token")
		}
		got := make(chan bool)
		go func() { got <- tokens.Take(t.Context()) }()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("a second token was taken")
		default:
		}
		if tokens.Give(true); !<-got {
			t.Error("a token that was given back was not taken")
		}
		tokens.Give(true)
		if tokens.Give(false); !tokens.Take(context.WithValue(t.Context(), handlerKey{}, true)) {
			t.Error("a handler did not take a free token")
		}
	})
}

func TestATokenIsFreeBeforeItsCallEnds(t *testing.T) {
	tokens, failed, ended := tokens(1), errors.New("it failed"), make(chan error)
	inHandler := context.WithValue(t.Context(), handlerKey{}, true)
	tokens.Run(t.Context(), "A.B", tokens.Take(t.Context()), func() error { return failed }, func(err error) {
		if !tokens.Take(inHandler) { // it does not wait
			t.Error("the token is not free when the callback runs")
		}
		tokens.Give(true)
		ended <- err
	})
	if err := <-ended; err != failed {
		t.Errorf("got %v, want %v", err, failed)
	}
	tokens.Run(t.Context(), "A.B", tokens.Take(t.Context()), func() error { panic("as asked") }, func(err error) { ended <- err })
	if err := <-ended; err == nil {
		t.Error("a call that panicked has no error")
	}
}

func TestWithoutATokenACallRunsOnTheCallersGoroutine(t *testing.T) {
	var got error
	failed := errors.New("it failed")
	tokens(1).Run(t.Context(), "A.B", false, func() error { return failed }, func(err error) { got = err })
	if got != failed { // under the race detector also if it ran elsewhere
		t.Errorf("got %v, want %v", got, failed)
	}
}
