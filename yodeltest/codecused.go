// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"fmt"
	"reflect"
)

// Messages for a variable that is used again. The codec may refuse their types.
type (
	usedPart struct {
		Name  string `pb:"1" thrift:"1"`
		Count int64  `pb:"2" thrift:"2"`
	}
	usedWhole struct {
		Name   string           `pb:"1" thrift:"1"`
		Count  int64            `pb:"2" thrift:"2"`
		Bytes  []byte           `pb:"3" thrift:"3"`
		List   []int64          `pb:"4" thrift:"4"`
		Parts  []usedPart       `pb:"5" thrift:"5"`
		Part   usedPart         `pb:"6" thrift:"6"`
		Ref    *usedPart        `pb:"7" thrift:"7"`
		Counts map[string]int64 `pb:"8" thrift:"8"`
	}
	// usedOlder has fewer fields than usedWhole.
	usedOlder struct {
		Count int64    `pb:"2" thrift:"2"`
		Part  usedPart `pb:"6" thrift:"6"`
	}
)

// usedSets are messages of one type each, which are decoded one after the other.
func usedSets() [][]any {
	full := &usedWhole{
		"full", 1, []byte{1, 2, 3}, []int64{1, 2, 3}, []usedPart{{"a", 1}, {"b", 2}}, usedPart{"c", 3}, &usedPart{"d", 4},
		map[string]int64{"x": 1, "y": 2},
	}
	other := &usedWhole{
		List: []int64{9}, Parts: []usedPart{{Name: "e"}}, Part: usedPart{Count: 7}, Ref: &usedPart{Name: "f"},
		Counts: map[string]int64{"z": 3},
	}
	pointer, text, first, second := &usedPart{"a", 1}, "text", any("first"), any(map[string]any{"b": "second"})
	less := &usedPart{Name: "b"}
	return [][]any{
		{full, other, &usedWhole{}},
		{&map[string]int64{"x": 1}, &map[string]int64{"y": 2}, &map[string]int64{}},
		{&map[string]usedPart{"x": {"a", 1}}, &map[string]usedPart{"x": {Name: "b"}}},
		{&[]int64{1, 2, 3}, &[]int64{4}}, {&[]usedPart{{"a", 1}, {"b", 2}}, &[]usedPart{{Name: "c"}}},
		{&pointer, &less}, {&text, new(string)}, {new(1), new(int)}, {&second, &first, &second},
		{&holder[any]{map[string]any{"a": "b"}}, &holder[any]{map[string]any{"c": "d"}}},
		{&holder[[2]*usedPart]{[2]*usedPart{{"a", 1}, {"b", 2}}}, &holder[[2]*usedPart]{[2]*usedPart{{Name: "c"}, {}}}},
	}
}

// checkUsed checks that a variable has the message and nothing of what it held before.
func (x codecTrial) checkUsed() error {
	own := func(a, b any) bool { return same(reflect.ValueOf(a), reflect.ValueOf(b), 0) }
	sets := usedSets()
	for _, set := range sets {
		if err := x.checkUsedWith(own, set, set); err != nil {
			return err
		}
	}
	older := []any{&usedOlder{Part: usedPart{Name: "older"}}}
	if err := x.checkUsedWith(own, sets[0][:1], older); err != nil {
		return err
	}
	byType := make(map[reflect.Type][]any)
	for _, sample := range x.samples {
		t := reflect.TypeOf(sample)
		byType[t] = append(byType[t], sample)
	}
	for _, samples := range byType {
		samples = append(samples, fresh(samples[0]))
		if err := x.checkUsedWith(x.equal, samples, samples); err != nil {
			return err
		}
	}
	return nil
}

// checkUsedWith decodes each of the first messages, and then each of the second ones into the same
// variable.
func (x codecTrial) checkUsedWith(equal func(a, b any) bool, first, second []any) error {
	for _, a := range first {
		if x.keeps != nil && x.keeps(a) {
			continue
		}
		before, err := x.Append(nil, a)
		if err != nil {
			continue // other rules say what may be refused
		}
		before = bytes.Clone(before)
		for _, b := range second {
			src, err := x.Append(nil, b)
			if err != nil {
				continue
			}
			src = bytes.Clone(src)
			used, want := fresh(a), fresh(a)
			if x.Decode(before, used) != nil || x.Decode(src, want) != nil {
				continue
			}
			if err := x.Decode(src, used); err != nil {
				return fmt.Errorf("Decode into a used %T: %w", used, err)
			}
			if !equal(used, want) && !sameBytes(used, want) {
				return fmt.Errorf("a used %T still has something of what it held before\n%s", used, difference(used, want))
			}
		}
	}
	return nil
}

// sameBytes reports whether two messages are equal slices of bytes. Where both are empty, the one
// that was decoded into a used variable may have its capacity, and need not be nil.
func sameBytes(a, b any) bool {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	isBytes := x.Kind() == reflect.Slice && x.Type().Elem().Kind() == reflect.Uint8
	return isBytes && bytes.Equal(x.Bytes(), y.Bytes())
}
