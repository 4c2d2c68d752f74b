// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/hpack"
	peer "golang.org/x/net/http2/hpack"
)

// Our decoder gives the fields that the peer's encoder was given, and the peer's decoder the fields
// that our encoder was given: with evictions, changes of the table's size and every byte in Huffman
// code.
func TestHeaderBlocksOfTheOther(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var theirs bytes.Buffer
		encoder, ours := peer.NewEncoder(&theirs), new(hpack.Decoder[int])
		decoder, block := peer.NewDecoder(hpack.DefaultTableSize, nil), new(hpack.Encoder)
		for range 100 {
			if random.IntN(8) == 0 {
				size := random.IntN(6000)
				encoder.SetMaxDynamicTableSize(uint32(min(size, hpack.DefaultTableSize)))
				block.SetTableSize(size)
			}
			var want []peer.HeaderField
			var own []byte
			theirs.Reset()
			for range 1 + random.IntN(6) {
				f := randomField(random)
				want = append(want, f)
				if err := encoder.WriteField(f); err != nil {
					t.Fatal(err)
				}
				form := []func([]byte, string, string) []byte{block.Append, block.AppendRepeated}[random.IntN(2)]
				if f.Sensitive {
					form = block.AppendSecret
				}
				own = form(own, f.Name, f.Value)
			}
			if got, err := decoded(ours, theirs.Bytes()); err != nil || !slices.Equal(got, insensitive(want)) {
				t.Fatalf("seed %d: ours decodes %v, want %v: %v", seed, got, want, err)
			}
			if got, err := decoder.DecodeFull(own); err != nil || !slices.Equal(got, want) {
				t.Fatalf("seed %d: theirs decodes %v, want %v: %v", seed, got, want, err)
			}
		}
	}
}

func randomField(random *rand.Rand) peer.HeaderField {
	if random.IntN(3) == 0 {
		return peer.HeaderField{Name: ":path", Value: fmt.Sprint("/service/method", random.IntN(100))}
	}
	value := make([]byte, random.IntN(300))
	for i := range value {
		value[i] = byte(random.IntN(256))
	}
	if random.IntN(2) == 0 { // the peer writes Huffman code where it is shorter
		value = []byte(strings.Repeat("a word ", random.IntN(30)))
	}
	return peer.HeaderField{Name: fmt.Sprint("name-", random.IntN(20)), Value: string(value), Sensitive: random.IntN(5) == 0}
}

// decoded returns the fields of a block.
func decoded(d *hpack.Decoder[int], block []byte) (fields []peer.HeaderField, err error) {
	err = d.Decode(block, func(name, value string, _ *int) bool {
		fields = append(fields, peer.HeaderField{Name: name, Value: value})
		return true
	})
	return fields, err
}

func insensitive(fields []peer.HeaderField) (plain []peer.HeaderField) {
	for _, f := range fields {
		plain = append(plain, peer.HeaderField{Name: f.Name, Value: f.Value})
	}
	return plain
}

// Every string is the same in the Huffman code of both.
func TestEveryByteInHuffmanCode(t *testing.T) {
	for first := range 256 {
		for second := range 256 {
			s := string([]byte{byte(first), byte(second)})
			coded := peer.AppendHuffmanString(nil, s)
			block := append([]byte{0, 1, 'n', 0x80 | byte(len(coded))}, coded...)
			if got, err := decoded(new(hpack.Decoder[int]), block); err != nil || len(got) != 1 || got[0].Value != s {
				t.Fatalf("%q is decoded as %v: %v", s, got, err)
			}
		}
	}
}

// What one decoder takes the other takes, with the same fields. Ours refuses in addition what RFC
// 7541, section 4.2, forbids: a size of the table that is not at the beginning of a block.
func FuzzHeaderBlocks(f *testing.F) {
	f.Add([]byte{0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff}, []byte{0xbe})
	f.Add([]byte{0x20, 0x3f, 0xe1, 0x1f, 0x40, 1, 'a', 1, 'b'}, []byte{0xbe, 0x7f, 0x80, 0x00})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		ours, theirs := new(hpack.Decoder[int]), peer.NewDecoder(hpack.DefaultTableSize, nil)
		for _, block := range [][]byte{first, second} {
			got, err := decoded(ours, block)
			want, wantErr := theirs.DecodeFull(block)
			if err == nil && wantErr != nil {
				t.Fatalf("ours takes %x as %v, theirs does not: %v", block, got, wantErr)
			}
			if err == nil && !slices.Equal(got, insensitive(want)) {
				t.Fatalf("%x: ours has %v, theirs %v", block, got, want)
			}
			if err != nil && wantErr == nil && !resizes(block) {
				t.Fatalf("theirs takes %x as %v, ours does not", block, want)
			}
			if err != nil || wantErr != nil {
				return
			}
		}
	})
}

// resizes tells roughly whether a block has a size of the table behind its beginning.
func resizes(block []byte) bool {
	return slices.ContainsFunc(block, func(b byte) bool { return b&0xe0 == 0x20 })
}
