// SPDX-License-Identifier: Apache-2.0

package protowire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/protowire"
)

// fields returns the fields of a message as text.
func fields(b []byte) (string, error) {
	var all []string
	err := protowire.EachField(b, func(number uint64, value []byte) error {
		if value == nil {
			all = append(all, fmt.Sprint(number))
		} else {
			all = append(all, fmt.Sprintf("%d:%s", number, value))
		}
		return nil
	})
	return strings.Join(all, " "), err
}

func TestFieldsArriveAsTheyWereSent(t *testing.T) {
	b := protowire.AppendField(protowire.AppendField(protowire.AppendField(nil, 1, []byte("one")), 2, nil), 15, []byte("last"))
	b = append(b, 3<<3, 200, 1, 4<<3|1, 1, 2, 3, 4, 5, 6, 7, 8, 5<<3|5, 1, 2, 3, 4, 6<<3|2, 0) // numbers, and a text that is empty
	if got, err := fields(b); got != "1:one 15:last 3 4 5 6:" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	const all = "1:one 15:last 3 4 5 6:"
	for i := range b {
		if got, err := fields(b[:i]); got != all[:min(len(got), len(all))] {
			t.Errorf("of %d bytes: got %q, %v", i, got, err)
		}
	}
	for _, malformed := range []string{"\x0b", "\x80", "\x0a\x05abc", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x0d\x01"} {
		if got, err := fields([]byte(malformed)); err == nil {
			t.Errorf("%q: got %q", malformed, got)
		}
	}
}

func FuzzEachField(f *testing.F) {
	f.Add(protowire.AppendField(nil, 1, []byte("one")))
	f.Add([]byte{4<<3 | 2, 1, 0, 5 << 3, 7, 6<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 7<<3 | 5, 1, 2, 3, 4})
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = fields(b) })
}
