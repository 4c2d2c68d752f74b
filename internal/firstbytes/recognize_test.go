// SPDX-License-Identifier: Apache-2.0

package firstbytes_test

import (
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A prefix is a protocol whose connections begin with it.
type prefix string

func (p prefix) Match(first []byte) (ok, more bool) {
	return strings.HasPrefix(string(first), string(p)), strings.HasPrefix(string(p), string(first))
}

func TestRecognize(t *testing.T) {
	protocols := []prefix{"GET ", "GE", wire.Magic, "PUT"}
	for first, want := range map[string]struct {
		p           prefix
		found, more bool
	}{
		"":                  {"", false, true},
		wire.Magic[:1]:      {"", false, true},
		wire.Magic:          {"", false, false}, // also if a protocol matches it
		wire.Magic + "rest": {"", false, false},
		"G":                 {"", false, true},
		"GE":                {"GE", true, false}, // the first one that matches, although another one may yet
		"GET /":             {"GET ", true, false},
		"PU":                {"", false, true},
		"POST":              {"", false, false},
	} {
		p, found, more := firstbytes.Recognize([]byte(first), protocols)
		if p != want.p || found != want.found || more != want.more {
			t.Errorf("%q: got %q, %t, %t, want %+v", first, p, found, more, want)
		}
	}
}
