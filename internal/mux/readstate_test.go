// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"testing"

	"github.com/yodel-rpc/yodel/internal/mux"
)

// docs/locks.md lists exactly the changes of the reader of a connection that the code allows.
func TestTheTableOfReadStatesIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/locks.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[[2]string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\w+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented[[2]string{row[1], row[2]}] = true
	}
	allowed := 0
	for pair, may := range mux.ReadTransitions() {
		if may {
			allowed++
		}
		if documented[pair] != may {
			t.Errorf("from %s to %s: the code allows it: %v, docs/locks.md lists it: %v", pair[0], pair[1], may, documented[pair])
		}
	}
	if allowed != len(documented) {
		t.Errorf("docs/locks.md lists %d changes, the code allows %d", len(documented), allowed)
	}
}

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
