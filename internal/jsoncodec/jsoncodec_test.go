// SPDX-License-Identifier: Apache-2.0

package jsoncodec_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

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
