// SPDX-License-Identifier: Apache-2.0

// Package defaults sets the default values of options, and bounds large values, so that
// calculations with options do not overflow. It also finds the elements of an option by their
// names.
package defaults

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Forever is the longest duration of an option, a hundred years. The sum of two such durations
// does not overflow.
const Forever = 100 * 365 * 24 * time.Hour

// Positive returns v, or otherwise if v is zero or negative. It returns at most Forever for a
// duration, and at most an eighth of the largest int for a number.
func Positive[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	switch v := any(v).(type) {
	case time.Duration:
		return T(min(v, Forever))
	case int:
		return T(min(v, math.MaxInt/8))
	}
	return v
}

// Fill sets the fields of a struct that are zero to those of from. All fields are exported.
func Fill[T any](to *T, from T) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from)
	for i := range t.NumField() {
		if t.Field(i).IsZero() {
			t.Field(i).Set(f.Field(i))
		}
	}
}

// RefuseNil panics if an element of a list of options is nil. Without it, the first call would
// panic.
func RefuseNil[T any](name string, list []T, isNil func(T) bool) {
	for i, m := range list {
		if isNil(m) {
			panic(fmt.Sprintf("yodel: %s[%d] is nil", name, i))
		}
	}
}

// ByName returns the elements of an option by their names, and lists the names for people. An
// element takes the place of one of the others with its name. ByName panics if two elements have
// the same name, because one would silently replace the other.
func ByName[T interface{ Name() string }](option string, elements []T, others ...T) (all map[string]T, list string) {
	all = make(map[string]T)
	for i, e := range elements {
		name := e.Name()
		if _, found := all[name]; found {
			panic(fmt.Sprintf("yodel: element %d of %s has the name %q of an earlier element", i, option, name))
		}
		all[name] = e
	}
	for _, e := range others {
		if _, found := all[e.Name()]; !found {
			all[e.Name()] = e
		}
	}
	if len(all) == 0 {
		return all, "none"
	}
	return all, strings.Join(slices.Sorted(maps.Keys(all)), ", ")
}
