// SPDX-License-Identifier: Apache-2.0

package metadata_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/metadata"
)

var (
	limits = metadata.Limits{Bytes: 100, Pairs: 2}
	some   = map[string]string{"token": "abc", "": "x"}
)

func TestParseReadsWhatAppendWrote(t *testing.T) {
	for _, md := range []map[string]string{nil, {"a": ""}, some} {
		got, err := limits.Parse(metadata.Append(nil, md))
		if err != nil || !maps.Equal(got, md) {
			t.Errorf("%v: got %v, %v", md, got, err)
		}
	}
}

func TestMetadataBeyondTheLimitsIsRefused(t *testing.T) {
	for want, md := range map[string]map[string]string{
		"has 103 bytes, the limit is 100":           {"a": strings.Repeat("x", 100)},
		"has more than 2 pairs, which is the limit": {"a": "", "b": "", "c": ""},
		"malformed": nil,
	} {
		b := metadata.Append(nil, md)
		if md == nil {
			b = []byte{200, 1}
		}
		got, err := limits.Parse(b)
		if err == nil || got != nil {
			t.Fatalf("%s: got %v, %v", want, got, err)
		}
		if md != nil && (metadata.Excess(err) != want || err.Error() != want) || md == nil && metadata.Excess(err) != "" {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := limits.Check(2, 100); err != nil {
		t.Errorf("at the limits: %v", err)
	}
}

func TestCostCountsBytesAndPairs(t *testing.T) {
	b := metadata.Append(nil, some)
	if got, want := limits.Cost(b), len(b)+2*96; got != want {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestCacheReturnsTheRememberedEncoding(t *testing.T) {
	var c metadata.Cache
	first, _ := c.Encode(nil, some)
	memory := make([]byte, 0, 100)
	again, rest := c.Encode(memory, maps.Clone(some))
	if len(rest) != 0 || string(again) != string(first) || &again[0] == &first[0] {
		t.Errorf("encoded %q, then %q with %q", first, again, rest)
	}
	r := c.Find(first)
	if r == nil || !r.Is(some) || !maps.Equal(r.Decode(), some) {
		t.Fatalf("found %v", r)
	}
	for _, other := range []map[string]string{nil, {"token": "abc"}, {"token": "abc", "": "y"}, {"token": "abc", "": "x", "z": ""}} {
		if r.Is(other) {
			t.Errorf("%v is taken for %v", other, some)
		}
	}
}

func TestCacheRemembersAnotherValueAfterSomeMisses(t *testing.T) {
	var c metadata.Cache
	remembered := func(md map[string]string) bool { return c.Find(metadata.Append(nil, md)) != nil }
	c.Encode(nil, some)
	for i := range 16 {
		md := map[string]string{"i": fmt.Sprint(i)}
		c.Encode(nil, md)
		if remembered(md) != (i == 15) {
			t.Errorf("after %d other values, the last one is remembered: %v", i+1, i != 15)
		}
	}
	var large metadata.Cache
	if b, _ := large.Encode(nil, map[string]string{"a": strings.Repeat("x", 1024)}); large.Find(b) != nil {
		t.Error("large metadata was remembered")
	}
}

func TestRepeatedMetadataAllocatesNothing(t *testing.T) {
	var c metadata.Cache
	c.Encode(nil, some)
	b, memory := metadata.Append(nil, map[string]string{"token": "abc"}), make([]byte, 0, 100)
	if n := testing.AllocsPerRun(100, func() {
		encoded, _ := c.Encode(memory, some)
		_ = c.Find(encoded).Is(some)
		_ = c.Find(b)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestParseAllocatesAsMuchForOnePairAsForSeveral(t *testing.T) {
	limits := metadata.Limits{Pairs: 10, Bytes: 1000}
	one, six := map[string]string{"key": "value"}, make(map[string]string)
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		six[key] = strings.Repeat(key, 20)
	}
	allocs := func(md map[string]string) float64 {
		b := metadata.Append(nil, md)
		return testing.AllocsPerRun(100, func() {
			if _, err := limits.Parse(b); err != nil {
				t.Fatal(err)
			}
		})
	}
	if a, b := allocs(one), allocs(six); a != b {
		t.Errorf("one pair takes %v allocations, six take %v", a, b)
	}
}

// account has room for some bytes.
type account int

func (a *account) Take(n int) bool {
	*a -= account(n)
	return *a >= 0
}

func TestAReusedCallKeepsItsMap(t *testing.T) {
	var c metadata.Cache
	var k metadata.Kept
	b := metadata.Append(nil, some)
	read := func() map[string]string {
		md, counted, f := k.Read("A.B", b, len(b), &c, limits, nil)
		if f != nil || counted != 0 || !maps.Equal(md, some) {
			t.Fatalf("got %v, %d bytes, %v", md, counted, f)
		}
		return md
	}
	read() // is remembered
	first := read()
	if n := testing.AllocsPerRun(100, func() { _, _, _ = k.Read("A.B", b, len(b), &c, limits, nil) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	first["token"] = "changed"
	if read(); first["token"] != "changed" {
		t.Error("a map that its user had changed was used again")
	}
	if md, n, f := k.Read("A.B", nil, 0, &c, limits, nil); md != nil || n != 0 || f != nil {
		t.Errorf("no metadata: got %v, %d, %v", md, n, f)
	}
}

func TestLargeMetadataIsCounted(t *testing.T) {
	var c metadata.Cache
	var k metadata.Kept
	limits := metadata.Limits{Bytes: 1000, Pairs: 10}
	b := metadata.Append(nil, map[string]string{"a": strings.Repeat("x", 300)})
	room, none := account(1000), account(0)
	if md, n, f := k.Read("A.B", b, len(b), &c, limits, &room); len(md) != 1 || n != limits.Cost(b) || room != account(1000-n) || f != nil {
		t.Errorf("got %v, %d bytes, %v", md, n, f)
	}
	other := metadata.Append(nil, map[string]string{"b": strings.Repeat("x", 300)})
	for _, test := range []struct {
		b        []byte
		size     int
		id, text string
	}{
		{other, len(other), "YDL3007", "A.B: the server has no memory left for the metadata"},
		{nil, 1001, "YDL2203", "A.B: the metadata has 1001 bytes, the limit is 1000 on the server"},
		{[]byte{9}, 1, "YDL2205", "A.B: the metadata is broken: "},
	} {
		md, n, f := k.Read("A.B", test.b, test.size, &c, limits, &none)
		if md != nil || n != 0 || f == nil || f.ID != test.id || !strings.HasPrefix(f.Error(), test.text) || !f.Unprocessed {
			t.Errorf("got %v, %d bytes, %v; want %s", md, n, f, test.text)
		}
	}
}

// A keeper is a connection with room for so many bytes.
type keeper int

func (k keeper) Keep(n int) bool { return n <= int(k) }

func TestMetadataOfAConnectionIsBounded(t *testing.T) {
	limits := metadata.Limits{Bytes: 50, Pairs: 10}
	ab := metadata.Append(nil, map[string]string{"a": "b"})
	for _, test := range []struct {
		b        []byte
		room     keeper
		id, text string // text is empty if it is accepted
	}{
		{nil, 0, "", ""},
		{ab, 1000, "", ""},
		{ab, 10, "YDL3007", "the server has no memory left for the connection's metadata"},
		{metadata.Append(nil, map[string]string{"a": strings.Repeat("x", 96)}), 1000, "YDL2203", "the connection's metadata has 99 bytes, the limit is 50 on the server"},
		{[]byte{9}, 1000, "", "broken connection metadata"},
	} {
		md, f := limits.Accept(test.b, test.room)
		if test.text == "" && (f != nil || (md != nil) != (test.b != nil)) || test.text != "" && (f == nil || f.ID != test.id || f.Text != test.text) {
			t.Errorf("%d bytes: got %v, %+v; want %q", len(test.b), md, f, test.text)
		}
	}
}
