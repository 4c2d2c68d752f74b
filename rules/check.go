// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/nearest"
)

// Bounds of a rule.
const (
	maxRule   = 16 << 10 // bytes of its JSON form
	maxText   = 256      // bytes of a name, a pattern or a reason
	maxID     = 64
	maxHeader = 8  // entries of Rule.Header
	maxExcept = 64 // entries of Disable.Except
	maxReply  = 8 << 10
	// maxRules is how many rules of a service may be switched on at a time. Sets of rules are bits
	// of a word.
	maxRules = 64
)

// A Problem is something that is wrong with a rule, or a warning about it.
type Problem struct {
	ID      string `json:"id"`              // for example "YDL-R006": docs/rules.md describes it
	Field   string `json:"field,omitempty"` // the field of the rule in JSON, for example "canary.percent"
	Text    string `json:"text"`            // what is wrong, in one line
	Hint    string `json:"hint,omitempty"`  // what to do
	Warning bool   `json:"warning,omitempty"`
	// Force says that the change stops calls, lets calls go where they should not, or names
	// something that does not exist, so that an operator has to confirm it. It is a warning too.
	Force bool `json:"force,omitempty"`
}

// String returns the problem as one line, which ends in its ID.
func (p Problem) String() string {
	text := p.Text
	if p.Field != "" {
		text = p.Field + ": " + text
	}
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return text + " [" + p.ID + "]"
}

// An InvalidError says why a rule is refused.
type InvalidError struct {
	Problems []Problem // at least one, and no warnings
}

// Error returns the first problem and the number of the others.
func (e *InvalidError) Error() string {
	text := "the rule is invalid: " + e.Problems[0].String()
	if n := len(e.Problems) - 1; n > 0 {
		text += fmt.Sprintf(" and %d more problems", n)
	}
	return text
}

// The problems, with what each ID means. docs/rules.md lists the same.
var problems = map[string]string{
	"YDL-R001": "the rule is not valid JSON of the schema",
	"YDL-R002": "the version of the schema is unknown",
	"YDL-R003": "the rule is too large",
	"YDL-R004": "a text is missing, too long, or has characters that are not allowed",
	"YDL-R005": "the rule has no kind, or several",
	"YDL-R006": "a number is out of range",
	"YDL-R007": "a target selects nothing",
	"YDL-R008": "a word is not one of those that are allowed",
	"YDL-R009": "the rule does nothing",
	"YDL-R010": "the rule has fields that exclude each other",
	"YDL-R011": "the rule has expired, or expires too late",
	"YDL-R012": "the target selects no instance that runs",
	"YDL-R013": "the scope matches no call of the last minutes",
	"YDL-R014": "the service has too many rules",
	"YDL-R015": "the rule would leave no instance",
	"YDL-R016": "another rule of the same kind has the same scope",
	"YDL-R021": "the target selects a single instance",
	"YDL-R022": "a rule that takes capacity or refuses calls does not expire",
	"YDL-R023": "an instance would get much more traffic than now",
	"YDL-R024": "all instances are disabled, by their state or by rules",
	"YDL-R025": "more than half of the calls of the service or of a method would not be executed",
	"YDL-R026": "the registry has no such service",
	"YDL-R027": "the scope names a method or a caller that does not exist",
	"YDL-R028": "instances that a canary holds back would get calls",
	"YDL-R029": "another rule leaves the rule no effect",
	"YDL-R030": "the network is not an IP address or a range",
}

// A checker collects the problems of a rule.
type checker struct{ found []Problem }

func (c *checker) addf(id, field, hint, format string, args ...any) {
	c.found = append(c.found, Problem{ID: id, Field: field, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (c *checker) warnf(id, field, hint, format string, args ...any) {
	c.addf(id, field, hint, format, args...)
	c.found[len(c.found)-1].Warning = true
}

func (c *checker) forcef(id, field, hint, format string, args ...any) {
	c.warnf(id, field, hint, format, args...)
	c.found[len(c.found)-1].Force = true
}

// Check returns what is wrong with the rule, and warnings. A rule with a problem that is not a
// warning is refused by Book.Put, and processes do not apply it.
func (r *Rule) Check() []Problem {
	c := &checker{}
	if r.Schema != Schema && r.Schema != 0 {
		c.addf("YDL-R002", "schema", fmt.Sprintf("use %d", Schema), "the version is %d", r.Schema)
	}
	c.texts(r)
	c.scope(r)
	set := slices.DeleteFunc(slices.Clone(kinds), func(k *kind) bool { return !k.set(r) })
	switch len(set) {
	case 0:
		c.addf("YDL-R005", "", "set one of "+strings.Join(Kinds(), ", "), "the rule has no kind")
	case 1:
		set[0].check(c, r)
		if r.Rollback != nil {
			c.rollback(r)
		}
		c.side(r, set[0])
		c.expiry(r, set[0])
	default:
		c.addf("YDL-R005", "", "make a rule of each", "the rule has several kinds: %s and %s", set[0].name, set[1].name)
	}
	if data, err := json.Marshal(r); err != nil {
		c.addf("YDL-R001", "", "", "it has no JSON form: %v", err)
	} else if len(data) > maxRule {
		c.addf("YDL-R003", "", fmt.Sprintf("use at most %d", maxRule), "it has %d bytes", len(data))
	}
	return c.found
}

// invalid returns an error if the rule has problems that are not warnings.
func (r *Rule) invalid() error {
	found := slices.DeleteFunc(r.Check(), func(p Problem) bool { return p.Warning })
	if len(found) == 0 {
		return nil
	}
	return &InvalidError{found}
}

func (c *checker) texts(r *Rule) {
	c.text("service", r.Service, true)
	c.text("author", r.Author, false)
	c.text("reason", r.Reason, false)
	if len(r.ID) > maxID {
		c.addf("YDL-R004", "id", "", "it has %d bytes, want at most %d", len(r.ID), maxID)
	} else if i := strings.IndexFunc(r.ID, func(b rune) bool { return !isID(b) }); i >= 0 {
		c.addf("YDL-R004", "id", "use letters, digits, '-', '_' and '.'", "%q has another character", r.ID)
	}
	if r.Revision < 0 {
		c.addf("YDL-R006", "revision", "", "%d is negative", r.Revision)
	}
}

func isID(b rune) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.'
}

// text checks a text that people read or that is compared with other texts.
func (c *checker) text(field, text string, required bool) {
	switch {
	case text == "" && required:
		c.addf("YDL-R004", field, "", "it is empty")
	case len(text) > maxText:
		c.addf("YDL-R004", field, "", "it has %d bytes, want at most %d", len(text), maxText)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.addf("YDL-R004", field, "", "%.40q has control characters or is not UTF-8", text)
	}
}

func (c *checker) scope(r *Rule) {
	c.text("method", r.Method, false)
	c.text("caller", r.Caller, false)
	c.text("tenant", r.Tenant, false)
	if len(r.Header) > maxHeader {
		c.addf("YDL-R006", "header", "", "it has %d entries, want at most %d", len(r.Header), maxHeader)
	}
	for key, value := range r.Header {
		c.text("header", key, true)
		c.text("header."+key, value, false)
	}
}

func (c *checker) target(field string, t *Target) {
	if *t == (Target{}) {
		c.addf("YDL-R007", field, "set addr, version, tag, group or zone", "it selects nothing")
	}
	for _, part := range t.parts() {
		c.text(field+"."+part.name, part.value, false)
	}
}

// number checks a number. NaN is out of every range.
func (c *checker) number(field string, n, least, most float64) {
	if !(n >= least && n <= most) {
		c.addf("YDL-R006", field, fmt.Sprintf("use %v to %v", least, most), "%v is out of range", n)
	}
}

func (c *checker) duration(field string, d Duration, least, most time.Duration) {
	if time.Duration(d) < least || time.Duration(d) > most {
		c.addf("YDL-R006", field, fmt.Sprintf("use %v to %v", least, most), "%v is out of range", d)
	}
}

// by checks the name of what calls are grouped by.
func (c *checker) by(field, by string, words ...string) {
	name, isHeader := strings.CutPrefix(by, "header:")
	if by == "" || slices.Contains(words, by) || isHeader && name != "" && len(name) <= maxText {
		return
	}
	c.word(field, by, append(words, "header:NAME")...)
}

// word reports that a text is not one of words.
func (c *checker) word(field, text string, words ...string) {
	hint := "use " + strings.Join(words, ", ")
	if near := similar(text, words); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	c.addf("YDL-R008", field, hint, "%.40q is unknown", text)
}

// code checks the name of a code.
func (c *checker) code(field, name string) {
	if name == "" {
		return
	}
	if _, ok := codes[name]; !ok {
		names := make([]string, 0, len(codes))
		for known := range codes {
			names = append(names, known)
		}
		slices.Sort(names)
		c.word(field, name, names...)
	}
}

// codes has the codes of errors by name.
var codes = func() map[string]yodel.Code {
	byName := make(map[string]yodel.Code)
	for code := yodel.Canceled; code <= yodel.Unauthenticated; code++ {
		byName[code.String()] = code
	}
	return byName
}()

func (c *checker) rollback(r *Rule) {
	b := r.Rollback
	if k := r.kind(); k.sides == inPrograms {
		c.addf("YDL-R010", "rollback", "", "a %s does not act on calls", k.name)
	}
	if b.Below <= 0 {
		c.addf("YDL-R006", "rollback.below", "use more than 0, and at most 100", "%v is out of range", b.Below)
	} else {
		c.number("rollback.below", b.Below, 0, 100)
	}
	c.duration("rollback.for", b.For, time.Second, time.Hour)
	c.number("rollback.calls", float64(b.Calls), 0, 1e9)
}

// side checks Rule.Side.
func (c *checker) side(r *Rule, k *kind) {
	c.who(r, k)
	switch {
	case r.Side == "" || r.Side == "client" && k.sides != inPrograms:
	case r.Side == "server" && r.onServer():
	case r.Side == "server" || k.sides == inPrograms:
		c.addf("YDL-R010", "side", "leave it empty", "a %s rule does not act on the %s alone", k.name, r.Side)
	default:
		c.word("side", r.Side, "client", "server")
	}
}

// farthest is how long a rule may last.
const farthest = 10 * 365 * 24 * time.Hour

func (c *checker) expiry(r *Rule, k *kind) {
	switch {
	case r.Expires.IsZero() && k.form.ends:
		c.warnf("YDL-R022", "expires", "set an expiry, for example in 24h", "a %s rule never ends by itself", k.name)
	case !r.Expires.IsZero() && !r.Created.IsZero() && r.Expires.Sub(r.Created) > farthest:
		c.addf("YDL-R011", "expires", "use at most 10 years", "it is too late")
	}
}

// Decode reads a rule from JSON. It refuses unknown fields, and data of more than 16 KiB. It does
// not call Check.
func Decode(data []byte) (Rule, error) {
	var r Rule
	if len(data) > maxRule {
		return r, &InvalidError{[]Problem{{ID: "YDL-R003", Text: fmt.Sprintf("it has %d bytes, want at most %d", len(data), maxRule)}}}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the rule")
		}
	}
	if err != nil {
		p := Problem{ID: "YDL-R001", Text: strings.TrimPrefix(err.Error(), "json: ")}
		if name, ok := strings.CutPrefix(p.Text, "unknown field "); ok {
			if field, err := strconv.Unquote(name); err == nil {
				p.Hint = meant(field)
			}
		}
		return Rule{}, &InvalidError{[]Problem{p}}
	}
	return r, nil
}

// meant returns a hint for an unknown field.
func meant(field string) string {
	if near := similar(field, fieldNames(reflect.TypeFor[Rule]())); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return ""
}

// similar returns the word that differs from text in at most a third of its letters, or "".
func similar(text string, words []string) string {
	if len(text) > maxText {
		return ""
	}
	return nearest.Word(text, words, max(1, len(text)/3)+1)
}

// ParseRollback reads a condition such as "ok<99% for 30s". A number of calls may follow: "ok<99%
// for 30s, 100 calls".
func ParseRollback(text string) (*Rollback, error) {
	refused := fmt.Errorf("%.60q is not a condition such as \"ok<99%% for 30s\"", text)
	rest, calls, _ := strings.Cut(text, ",")
	share, span, ok := strings.Cut(strings.ReplaceAll(rest, " ", ""), "%for")
	below, okay := strings.CutPrefix(share, "ok<")
	percent, err := strconv.ParseFloat(below, 64)
	d, err2 := time.ParseDuration(span)
	if !ok || !okay || err != nil || err2 != nil {
		return nil, refused
	}
	b := &Rollback{Below: percent, For: Duration(d)}
	if calls != "" {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.ReplaceAll(calls, " ", ""), "calls"))
		if err != nil {
			return nil, refused
		}
		b.Calls = n
	}
	return b, nil
}

// String returns the condition in the form that ParseRollback reads.
func (b *Rollback) String() string {
	text := fmt.Sprintf("ok<%v%% for %v", b.Below, b.For)
	if b.Calls > 0 {
		text += fmt.Sprintf(", %d calls", b.Calls)
	}
	return text
}

// least returns how many calls must have ended for the condition to count.
func (b *Rollback) least() int { return cmp.Or(b.Calls, 20) }
