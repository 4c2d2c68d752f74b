// SPDX-License-Identifier: Apache-2.0

package badrequest_test

import (
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel/internal/badrequest"
)

func TestViolationsArriveAsTheyWereSent(t *testing.T) {
	sent := []badrequest.Violation{
		{"items[2].price", "positive", "must be positive"},
		{},
		{Message: "the end is before the beginning"},
	}
	got, err := badrequest.Parse(badrequest.Append(nil, sent))
	if err != nil || !slices.Equal(got, sent) {
		t.Errorf("got %q, %v, want %q", got, err, sent)
	}
	got, err = badrequest.Parse(badrequest.Append(nil, []badrequest.Violation{{Field: "a\xff"}}))
	if err != nil || len(got) != 1 || got[0].Field != "a\uFFFD" {
		t.Errorf("text that is not UTF-8 arrives as %q, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(badrequest.Append(nil, []badrequest.Violation{{"a", "b", "c"}, {}}))
	f.Add([]byte{1<<3 | 2, 200, 200, 200, 200, 200, 200, 200, 200, 200, 1})
	f.Add([]byte{4<<3 | 2, 1, 0, 5 << 3, 7, 6<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8, 7<<3 | 5, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := badrequest.Parse(b)
		if err != nil {
			return
		}
		again, err := badrequest.Parse(badrequest.Append(nil, all))
		if err != nil || len(again) != len(all) {
			t.Errorf("%q becomes %q, %v", all, again, err)
		}
	})
}
