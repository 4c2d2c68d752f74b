// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// A nestedValue has the kinds of fields through which a value can contain itself.
type nestedValue struct {
	ID   int
	Next *nestedValue
	All  []*nestedValue
	Of   []nestedValue
	Map  map[string]*nestedValue
	Any  any
}

type (
	nestedSlice   []nestedSlice
	nestedMap     map[string]nestedMap
	nestedPointer *nestedPointer
)

// manyLevels is more than any codec can have on maxStack bytes of stack. A value of sharedLevels
// that each lead twice to the next one takes little memory, and no message can hold it.
const (
	manyLevels   = 1 << 17
	maxStack     = 16 << 20
	sharedLevels = 60
)

func (x codecTrial) checkDeep() error {
	defer debug.SetMaxStack(debug.SetMaxStack(maxStack)) // so that it takes less memory and time to exhaust it
	values := ownNested()
	for _, sample := range x.samples {
		values = append(values, nestedSamples(reflect.TypeOf(sample).Elem())...)
		values = append(values, sharedSamples(reflect.TypeOf(sample).Elem())...)
	}
	for _, v := range values {
		b, err := x.Append(nil, v.message)
		if err != nil {
			if text := err.Error(); len(text) > 16<<10 {
				return fmt.Errorf("the error of %s has %d bytes: %.200s", v.name, len(text), text)
			}
			continue
		}
		_ = x.Decode(bytes.Clone(b), fresh(v.message)) // a codec may carry such values, and may also refuse them here
	}
	return nil
}

// A nested is a value that contains itself or is deep. The message is a pointer.
type nested struct {
	name    string
	message any
}

// ownNested returns values of types that a codec encodes if it encodes any type.
func ownNested() []nested {
	all := nestedSamples(reflect.TypeFor[nestedValue]())
	slice := make(nestedSlice, 1)
	slice[0] = slice
	mapping := nestedMap{}
	mapping["self"] = mapping
	var pointer nestedPointer
	pointer = &pointer
	var value any
	value = &value
	all = append(all, sharedSamples(reflect.TypeFor[nestedValue]())...)
	all = append(all, largeSamples()...)
	return append(all, nested{"a slice in itself", &slice}, nested{"a map in itself", &mapping},
		nested{"a pointer to itself", &pointer}, nested{"a pointer to an interface with itself", &value})
}

// nestedSamples returns values of a struct type that has fields through which it contains itself.
func nestedSamples(t reflect.Type) (all []nested) {
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		put := putter(t, f.Type)
		if !f.IsExported() || put == nil {
			continue
		}
		cyclic := reflect.New(t)
		put(cyclic.Elem().Field(i), cyclic)
		all = append(all, nested{fmt.Sprintf("a %v whose %s leads to itself", t, f.Name), cyclic.Interface()})
		if len(all) > 1 {
			continue // one deep value of a type is enough, and takes memory
		}
		deep := reflect.New(t)
		for range manyLevels {
			outer := reflect.New(t)
			put(outer.Elem().Field(i), deep)
			deep = outer
		}
		all = append(all, nested{fmt.Sprintf("a %v with %d levels of %s", t, manyLevels, f.Name), deep.Interface()})
	}
	return all
}

// sharedSamples returns a value of a struct type whose parts are shared: each level leads twice to
// the next one, by a slice or by two fields. It returns none for a type with neither.
func sharedSamples(t reflect.Type) []nested {
	if t.Kind() != reflect.Struct || raceEnabled {
		return nil
	}
	var puts []func(outer, inner reflect.Value)
	for i := range t.NumField() {
		f := t.Field(i)
		put := putter(t, f.Type)
		switch {
		case !f.IsExported() || put == nil:
		case f.Type.Kind() == reflect.Slice:
			double := func(outer, inner reflect.Value) {
				put(outer.Field(i), inner)
				outer.Field(i).Set(reflect.Append(outer.Field(i), outer.Field(i).Index(0)))
			}
			puts = []func(outer, inner reflect.Value){double, double}
		default:
			puts = append(puts, func(outer, inner reflect.Value) { put(outer.Field(i), inner) })
		}
	}
	if len(puts) < 2 {
		return nil
	}
	shared := reflect.New(t)
	for range sharedLevels {
		outer := reflect.New(t)
		puts[0](outer.Elem(), shared)
		puts[1](outer.Elem(), shared)
		shared = outer
	}
	return []nested{{fmt.Sprintf("a %v with %d levels that each lead twice to the next", t, sharedLevels), shared.Interface()}}
}

// largeSamples returns values that take a few MiB, and more than any process has when each shared
// part is encoded as often as the value leads to it.
func largeSamples() []nested {
	if raceEnabled {
		return nil
	}
	leaf := bytes.Repeat([]byte("x"), 1<<20)
	tree, list := &largeValue{Data: leaf}, []any{string(leaf)}
	for range 20 {
		tree, list = &largeValue{A: tree, B: tree}, []any{list, list}
	}
	numbers := slices.Repeat([][][]int32{slices.Repeat([][]int32{make([]int32, 1<<10)}, 1<<10)}, 1<<20)
	names := map[string][]string{"all": slices.Repeat([]string{string(leaf)}, 1<<20)}
	pointers := slices.Repeat([]*struct{ Name string }{{string(leaf)}}, 1<<20)
	return []nested{
		{"a tree over 1 MiB", tree}, {"lists of lists over 1 MiB", &list}, {"lists of equal lists of numbers", &numbers},
		{"a list of equal strings", &names}, {"a list of equal pointers", &pointers},
	}
}

type largeValue struct {
	A, B *largeValue
	Data []byte
}

// putter returns a function that puts the value of type t that p points to into a field of another
// type, or nil if that is not possible.
func putter(t, field reflect.Type) func(field, p reflect.Value) {
	switch {
	case field == reflect.PointerTo(t), field == reflect.TypeFor[any]():
		return func(field, p reflect.Value) { field.Set(p) }
	case field.Kind() == reflect.Slice && field.Elem() == t:
		return func(field, p reflect.Value) {
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			field.Index(0).Set(p.Elem())
		}
	case field.Kind() == reflect.Slice && field.Elem() == reflect.PointerTo(t):
		return func(field, p reflect.Value) {
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			field.Index(0).Set(p)
		}
	case field.Kind() == reflect.Map && field.Key().Kind() == reflect.String && field.Elem() == reflect.PointerTo(t):
		return func(field, p reflect.Value) {
			field.Set(reflect.MakeMap(field.Type()))
			field.SetMapIndex(reflect.Zero(field.Type().Key()), p)
		}
	}
	return nil
}

// These types are embedded, and so they are exported.
type (
	// Embedded has the field of the types that embed it.
	Embedded struct{ ID int }
	// Other has the field of Embedded too.
	Other struct{ ID string }
	// Recursive embeds itself.
	Recursive struct {
		*Recursive
		ID int
	}
)

type ( // they have fields with which a library may find fault
	embedded  struct{ ID int }
	shadowing struct {
		embedded
		ID string
	}
	exportedShadowing struct {
		Embedded
		ID string
	}
	pointerShadowing struct {
		*Embedded
		ID string
	}
	both struct {
		Embedded
		*Other
	}
	withChannel struct {
		ID int
		C  chan int
		F  func()
	}
)

func (x codecTrial) checkSilent() error {
	defer debug.SetMaxStack(debug.SetMaxStack(maxStack))
	said := &ownLines{before: log.Writer()}
	log.SetOutput(said)
	defer log.SetOutput(said.before)
	for _, v := range []any{
		&shadowing{}, &exportedShadowing{}, &pointerShadowing{}, &pointerShadowing{Embedded: &Embedded{}}, &both{Other: &Other{}},
		&Recursive{Recursive: &Recursive{}}, &withChannel{}, &nestedValue{Any: &exportedShadowing{}},
	} {
		b, err := x.Append(nil, v)
		if err == nil {
			_ = x.Decode(bytes.Clone(b), fresh(v))
		}
		for _, sample := range x.samples {
			if b, err := x.encode(sample); err == nil {
				_ = x.Decode(b, fresh(v))
			}
		}
	}
	if lines := said.taken(); lines != "" {
		return fmt.Errorf("package log was used: %s", lines)
	}
	return nil
}

// An ownLines keeps what is logged below checkSilent, and passes on what others log.
type ownLines struct {
	before io.Writer
	mu     sync.Mutex
	lines  strings.Builder
}

func (w *ownLines) Write(b []byte) (int, error) {
	var pcs [256]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "codecTrial.checkSilent") {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.lines.Write(b)
		}
		if !more {
			return w.before.Write(b)
		}
	}
}

func (w *ownLines) taken() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines.String()
}
