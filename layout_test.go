// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"reflect"
	"strconv"
	"testing"
)

// The fields that each call writes share few cache lines: two processors may pass each of them to
// each other in every asynchronous call.
func TestLayout(t *testing.T) {
	if strconv.IntSize != 64 {
		t.Skip("the sizes are those of 64-bit processors")
	}
	const line = 64
	for _, test := range []struct {
		of     reflect.Type
		size   uintptr // at most
		fields []string
	}{
		{reflect.TypeFor[incoming](), 1152, nil}, // with the context of its first call
		{reflect.TypeFor[Call](), 416, []string{"Attempt", "Endpoint", "out", "picked"}},
		{reflect.TypeFor[outgoing](), 1024, []string{"from", "peer", "ctx", "async", "done", "binding"}},
		{reflect.TypeFor[outgoing](), 1024, []string{"body", "packed", "began", "arrived"}},
	} {
		if size := test.of.Size(); size > test.size {
			t.Errorf("%v has %d bytes, more than the %d of its size class", test.of, size, test.size)
		}
		for _, name := range test.fields {
			first, _ := test.of.FieldByName(test.fields[0])
			if f, _ := test.of.FieldByName(name); f.Offset/line != first.Offset/line {
				t.Errorf("%v: %s, at %d, is in another cache line than %s, at %d", test.of, name, f.Offset, first.Name, first.Offset)
			}
		}
	}
}
