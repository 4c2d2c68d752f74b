// SPDX-License-Identifier: Apache-2.0

package hessian_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/internal/leak"
)

func TestMain(m *testing.M) { leak.Verify(m) }

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// stream is two objects of one class, the second of which has the first one, and two lists of one
// type, the second of which has the first object too.
const stream = "43 01 55 92 01 61 01 62 60 91 4e  60 92 51 90  71 01 74 51 90  72 90 51 91 93"

// copies are the values of stream, each as a stream of its own.
var copies = []string{
	"43 01 55 92 01 61 01 62 60 91 4e", "43 01 55 92 01 61 01 62 60 92 60 91 4e",
	"56 01 74 91 43 01 55 92 01 61 01 62 60 91 4e", "56 01 74 92 43 01 55 92 01 61 01 62 60 92 60 91 4e 93",
}

func TestCopy(t *testing.T) {
	r := hessian.NewReader(unhex(t, stream))
	values := make([][]byte, 0, len(copies))
	for i, want := range copies {
		got, err := r.Copy([]byte{0xff}, 100)
		if err != nil || !bytes.Equal(got, append([]byte{0xff}, unhex(t, want)...)) {
			t.Fatalf("value %d: got %x, %v, want %s", i, got, err, want)
		}
		values = append(values, got[1:])
	}
	if r.At() != len(unhex(t, stream)) {
		t.Errorf("it has read %d bytes", r.At())
	}
	joined, err := hessian.Join(nil, 200, values...)
	if err != nil {
		t.Fatal(err)
	}
	r = hessian.NewReader(joined)
	for i, value := range values {
		var want any
		if err := new(hessian.Types).Decode(value, &want); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Any(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("value %d of %x: got %v, %v, want %v", i, joined, got, err, want)
		}
	}
}

func TestLimitsOfCopies(t *testing.T) {
	r := hessian.NewReader(unhex(t, stream))
	if err := r.Skip(); err != nil {
		t.Fatal(err)
	}
	if b, err := r.Copy(nil, 8); err == nil || !strings.Contains(err.Error(), "larger than the limit") {
		t.Errorf("got %x, %v", b, err)
	}
	for says, value := range map[string]string{"follow the value": "90 90", "was expected": "5a", "cut off": "", "there is no value": "51 90"} {
		if b, err := hessian.Join(nil, 100, unhex(t, "78"), unhex(t, value)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %x, %v, want an error with %q", value, b, err, says)
		}
	}
	if b, err := hessian.Join(nil, 3, unhex(t, "03616161"), unhex(t, "03616161")); err == nil {
		t.Errorf("got %x", b)
	}
}

// A message may refer to a value many times, as long as reading it again is not much more work than
// reading the message.
func TestManyReferences(t *testing.T) {
	refer := func(target string, times int) []byte { // a list of a list with target, and references to it
		b := append(unhex(t, "57 79"), unhex(t, target)...)
		for range times {
			b = append(b, 'Q', 0x91)
		}
		return append(b, 'Z')
	}
	long := strings.Repeat("x", 32<<10)
	class := hex.EncodeToString(append(hessian.AppendText([]byte{'C'}, long), 0x90, 'N'))
	field := hex.EncodeToString(append(append([]byte{'H'}, hessian.AppendText(nil, "ignored")...), append(hessian.AppendText(nil, long), 'Z')...))
	cycle := append(append([]byte{'W'}, hessian.AppendText(nil, long)...), 'Q', 0x90, 'Z')
	read := map[string]func(b []byte) error{
		"any": func(b []byte) error { _, err := hessian.NewReader(b).Any(); return err },
		"struct": func(b []byte) error {
			var v [][]struct{ Other int }
			return new(hessian.Types).Decode(b, &v)
		},
	}
	for name, test := range map[string]struct {
		b       []byte
		readers []string
		refused bool
	}{
		"few":     {refer("9091929394", 100), []string{"any"}, false},
		"class":   {refer(class, 16<<10), []string{"any", "struct"}, true},
		"skipped": {refer(field, 16<<10), []string{"struct"}, true},
		"cycle":   {cycle, []string{"any"}, true},
	} {
		for _, reader := range test.readers {
			err := read[reader](test.b)
			if refused := err != nil && strings.Contains(err.Error(), "much more memory or work"); refused != test.refused || err != nil && !refused {
				t.Errorf("%s, %s: got %v", name, reader, err)
			}
		}
	}
	r := hessian.NewReader(append(refer(class, 0), bytes.Repeat(unhex(t, "79 51 91"), 16<<10)...)) // each list has the value of the first one
	err := r.Skip()
	for range 16 << 10 {
		if err == nil {
			_, err = r.Copy(nil, 1<<20)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "much more memory or work") {
		t.Errorf("copies: got %v", err)
	}
}

func TestSimpleValues(t *testing.T) {
	b := hessian.AppendPairs(hessian.AppendObject(hessian.AppendNull(hessian.AppendInt(hessian.AppendText(nil, "a"), 500)), "A", [2]string{"f", "x"}), [2]string{"k", "v"})
	r := hessian.NewReader(b)
	text, err1 := r.Text()
	n, err2 := r.Int()
	none, err3 := r.Text()
	if text != "a" || n != 500 || none != "" || err1 != nil || err2 != nil || err3 != nil {
		t.Errorf("got %q, %d, %q; %v, %v, %v", text, n, none, err1, err2, err3)
	}
	for _, want := range []any{map[string]any{"class": "A", "f": "x"}, map[string]any{"k": "v"}} {
		if got, err := r.Any(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	if text, err := hessian.NewReader(b[1:]).Int(); err == nil {
		t.Errorf("got %d", text)
	}
	if text, err := hessian.NewReader([]byte{0x90}).Text(); err == nil {
		t.Errorf("got %q", text)
	}
}

// A copy has the value of the original, and Skip finds the same end.
func FuzzCopy(f *testing.F) {
	f.Add(unhex(f, stream))
	f.Add(unhex(f, "57 43 01 55 91 01 61 60 70 01 74 70 90 52 00 01 61 01 62 41 00 01 61 21 62 5a 48 5a 51 91")) // what Skims counts
	f.Add(unhex(f, "48 57 51 90 5a 4d 01 74 90 51 91 5a 5a 51 91 4d 90 5a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		skipping, skimming, copying, decoding := hessian.NewReader(b), hessian.NewReader(b), hessian.NewReader(b), hessian.NewReader(b)
		skimming.Skims = true
		var values [][]byte
		for range 10 {
			skipped := skipping.Skip()
			if err := skimming.Skip(); (err == nil) != (skipped == nil) && !strings.Contains(fmt.Sprint(skipped), "much more memory") || skipping.At() != skimming.At() && err == nil {
				t.Fatalf("skip: %v at %d; skim: %v at %d", skipped, skipping.At(), err, skimming.At())
			}
			value, err := copying.Copy(nil, 1<<16)
			if err != nil && (strings.Contains(err.Error(), "larger than the limit") || strings.Contains(err.Error(), "inside") || strings.Contains(err.Error(), "much more memory")) {
				return
			}
			if (skipped == nil) != (err == nil) || skipping.At() != copying.At() && err == nil {
				t.Fatalf("skip: %v at %d; copy: %v at %d", skipped, skipping.At(), err, copying.At())
			}
			if err != nil {
				return
			}
			want, err := decoding.Any()
			if err != nil { // for example, a list in itself
				return
			}
			var got any
			switch err = new(hessian.Types).Decode(value, &got); {
			case err != nil && strings.Contains(err.Error(), "much more memory"):
				return
			case err != nil:
				t.Fatalf("the copy %x: %v", value, err)
			}
			if !reflect.DeepEqual(got, want) && !hasNaN(value) {
				t.Fatalf("the copy %x is %v, want %v", value, got, want)
			}
			values = append(values, value)
		}
		if _, err := hessian.Join(nil, 1<<20, values...); err != nil {
			t.Errorf("join %x: %v", values, err)
		}
	})
}

// hasNaN reports whether a value may have a number that differs from itself.
func hasNaN(b []byte) bool {
	return bytes.Contains(b, []byte{'D', 0x7f}) || bytes.Contains(b, []byte{'D', 0xff})
}
