// SPDX-License-Identifier: Apache-2.0

package jsoncodec_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/internal/jsoncodec"
)

var codec = jsoncodec.New()

type document struct {
	Title string
	Pages int
	Lines []string
	Raw   json.RawMessage
	More  map[string]any
	Next  *document
}

// sameAsUnmarshal checks that the codec decodes src as json.Unmarshal does.
func sameAsUnmarshal(t *testing.T, src []byte) {
	t.Helper()
	for _, target := range []any{new(document), new(any), new(string), new(float64), new([]int)} {
		got, want := reflect.New(reflect.TypeOf(target).Elem()), reflect.New(reflect.TypeOf(target).Elem())
		err, wantErr := codec.Decode(src, got.Interface()), json.Unmarshal(src, want.Interface())
		if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Errorf("%.100q into %T: got error %v, want %v", src, target, err, wantErr)
		}
		if err == nil && !reflect.DeepEqual(got.Interface(), want.Interface()) {
			t.Errorf("%.100q into %T: got %v, want %v", src, target, got.Elem(), want.Elem())
		}
	}
}

func samples() []string {
	return []string{
		`{"Title":"a","Pages":3,"Lines":["x","y"],"Raw":{"k":[1]},"More":{"n":1.5},"Next":{"Title":"b"}}`,
		`{"Title":"a"}{"Title":"b"}`, `{"Title":"a"} x`, ` {"Title":"a"} `, `{"Title":"a"}` + "\n", `{"Title":`, `{"Title":3}`, `{"Raw":}`,
		`7`, `7 `, `77 8`, `-`, `"text"`, `"text" `, `"te`, `[1,2,3]`, `[1,2`, `[1,"2"]`, `null`, `nul`, ``, ` `, "\x00",
		strings.Repeat("[", 20_000), `{"Title":"` + strings.Repeat("long ", 3_000) + `"}`, `{"Title":"` + strings.Repeat("long ", 30_000) + `"}`,
	}
}

func TestItDecodesAsUnmarshalDoes(t *testing.T) {
	for range 2 { // the second time with decoders that have been used
		for _, src := range samples() {
			sameAsUnmarshal(t, []byte(src))
		}
	}
}

func TestItKeepsNothingOfAMessage(t *testing.T) {
	src := []byte(`{"Title":"first","Lines":["x"],"Raw":[1,2,3]}`)
	var first, second document
	if err := codec.Decode(src, &first); err != nil {
		t.Fatal(err)
	}
	copy(src, `{"Title":"other","Lines":["y"],"Raw":[4,5,6]}`)
	if err := codec.Decode(src, &second); err != nil {
		t.Fatal(err)
	}
	if first.Title != "first" || first.Lines[0] != "x" || string(first.Raw) != "[1,2,3]" {
		t.Errorf("a later message changed the first to %+v", first)
	}
}

func FuzzJSON(f *testing.F) {
	for _, src := range samples() {
		f.Add([]byte(src[:min(len(src), 1000)]))
	}
	f.Fuzz(sameAsUnmarshal)
}

type (
	raw   string             // its text is its bytes
	key   struct{ s string } // the same, as a key of a map
	byPtr struct{ s string } // the same, with methods of the pointer
)

func (r raw) MarshalText() ([]byte, error)    { return []byte(r), nil }
func (r *raw) UnmarshalText(b []byte) error   { *r = raw(b); return nil }
func (k key) MarshalText() ([]byte, error)    { return []byte(k.s), nil }
func (k *key) UnmarshalText(b []byte) error   { k.s = string(b); return nil }
func (p *byPtr) MarshalText() ([]byte, error) { return []byte(p.s), nil }
func (p *byPtr) UnmarshalText(b []byte) error { p.s = string(b); return nil }

// Text that is not UTF-8 is refused, whoever made it. U+FFFD itself is carried.
func TestTextOfMethodsIsUTF8(t *testing.T) {
	for _, text := range []string{"a\xffb", "a\ufffdb", `a\ufffdb`} {
		for _, v := range []any{
			&struct{ V raw }{raw(text)}, &struct{ V []byPtr }{[]byPtr{{text}}}, &map[key]int{{text}: 1}, &struct{ V any }{raw(text)},
			&struct{ V any }{map[string]any{"x": &byPtr{text}}}, &map[string]*byPtr{"x": {text}}, &struct{ V netip.Addr }{netip.IPv6Loopback().WithZone(text)},
		} {
			b, err := codec.Append(nil, v)
			if wrong := !utf8.ValidString(text); wrong != (err != nil) || wrong && !strings.Contains(err.Error(), "UTF-8") {
				t.Errorf("%q in a %T: got %s and error %v", text, v, b, err)
			}
		}
	}
}

type stamp struct {
	time.Time
	layout string
	Cached int `json:"-"`
}

// A field that is not sent anyway does not matter beside a type with methods.
func TestEmbeddedMethodsBesideWhatIsLeftOut(t *testing.T) {
	in, out := stamp{time.Unix(1, 0).UTC(), "x", 1}, stamp{}
	if err := codec.CheckType(reflect.TypeOf(in)); err != nil {
		t.Fatal(err)
	}
	b, err := codec.Append(nil, &in)
	if err != nil {
		t.Fatal(err)
	}
	if err := codec.Decode(b, &out); err != nil || !out.Equal(in.Time) {
		t.Errorf("%s became %v, error %v", b, out, err)
	}
	if codec.CheckType(reflect.TypeFor[struct {
		time.Time
		Zone string
	}]()) == nil {
		t.Error("a field that would be lost was accepted")
	}
}
