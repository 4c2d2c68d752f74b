// SPDX-License-Identifier: Apache-2.0

package values_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/values"
)

// A codec encodes with encoding/json.
type codec struct{}

func (codec) Append(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (codec) Decode(src []byte, v any) error { return json.Unmarshal(src, v) }

// decode decodes a body as a number, a text and a fraction.
func decode(body []byte) ([]any, error) {
	var n int
	var text string
	var x float64
	err := values.Decode(body, codec{}, []any{&n, &text, &x})
	return []any{n, text, x}, err
}

// FuzzValues decodes any bytes as several values. What it accepts is encoded and decoded again to
// the same, and is split and joined again to the same.
func FuzzValues(f *testing.F) {
	for _, v := range [][]any{{}, {1, "two", 3.5}, {-1, "", 0.0}} {
		body, err := values.Append(nil, codec{}, v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		f.Add(body[:len(body)/2])
	}
	f.Add([]byte{3, 2, '7', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, body []byte) {
		encoded, splitErr := values.Split(body)
		v, err := decode(body)
		if err != nil {
			return
		}
		again, err := values.Append(nil, codec{}, v)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decode(again); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("got %v, %v, want %v", got, err, v)
		}
		if got, err := decode(values.Join(nil, encoded)); splitErr != nil || err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("joined again: got %v, %v, %v, want %v", got, err, splitErr, v)
		}
	})
}

func TestBrokenBodiesAreRefused(t *testing.T) {
	for _, test := range []struct {
		body, decoded, split string
	}{
		{"", "a broken list of values", "a broken list of values"},
		{"\x02\x021\x021", "2 values came, 3 are expected", "<nil>"},
		{"\x03\x021\x04\"a\"", "a broken list of values", "a broken list of values"},
		{"\x03\x021\x04\"a\"\x031", "a broken list of values", "a broken list of values"},
		{"\x03\x021\x04\"a\"\x021xy", "2 bytes follow the last value", "2 bytes follow the last value"},
		{"\x03\x021\x021\x021", "value 2: json: cannot unmarshal number into Go value of type string", "<nil>"},
		{"\xff\xff\xff\xff\x0f", "4294967295 values came, 3 are expected", "a broken list of values"},
	} {
		_, err := decode([]byte(test.body))
		_, splitErr := values.Split([]byte(test.body))
		if fmt.Sprint(err) != test.decoded || fmt.Sprint(splitErr) != test.split {
			t.Errorf("%q: got %v and %v, want %s and %s", test.body, err, splitErr, test.decoded, test.split)
		}
	}
}

// A picky codec has no encoding of nil, as encoding/gob.
type picky struct{ codec }

func (c picky) Append(dst []byte, v any) ([]byte, error) {
	if p, ok := v.(*int); ok && p == nil {
		return dst, errors.New("a nil pointer")
	}
	return c.codec.Append(dst, v)
}

func TestNilPointersAmongValues(t *testing.T) {
	body, err := values.Append(nil, picky{}, []any{(*int)(nil), 1, (*int)(nil)})
	if err != nil {
		t.Fatal(err)
	}
	first, n, last := new(int), 0, (*int)(nil)
	if err := values.Decode(body, picky{}, []any{&first, &n, &last}); err != nil || first != nil || n != 1 || last != nil {
		t.Errorf("got %v, %d, %v, %v", first, n, last, err)
	}
	if err := values.Decode(body, picky{}, []any{&n, &n, &last}); err == nil || !strings.Contains(err.Error(), "value 1: a nil pointer came") {
		t.Errorf("nil for a number: got %v", err)
	}
	encoded, err := values.Split(body)
	if err != nil || len(encoded) != 3 || encoded[0] != nil || string(encoded[1]) != "1" {
		t.Errorf("got %q, %v", encoded, err)
	}
}

func TestTheErrorNamesTheValue(t *testing.T) {
	_, err := values.Append(nil, codec{}, []any{1, func() {}})
	var unsupported *json.UnsupportedTypeError
	if !errors.As(err, &unsupported) || err.Error() != "value 2: json: unsupported type: func()" {
		t.Errorf("got %v", err)
	}
}
