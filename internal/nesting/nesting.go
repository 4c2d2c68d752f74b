// SPDX-License-Identifier: Apache-2.0

// Package nesting bounds how deep a message nests, before a codec encodes it. Most libraries encode
// by recursion. A value that contains itself, or a list of a million linked structs, exhausts the
// stack, which ends the process and cannot be recovered.
//
// Most types cannot nest without bound, because they contain neither themselves nor an interface.
// Checking a value of such a type costs about a nanosecond. Other values are walked.
package nesting

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/iface"
)

const (
	// Max is how many structs, slices, arrays and maps may be nested in each other.
	Max = 1000
	// MaxParts is how many of them a value may have. Each takes at least a byte of a message. A few
	// dozen structs that all point twice to the next one have more when they are encoded.
	MaxParts = 16 << 20
	// maxPointers is how many pointers to pointers a type may have in a row.
	maxPointers = 100
	// shown is how many steps of the path to the deepest part an error names.
	shown = 4
)

// ErrPointers is the error of a type that is a pointer to itself.
var ErrPointers = errors.New("it is a pointer to itself, which no message can have")

// Rules say which parts of a value a codec encodes. They must not be copied. All functions may be
// nil.
type Rules struct {
	// Max and MaxParts replace the constants of these names, unless they are 0.
	Max, MaxParts int
	// Methods are interfaces. A value whose type has the methods of one of them encodes itself.
	Methods []reflect.Type
	// Addressed says that the methods of *T encode a T only if it can be addressed.
	Addressed bool
	// Skip reports whether a field is not encoded. If it is nil, those are the unexported fields.
	Skip func(f *reflect.StructField) bool
	// Struct returns why a struct that does not encode itself cannot be encoded.
	Struct func(t reflect.Type) error

	flat  Flat
	types sync.Map // from reflect.Type to *known
}

// A known is what Rules have learned of the type of a whole message.
type known struct {
	plan *plan
	err  error
}

// A plan says which parts of the values of a type must be walked.
type plan struct {
	open      bool // values can nest without bound
	ownMethod bool // *T encodes a T that can be addressed
	key, elem *plan
	fields    []field // the open ones
}

type field struct {
	name  string
	index int
	plan  *plan
}

// Base returns the type to which t points, through any number of pointers, or t. It returns a
// pointer if t is a pointer to itself.
func Base(t reflect.Type) reflect.Type {
	for range maxPointers {
		if t.Kind() != reflect.Pointer {
			break
		}
		t = t.Elem()
	}
	return t
}

// CheckType returns why no value of type t can be encoded.
func (r *Rules) CheckType(t reflect.Type) error { return r.known(t).err }

// Check returns an error if v is nested too deep, or if its type cannot be encoded.
func (r *Rules) Check(v any) error {
	if v == nil || r.flat.Has(v) {
		return nil
	}
	value := reflect.ValueOf(v)
	k := r.known(value.Type())
	if k.err != nil {
		return k.err
	}
	if !k.plan.open {
		r.flat.Add(v)
		return nil
	}
	w := walk{rules: r}
	if err := w.value(k.plan, value, 0); err != nil {
		slices.Reverse(w.path)
		return fmt.Errorf("%v%s: %w", Base(value.Type()), strings.Join(w.path, ""), err)
	}
	return nil
}

// known returns what is known of a type.
func (r *Rules) known(t reflect.Type) *known {
	if k, ok := r.types.Load(t); ok {
		return k.(*known) //nolint:forcetypeassert // it stores nothing else
	}
	b := builder{rules: r, made: make(map[reflect.Type]*plan)}
	k := &known{plan: b.of(t)}
	k.err = b.err
	stored, _ := r.types.LoadOrStore(t, k)
	return stored.(*known) //nolint:forcetypeassert // as above
}

// A builder makes the plans of a type and of all types in it.
type builder struct {
	rules *Rules
	made  map[reflect.Type]*plan
	err   error
}

func (b *builder) of(t reflect.Type) *plan {
	if p, ok := b.made[t]; ok {
		return p
	}
	// While the types in t are looked at, t counts as open: a type in it that leads back to t is.
	p := &plan{open: true}
	b.made[t] = p
	if b.encodesItself(t, p) {
		p.open = false
		return p
	}
	switch t.Kind() {
	case reflect.Interface:
		return p
	case reflect.Pointer:
		if Base(t).Kind() == reflect.Pointer {
			b.fail(fmt.Errorf("%v: %w", t, ErrPointers))
			return p
		}
		p.elem = b.of(t.Elem())
		p.open = p.elem.open
	case reflect.Slice, reflect.Array:
		p.elem = b.of(t.Elem())
		p.open = p.elem.open
	case reflect.Map:
		p.key, p.elem = b.of(t.Key()), b.of(t.Elem())
		p.open = p.key.open || p.elem.open
	case reflect.Struct:
		b.structure(t, p)
		p.open = len(p.fields) > 0
	default:
		p.open = false
	}
	return p
}

func (b *builder) structure(t reflect.Type, p *plan) {
	if b.rules.Struct != nil {
		if err := b.rules.Struct(t); err != nil {
			b.fail(err)
			return
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if b.rules.Skip == nil && !f.IsExported() || b.rules.Skip != nil && b.rules.Skip(&f) {
			continue
		}
		if in := b.of(f.Type); in.open {
			p.fields = append(p.fields, field{f.Name, i, in})
		}
	}
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// encodesItself reports whether a type has methods of its own that encode it.
func (b *builder) encodesItself(t reflect.Type, p *plan) bool {
	if t.Kind() == reflect.Interface {
		return false // the value in it may have further methods
	}
	for _, methods := range b.rules.Methods {
		if t.Implements(methods) {
			return true
		}
		if reflect.PointerTo(t).Implements(methods) {
			if p.ownMethod = true; !b.rules.Addressed {
				return true
			}
		}
	}
	return false
}

// A walk looks for parts of a value that are nested too deep.
type walk struct {
	rules *Rules
	parts int
	path  []string // of an error, from the inside to the outside
}

func (w *walk) value(p *plan, v reflect.Value, depth int) error {
	for hops := 0; v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface; hops++ {
		if v.IsNil() {
			return nil
		}
		if hops == maxPointers {
			return w.tooDeep()
		}
		if v.Kind() == reflect.Pointer {
			p, v = p.elem, v.Elem()
		} else if v = v.Elem(); v.Kind() <= reflect.Complex128 || v.Kind() == reflect.String {
			return nil
		} else {
			k := w.rules.known(v.Type())
			if k.err != nil {
				return k.err
			}
			p = k.plan
		}
		if !p.open {
			return nil
		}
	}
	if p.ownMethod && v.CanAddr() {
		return nil
	}
	if depth++; depth > w.max() {
		return w.tooDeep()
	}
	if w.parts++; w.parts > cmp.Or(w.rules.MaxParts, MaxParts) {
		return TooMany(w.parts - 1)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range p.fields {
			f := &p.fields[i]
			if err := w.value(f.plan, v.Field(f.index), depth); err != nil {
				return w.at(depth, "."+f.name, err)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := w.value(p.elem, v.Index(i), depth); err != nil {
				return w.at(depth, fmt.Sprintf("[%d]", i), err)
			}
		}
	case reflect.Map:
		if v.Len() > 0 {
			return w.entries(p, v, depth)
		}
	}
	return nil
}

func (w *walk) entries(p *plan, v reflect.Value, depth int) error {
	key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
	for i := v.MapRange(); i.Next(); {
		key.SetIterKey(i)
		if p.key.open {
			if err := w.value(p.key, key, depth); err != nil {
				return w.at(depth, "[a key]", err)
			}
		}
		if !p.elem.open {
			continue
		}
		elem.SetIterValue(i)
		if err := w.value(p.elem, elem, depth); err != nil {
			return w.at(depth, "[a value]", err)
		}
	}
	return nil
}

// at adds the step to a part to the path of an error.
func (w *walk) at(depth int, step string, err error) error {
	switch {
	case depth <= shown:
		w.path = append(w.path, step)
	case depth == shown+1:
		w.path = append(w.path, "…")
	}
	return err
}

func (w *walk) max() int { return cmp.Or(w.rules.Max, Max) }

func (w *walk) tooDeep() error { return TooDeep(w.max()) }

// TooDeep returns the error of a value that nests more than levels deep.
func TooDeep(levels int) error {
	return fmt.Errorf("nested more than %d levels, or it contains itself", levels)
}

// TooMany returns the error of a value with more parts than most.
func TooMany(most int) error { return fmt.Errorf("it has more than %d parts", most) }

// A Flat remembers types whose values cannot nest without bound.
type Flat struct{ types [64]atomic.Uintptr }

// Has reports whether the type of v was added. It may have forgotten it.
func (f *Flat) Has(v any) bool {
	t := iface.TypeOf(v)
	return f.slot(t).Load() == t
}

// Add adds the type of v.
func (f *Flat) Add(v any) {
	t := iface.TypeOf(v)
	if slot := f.slot(t); slot.Load() == 0 { // types that share a slot do not replace each other all the time
		slot.Store(t)
	}
}

func (f *Flat) slot(t uintptr) *atomic.Uintptr { return &f.types[t>>6%uintptr(len(f.types))] }
