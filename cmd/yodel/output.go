// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

type flagOf = pflag.Flag

// A table is rows of text under headings.
type table struct {
	heads []string
	right []bool
	rows  [][]string
}

// newTable returns a table. Columns whose heading begins with > are aligned to the right.
func newTable(heads ...string) *table {
	t := &table{}
	for _, head := range heads {
		name, right := strings.CutPrefix(head, ">")
		t.heads, t.right = append(t.heads, name), append(t.right, right)
	}
	return t
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// String returns the table with a line for each row.
func (t *table) String() string {
	widths := make([]int, len(t.heads))
	all := append([][]string{t.heads}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
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

// show prints data in the chosen format. Names returns the lines of the format name.
func (a *app) show(data any, text fmt.Stringer, names func() []string) error {
	switch a.o.output {
	case "json":
		b, err := json.MarshalIndent(data, "", "  ")
		if err != nil {
			return err
		}
		a.printf("%s\n", b)
	case "ndjson":
		return a.showLines(data)
	case "yaml":
		b, err := asYAML(data)
		if err != nil {
			return err
		}
		a.printf("%s", b)
	case "name":
		for _, name := range names() {
			a.printf("%s\n", name)
		}
	default:
		a.printf("%s", text)
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
	a.printf("%s\n", b)
	return nil
}

// asYAML returns data in YAML with the names of its fields in JSON.
func asYAML(data any) ([]byte, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	var node yaml.Node // keeps the order of the fields; JSON is YAML
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	plain(&node)
	return yaml.Marshal(&node)
}

// plain removes the style of JSON from a node.
func plain(n *yaml.Node) {
	n.Style = 0
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
