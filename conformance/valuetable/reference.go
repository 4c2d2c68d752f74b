// SPDX-License-Identifier: Apache-2.0

package valuetable

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A Reference is another implementation of the format of a codec.
type Reference struct {
	// Encode and Decode are like the methods of yodel.Codec. v is a pointer.
	Encode func(v any) ([]byte, error)
	Decode func(b []byte, v any) error
	// Reads has the values that the reference decodes otherwise than the codec, with the reason.
	// Writes has those that the codec decodes otherwise if the reference has encoded them.
	Reads, Writes map[string]string
}

// A pair encodes with one implementation and decodes with another.
type pair struct {
	yodel.Codec // the codec that is tested
	encode      func(v any) ([]byte, error)
	decode      func(b []byte, v any) error
}

func (p pair) CheckType(t reflect.Type) error {
	if c, ok := p.Codec.(interface{ CheckType(t reflect.Type) error }); ok {
		return c.CheckType(t)
	}
	return nil
}

func (p pair) Append(dst []byte, v any) ([]byte, error) {
	if p.encode == nil {
		return p.Codec.Append(dst, v)
	}
	if err := p.CheckType(reflect.TypeOf(v)); err != nil {
		return nil, err // types that the codec refuses are not compared
	}
	b, err := p.encode(v)
	return append(dst, b...), err
}

func (p pair) Decode(b []byte, v any) error {
	if p.decode == nil {
		return p.Codec.Decode(b, v)
	}
	return p.decode(b, v)
}

var address = regexp.MustCompile(`0x[0-9a-f]+`)

// withoutAddresses returns how a value that arrives differs, without the addresses of pointers.
func withoutAddresses(o yodeltest.ValueOutcome) string { return address.ReplaceAllString(o.Text, "0x") }

// Compare tries each value of the catalogue that a codec carries: what the codec has encoded, the
// reference decodes as the codec does, and the other way round. It returns how many values it has
// tried.
func Compare(t *testing.T, c yodel.Codec, r Reference) (tried int) {
	t.Helper()
	base := yodeltest.ValueOutcomes(c)
	reads := yodeltest.ValueOutcomes(pair{Codec: c, decode: r.Decode})
	writes := yodeltest.ValueOutcomes(pair{Codec: c, encode: r.Encode})
	told := make(map[string]bool)
	check := func(want, got yodeltest.ValueOutcome, direction string, known map[string]string) {
		t.Helper()
		_, differs := known[want.Value]
		told[direction+want.Value] = true
		same := got.Result == want.Result && (want.Result != "changed" || withoutAddresses(got) == withoutAddresses(want))
		switch {
		case !same && !differs:
			t.Errorf("%s, %s: got %s (%s), want %s (%s)", want.Value, direction, got.Result, got.Text, want.Result, want.Text)
		case same && differs:
			t.Errorf("%s, %s: there is no difference any more", want.Value, direction)
		}
	}
	for i, want := range base {
		if want.Result != "carried" && want.Result != "changed" {
			continue
		}
		tried++
		check(want, reads[i], "reads ", r.Reads)
		check(want, writes[i], "writes ", r.Writes)
	}
	for direction, known := range map[string]map[string]string{"reads ": r.Reads, "writes ": r.Writes} {
		for _, value := range slices.Sorted(maps.Keys(known)) {
			if !told[direction+value] {
				t.Errorf("the codec does not carry %q", value)
			}
		}
	}
	return tried
}
