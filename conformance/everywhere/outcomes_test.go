// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// An error of a handler is counted by its code over every wire, and as unknown only if it has none.
// Failures of the server are not counted as unknown.
func TestErrorsAreCountedByTheirCodes(t *testing.T) {
	t.Parallel()
	for name, w := range valueWires() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newValueServer()
			how := 0
			if err := s.HandleCall("All.Echo", func(context.Context, *yodel.Call) error {
				switch how++; how {
				case 1:
					return errors.New("sold out")
				case 2:
					return yodel.Errorf(yodel.NotFound, "no order: %w", errors.New("sold out"))
				}
				panic("broken")
			}); err != nil {
				t.Fatal(err)
			}
			call := caller(t, w.dial(t, s, w.codec), nil)
			for range 3 {
				if err := call(new(basket), new(basket)); err == nil {
					t.Error("a call succeeded")
				}
			}
			var got map[string]uint64
			want := map[string]uint64{"unknown": 1, "not_found": 1, "internal": 1}
			for end := time.Now().Add(patience); !maps.Equal(got, want) && time.Now().Before(end); runtime.Gosched() {
				for _, m := range s.Stats().Methods { // a call is counted after its reply has been sent
					if m.Name == "All.Echo" {
						got = m.Errors
					}
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("the server counted %v, want %v", got, want)
			}
		})
	}
}
