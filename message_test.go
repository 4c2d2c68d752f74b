// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"math"
	"reflect"
	"testing"
)

// FuzzValues decodes any bytes as several values. What it accepts is encoded and decoded again to
// the same.
func FuzzValues(f *testing.F) {
	for _, values := range []Values{{}, {1, "two", 3.5}, {-1, "", 0.0}} {
		body, err := appendBody(nil, JSON, values)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		f.Add(body[:len(body)/2])
	}
	f.Add([]byte{3, 1, '7', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, body []byte) {
		decode := func(body []byte) (Values, error) {
			var n int
			var text string
			var x float64
			err := decodeBody(body, JSON, Values{&n, &text, &x})
			return Values{n, text, x}, err
		}
		values, err := decode(body)
		if err != nil {
			return
		}
		again, err := appendBody(nil, JSON, values)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decode(again); err != nil || !reflect.DeepEqual(got, values) {
			t.Errorf("got %v, %v, want %v", got, err, values)
		}
	})
}

func TestLargeMessagesRaiseTheMemoryOfAConnection(t *testing.T) {
	for _, test := range []struct{ message, want int }{
		{0, 64 << 20}, {1 << 20, 64 << 20}, {16 << 20, 128 << 20}, {math.MaxInt, math.MaxInt / 64 * 8}, {math.MaxInt / 4, math.MaxInt / 64 * 8},
	} {
		limits := Limits{MaxMessage: test.message}
		if got := limits.withDefaults().MaxMemory; got != test.want {
			t.Errorf("with MaxMessage %d, MaxMemory is %d, want %d", test.message, got, test.want)
		}
	}
}
