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
	// PlainKeys says that keys are not structs or arrays with pointers or interfaces in them. A
	// pointer that arrives is another one, and an interface can hold what is not a key any more.
	PlainKeys bool
	// Skip reports whether a field is not encoded. If it is nil, those are the unexported fields.
	Skip func(f *reflect.StructField) bool
	// Struct returns why a struct that does not encode itself cannot be encoded.
	Struct func(t reflect.Type) error
	// Values return why a value is not carried although its type is, or nil, by the type. They get
	// the address of the value, which they must not change.
	Values map[reflect.Type]func(v unsafe.Pointer) error
	// KeyBytes returns the same bytes for two keys of a map that would arrive as one. It is called
	// for types of keys with such values. The key is addressable.
	KeyBytes func(key reflect.Value) ([]byte, error)

	types  sync.Map // from reflect.Type to *known
	recent Recent[known]
}

// A known is what Rules have learned of the type of a whole message.
type known struct {
	alone *plan // of a struct, or of what a pointer points to, in which only the checks are looked at
	plan  *plan
	own   bool // it has a type with methods of its own, beside time.Time
	err   error
}

// A plan says which parts of the values of a type are walked, and counts the others.
type plan struct {
	of        reflect.Type
	kind      reflect.Kind
	paths     int          // in how many places the type refers to a part that others may share, or endless
	text      bool         // a string, or a slice that refers to nothing but its elements
	size      int          // the least bytes of a value in a message, without what it refers to
	byAddress reflect.Type // a type in the value itself that encodes itself by methods of its pointer, or nil
	own       bool         // it encodes itself
	check     func(v unsafe.Pointer) error
	direct    bool    // an interface holds a value of it in place of its address
	step      uintptr // the size of an element in memory
	plain     plain   // which map it is
	distinct  bool    // a map, of whose keys two can have one encoding
	key, elem *plan
	fields    []field  // those with paths
	checks    []check  // those that have a check, also in structs in it
	others    int      // paths without those of checks
	lengths   []length // in a value whose parts are all texts
}

// A check is where a value has a part that is checked.
type check struct {
	name   string
	offset uintptr
	plan   *plan
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
	name   string
	offset uintptr
	plan   *plan
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
	if v == nil {
		return nil
	}
	return r.knownOf(v).err
}

// Check returns an error if v is nested too deep, is too large because its parts are shared, has a
// type that cannot be encoded, or would not arrive as it is.
func (r *Rules) Check(v any) error {
	_, _, err := r.Inspect(v)
	return err
}

// Inspect is Check. Own reports whether v can have values that encode themselves, beside times. The
// codec encodes in, which is v, or a pointer to a copy of v if parts of v encode themselves by
// methods that need an address.
func (r *Rules) Inspect(v any) (in any, own bool, err error) {
	if v == nil {
		return nil, false, nil
	}
	k := r.knownOf(v)
	if k.err != nil {
		return nil, false, k.err
	}
	in, own = v, k.own
	if k.alone != nil {
		if err := k.alone.checkAll(iface.Data(v)); err != nil {
			return nil, false, err
		}
	} else if k.plan.paths > maxPaths {
		w := walk{rules: r, left: maxBytes()}
		if err := w.held(k.plan, v, 0, 0); err != nil {
			slices.Reverse(w.path)
			return nil, false, fmt.Errorf("%v%s: %w", Base(reflect.TypeOf(v)), strings.Join(w.path, ""), err)
		}
		own = own || w.own
	}
	if k.plan.byAddress != nil {
		twin := reflect.New(k.plan.of)
		twin.Elem().Set(reflect.ValueOf(v))
		in = twin.Interface()
	}
	return in, own, nil
}

// checkAll checks a struct at an address, which may be nil.
func (p *plan) checkAll(at unsafe.Pointer) error {
	if at == nil {
		return nil
	}
	for i := range p.checks {
		c := &p.checks[i]
		if err := c.plan.check(unsafe.Add(at, c.offset)); err != nil {
			return fmt.Errorf("%v%s: %w", p.of, c.name, err)
		}
	}
	return nil
}

// knownOf returns what is known of the type of v, which is not nil.
func (r *Rules) knownOf(v any) *known {
	if k := r.recent.Get(v); k != nil {
		return k
	}
	k := r.known(reflect.TypeOf(v))
	r.recent.Put(v, *k)
	return k
}

// known returns what is known of a type.
func (r *Rules) known(t reflect.Type) *known {
	if k, ok := r.types.Load(t); ok {
		return k.(*known) //nolint:forcetypeassert // it stores nothing else
	}
	b := builder{rules: r, made: make(map[reflect.Type]*plan), base: Base(t)}
	k := &known{plan: b.of(t)}
	k.err, k.own = b.err, b.own
	alone := k.plan
	if alone.kind == reflect.Pointer && alone.elem != nil {
		alone = alone.elem
	}
	if alone.checks != nil && alone.others <= maxPaths {
		k.alone = alone
	}
	stored, _ := r.types.LoadOrStore(t, k)
	return stored.(*known) //nolint:forcetypeassert // as above
}

// A builder makes the plans of a type and of all types in it.
type builder struct {
	rules *Rules
	made  map[reflect.Type]*plan
	base  reflect.Type
	path  []string // from base to the type
	own   bool
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
	p := &plan{of: t, kind: t.Kind(), direct: direct(t), paths: endless, size: 1}
	b.made[t] = p
	p.check = b.rules.Values[t]
	if p.own = b.encodesItself(t, p); p.own {
		if p.check == nil {
			p.paths = 0
		}
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
		if p.check != nil {
			return p
		}
		p.text, p.elem, paths = true, one, 1
		p.lengths = []length{{lengthOffset, one}}
	case reflect.Pointer:
		if Base(t).Kind() == reflect.Pointer {
			b.fail(fmt.Errorf("%v: %w", t, ErrPointers))
			return p
		}
		if p.elem = b.of(t.Elem()); !p.elem.own {
			paths = 1
		}
		paths = max(paths, p.elem.paths)
	case reflect.Slice:
		p.elem, p.step = b.in("[]", t.Elem()), t.Elem().Size()
		if p.text, paths = p.elem.paths == 0, 1; p.text {
			p.lengths = []length{{lengthOffset, p.elem}}
		} else {
			paths = endless
		}
	case reflect.Array:
		p.elem, p.step = b.in("[]", t.Elem()), t.Elem().Size()
		p.byAddress = p.elem.byAddress
		p.size = max(min(t.Len(), endless)*min(p.elem.size, endless), 1)
		paths = min(t.Len(), endless) * p.elem.paths
	case reflect.Map:
		p.key, p.elem = b.in("[a key]", t.Key()), b.in("[a value]", t.Elem())
		if of := cmp.Or(p.key.byAddress, p.elem.byAddress); of != nil && b.rules.Strict {
			b.lost(t, errUnaddressable(of))
		}
		p.distinct = b.rules.KeyBytes != nil && b.rules.merges(t.Key())
		p.plain = plainOf(p)
		if paths = 1; p.key.paths+p.elem.paths > 0 || p.distinct {
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
	for f := range t.Fields() {
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
		p.fields = append(p.fields, field{f.Name, f.Offset, in})
		paths += in.paths
		switch {
		case in.check != nil:
			p.checks = append(p.checks, check{"." + f.Name, f.Offset, in})
		case in.checks != nil:
			p.others += in.others
			for _, c := range in.checks {
				p.checks = append(p.checks, check{"." + f.Name + c.name, f.Offset + c.offset, c.plan})
			}
		default:
			p.others += in.paths
		}
		for _, l := range in.lengths {
			p.lengths = append(p.lengths, length{f.Offset + l.offset, l.elem})
		}
	}
	if len(p.lengths) < paths {
		p.lengths = nil
	}
	return paths
}

// direct reports whether an interface holds a value of t in place of its address.
func direct(t reflect.Type) bool {
	return t.Size() == unsafe.Sizeof(uintptr(0)) && iface.IsNil(reflect.Zero(t).Interface())
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
	if t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer {
		return false // the value in it may have further methods
	}
	if slices.Contains(b.rules.Whole, t) {
		return true
	}
	i, direct := first(b.rules.Methods, t)
	if b.rules.Strict {
		b.lost(t, b.rules.encoded(t, i))
	}
	if i < 0 {
		return false
	}
	if !direct {
		p.byAddress = t
	}
	b.own = b.own || t != timeType
	return true
}
