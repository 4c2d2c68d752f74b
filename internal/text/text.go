// SPDX-License-Identifier: Apache-2.0

// Package text makes strings from outside the process safe to show in a log, a terminal or an
// error.
package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxID is the length of the longest error id, in bytes.
const maxID = 64

// Line returns s as one line of valid UTF-8. Control characters (C0, DEL and C1), line and
// paragraph separators and the characters that reverse the direction of text become spaces. Bytes
// that are not UTF-8 become U+FFFD.
func Line(s string) string {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return strings.Map(visible, s)
		}
	}
	return s
}

func visible(r rune) rune {
	switch {
	case unicode.IsControl(r), r == '\u2028', r == '\u2029':
		return ' '
	case '\u202a' <= r && r <= '\u202e', '\u2066' <= r && r <= '\u2069': // bidirectional overrides
		return ' '
	}
	return r
}

// Cut returns at most limit bytes of s. It cuts between two runes and marks the cut. If the limit
// is at least 100 bytes, the last third is the end of s: where errors are wrapped, the reason is
// there.
func Cut(s string, limit int) string {
	const mark, long = "…", 100
	switch {
	case len(s) <= limit:
		return s
	case limit < len(mark):
		return ""
	}
	room, end := limit-len(mark), ""
	if limit >= long {
		end = s[len(s)-room/3:]
		for n := 1; n < utf8.UTFMax && !utf8.RuneStart(end[0]); n++ {
			end = end[1:]
		}
	}
	return whole(s[:room-len(end)]) + mark + end
}

// whole removes a rune that was cut from the end of s.
func whole(s string) string {
	for n := 1; n <= utf8.UTFMax && n <= len(s); n++ {
		if c := s[len(s)-n]; utf8.RuneStart(c) {
			if !utf8.FullRuneInString(s[len(s)-n:]) {
				return s[:len(s)-n]
			}
			break
		}
	}
	return s
}

// Clip returns s as one line of at most limit bytes. It reads at most limit bytes of s.
func Clip(s string, limit int) string { return Cut(Line(Cut(s, limit)), limit) }

// ID returns an error id in a form that is safe to show. It keeps at most maxID bytes. Bytes other
// than letters, digits and "_.:-" become underscores.
func ID(s string) string {
	s = s[:min(len(s), maxID)]
	for i := range len(s) {
		if !ofID(s[i]) {
			return cleanID(s)
		}
	}
	return s
}

func cleanID(s string) string {
	b := []byte(s)
	for i, c := range b {
		if !ofID(c) {
			b[i] = '_'
		}
	}
	return string(b)
}

func ofID(c byte) bool {
	return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("_.:-", c) >= 0
}

// Product returns a name of at most limit bytes in the form in which all protocols can carry it: as
// a product in the User-Agent of HTTP.
func Product(name string, limit int) string {
	name = strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
			return r
		}
		return '-'
	}, name[:min(len(name), limit)])
	return name[:min(len(name), limit)]
}
