// SPDX-License-Identifier: Apache-2.0

package valuetable

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
)

var (
	random = flag.Int("values.random", 300, "how many chains of places Combine tries at random")
	seed   = flag.Uint64("values.seed", 1, "which ones")
)

// Combine puts values of many types into each place of a message: fields, elements, keys, pointers
// and interfaces. It also puts them into places in places. Each value arrives as it was sent, or
// the codec refuses it. The column says which changes are rules of the format.
func Combine(t *testing.T, c yodel.Codec, column string) {
	t.Helper()
	r := rand.New(rand.NewPCG(*seed, 0))
	all := leaves()
	for _, values := range all {
		report(t, c, column, "", values)
		for _, p := range places {
			report(t, c, column, p.name, p.put(values))
		}
	}
	for range *random {
		values := all[r.IntN(len(all))]
		var name strings.Builder
		for range 2 + r.IntN(4) {
			p := places[r.IntN(len(places))]
			name.WriteString(" " + p.name)
			if values = p.put(values); len(values) == 0 {
				break
			}
			r.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
			values = values[:min(len(values), 6)]
		}
		report(t, c, column, name.String(), values)
	}
}

// report reports the first of some values of one type that is neither carried nor refused.
func report(t *testing.T, c yodel.Codec, column, name string, values []reflect.Value) {
	t.Helper()
	for _, v := range values {
		if fault := tryOne(c, v, tolerances[column]); fault != "" {
			t.Errorf("%v,%s: %s", v.Type(), name, fault)
			return
		}
	}
}

// tryOne sends a value through a codec. It returns how the value was lost, or "".
func tryOne(c yodel.Codec, v reflect.Value, o tolerance) (fault string) {
	defer func() {
		if p := recover(); p != nil {
			fault = fmt.Sprintf("panic: %v", p)
		}
	}()
	sent, got := reflect.New(v.Type()), reflect.New(v.Type())
	sent.Elem().Set(v)
	b, err := c.Append(nil, sent.Interface())
	if checker, ok := c.(interface{ CheckType(t reflect.Type) error }); ok && err == nil {
		if err := checker.CheckType(v.Type()); err != nil {
			return "Append encodes what CheckType refuses: " + err.Error()
		}
	}
	if err != nil {
		return ""
	}
	if err := c.Decode(bytes.Clone(b), got.Interface()); err != nil {
		return fmt.Sprintf("sent %#v as %q: %v", v, b, err)
	}
	if !o.equal(v, got.Elem(), true) {
		return fmt.Sprintf("sent %#v as %q, got %#v", v, b, got.Elem())
	}
	return ""
}

// A place makes messages, or parts of messages, of values of one type.
type place struct {
	name string
	put  func(values []reflect.Value) []reflect.Value
}

var places = []place{
	{"field", each(func(v reflect.Value) reflect.Value { return structOf(v) })},
	{"field among others", each(func(v reflect.Value) reflect.Value {
		return structOf(reflect.ValueOf("a"), v, reflect.ValueOf(int64(7)))
	})},
	{"slice", inSlices},
	{"array", each(func(v reflect.Value) reflect.Value {
		a := reflect.New(reflect.ArrayOf(2, v.Type())).Elem()
		a.Index(1).Set(v)
		return a
	})},
	{"map", inMaps},
	{"key", func(values []reflect.Value) []reflect.Value { return asKeys(values, reflect.ValueOf(int32(1))) }},
	{"set", func(values []reflect.Value) []reflect.Value { return asKeys(values, reflect.ValueOf(struct{}{})) }},
	{"pointer", func(values []reflect.Value) []reflect.Value {
		zero := reflect.Zero(values[0].Type())
		all := each(func(v reflect.Value) reflect.Value {
			p := reflect.New(v.Type())
			p.Elem().Set(v)
			return p
		})(append(slices.Clip(values), zero))
		return append(all, reflect.Zero(reflect.PointerTo(zero.Type())))
	}},
	{"interface", each(func(v reflect.Value) reflect.Value {
		held := reflect.New(reflect.TypeFor[any]()).Elem()
		held.Set(v)
		return held
	})},
}

func each(put func(v reflect.Value) reflect.Value) func(values []reflect.Value) []reflect.Value {
	return func(values []reflect.Value) []reflect.Value {
		var all []reflect.Value
		for _, v := range values {
			all = append(all, put(v))
		}
		return all
	}
}

// structOf returns a struct with fields that have the numbers which some codecs need.
func structOf(values ...reflect.Value) reflect.Value {
	var fields []reflect.StructField
	for i, v := range values {
		tag := reflect.StructTag(strings.ReplaceAll(`pb:"n" thrift:"n"`, "n", fmt.Sprint(i+1)))
		fields = append(fields, reflect.StructField{Name: string(rune('A' + i)), Type: v.Type(), Tag: tag})
	}
	s := reflect.New(reflect.StructOf(fields)).Elem()
	for i, v := range values {
		s.Field(i).Set(v)
	}
	return s
}

// inSlices returns a nil slice, an empty one, one with a zero value, one with all values, and one
// with each value.
func inSlices(values []reflect.Value) []reflect.Value {
	t := reflect.SliceOf(values[0].Type())
	empty := reflect.MakeSlice(t, 0, 0)
	all := []reflect.Value{reflect.Zero(t), empty, reflect.MakeSlice(t, 1, 1), reflect.Append(empty, values...)}
	for _, v := range values {
		all = append(all, reflect.Append(empty, v))
	}
	return all
}

// inMaps returns a nil map, an empty one, one with all values, and one with each value.
func inMaps(values []reflect.Value) []reflect.Value {
	t := reflect.MapOf(reflect.TypeFor[string](), values[0].Type())
	whole := reflect.MakeMap(t)
	all := []reflect.Value{reflect.Zero(t), reflect.MakeMap(t), whole}
	for i, v := range values {
		m := reflect.MakeMap(t)
		m.SetMapIndex(reflect.ValueOf("a"), v)
		whole.SetMapIndex(reflect.ValueOf(fmt.Sprint(i)), v)
		all = append(all, m)
	}
	return all
}

// asKeys returns a map with all values as keys, and one with each value.
func asKeys(values []reflect.Value, elem reflect.Value) (all []reflect.Value) {
	if !values[0].Type().Comparable() {
		return nil
	}
	t := reflect.MapOf(values[0].Type(), elem.Type())
	whole := reflect.MakeMap(t)
	for _, v := range values {
		if !v.Comparable() { // an interface with a slice
			continue
		}
		m := reflect.MakeMap(t)
		m.SetMapIndex(v, elem)
		whole.SetMapIndex(v, elem)
		all = append(all, m)
	}
	return append(all, whole)
}
