// SPDX-License-Identifier: Apache-2.0

package hessian

import (
	"fmt"
	"reflect"
	"time"

	"github.com/yodel-rpc/yodel/internal/room"
)

// Decode decodes a stream of one value into v, which is a pointer.
func (ts *Types) Decode(b []byte, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("hessian: cannot decode into %T, or it is nil", v)
	}
	target.Elem().SetZero()
	d := decoder{Reader: NewReader(b), types: ts}
	d.into(target.Elem(), 0)
	if d.err == nil && d.at != len(b) {
		d.failf("%d bytes follow the value", len(b)-d.at)
	}
	return d.err
}

// Any decodes the next value of the stream as a value of any type: see package codec/hessian2. The
// room for it depends on how many bytes of the stream are left.
func (r *Reader) Any() (v any, err error) {
	r.room = min(r.room, room.For(len(r.bytes)-r.at))
	d := decoder{Reader: r, types: new(Types)}
	d.into(reflect.ValueOf(&v).Elem(), 0)
	return v, r.err
}

// A decoder decodes values of a Reader.
type decoder struct {
	*Reader
	types  *Types
	shared map[int]reflect.Value // the pointers to objects, and the maps, by their numbers
}

// into decodes the next value into v. It reports false at the end of a list or a map.
func (d *decoder) into(v reflect.Value, depth int) bool {
	t := d.next()
	if depth > maxDepth {
		d.set(errDepth)
	}
	if d.err == nil && t.kind != isEnd {
		d.token(&t, v, depth)
	}
	if t.kind == isEnd && depth == 0 {
		d.failf("a value was expected, not %v", t.kind)
	}
	return t.kind != isEnd
}

// token decodes the value that begins with t.
func (d *decoder) token(t *token, v reflect.Value, depth int) {
	switch {
	case t.kind == isNull:
		v.SetZero()
	case t.kind == isRef:
		d.ref(int(t.n), v, depth)
	case v.Kind() == reflect.Pointer:
		if d.spend(int(v.Type().Elem().Size())) {
			p := reflect.New(v.Type().Elem())
			v.Set(p)
			d.token(t, p.Elem(), depth)
		}
	case v.Kind() == reflect.Interface:
		d.any(t, v, depth)
	case t.kind == isObject && v.Kind() != reflect.Struct && v.Kind() != reflect.Map, t.kind == isObject && v.Type() == timeType:
		d.only(t, v, depth)
	case t.kind == isList:
		d.list(t, v, depth)
	case t.kind == isObject, t.kind == isMap:
		d.fields(t, v, depth)
	default:
		d.scalar(t, v)
	}
}

// The memory for an entry in a table of shared values, and for a string beside its bytes.
const (
	sharedSize = 80
	stringSize = 16
)

// share keeps a pointer or a new map for references to it.
func (d *decoder) share(n int, v reflect.Value) {
	if _, known := d.shared[n]; !known && !d.spend(sharedSize) {
		return
	}
	if d.shared == nil {
		d.shared = make(map[int]reflect.Value)
	}
	d.shared[n] = v
}

// ref decodes a reference. If the value was decoded as another type, it is decoded again.
func (d *decoder) ref(n int, v reflect.Value, depth int) {
	if known, ok := d.shared[n]; ok && known.Type().AssignableTo(v.Type()) {
		v.Set(known)
		return
	}
	at := d.at
	d.at = d.objects[n]
	d.into(v, depth+1)
	d.at = at
}

// mismatch fails because a value does not fit a type.
func (d *decoder) mismatch(t *token, to reflect.Type) {
	what := t.kind.String()
	if t.kind == isObject {
		what = "an object of class " + d.classes[t.class].name
	}
	d.failf("%s does not fit in a %v", what, to)
}

// scalar decodes a value without values inside.
func (d *decoder) scalar(t *token, v reflect.Value) {
	fits := false
	switch k := v.Kind(); {
	case t.kind == isBool && k == reflect.Bool:
		v.SetBool(t.n != 0)
		return
	case t.kind == isText && k == reflect.String:
		if d.spend(len(t.text)) {
			v.SetString(t.text)
		}
		return
	case t.kind == isBinary && k == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		if d.spend(len(t.binary)) {
			v.SetBytes(append(make([]byte, 0, len(t.binary)), t.binary...))
		}
		return
	case t.kind == isDate && v.Type() == timeType:
		v.Set(reflect.ValueOf(time.UnixMilli(t.n).UTC()))
		return
	case t.kind == isInt || t.kind == isLong:
		fits = number(v, t.n)
	case t.kind == isDouble && v.CanFloat():
		if fits = !v.OverflowFloat(t.f); fits {
			v.SetFloat(t.f)
		}
	}
	if !fits {
		d.mismatch(t, v.Type())
	}
}

// number sets v to a whole number if it fits.
func number(v reflect.Value, n int64) (fits bool) {
	switch {
	case v.CanInt():
		if fits = !v.OverflowInt(n); fits {
			v.SetInt(n)
		}
	case v.CanUint():
		if fits = n >= 0 && !v.OverflowUint(uint64(n)); fits {
			v.SetUint(uint64(n)) //nolint:gosec // the bits are meant
		}
	case v.CanFloat():
		if fits = float64(n) < 1<<53 && float64(n) > -1<<53; fits {
			v.SetFloat(float64(n))
		}
	}
	return fits
}

// list decodes a list into a slice or an array.
func (d *decoder) list(t *token, v reflect.Value, depth int) {
	if v.Kind() != reflect.Slice && v.Kind() != reflect.Array {
		d.mismatch(t, v.Type())
		return
	}
	size := max(int(v.Type().Elem().Size()), 1)
	all, first := v, int(min(max(t.length, 0), 1024))
	if v.Kind() == reflect.Slice {
		if !d.spend(first * size) {
			return
		}
		all = reflect.MakeSlice(v.Type(), 0, first)
	} else {
		v.SetZero()
	}
	zero := reflect.Zero(v.Type().Elem())
	for i := 0; t.length < 0 || int64(i) < t.length; i++ {
		if v.Kind() == reflect.Slice {
			if i >= first && !d.spend(2*size) { // a slice that grows has up to twice its length
				return
			}
			all = reflect.Append(all, zero)
		}
		var into reflect.Value
		if i < all.Len() {
			into = all.Index(i)
		} else { // only the end may follow
			into = reflect.New(v.Type().Elem()).Elem()
		}
		more := d.into(into, depth+1)
		switch {
		case !more:
			if d.endOf(*t, int64(i)); v.Kind() == reflect.Slice {
				v.Set(all.Slice(0, i))
			}
			return
		case d.err != nil:
			return
		case i >= all.Len():
			d.failf("a list has more elements than %v", v.Type())
			return
		}
	}
	if v.Kind() == reflect.Slice {
		v.Set(all)
	}
}

// fields decodes a map or an object into a struct or a map.
func (d *decoder) fields(t *token, v reflect.Value, depth int) {
	switch {
	case v.Kind() == reflect.Struct && v.Type() != timeType:
		s := d.types.of(v.Type())
		if d.set(s.err); v.CanAddr() {
			d.share(t.object, v.Addr())
		}
		d.pairs(t, depth, func(name string) bool {
			if i := s.decoded(name); i >= 0 {
				return d.into(v.FieldByIndex(s.fields[i].index), depth+1)
			}
			return d.skip(depth + 1)
		})
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		d.newMap(t, v)
		d.class(t, v)
		d.pairs(t, depth, func(name string) bool {
			return d.entry(v, reflect.ValueOf(name).Convert(v.Type().Key()), depth)
		})
	case v.Kind() == reflect.Map && t.kind == isMap:
		d.newMap(t, v)
		for d.err == nil {
			key := reflect.New(v.Type().Key()).Elem()
			if !d.into(key, depth+1) || d.err != nil {
				return
			}
			if !d.entry(v, key, depth) {
				d.endOf(*t, 1)
			}
		}
	default:
		d.mismatch(t, v.Type())
	}
}

// newMap sets v to a new map, and keeps that for references.
func (d *decoder) newMap(t *token, v reflect.Value) {
	if d.spend(int(room.Map(v.Type(), 0))) {
		v.Set(reflect.MakeMap(v.Type()))
		d.share(t.object, v)
	}
}

// entry decodes a value of a map. It reports false at an end.
func (d *decoder) entry(m, key reflect.Value, depth int) bool {
	if !d.spend(int(room.Entry(m))) {
		return true
	}
	if !key.Comparable() {
		if key.Kind() == reflect.Interface {
			key = key.Elem()
		}
		d.failf("the key of a map is a %v, which Go cannot compare", key.Type())
		return true
	}
	value := reflect.New(m.Type().Elem()).Elem()
	more := d.into(value, depth+1)
	if more {
		m.SetMapIndex(key, value)
	}
	return more
}

// ClassKey is the key of the name of the class, in an object that was decoded as a map.
const ClassKey = "class"

// class sets the name of the class in a map whose values may be strings.
func (d *decoder) class(t *token, m reflect.Value) {
	name := reflect.ValueOf(ClassKey).Convert(m.Type().Key())
	if t.kind == isObject && m.Type().Elem().Kind() == reflect.Interface && m.Type().Elem().NumMethod() == 0 && d.spend(int(room.Entry(m))+stringSize) {
		m.SetMapIndex(name, reflect.ValueOf(d.classes[t.class].name))
	}
}

// pairs calls f for each field of an object, or each key of a map, which must be a string. F reads
// the value, and reports false at an end.
func (d *decoder) pairs(t *token, depth int, f func(name string) bool) {
	if t.kind == isObject {
		for i, name := range d.classes[t.class].fields {
			if !f(name) {
				d.endOf(*t, int64(i))
			}
			if d.err != nil {
				return
			}
		}
		return
	}
	for d.err == nil {
		var name string
		if !d.into(reflect.ValueOf(&name).Elem(), depth+1) || d.err != nil {
			return
		}
		if !f(name) {
			d.endOf(*t, 1)
		}
	}
}

// only decodes an object that has one value, such as an enum, a BigDecimal or a Timestamp.
func (d *decoder) only(t *token, v reflect.Value, depth int) {
	for i, name := range d.classes[t.class].fields {
		switch {
		case i > 0 || name != "name" && name != "value":
			d.mismatch(t, v.Type())
		case !d.into(v, depth+1):
			d.endOf(*t, 0)
		}
		if d.err != nil {
			return
		}
	}
	if len(d.classes[t.class].fields) == 0 {
		d.mismatch(t, v.Type())
	}
}

// any decodes a value into an interface.
func (d *decoder) any(t *token, v reflect.Value, depth int) {
	if v.NumMethod() > 0 {
		d.mismatch(t, v.Type())
		return
	}
	into := reflect.New(naturalTypes[t.kind]).Elem()
	if !d.spend(int(into.Type().Size())) {
		return
	}
	if t.kind == isMap {
		d.anyMap(t, v, depth)
		return
	}
	if d.token(t, into, depth); d.err == nil {
		v.Set(into)
	}
}

// naturalTypes are the Go types of values whose type is not known.
var naturalTypes = [...]reflect.Type{
	isNull: reflect.TypeFor[any](), isBool: reflect.TypeFor[bool](), isInt: reflect.TypeFor[int32](), isLong: reflect.TypeFor[int64](),
	isDouble: reflect.TypeFor[float64](), isDate: timeType, isText: reflect.TypeFor[string](), isBinary: reflect.TypeFor[[]byte](),
	isList: reflect.TypeFor[[]any](), isMap: reflect.TypeFor[map[any]any](), isObject: reflect.TypeFor[map[string]any](),
	isRef: reflect.TypeFor[any](), isEnd: reflect.TypeFor[any](),
}

// anyMap decodes a map as map[string]any if all of its keys are strings, and otherwise as
// map[any]any.
func (d *decoder) anyMap(t *token, v reflect.Value, depth int) {
	if !d.spend(int(room.Map(reflect.TypeFor[map[string]any](), 0))) {
		return
	}
	named := make(map[string]any)
	into := reflect.ValueOf(named)
	d.share(t.object, into)
	var mixed map[any]any
	for d.err == nil {
		var key, value any
		if !d.into(reflect.ValueOf(&key).Elem(), depth+1) || d.err != nil {
			break
		}
		if name, ok := key.(string); ok && mixed == nil {
			if !d.entry(into, reflect.ValueOf(name), depth) {
				d.endOf(*t, 1)
			}
			continue
		}
		if mixed == nil {
			if mixed = d.mixed(t, named); mixed == nil {
				break
			}
		}
		if key != nil && !reflect.ValueOf(&key).Elem().Comparable() {
			d.failf("the key of a map is a %T, which Go cannot compare", key)
			break
		}
		if !d.into(reflect.ValueOf(&value).Elem(), depth+1) {
			d.endOf(*t, 1)
		}
		if !d.spend(int(room.Entry(reflect.ValueOf(mixed)))) {
			break
		}
		mixed[key] = value
	}
	if mixed != nil {
		v.Set(reflect.ValueOf(mixed))
	} else {
		v.Set(into)
	}
}

// mixed returns a map with the entries of named that takes other keys too, and keeps that map for
// references instead.
func (d *decoder) mixed(t *token, named map[string]any) map[any]any {
	if !d.spend(int(room.Map(reflect.TypeFor[map[any]any](), len(named)+1))) {
		return nil
	}
	mixed := make(map[any]any, len(named)+1)
	for name, value := range named {
		mixed[name] = value
	}
	d.share(t.object, reflect.ValueOf(mixed))
	return mixed
}
