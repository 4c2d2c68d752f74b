// SPDX-License-Identifier: Apache-2.0

package hpack

import "sync"

// longestCode is the length in bits of the longest codes, among them that of the end of a string.
const longestCode = 30

// codeLengths has the length in bits of each byte's Huffman code (RFC 7541, appendix B). The code
// is canonical: codes of the same length are consecutive numbers, in the order of the bytes, and
// the lengths alone determine it.
var codeLengths = [256]uint8{
	13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
	28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
	6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
	5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
	13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
	7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
	15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
	6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
	20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
	24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
	22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
	21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
	26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
	19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
	20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
	26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
}

// A canonicalCode is what decoding needs of the Huffman code.
type canonicalCode struct {
	short [256]shortCode // by the first eight bits of a code of at most eight bits
	// sorted has the bytes in the order of their codes.
	sorted [256]byte
	// For each length, first is the lowest code, after is one more than the highest, and at is the
	// index in sorted of the byte that has the lowest.
	first, after [longestCode + 1]uint32
	at           [longestCode + 1]int
}

// A shortCode is a code of at most eight bits. Its length is zero if there is none.
type shortCode struct{ symbol, length byte }

var huffmanCode = sync.OnceValue(func() *canonicalCode {
	c := new(canonicalCode)
	code, n := uint32(0), 0
	for length := 1; length <= longestCode; length++ {
		code <<= 1
		c.first[length], c.at[length] = code, n
		for symbol, l := range codeLengths {
			if int(l) != length {
				continue
			}
			c.sorted[n] = byte(symbol)
			n++
			if length <= 8 {
				from, many := code<<(8-length), 1<<(8-length)
				for i := range many {
					c.short[int(from)+i] = shortCode{byte(symbol), l}
				}
			}
			code++
		}
		c.after[length] = code
	}
	return c
})

// appendDecoded appends the string that coded is the Huffman code of. It returns false if coded is
// not the code of a string.
func appendDecoded(dst, coded []byte) ([]byte, bool) {
	c := huffmanCode()
	var bits uint64 // the first bit is the highest
	n := 0          // how many bits are there
	for {
		for n <= 56 && len(coded) > 0 {
			bits |= uint64(coded[0]) << (56 - n)
			coded = coded[1:]
			n += 8
		}
		symbol, length := c.next(bits)
		if length > n || length == 0 { // the rest is the beginning of the longest code: RFC 7541, section 5.2
			return dst, n < 8 && bits == ^uint64(0)<<(64-n)
		}
		dst = append(dst, symbol)
		bits <<= length
		n -= length
	}
}

// next returns the byte whose code is at the beginning of bits, and the length of the code. The
// length is zero if there is no such code, which is so for the end of a string alone.
func (c *canonicalCode) next(bits uint64) (symbol byte, length int) {
	if s := c.short[bits>>56]; s.length > 0 {
		return s.symbol, int(s.length)
	}
	for length := 9; length <= longestCode; length++ {
		if code := uint32(bits >> (64 - length)); code < c.after[length] { //nolint:gosec // of at most 30 bits
			return c.sorted[c.at[length]+int(code-c.first[length])], length
		}
	}
	return 0, 0
}
