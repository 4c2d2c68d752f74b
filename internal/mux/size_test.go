// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"strconv"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// A process may have many idle connections. The runtime adds a header of 8 bytes to an object of
// this size, and rounds up to 768 bytes. The next size is 896.
func TestAConnectionFitsItsSizeClass(t *testing.T) {
	if strconv.IntSize != 64 {
		t.Skip("the sizes are those of 64-bit systems")
	}
	if mux.ConnSize > 768-8 {
		t.Errorf("a Conn takes %d bytes, want 760 at most: put what most connections do not need into a lazy part", mux.ConnSize)
	}
}
