// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"cmp"
	"fmt"
	"math/bits"
	"reflect"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/iface"
)

// A walk looks for parts of a value that are nested too deep, and counts their bytes. It reads
// memory by the plan of its type, because package reflect takes several times as long.
type walk struct {
	rules *Rules
	left  int      // of the bytes that the value may have
	own   bool     // an interface holds a value that encodes itself
	path  []string // of an error, from the inside to the outside
}

// value walks a value at an address, whose own bytes were counted. Hops is how many pointers and
// interfaces lead to it in a row.
func (w *walk) value(p *plan, at unsafe.Pointer, depth, hops int) error {
	for ; p.kind == reflect.Pointer; hops++ {
		if at = *(*unsafe.Pointer)(at); at == nil {
			return nil
		}
		if hops == maxPointers {
			return w.tooDeep()
		}
		p = p.elem
		if err := w.take(1, p); err != nil || p.paths == 0 {
			return err
		}
	}
	switch {
	case p.kind == reflect.Interface && p.of.NumMethod() == 0:
		return w.content(*(*any)(at), depth, hops)
	case p.kind == reflect.Interface:
		if v := reflect.NewAt(p.of, at).Elem(); !v.IsNil() {
			return w.content(v.Elem().Interface(), depth, hops)
		}
		return nil
	case p.check != nil:
		return p.check(at)
	case p.text:
		return w.take(textLen(at), p.elem)
	}
	if depth++; depth > w.max() {
		return w.tooDeep()
	}
	switch p.kind {
	case reflect.Struct:
		return w.fields(p, at, depth)
	case reflect.Slice:
		s := (*header)(at)
		if err := w.take(s.len, p.elem); err != nil {
			return err
		}
		return w.slice(p, s, depth)
	case reflect.Array:
		return w.elements(p, at, p.of.Len(), depth)
	case reflect.Map:
		return w.mapping(p, *(*unsafe.Pointer)(at), depth)
	}
	return nil
}

// A header is the beginning of a slice in memory.
type header struct {
	at  unsafe.Pointer
	len int
}

// textLen returns the length of a string or a slice.
func textLen(at unsafe.Pointer) int { return *(*int)(unsafe.Add(at, lengthOffset)) }

// content walks what an interface holds.
func (w *walk) content(v any, depth, hops int) error {
	switch v := v.(type) {
	case nil, bool, float64, float32, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return nil
	case string:
		return w.take(len(v), one)
	}
	if hops == maxPointers {
		return w.tooDeep()
	}
	k := cmp.Or(w.rules.Held, w.rules).knownOf(v)
	if k.err != nil {
		return k.err
	}
	w.own = w.own || k.own
	if k.plan.byAddress != nil && w.rules.Strict {
		return errUnaddressable(k.plan.byAddress)
	}
	if err := w.take(1, k.plan); err != nil || k.plan.paths == 0 {
		return err
	}
	return w.held(k.plan, v, depth, hops+1)
}

// held walks a value of type any, which is not nil and whose own bytes were counted.
func (w *walk) held(p *plan, v any, depth, hops int) error {
	at := iface.Data(v)
	switch {
	case p.kind == reflect.Pointer:
		if at == nil {
			return nil
		}
		if hops == maxPointers {
			return w.tooDeep()
		}
		p = p.elem
		if err := w.take(1, p); err != nil || p.paths == 0 {
			return err
		}
		return w.value(p, at, depth, hops+1)
	case p.kind == reflect.Map:
		if depth++; depth > w.max() {
			return w.tooDeep()
		}
		return w.mapping(p, at, depth)
	case p.direct:
		twin := reflect.New(p.of)
		twin.Elem().Set(reflect.ValueOf(v))
		at = twin.UnsafePointer()
	}
	return w.value(p, at, depth, hops)
}

// take counts n parts. The compiler inlines it.
func (w *walk) take(n int, p *plan) error {
	if p.size == 1 && n <= w.left {
		w.left -= n
		return nil
	}
	return w.takeParts(n, p)
}

func (w *walk) takeParts(n int, p *plan) error {
	high, size := bits.Mul64(uint64(n), uint64(p.size))
	if high > 0 || size > uint64(w.left) {
		return tooLarge()
	}
	w.left -= int(size) //nolint:gosec // G115: it is at most left
	return nil
}

func (w *walk) fields(p *plan, at unsafe.Pointer, depth int) error {
	for i := range p.fields {
		f := &p.fields[i]
		in := unsafe.Add(at, f.offset)
		var err error
		switch {
		case f.plan.text:
			err = w.take(textLen(in), f.plan.elem)
		case f.plan.check != nil:
			err = f.plan.check(in)
		default:
			err = w.value(f.plan, in, depth, 0)
		}
		if err != nil {
			return w.at(depth, "."+f.name, err)
		}
	}
	return nil
}

func (w *walk) slice(p *plan, s *header, depth int) error {
	switch elem := p.elem; {
	case depth == w.max():
	case elem.lengths != nil:
		return w.texts(s, p.step, elem, false)
	case elem.kind == reflect.Pointer && elem.elem.lengths != nil:
		return w.texts(s, p.step, elem.elem, true)
	}
	return w.elements(p, s.at, s.len, depth)
}

func (w *walk) elements(p *plan, at unsafe.Pointer, n, depth int) error {
	if p.elem.paths == 0 {
		return nil
	}
	for i := range n {
		if err := w.value(p.elem, unsafe.Add(at, uintptr(i)*p.step), depth, 0); err != nil {
			return w.at(depth, fmt.Sprintf("[%d]", i), err)
		}
	}
	return nil
}

// texts does what value does for each element of a slice, in a fraction of the time. The elements,
// or what they point to, have no parts but texts.
func (w *walk) texts(s *header, step uintptr, p *plan, pointers bool) error {
	for i := range s.len {
		elem := unsafe.Add(s.at, uintptr(i)*step)
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

// A plain says as which type of map a map is read. Maps have the same layout in memory if their
// keys and values have.
type plain int

const (
	ofOther plain = iota
	ofStrings
	ofWords // numbers with the size of an int64
	ofAny
)

func plainOf(p *plan) plain {
	switch elem := p.elem; {
	case p.key.kind != reflect.String || !p.key.text || p.distinct:
	case elem.kind == reflect.String && elem.text:
		return ofStrings
	case elem.kind == reflect.Interface && elem.of.NumMethod() == 0:
		return ofAny
	case elem.kind <= reflect.Float64 && elem.of.Size() == 8 && elem.paths == 0:
		return ofWords
	}
	return ofOther
}

// as returns a map as another type.
func as[M any](m unsafe.Pointer) M { return *(*M)(unsafe.Pointer(&m)) } //nolint:gosec // G103: a map is a pointer

// mapping walks a map.
func (w *walk) mapping(p *plan, m unsafe.Pointer, depth int) error {
	n := len(as[map[string]any](m)) // the keys and the values do not matter
	if err := w.take(n, p.elem); err != nil || n == 0 {
		return err
	}
	switch p.plain {
	case ofOther:
	case ofStrings:
		for key, text := range as[map[string]string](m) {
			if err := w.take(len(key), one); err != nil {
				return w.at(depth, "[a key]", err)
			}
			if err := w.take(len(text), one); err != nil {
				return w.at(depth, "[a value]", err)
			}
		}
		return nil
	case ofWords:
		for key := range as[map[string]int64](m) {
			if err := w.take(len(key), one); err != nil {
				return w.at(depth, "[a key]", err)
			}
		}
		return nil
	case ofAny:
		for key, v := range as[map[string]any](m) {
			if err := w.take(len(key), one); err != nil {
				return w.at(depth, "[a key]", err)
			}
			if err := w.content(v, depth, 0); err != nil {
				return w.at(depth, "[a value]", err)
			}
		}
		return nil
	}
	return w.entries(p, m, depth)
}

// entries walks a map of any type.
func (w *walk) entries(p *plan, m unsafe.Pointer, depth int) error {
	v := reflect.NewAt(p.of, unsafe.Pointer(&m)).Elem() //nolint:gosec // G103: a map is a pointer
	var key, elem reflect.Value
	var known map[string]bool
	if p.distinct {
		known = make(map[string]bool, v.Len())
	}
	keys := p.distinct || p.key.paths > 0 || p.key.kind == reflect.Interface
	if keys {
		key = reflect.New(p.key.of).Elem()
	}
	if p.elem.paths > 0 {
		elem = reflect.New(p.elem.of).Elem()
	}
	for i := v.MapRange(); i.Next(); {
		if keys {
			key.SetIterKey(i)
			if p.key.paths > 0 {
				if err := w.value(p.key, key.Addr().UnsafePointer(), depth, 0); err != nil {
					return w.at(depth, "[a key]", err)
				}
			}
			if err := w.key(known, key); err != nil {
				return w.at(depth, "[a key]", err)
			}
		}
		if p.elem.paths > 0 {
			elem.SetIterValue(i)
			if err := w.value(p.elem, elem.Addr().UnsafePointer(), depth, 0); err != nil {
				return w.at(depth, "[a value]", err)
			}
		}
	}
	return nil
}

// key adds the encoding of a key to known, unless that is nil. It returns an error if another key
// has the same encoding, or if an interface holds what cannot be a key.
func (w *walk) key(known map[string]bool, key reflect.Value) error {
	if key.Kind() == reflect.Interface && !key.IsNil() && w.rules.Key != nil {
		if err := cmp.Or(w.rules.Held, w.rules).Key(key.Elem().Type()); err != nil {
			return err
		}
	}
	if known == nil {
		return nil
	}
	b, err := w.rules.KeyBytes(key)
	if err == nil && known[string(b)] {
		err = fmt.Errorf("two keys of type %v have the same encoding %.40q, so one of their values would be lost", key.Type(), b)
	}
	known[string(b)] = true
	return err
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
