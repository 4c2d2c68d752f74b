// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// A change that is not in the table panics in tests, and changes nothing.
func TestAnImpossibleReadStateIsRefused(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	c := mux.New(client, nil, true, new(setup).config(t, mux.Config{}, nil))
	defer c.Abort()
	for pair, may := range mux.ReadTransitions() {
		if may {
			continue
		}
		func() {
			defer func() {
				want := fmt.Sprintf("mux: the reading changes from %s to %s", pair[0], pair[1])
				if got := recover(); got != want {
					t.Errorf("from %s to %s: got panic %v, want %q", pair[0], pair[1], got, want)
				}
			}()
			c.ChangeReading(pair[0], pair[1])
		}()
	}
}
