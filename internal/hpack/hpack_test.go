// SPDX-License-Identifier: Apache-2.0

package hpack

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

type field struct{ name, value string }

// decode decodes a block in hexadecimal digits.
func decode(t *testing.T, d *Decoder[int], block string) (fields []string) {
	t.Helper()
	raw, err := hex.DecodeString(strings.ReplaceAll(block, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Decode(raw, func(name, value string, _ *int) bool {
		fields = append(fields, name+": "+value)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return fields
}

// The blocks are those of RFC 7541, sections C.3 to C.6.
func TestTheExamplesOfTheStandard(t *testing.T) {
	responses := [][]string{
		{":status: 302", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{":status: 307", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{":status: 200", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:22 GMT", "location: https://www.example.com",
			"content-encoding: gzip", "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"},
	}
	requests := [][]string{
		{":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"},
		{":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com", "cache-control: no-cache"},
		{":method: GET", ":scheme: https", ":path: /index.html", ":authority: www.example.com", "custom-key: custom-value"},
	}
	for _, c := range []struct {
		section string
		most    int // size of the table
		blocks  []string
		fields  [][]string
		size    int // of the table in the end
	}{
		{"C.3", 4096, []string{
			"8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
			"8286 84be 5808 6e6f 2d63 6163 6865",
			"8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
		}, requests, 164},
		{"C.4", 4096, []string{
			"8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
			"8286 84be 5886 a8eb 1064 9cbf",
			"8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
		}, requests, 164},
		{"C.5", 256, []string{
			"4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e " +
				"1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
			"4803 3330 37c1 c0bf",
			"88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d " +
				"4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
		}, responses, 215},
		{"C.6", 256, []string{
			"4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
			"4883 640e ffc1 c0bf",
			"88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
		}, responses, 215},
	} {
		d := &Decoder[int]{begun: true}
		d.table.setMost(c.most)
		for i, block := range c.blocks {
			if got := decode(t, d, block); !slices.Equal(got, c.fields[i]) {
				t.Errorf("%s.%d: %q, want %q", c.section, i+1, got, c.fields[i])
			}
		}
		if d.table.size != c.size {
			t.Errorf("%s: the table has %d bytes, want %d", c.section, d.table.size, c.size)
		}
	}
}

func TestMalformedBlocks(t *testing.T) {
	for name, block := range map[string]string{
		"index 0":                          "80",
		"index behind the tables":          "be",
		"name behind the tables":           "7e 01 61",
		"no name":                          "40",
		"no value":                         "40 01 61",
		"a name that is cut":               "40 05 61",
		"a value that is cut":              "40 01 61 05 61",
		"an index that is cut":             "ff",
		"an index that does not end":       "ff 80 80 80 80 80 80 80 01",
		"an index of more than 28 bits":    "ffffffffff7f",
		"a length of more than the block":  "00 7fffffff7f",
		"a size above the default":         "3f e2 1f",
		"a size behind a field":            "82 20",
		"the end of a string in a string":  "00 84 ffffffff 00",
		"8 bits of padding":                "00 82 1f ff 00",
		"padding of zeros":                 "00 81 18 00",
		"a code that is cut in the middle": "00 82 ff e0 00",
	} {
		raw, err := hex.DecodeString(strings.ReplaceAll(block, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := new(Decoder[int]).Decode(raw, func(string, string, *int) bool { return true }); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a caller has made of a field is there when the field comes again, until it is evicted.
func TestMeanings(t *testing.T) {
	var e Encoder
	d := new(Decoder[int])
	made := 0
	block := func(path string) (meaning int) {
		t.Helper()
		if err := d.Decode(e.AppendRepeated(nil, ":path", path), func(_, _ string, m *int) bool {
			if *m == 0 {
				made++
				*m = made
			}
			meaning = *m
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return meaning
	}
	if a, b, again := block("/a"), block("/b"), block("/a"); a != 1 || b != 2 || again != 1 {
		t.Errorf("the meanings are %d, %d and again %d", a, b, again)
	}
	block(strings.Repeat("long", 1010)) // evicts the others
	if n := block("/a"); n != made || n < 4 {
		t.Errorf("an evicted field has the meaning %d", n)
	}
	meaningless := 0
	for _, block := range [][]byte{e.Append(nil, "x", "y"), e.AppendSecret(nil, "x", "y")} {
		if err := d.Decode(block, func(_, _ string, m *int) bool {
			if m == nil {
				meaningless++
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	if meaningless != 2 {
		t.Errorf("%d of 2 fields outside of the table have no meaning", meaningless)
	}
}

// A caller that has enough stops, and the table still follows the block.
func TestTheTableFollowsWhatIsNotWanted(t *testing.T) {
	var e Encoder
	d := new(Decoder[int])
	block := e.AppendRepeated(e.AppendRepeated(e.AppendRepeated(nil, "a", "1"), "b", "2"), "c", "3")
	given := 0
	if err := d.Decode(block, func(string, string, *int) bool { given++; return false }); err != nil || given != 1 {
		t.Errorf("%d fields are given: %v", given, err)
	}
	if got, want := decode(t, d, "be bf c0"), []string{"c: 3", "b: 2", "a: 1"}; !slices.Equal(got, want) {
		t.Errorf("the table has %q, want %q", got, want)
	}
}

// Fields in all three forms arrive through tables whose sizes change.
func TestWhatIsEncodedIsDecoded(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var e Encoder
		d := new(Decoder[int])
		for range 100 {
			if random.IntN(8) == 0 {
				for range 1 + random.IntN(3) {
					e.SetTableSize(random.IntN(6000))
				}
			}
			var want, got []field
			var block []byte
			for range random.IntN(6) {
				f := field{fmt.Sprint("name-", random.IntN(5)), strings.Repeat("v", random.IntN(300))}
				if random.IntN(3) == 0 {
					s := static[1+random.IntN(len(static)-1)]
					f = field{s.name, s.value}
				}
				want = append(want, f)
				forms := []func([]byte, string, string) []byte{e.Append, e.AppendRepeated, e.AppendSecret}
				block = forms[random.IntN(3)](block, f.name, f.value)
			}
			if err := d.Decode(block, func(name, value string, _ *int) bool {
				got = append(got, field{name, value})
				return true
			}); err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v, want %v: %v", seed, got, want, err)
			}
			if len(block) > 0 && (d.table.size != e.table.size || d.table.n != e.table.n) {
				t.Fatalf("seed %d: the tables differ: %d bytes, and %d", seed, e.table.size, d.table.size)
			}
		}
	}
}

// An indexed field costs no allocation, and neither does an encoded block.
func TestRepeatedFieldsCostNoAllocation(t *testing.T) {
	var e Encoder
	d := new(Decoder[int])
	block := make([]byte, 0, 256)
	give := func(string, string, *int) bool { return true }
	if n := testing.AllocsPerRun(100, func() {
		block = e.AppendRepeated(block[:0], ":status", "200")
		block = e.AppendRepeated(block, "content-type", "application/grpc")
		if err := d.Decode(block, give); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(block) != 2 {
		t.Errorf("a repeated block has %d bytes", len(block))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff}, []byte{0xbe})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d := new(Decoder[int])
		for _, block := range [][]byte{first, second} {
			var bytes, fields int
			err := d.Decode(block, func(name, value string, _ *int) bool {
				fields++
				bytes += len(name) + len(value)
				return true
			})
			if fields > len(block) || bytes > len(block)*DefaultTableSize {
				t.Fatalf("%d bytes hold %d fields with %d bytes", len(block), fields, bytes)
			}
			if d.table.size > d.table.most || d.table.n > DefaultTableSize/entryCost {
				t.Fatalf("the table has %d entries and %d bytes", d.table.n, d.table.size)
			}
			if err != nil {
				return
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	var e Encoder
	d := new(Decoder[int])
	give := func(string, string, *int) bool { return true }
	request := func() (block []byte) {
		for _, f := range []field{
			{":method", "POST"}, {":scheme", "http"}, {":path", "/bench.Echo/Say"}, {":authority", "127.0.0.1:9000"},
			{"content-type", "application/grpc"}, {"user-agent", "grpc-go/1.85.0"}, {"te", "trailers"}, {"grpc-accept-encoding", "gzip"},
		} {
			block = e.AppendRepeated(block, f.name, f.value)
		}
		return block
	}
	if err := d.Decode(request(), give); err != nil {
		b.Fatal(err)
	}
	block := request()
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(block, give); err != nil {
			b.Fatal(err)
		}
	}
}
