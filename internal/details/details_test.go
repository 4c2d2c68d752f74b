// SPDX-License-Identifier: Apache-2.0

package details_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/details"
)

// some returns n details with a value.
func some(n int, value string) func(func(string, []byte) bool) {
	return func(yield func(string, []byte) bool) {
		for i := range n {
			if !yield(fmt.Sprint("type\n", i), []byte(value)) {
				return
			}
		}
	}
}

func parsed(b []byte) (all []string) {
	details.Parse(b, func(name string, value []byte) { all = append(all, name+"="+string(value)) })
	return all
}

func TestDetailsArriveOrNoneDoes(t *testing.T) {
	if got := parsed(details.Encode(some(2, "x"))); strings.Join(got, ",") != "type 0=x,type 1=x" {
		t.Errorf("got %q", got)
	}
	for name, test := range map[string]struct {
		n     int
		value string
		want  int
	}{
		"none":                {0, "", 0},
		"as many as may be":   {64, "", 64},
		"too many":            {65, "", 0},
		"as large as may be":  {1, strings.Repeat("x", 16<<10-10), 1},
		"too large":           {1, strings.Repeat("x", 16<<10), 0},
		"too large, together": {2, strings.Repeat("x", 8<<10), 0},
	} {
		if got := parsed(details.Encode(some(test.n, test.value))); len(got) != test.want {
			t.Errorf("%s: %d details, want %d", name, len(got), test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(details.Encode(some(3, "x")))
	f.Add([]byte{1, 'a', 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := parsed(b); len(got) > 64 {
			t.Errorf("%d details", len(got))
		}
	})
}
