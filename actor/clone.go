// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A parcel is a message that stays in this process, and its answer. Its encoding is its number.
type parcel struct {
	value    any
	reply    any // a copy of the answer, which only the caller has
	number   uint64
	accepted func() // informs the caller that the message is in the inbox; may be nil
	by       *cell  // the actor that has sent the message; nil if none has
	size     int    // bytes of the copy of the message
}

// parcels is the Codec of messages that stay in this process. A message is copied instead of
// encoded, so that its sender and its receiver share no memory. Messages of a type that a plain
// copy would not separate are encoded and decoded.
type parcels struct {
	codec yodel.Codec // of the System

	mu   sync.Mutex
	last uint64
	open map[uint64]*parcel // by their numbers
}

func (*parcels) Name() string { return "actor.local" }

// add numbers p, and holds it until remove.
func (c *parcels) add(p *parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	p.number = c.last
	c.open[p.number] = p
}

func (c *parcels) remove(p *parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, p.number)
}

// find returns the parcel with a number, or nil.
func (c *parcels) find(number string) *parcel {
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[n]
}

// answer copies an answer for the caller, and returns the reply of the call.
func (p *parcel) answer(c *parcels, out any) (any, error) {
	copied := reflect.New(base(reflect.TypeOf(out))).Interface()
	if _, err := c.copy(copied, out); err != nil {
		return nil, yodel.Errorf(yodel.Internal, "actor: the answer cannot be copied: %v", err)
	}
	p.reply = copied
	return &yodel.Encoded{Body: strconv.AppendUint(nil, p.number, 10)}, nil
}

// Append implements yodel.Codec. Messages that are no parcels come from middleware. They begin with
// an equals sign.
func (c *parcels) Append(dst []byte, v any) ([]byte, error) {
	if p, ok := v.(*parcel); ok {
		return strconv.AppendUint(dst, p.number, 10), nil
	}
	return c.codec.Append(append(dst, '='), v)
}

// Decode implements yodel.Codec.
func (c *parcels) Decode(src []byte, v any) error {
	if len(src) > 0 && src[0] == '=' {
		return c.codec.Decode(src[1:], v)
	}
	p := c.find(string(src))
	if p == nil {
		return fmt.Errorf("message %.20q is not here", src)
	}
	if p.reply == nil {
		size, err := c.copy(v, p.value)
		p.size = size
		return err
	}
	to, from := reflect.ValueOf(v).Elem(), reflect.ValueOf(p.reply).Elem()
	if from.Type() != to.Type() {
		_, err := c.copy(v, p.reply)
		return err
	}
	to.Set(from)
	return nil
}

// copy copies the message from, which may be a pointer, to the variable to. It returns how many
// bytes the copy takes, or its encoding.
func (c *parcels) copy(to, from any) (size int, err error) {
	dst, src := reflect.ValueOf(to).Elem(), reflect.ValueOf(from)
	for src.Kind() == reflect.Pointer {
		src = src.Elem()
	}
	if src.IsValid() && src.Type() == dst.Type() && isPlain(src.Type()) {
		return int(dst.Type().Size()) + copyValue(dst, src), nil
	}
	b, err := c.codec.Append(nil, from)
	if err != nil {
		return 0, err
	}
	return len(b), c.codec.Decode(b, to)
}

// isNil reports whether v is nil or a nil pointer.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}

// base returns the type to which t points, or t.
func base(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

var plainTypes sync.Map // of bool, by reflect.Type

// isPlain reports whether copyValue separates values of type t: all of their parts are exported,
// and none is an interface or contains values of the type itself.
func isPlain(t reflect.Type) bool {
	if known, ok := plainTypes.Load(t); ok {
		return known.(bool) //nolint:forcetypeassert // the map has only these
	}
	plain := plainIn(t, nil)
	plainTypes.Store(t, plain)
	return plain
}

func plainIn(t reflect.Type, around []reflect.Type) bool {
	if slices.Contains(around, t) {
		return false
	}
	around = append(around, t)
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64, reflect.String, reflect.Complex64, reflect.Complex128:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return plainIn(t.Elem(), around)
	case reflect.Map:
		return plainIn(t.Key(), around) && plainIn(t.Elem(), around)
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return true
		}
		for f := range t.Fields() {
			if !f.IsExported() || f.Tag != "" || !plainIn(f.Type, around) { // a tag may leave the field out
				return false
			}
		}
		return true
	}
	return false
}

// copyValue copies a plain value. It returns how many bytes the copy takes outside of dst. The
// bytes of strings count, though the copy shares them.
func copyValue(dst, src reflect.Value) (size int) {
	switch src.Kind() {
	case reflect.Pointer:
		if !src.IsNil() {
			p := reflect.New(src.Type().Elem())
			size = int(src.Type().Elem().Size()) + copyValue(p.Elem(), src.Elem())
			dst.Set(p)
			return size
		}
	case reflect.Slice:
		if !src.IsNil() {
			s := reflect.MakeSlice(src.Type(), src.Len(), src.Len())
			size = src.Len()*int(src.Type().Elem().Size()) + copyElements(s, src)
			dst.Set(s)
			return size
		}
	case reflect.Array:
		return copyElements(dst, src)
	case reflect.Map:
		if !src.IsNil() {
			m := reflect.MakeMapWithSize(src.Type(), src.Len())
			size = src.Len() * int(src.Type().Key().Size()+src.Type().Elem().Size())
			for i := src.MapRange(); i.Next(); {
				k, e := reflect.New(src.Type().Key()).Elem(), reflect.New(src.Type().Elem()).Elem()
				size += copyValue(k, i.Key()) + copyValue(e, i.Value())
				m.SetMapIndex(k, e)
			}
			dst.Set(m)
			return size
		}
	case reflect.Struct:
		if src.Type() == reflect.TypeFor[time.Time]() {
			break
		}
		for i := range src.NumField() {
			size += copyValue(dst.Field(i), src.Field(i))
		}
		return size
	case reflect.String:
		size = src.Len()
	}
	dst.Set(src)
	return size
}

// copyElements copies the elements of a slice or an array to another one of the same length. It
// returns how many bytes the copies take outside of dst.
func copyElements(dst, src reflect.Value) (size int) {
	switch src.Type().Elem().Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct, reflect.String:
		for i := range src.Len() {
			size += copyValue(dst.Index(i), src.Index(i))
		}
	default:
		reflect.Copy(dst, src)
	}
	return size
}
