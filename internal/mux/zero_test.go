// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// What connections share because they need none of their own is not written to, by any of the
// tests: those of this file are the last.
func TestWhatIsSharedStaysAsItIs(t *testing.T) {
	if what := mux.SharedIsChanged(); what != "" {
		t.Error(what)
	}
}
