// SPDX-License-Identifier: Apache-2.0

// Package nesting bounds how deep a message nests and how large it becomes, before a codec encodes
// it. It also refuses messages that would not arrive as they were sent: see Rules.Strict.
//
// Most libraries encode by recursion into memory of their own. A value that contains itself, or
// a list of a million linked structs, exhausts the stack, which ends the process and cannot be
// recovered. A value whose parts are shared can exhaust the memory: 30 structs that each point
// twice to the next one are a billion structs in a message.
//
// A value of most types can neither nest without bound nor share many parts: its type contains
// neither itself nor an interface, nor a slice of strings or pointers. Checking it costs about a
// nanosecond. Other values are walked.
package nesting

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/iface"
)

const (
	// Max is how many structs, slices, arrays and maps may be nested in each other.
	Max = 1000
	// maxPaths is how many strings, slices, maps and pointers a type may contain whose values are
	// not walked. A value shares a part at most so often.
	maxPaths = 64
	// maxPointers is how many pointers to pointers a type may have in a row.
	maxPointers = 100
	// shown is how many steps of the path to the deepest part an error names.
	shown = 4
)

// ErrPointers is the error of a type that is a pointer to itself.
var ErrPointers = errors.New("it is a pointer to itself, which no message can have")

// leastBytes is how many bytes an encoded value may have in any process.
const leastBytes = 64 << 20

var allowed atomic.Int64 // the largest n of AllowBytes

func maxBytes() int { return int(max(leastBytes, min(allowed.Load(), math.MaxInt))) }

// CheckBytes returns an error if an encoded value with n bytes is too large. The limit is 64 MiB,
// or the largest n of AllowBytes.
func CheckBytes(n int) error {
	if n > leastBytes && n > maxBytes() {
		return tooLarge()
	}
	return nil
}

func tooLarge() error {
	return fmt.Errorf("it has more than %d bytes, counting shared parts each time", maxBytes())
}

// AllowBytes lets encoded values have n bytes. A client or a server whose messages may be so large
// calls it.
func AllowBytes(n int) {
	for old := allowed.Load(); old < int64(n); old = allowed.Load() {
		if allowed.CompareAndSwap(old, int64(n)) {
			return
		}
	}
}

// Rules say which parts of a value a codec encodes. They must not be copied. All functions may be
// nil.
type Rules struct {
	// Max replaces the constant of this name, unless it is 0.
	Max int
	// Methods are interfaces. A value whose type has the methods of one of them encodes itself.
	Methods []reflect.Type
	// Strict refuses types and values that would not arrive as they were sent. For example, it
	// refuses a value in a map that encodes itself by methods of its pointer. Without Strict, only
	// types are refused whose values cannot be encoded.
	Strict bool
	// Decoders are the counterparts of Methods, with which a value decodes itself, for Strict.
	Decoders []reflect.Type
	// Whole are types that the codec encodes by itself, such as time.Time.
	Whole []reflect.Type
	// Kinds are refused kinds, beside channels, functions and unsafe pointers.
	Kinds []reflect.Kind
	// Interfaces says that the codec carries interfaces with methods.
	Interfaces bool
	// Tag is the key of the codec's tag, if it has one.
	Tag string
	// Held has the rules for what interfaces hold, if they differ from these. It may be nil.
	Held *Rules
	// Note is the name of an unexported field that is there for its tag, if the codec has one.
	Note string
	// Key returns why values of a type cannot be the keys of a map, or nil. It may be nil.
	Key func(t reflect.Type) error
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

// A plan says which parts of the values of a type are walked, and counts the others.
type plan struct {
	paths     int          // in how many places the type refers to a part that others may share, or endless
	text      bool         // a string, or a slice that refers to nothing but its elements
	size      int          // the least bytes of a value in a message, without what it refers to
	byAddress reflect.Type // a type in the value itself that encodes itself by methods of its pointer, or nil
	key, elem *plan
	fields    []field  // those with paths
	lengths   []length // in a value whose parts are all texts
}

// A length is where a value has the length of a text.
type length struct {
	offset uintptr
	elem   *plan
}

// endless is the number of paths of types whose values only a walk can judge.
const endless = 1 << 20

var one = &plan{size: 1} // for each byte of a string

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

// CheckTarget is CheckType for a pointer into which a message is decoded.
func (r *Rules) CheckTarget(v any) error {
	if v == nil || r.flat.Has(v) {
		return nil
	}
	return r.CheckType(reflect.TypeOf(v))
}

// Check returns an error if v is nested too deep, is too large because its parts are
// shared, or has a type that cannot be encoded.
func (r *Rules) Check(v any) error {
	if v == nil || r.flat.Has(v) {
		return nil
	}
	value := reflect.ValueOf(v)
	k := r.known(value.Type())
	if k.err != nil {
		return k.err
	}
	if k.plan.paths <= maxPaths {
		if k.plan.byAddress == nil || value.Kind() == reflect.Pointer { // see Addressable
			r.flat.Add(v)
		}
		return nil
	}
	w := walk{rules: r, left: maxBytes()}
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
	b := builder{rules: r, made: make(map[reflect.Type]*plan), base: Base(t)}
	k := &known{plan: b.of(t)}
	k.err = b.err
	stored, _ := r.types.LoadOrStore(t, k)
	return stored.(*known) //nolint:forcetypeassert // as above
}

// A builder makes the plans of a type and of all types in it.
type builder struct {
	rules *Rules
	made  map[reflect.Type]*plan
	base  reflect.Type
	path  []string // from base to the type
	err   error
}

// in is of for a type in the one before it. Step says where.
func (b *builder) in(step string, t reflect.Type) *plan {
	b.path = append(b.path, step)
	p := b.of(t)
	b.path = b.path[:len(b.path)-1]
	return p
}

func (b *builder) of(t reflect.Type) *plan {
	if p, ok := b.made[t]; ok {
		return p
	}
	// While the types in t are looked at, a type in it that leads back to t has endless paths.
	p := &plan{paths: endless, size: 1}
	b.made[t] = p
	if b.encodesItself(t, p) {
		p.paths = 0
		return p
	}
	if b.rules.Strict {
		if err := b.rules.lossy(t); err != nil {
			b.lost(t, err)
			return p
		}
	}
	paths := 0
	switch t.Kind() {
	case reflect.Interface:
		paths = endless
	case reflect.String:
		p.text, p.elem, paths = true, one, 1
		p.lengths = []length{{lengthOffset, one}}
	case reflect.Pointer:
		if Base(t).Kind() == reflect.Pointer {
			b.fail(fmt.Errorf("%v: %w", t, ErrPointers))
			return p
		}
		p.elem = b.of(t.Elem())
		paths = max(p.elem.paths, 1)
	case reflect.Slice:
		p.elem = b.in("[]", t.Elem())
		if p.text, paths = p.elem.paths == 0, 1; p.text {
			p.lengths = []length{{lengthOffset, p.elem}}
		} else {
			paths = endless
		}
	case reflect.Array:
		p.elem = b.in("[]", t.Elem())
		p.byAddress = p.elem.byAddress
		p.size = max(min(t.Len(), endless)*min(p.elem.size, endless), 1)
		paths = min(t.Len(), endless) * p.elem.paths
	case reflect.Map:
		p.key, p.elem = b.in("[a key]", t.Key()), b.in("[a value]", t.Elem())
		if of := cmp.Or(p.key.byAddress, p.elem.byAddress); of != nil && b.rules.Strict {
			b.lost(t, errUnaddressable(of))
		}
		if paths = 1; p.key.paths+p.elem.paths > 0 {
			paths = endless
		}
	case reflect.Struct:
		paths = b.structure(t, p)
	}
	p.paths = min(paths, endless)
	return p
}

// structure returns the paths of a struct.
func (b *builder) structure(t reflect.Type, p *plan) (paths int) {
	if b.rules.Struct != nil {
		if err := b.rules.Struct(t); err != nil {
			b.lost(t, err)
			return 0
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		skips := b.rules.skips(&f)
		if b.rules.Strict {
			b.lost(t, b.rules.embedded(&f, skips))
			skips = skips || f.Anonymous && !f.IsExported() && carries.Hides(Base(f.Type))
		}
		if skips {
			continue
		}
		in := b.in("."+f.Name, f.Type)
		if in.byAddress != nil {
			p.byAddress = in.byAddress
		}
		p.size += in.size - 1 // a field may be left out, an element of an array may not
		if in.paths == 0 {
			continue
		}
		p.fields = append(p.fields, field{f.Name, i, in})
		paths += in.paths
		for _, l := range in.lengths {
			p.lengths = append(p.lengths, length{f.Offset + l.offset, l.elem})
		}
	}
	if len(p.lengths) < paths {
		p.lengths = nil
	}
	return paths
}

// lengthOffset is where a string and a slice have their length.
const lengthOffset = unsafe.Sizeof(uintptr(0))

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// lost fails with the reason why values of type t are not carried, and where t is. Err may be nil.
func (b *builder) lost(t reflect.Type, err error) {
	switch {
	case err == nil:
	case len(b.path) == 0:
		b.fail(fmt.Errorf("%v: %w", t, err))
	default:
		path := b.path
		if len(path) > shown {
			path = append(slices.Clone(path[:shown]), "…")
		}
		b.fail(fmt.Errorf("%v%s (%v): %w", b.base, strings.Join(path, ""), t, err))
	}
}

// skips reports whether a field is not encoded.
func (r *Rules) skips(f *reflect.StructField) bool {
	if r.Skip == nil {
		return !f.IsExported()
	}
	return r.Skip(f)
}

// encodesItself reports whether a type has methods of its own that encode it.
func (b *builder) encodesItself(t reflect.Type, p *plan) bool {
	if t.Kind() == reflect.Interface {
		return false // the value in it may have further methods
	}
	if slices.Contains(b.rules.Whole, t) {
		return true
	}
	for i, methods := range b.rules.Methods {
		direct := t.Implements(methods)
		if !direct && (t.Kind() == reflect.Pointer || !reflect.PointerTo(t).Implements(methods)) {
			continue
		}
		if b.rules.Strict {
			b.lost(t, b.rules.encoded(t, i))
		}
		if !direct {
			p.byAddress = t
		}
		return true
	}
	return false
}

// A walk looks for parts of a value that are nested too deep, and counts their bytes.
type walk struct {
	rules *Rules
	left  int      // of the bytes that the value may have
	path  []string // of an error, from the inside to the outside
}

// value walks a value, whose own bytes were counted.
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
		} else if v = v.Elem(); v.Kind() <= reflect.Complex128 {
			return nil
		} else if v.Kind() == reflect.String {
			return w.take(v.Len(), one)
		} else {
			k := cmp.Or(w.rules.Held, w.rules).known(v.Type())
			if k.err != nil {
				return k.err
			}
			if p = k.plan; p.byAddress != nil && w.rules.Strict {
				return errUnaddressable(p.byAddress)
			}
		}
		if err := w.take(1, p); err != nil || p.paths == 0 {
			return err
		}
	}
	if p.text {
		return w.take(v.Len(), p.elem)
	}
	if depth++; depth > w.max() {
		return w.tooDeep()
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range p.fields {
			f := &p.fields[i]
			if err := w.value(f.plan, v.Field(f.index), depth); err != nil {
				return w.at(depth, "."+f.name, err)
			}
		}
	case reflect.Slice:
		if err := w.take(v.Len(), p.elem); err != nil {
			return err
		}
		return w.elements(p, v, depth)
	case reflect.Array:
		return w.elements(p, v, depth)
	case reflect.Map:
		if err := w.take(v.Len(), p.elem); err != nil || v.Len() == 0 {
			return err
		}
		return w.entries(p, v, depth)
	}
	return nil
}

// take counts n parts.
func (w *walk) take(n int, p *plan) error {
	if n > w.left/p.size {
		return tooLarge()
	}
	w.left -= n * p.size
	return nil
}

func (w *walk) elements(p *plan, v reflect.Value, depth int) error {
	switch elem := p.elem; {
	case v.Kind() == reflect.Array || depth == w.max():
	case elem.lengths != nil:
		return w.texts(v, elem, false)
	case elem.elem != nil && elem.elem.lengths != nil && v.Type().Elem().Kind() == reflect.Pointer:
		return w.texts(v, elem.elem, true)
	}
	for i := range v.Len() {
		if err := w.value(p.elem, v.Index(i), depth); err != nil {
			return w.at(depth, fmt.Sprintf("[%d]", i), err)
		}
	}
	return nil
}

// texts does what value does for each element of a slice, in a tenth of the time. The elements, or
// what they point to, have no parts but texts.
func (w *walk) texts(v reflect.Value, p *plan, pointers bool) error {
	at, step := v.UnsafePointer(), v.Type().Elem().Size()
	for i := range v.Len() {
		elem := unsafe.Add(at, uintptr(i)*step)
		if pointers {
			if elem = *(*unsafe.Pointer)(elem); elem == nil {
				continue
			}
			if err := w.take(1, p); err != nil {
				return err
			}
		}
		for _, l := range p.lengths {
			if err := w.take(*(*int)(unsafe.Add(elem, l.offset)), l.elem); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walk) entries(p *plan, v reflect.Value, depth int) error {
	key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
	for i := v.MapRange(); i.Next(); {
		if p.key.paths > 0 {
			key.SetIterKey(i)
			if err := w.value(p.key, key, depth); err != nil {
				return w.at(depth, "[a key]", err)
			}
		}
		if p.elem.paths > 0 {
			elem.SetIterValue(i)
			if err := w.value(p.elem, elem, depth); err != nil {
				return w.at(depth, "[a value]", err)
			}
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
