// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

type flagOf = pflag.Flag

// A table is rows of text under headings.
type table struct {
	heads []string
	right []bool
	rare  []bool
	rows  [][]string
}

// newTable returns a table. Columns whose heading begins with > are aligned to the right. Those
// whose heading begins with ? are too, and are left out if they are empty.
func newTable(heads ...string) *table {
	t := &table{}
	for _, head := range heads {
		name, rare := strings.CutPrefix(head, "?")
		name, right := strings.CutPrefix(name, ">")
		t.heads, t.right, t.rare = append(t.heads, name), append(t.right, right || rare), append(t.rare, rare)
	}
	return t
}

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = singleLine(cell)
	}
	t.rows = append(t.rows, cells)
}

// String returns the table with a line for each row.
func (t *table) String() string {
	widths := make([]int, len(t.heads))
	all := append([][]string{t.heads}, t.rows...)
	for i := range t.heads {
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if widths[i] > 0 || !t.rare[i] {
			widths[i] = max(widths[i], utf8.RuneCountInString(t.heads[i]))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			if widths[i] == 0 && t.rare[i] {
				continue
			}
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				line.WriteString(space + cell)
			} else {
				line.WriteString(cell + space)
			}
			line.WriteString("  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// singleLine returns s as one line without control characters. Names, messages and addresses come
// from servers and registries: a terminal must not obey them, and they must not forge a line.
func singleLine(s string) string { return strings.Map(visible, s) }

// visible returns r, or a space in its place if r is a control character, a separator of lines or
// paragraphs, or a character that turns the direction of text. Internal/text does the same, and
// programs cannot import it.
func visible(r rune) rune {
	switch {
	case unicode.IsControl(r), r == '\u2028', r == '\u2029', '\u202a' <= r && r <= '\u202e', '\u2066' <= r && r <= '\u2069':
		return ' '
	}
	return r
}

// singleLines makes each string and error of the arguments of a format a single line.
func singleLines(args []any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = singleLine(arg)
		case error:
			args[i] = singleLine(arg.Error())
		}
	}
}

// block returns text of several lines without control characters other than \n and \t.
func block(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return visible(r)
	}, s)
}

// escaped returns JSON, or YAML of asYAML, with \uXXXX in place of the runes that do not belong on
// a terminal: the data are the same. Outside of strings, both have no such rune but \n and \t.
func escaped(text []byte) []byte {
	out := make([]byte, 0, len(text)+64)
	for _, r := range string(text) { // bytes that are not UTF-8 become U+FFFD, as decoders read them
		if r == '\n' || r == '\t' || visible(r) == r {
			out = utf8.AppendRune(out, r)
		} else {
			out = fmt.Appendf(out, "\\u%04x", r)
		}
	}
	return out
}

// fprintf is fmt.Fprintf for text that a command prints later: each string and each error in args
// becomes a single line.
func fprintf(b *strings.Builder, format string, args ...any) {
	singleLines(args)
	fmt.Fprintf(b, format, args...)
}

// sayf prints talk, which is not data. Each string and each error in args becomes a single line.
func (a *app) sayf(format string, args ...any) {
	singleLines(args)
	a.say(fmt.Sprintf(format, args...))
}

// say prints talk of several lines.
func (a *app) say(s string) { _, _ = io.WriteString(a.err, block(s)) }

// printf prints data. Each string and each error in args becomes a single line.
func (a *app) printf(format string, args ...any) {
	singleLines(args)
	a.print(fmt.Sprintf(format, args...))
}

// print prints data of several lines.
func (a *app) print(s string) { a.control(a.out, block(s)) }

// printEscaped prints JSON or YAML.
func (a *app) printEscaped(text []byte) { a.control(a.out, string(escaped(text))) }

// control writes text as it is, such as the program's own control sequences. It keeps the first
// error of the output.
func (a *app) control(w io.Writer, s string) {
	if _, err := io.WriteString(w, s); err != nil && w == a.out && a.failed == nil {
		a.failed = err
	}
}

// unwritten returns the fault of an output that could not be written. A reader that has read enough
// is not an error.
func (a *app) unwritten() error {
	if a.failed == nil || errors.Is(a.failed, syscall.EPIPE) {
		return nil
	}
	return faultf(exitFailed, "the output cannot be written: %v", a.failed)
}

// show prints data in the chosen format. Names returns the lines of the format name.
func (a *app) show(data any, text fmt.Stringer, names func() []string) error {
	switch a.o.output {
	case "json":
		b, err := json.MarshalIndent(data, "", "  ")
		if err != nil {
			return err
		}
		a.printEscaped(append(b, '\n'))
	case "ndjson":
		return a.showLines(data)
	case "yaml":
		b, err := asYAML(data)
		if err != nil {
			return err
		}
		a.printEscaped(b)
	case "name":
		for _, name := range names() {
			a.printf("%s\n", name)
		}
	default:
		a.print(text.String())
	}
	return nil
}

// showLines prints a line of JSON for each element of data, or one for data if it is no slice.
func (a *app) showLines(data any) error {
	v := reflect.ValueOf(data)
	if v.Kind() != reflect.Slice {
		return a.showLine(data)
	}
	for i := range v.Len() {
		if err := a.showLine(v.Index(i).Interface()); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) showLine(data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	a.printEscaped(append(b, '\n'))
	return nil
}

// asYAML returns data in YAML with the names of its fields in JSON.
func asYAML(data any) ([]byte, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	// A node keeps the order of the fields. JSON is YAML, but for some characters that are escaped.
	var node yaml.Node
	if err := yaml.Unmarshal(escaped(text), &node); err != nil {
		return nil, err
	}
	plain(&node)
	return yaml.Marshal(&node)
}

// plain removes the style of JSON from a node. A value with a rune that does not belong on a
// terminal stays in quotes, in which it can be escaped.
func plain(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && singleLine(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, child := range n.Content {
		plain(child)
	}
}

// oneLine returns JSON on one line, with a space after each colon and comma.
func oneLine(text []byte) string {
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", ""); err != nil {
		return string(text)
	}
	lines := strings.Split(b.String(), "\n")
	var out strings.Builder
	for i, line := range lines {
		out.WriteString(line)
		if i+1 < len(lines) && strings.HasSuffix(line, ",") {
			out.WriteByte(' ')
		}
	}
	return out.String()
}

// brief returns a duration with two or three digits: "0.40ms", "412ms", "1.3s".
func brief(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < 5*time.Microsecond:
		return "<0.01ms"
	case d < time.Millisecond:
		return fmt.Sprintf("%.2fms", d.Seconds()*1e3)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// percent returns a share with one digit after the point, without it for all and none.
func percent(share float64) string {
	text := fmt.Sprintf("%.1f%%", 100*share)
	switch {
	case text == "100.0%" && share < 1:
		return "99.9%"
	case text == "0.0%" && share > 0:
		return "0.1%"
	}
	return strings.Replace(text, ".0%", "%", 1)
}

// thousands returns a number with a comma before each group of three digits.
func thousands(n float64) string {
	digits := fmt.Sprintf("%.0f", n)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// text is a string that prints itself.
type text string

func (t text) String() string { return string(t) }

// localTime returns a time in the time zone of the user.
func localTime(t time.Time) string { return t.Local().Format(time.DateTime) } //nolint:gosmopolitan // people read it

// clockTime returns the time of day in the time zone of the user.
func clockTime(t time.Time) string { return t.Local().Format("15:04:05.000") } //nolint:gosmopolitan // as above
