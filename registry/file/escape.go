// SPDX-License-Identifier: Apache-2.0

package file

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the size of the longest name of a file in bytes, in all usual file systems.
const maxName = 255

// escape returns the name of the file or the folder for a part of a key. It escapes every byte that
// is not a letter, a digit or a harmless sign. So no name leads to another folder or has a meaning
// for the file system. A letter that is escaped in the key stands there as it is, so that people
// can read it, and a name has room for 85 Chinese letters.
func escape(part string) string {
	var b strings.Builder
	for i := 0; i < len(part); i++ {
		c := part[i]
		switch letter := escapedLetter(part[i:]); {
		case letter != "":
			b.WriteString(letter)
			i += 3*len(letter) - 1
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_~@+=,[]", c) >= 0,
			c == '.' && i > 0, c == ':' && filepath.Separator == '/':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// escapedLetter returns the letter that url.PathEscape has escaped at the beginning of text, or ""
// if there is none that may stand in the name of a file.
func escapedLetter(text string) string {
	if len(text) < 6 || text[0] != '%' {
		return ""
	}
	for size := 2; size <= utf8.UTFMax && 3*size <= len(text); size++ {
		plain, err := url.PathUnescape(text[:3*size])
		if r, n := utf8.DecodeRuneInString(plain); err == nil && n == size && n == len(plain) && plainLetter(r) && url.PathEscape(plain) == text[:3*size] {
			return plain
		}
	}
	return ""
}

// plainLetter reports whether r may stand in the name of a file as it is. Some file systems take
// different sequences of letters and marks for one name. The letters of these ranges are not part
// of such sequences, as long as marks are escaped.
func plainLetter(r rune) bool {
	latinToCyrillic, kanaAndHan, hangul := r >= 0xC0 && r <= 0x4FF, r >= 0x3041 && r <= 0x9FFF, r >= 0xAC00 && r <= 0xD7A3
	return (latinToCyrillic || kanaAndHan || hangul) && unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lo)
}

// unescape returns the part of a key for the name of a file.
func unescape(name string) (string, error) {
	var b strings.Builder
	for _, r := range name {
		if r >= utf8.RuneSelf {
			b.WriteString(url.PathEscape(url.PathEscape(string(r))))
			continue
		}
		b.WriteRune(r)
	}
	return url.PathUnescape(b.String())
}
