// SPDX-License-Identifier: Apache-2.0

package breaker_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/breaker"
)

// OnChange is told of each change in order, with the lock free, and a panic in it harms nothing.
func TestOnChangeIsToldOfEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep := endpoint(t)
		var told []string
		var answer error
		var h yodel.Handler
		h = breaker.With(&breaker.Options{Errors: 2, Open: time.Second, Probes: 1, OnChange: func(of *yodel.Endpoint, state, why string, d time.Duration) {
			told = append(told, fmt.Sprintf("%s %s %s %t", of.Addr(), state, why, d > 0))
			// it may call the endpoint
			if state == "open" && !isRefused(h(t.Context(), &yodel.Call{Method: "Test.Work"})) {
				t.Error("a call is not refused")
			}
			panic("OnChange panics")
		}})(ep, answering(&answer))
		answer = errFailed
		for range 2 {
			_ = h(t.Context(), &yodel.Call{Method: "Test.Work"})
		}
		time.Sleep(2 * time.Second)
		answer = nil
		if err := h(t.Context(), &yodel.Call{Method: "Test.Work"}); err != nil {
			t.Error(err)
		}
		want := []string{
			"server open 2 calls in a row failed, the last one: " + errFailed.Error() + " true", "server half-open  false", "server closed  false",
		}
		if !slices.Equal(told, want) {
			t.Errorf("got %q, want %q", told, want)
		}
	})
}
