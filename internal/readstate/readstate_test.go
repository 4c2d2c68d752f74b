// SPDX-License-Identifier: Apache-2.0

package readstate_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/yodel-rpc/yodel/internal/readstate"
)

// docs/locks.md lists exactly the changes that are allowed.
func TestTheTableIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/locks.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[[2]string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\w+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented[[2]string{row[1], row[2]}] = true
	}
	allowed := 0
	for from := range readstate.Ended + 1 {
		for to := range readstate.Ended + 1 {
			may := from.MayBecome(to)
			if may {
				allowed++
			}
			if documented[[2]string{from.String(), to.String()}] != may {
				t.Errorf("from %v to %v: the code allows it: %v, docs/locks.md lists it: %v", from, to, may, !may)
			}
		}
	}
	if allowed != len(documented) {
		t.Errorf("docs/locks.md lists %d changes, the code allows %d", len(documented), allowed)
	}
}

func TestAStateIsChangedByOne(t *testing.T) {
	var w readstate.Word
	switch {
	case !w.Is(readstate.ByGoroutine):
		t.Error("a connection does not begin with a goroutine that reads")
	case w.Change(readstate.ByGoroutine, readstate.ByCaller), w.Load() != readstate.ByGoroutine:
		t.Error("a change that is not in the table was made")
	case !w.Change(readstate.ByGoroutine, readstate.Offered), w.Load() != readstate.Offered:
		t.Error("a change was not made")
	case w.Change(readstate.ByGoroutine, readstate.Offered):
		t.Error("a change was made twice")
	}
}
