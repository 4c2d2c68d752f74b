// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLinesHaveNoControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"plain text, unlike ä": "plain text, unlike ä",
		"a\r\nb\tc\x00\x7f":    "a  b c  ",
		"\u009b2J\u0085":       " 2J ",
		"\x9b2J":               "\ufffd2J",
		"a\u2028b\u2029c":      "a b c",
		"\u202etxt.exe\u2066":  " txt.exe ",
	} {
		if got := Line(in); got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTextsAreCutBetweenRunes(t *testing.T) {
	for _, test := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "abc…"},
		{"aäööö", 6, "aä…"},
		{"ääää", 6, "ä…"},
		{"abcdef", 3, "…"},
		{"abcdef", 2, ""},
		{"abcdef", 0, ""},
		{"abcdef", -100, ""},
		{strings.Repeat("a", 70) + strings.Repeat("b", 33), 102, strings.Repeat("a", 66) + "…" + strings.Repeat("b", 33)},
		{strings.Repeat("ä", 100), 102, strings.Repeat("ä", 33) + "…" + strings.Repeat("ä", 16)},
	} {
		if got := Cut(test.in, test.limit); got != test.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", test.in, test.limit, got, test.want)
		}
	}
}

func TestIDsAreBounded(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"YDL1003":                "YDL1003",
		"my.app:E-1_x":           "my.app:E-1_x",
		"X\n2026 level=INFO ä":   "X_2026_level_INFO___",
		strings.Repeat("x", 400): strings.Repeat("x", maxID),
	} {
		if got := ID(in); got != want {
			t.Errorf("ID(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzTexts(f *testing.F) {
	f.Add("a\u009bb\u2028\xff", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit %= 1000
		line := Clip(s, limit)
		if len(line) > max(limit, 0) || !utf8.ValidString(line) {
			t.Errorf("Clip(%q, %d) = %q", s, limit, line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
			t.Errorf("Clip(%q, %d) = %q", s, limit, line)
		}
		if id := ID(s); len(id) > maxID || ID(id) != id {
			t.Errorf("ID(%q) = %q", s, id)
		}
	})
}
