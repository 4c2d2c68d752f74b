// SPDX-License-Identifier: Apache-2.0

package parts_test

import (
	"testing"

	"github.com/yodel-rpc/yodel/internal/parts"
)

func TestBytesAreTakenFromTheFront(t *testing.T) {
	for n := range 12 {
		taken := parts.Parts{[]byte("ab"), nil, []byte("cdefghi")}
		appended := taken
		want := "abcdefghi"[:min(n, 9)]
		first := taken.Take(n)
		got := string(first[0]) + string(first[1]) + string(first[2])
		if got != want || first.Size() != len(want) || taken.Size() != 9-len(want) {
			t.Errorf("took %q of %d bytes, want %q, and %d bytes are left", got, n, want, taken.Size())
		}
		if got, rest := parts.Append([]byte("before "), &appended, n); string(got) != "before "+want || rest.Size() != taken.Size() {
			t.Errorf("appended %q, want %q, and %d bytes are left", got, want, rest.Size())
		}
	}
}

func TestTheFirstFrameTakesWhatIsOdd(t *testing.T) {
	const room, most = 60_000, 64_000
	for _, test := range []struct {
		what          string
		prefix, size  int // size with the prefix
		opening, rest int
	}{
		{"a little longer than a frame", 0, room + 4096, room, 4096},
		{"a little longer, with an attachment", 3, room + 4096, room, 4096},
		{"longer than a frame", 3, room + 4097, 97, most},
		{"whole frames", 3, 3 + 2*most, 3, 2 * most},
		{"whole frames and a little", 3, 3 + 2*most + 4096, 3 + 4096, 2 * most},
		{"whole frames and more", 3, 3 + 2*most + 4097, 3, 2*most + 4097},
	} {
		p := parts.Parts{make([]byte, test.prefix), make([]byte, test.size-test.prefix)}
		if got := p.Opening(room, most); got != test.opening || p.Size()-got != test.rest {
			t.Errorf("%s: the first frame takes %d bytes, want %d", test.what, got, test.opening)
		}
	}
}
