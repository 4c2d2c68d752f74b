// SPDX-License-Identifier: Apache-2.0

package transcode

import (
	"cmp"
	"errors"
	"net/url"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A template is a path of an annotation:
//
//	Template = "/" Segments [ Verb ] ;
//	Segments = Segment { "/" Segment } ;
//	Segment  = "*" | "**" | LITERAL | Variable ;
//	Variable = "{" FieldPath [ "=" Segments ] "}" ;
//	Verb     = ":" LITERAL ;
type template struct {
	text      string
	segments  []string // "*", "**", or an unescaped literal with "=" before it
	variables []variable
	verb      string // "" for none
}

// A variable is the segments of a path that are the value of a field.
type variable struct {
	name       string
	fields     []protoreflect.FieldDescriptor
	begin, end int  // in template.segments
	single     bool // it has exactly one segment
}

var (
	errSlash    = errors.New("it does not begin with /")
	errEmpty    = errors.New("a segment is empty")
	errBraces   = errors.New("the braces do not match, or a variable is in another one")
	errRest     = errors.New("** is not the last segment")
	errVariable = errors.New("a variable has no name, or two have the same")
)

// parse parses a path.
func parse(text string) (template, error) {
	t := template{text: text}
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		return t, errSlash
	}
	last := strings.LastIndexAny(rest, "/}") + 1
	if i := strings.IndexByte(rest[last:], ':'); i >= 0 { // a verb may have colons
		rest, t.verb = rest[:last+i], rest[last+i+1:]
		if t.verb == "" {
			return t, errEmpty
		}
	}
	for {
		var err error
		if strings.HasPrefix(rest, "{") {
			rest, err = t.variable(rest)
		} else {
			end := strings.IndexByte(rest+"/", '/')
			err = t.segment(rest[:end])
			rest = rest[end:]
		}
		if err != nil {
			return t, err
		}
		if rest == "" {
			break
		}
		if rest, ok = strings.CutPrefix(rest, "/"); !ok {
			return t, errBraces
		}
	}
	for i, s := range t.segments {
		if s == "**" && i < len(t.segments)-1 {
			return t, errRest
		}
	}
	return t, nil
}

// variable parses a variable at the beginning of text, and returns what follows it.
func (t *template) variable(text string) (rest string, err error) {
	inner, rest, ok := strings.Cut(text[1:], "}")
	name, pattern, given := strings.Cut(inner, "=")
	if !ok || strings.Contains(inner, "{") {
		return "", errBraces
	}
	if !given {
		pattern = "*"
	}
	v := variable{name: name, begin: len(t.segments), single: pattern == "*"}
	for _, other := range t.variables {
		if other.name == name {
			return "", errVariable
		}
	}
	if name == "" {
		return "", errVariable
	}
	for segment := range strings.SplitSeq(pattern, "/") {
		if err := t.segment(segment); err != nil {
			return "", err
		}
	}
	v.end = len(t.segments)
	t.variables = append(t.variables, v)
	return rest, nil
}

// segment adds a segment.
func (t *template) segment(text string) error {
	switch {
	case text == "":
		return errEmpty
	case strings.ContainsAny(text, "{}"):
		return errBraces
	case text == "*" || text == "**":
		t.segments = append(t.segments, text)
		return nil
	}
	literal, err := url.PathUnescape(text)
	t.segments = append(t.segments, "="+literal)
	return err
}

// compare orders templates by how specific they are: literals come before "*", and "*" before "**".
// Templates with a verb come before those without one, and longer verbs before shorter ones, with
// which they may end.
func (t *template) compare(other template) int {
	rank := func(segments []string, i int) int {
		switch {
		case i >= len(segments):
			return 3
		case segments[i] == "*":
			return 1
		case segments[i] == "**":
			return 2
		}
		return 0
	}
	if order := cmp.Compare(len(other.verb), len(t.verb)); order != 0 {
		return order
	}
	for i := range max(len(t.segments), len(other.segments)) {
		if order := cmp.Compare(rank(t.segments, i), rank(other.segments, i)); order != 0 {
			return order
		}
	}
	return 0
}

// match returns the values of the variables, in their order, if the template matches an escaped
// path.
func (t *template) match(path string) (values []string, ok bool) {
	path, ok = strings.CutPrefix(path, "/")
	if ok && t.verb != "" {
		path, ok = strings.CutSuffix(path, ":"+t.verb)
	}
	if !ok {
		return nil, false
	}
	segments := strings.Split(path, "/")
	if path == "" {
		segments = nil
	}
	open := len(t.segments) > 0 && t.segments[len(t.segments)-1] == "**"
	fixed := len(t.segments)
	if open {
		fixed--
	}
	if len(segments) < fixed || len(segments) > fixed && !open {
		return nil, false
	}
	for i, want := range t.segments[:fixed] {
		got, err := url.PathUnescape(segments[i])
		if err != nil || got == "" || want != "*" && want != "="+got {
			return nil, false
		}
	}
	for _, v := range t.variables {
		end := v.end
		if open && end == len(t.segments) {
			end = len(segments)
		}
		value, err := unescape(segments[v.begin:end], v.single)
		if err != nil {
			return nil, false
		}
		values = append(values, value)
	}
	return values, true
}

// unescape returns the value of a variable. If the variable can have several segments, escaped
// slashes remain escaped.
func unescape(segments []string, single bool) (string, error) {
	joined := strings.Join(segments, "/")
	if !single {
		joined = strings.NewReplacer("%2F", "%252F", "%2f", "%252f").Replace(joined)
	}
	return url.PathUnescape(joined)
}
