// SPDX-License-Identifier: Apache-2.0

package apachethrift

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/apache/thrift/lib/go/thrift"
)

// write writes a value of the kind message, arguments or composed, or one in it.
func write(ctx context.Context, p thrift.TProtocol, v reflect.Value) error {
	switch t := typeOf(v.Type()); t {
	case thrift.BOOL:
		return p.WriteBool(ctx, v.Bool())
	case thrift.BYTE:
		return p.WriteByte(ctx, int8(v.Int())) //nolint:gosec // the kind is Int8
	case thrift.I16:
		return p.WriteI16(ctx, int16(v.Int())) //nolint:gosec // the kind is Int16
	case thrift.I32:
		if n := v.Int(); n != int64(int32(n)) { //nolint:gosec // this checks the size
			return fmt.Errorf("%d is no value of an enum", n)
		}
		return p.WriteI32(ctx, int32(v.Int())) //nolint:gosec // checked
	case thrift.I64:
		return p.WriteI64(ctx, v.Int())
	case thrift.DOUBLE:
		return p.WriteDouble(ctx, v.Float())
	case thrift.UUID:
		id, _ := reflect.TypeAssert[thrift.Tuuid](v) // typeOf has checked it
		return p.WriteUUID(ctx, id)
	case thrift.STRING:
		if v.Kind() == reflect.String {
			return p.WriteString(ctx, v.String())
		}
		return p.WriteBinary(ctx, v.Bytes())
	case thrift.STRUCT:
		s, _ := reflect.TypeAssert[thrift.TStruct](v) // typeOf has checked it
		if v.IsNil() {
			return fmt.Errorf("an element is a nil %v", v.Type())
		}
		return s.Write(ctx, p)
	case thrift.LIST:
		return writeList(ctx, p, v)
	case thrift.MAP, thrift.SET:
		return writeMap(ctx, p, v, t)
	}
	return unknownType(v.Type())
}

func unknownType(t reflect.Type) error {
	return fmt.Errorf("%v is no type that Apache's compiler generates", t)
}

var errLength = errors.New("a container has too many elements")

func writeList(ctx context.Context, p thrift.TProtocol, v reflect.Value) error {
	switch {
	case v.Len() > math.MaxInt32:
		return errLength
	case typeOf(v.Type().Elem()) == thrift.STOP:
		return unknownType(v.Type().Elem())
	}
	if err := p.WriteListBegin(ctx, typeOf(v.Type().Elem()), v.Len()); err != nil {
		return err
	}
	for i := range v.Len() {
		if err := write(ctx, p, v.Index(i)); err != nil {
			return err
		}
	}
	return p.WriteListEnd(ctx)
}

// writeMap writes a map, or a set that is a map to struct{}.
func writeMap(ctx context.Context, p thrift.TProtocol, v reflect.Value, t thrift.TType) (err error) {
	key, elem := v.Type().Key(), v.Type().Elem()
	switch {
	case v.Len() > math.MaxInt32:
		return errLength
	case typeOf(key) == thrift.STOP:
		return unknownType(key)
	case t == thrift.MAP && typeOf(elem) == thrift.STOP:
		return unknownType(elem)
	case t == thrift.SET:
		err = p.WriteSetBegin(ctx, typeOf(key), v.Len())
	default:
		err = p.WriteMapBegin(ctx, typeOf(key), typeOf(elem), v.Len())
	}
	for entry := v.MapRange(); err == nil && entry.Next(); {
		if err = write(ctx, p, entry.Key()); err == nil && t == thrift.MAP {
			err = write(ctx, p, entry.Value())
		}
	}
	return err
}

// read reads a value of the kind message, arguments or composed, or one in it. V is settable, or a
// pointer to a struct.
func read(ctx context.Context, p thrift.TProtocol, v reflect.Value) error {
	switch typeOf(v.Type()) {
	case thrift.BOOL:
		return set(v.SetBool)(p.ReadBool(ctx))
	case thrift.BYTE:
		n, err := p.ReadByte(ctx)
		return set(v.SetInt)(int64(n), err)
	case thrift.I16:
		n, err := p.ReadI16(ctx)
		return set(v.SetInt)(int64(n), err)
	case thrift.I32:
		n, err := p.ReadI32(ctx)
		return set(v.SetInt)(int64(n), err)
	case thrift.I64:
		return set(v.SetInt)(p.ReadI64(ctx))
	case thrift.DOUBLE:
		return set(v.SetFloat)(p.ReadDouble(ctx))
	case thrift.UUID:
		id, err := p.ReadUUID(ctx)
		return set(v.Set)(reflect.ValueOf(id), err)
	case thrift.STRING:
		if v.Kind() == reflect.String {
			return set(v.SetString)(p.ReadString(ctx))
		}
		return set(v.SetBytes)(p.ReadBinary(ctx))
	case thrift.STRUCT:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		s, _ := reflect.TypeAssert[thrift.TStruct](v) // typeOf has checked it
		return s.Read(ctx, p)
	case thrift.LIST:
		return readList(ctx, p, v)
	case thrift.MAP, thrift.SET:
		return readMap(ctx, p, v)
	}
	return unknownType(v.Type())
}

// set returns a function that stores what was read, unless there is an error.
func set[T any](store func(T)) func(v T, err error) error {
	return func(v T, err error) error {
		if err == nil {
			store(v)
		}
		return err
	}
}

func readList(ctx context.Context, p thrift.TProtocol, v reflect.Value) error {
	elem, n, err := p.ReadListBegin(ctx)
	if err != nil {
		return err
	}
	if want := typeOf(v.Type().Elem()); n > 0 && !fits(wireType(elem), wireType(want)) {
		return fmt.Errorf("a list has elements of %v, want %v", elem, want)
	}
	list := reflect.MakeSlice(v.Type(), n, n) // codec.cut has checked that the message has n elements
	for i := range n {
		if err = read(ctx, p, list.Index(i)); err != nil {
			return err
		}
	}
	v.Set(list)
	return p.ReadListEnd(ctx)
}

// readMap reads a map, or a set that is a map to struct{}.
func readMap(ctx context.Context, p thrift.TProtocol, v reflect.Value) (err error) {
	key, elem := v.Type().Key(), v.Type().Elem()
	isSet := typeOf(v.Type()) == thrift.SET
	var hasKey, hasElem thrift.TType
	var n int
	if isSet {
		hasKey, n, err = p.ReadSetBegin(ctx)
	} else {
		hasKey, hasElem, n, err = p.ReadMapBegin(ctx)
	}
	switch {
	case err != nil:
		return err
	case n > 0 && (!fits(wireType(hasKey), wireType(typeOf(key))) || !isSet && !fits(wireType(hasElem), wireType(typeOf(elem)))):
		return fmt.Errorf("a map has entries of %v and %v, want %v", hasKey, hasElem, v.Type())
	}
	m := reflect.MakeMap(v.Type())
	for range n {
		k, e := reflect.New(key).Elem(), reflect.New(elem).Elem()
		if err = read(ctx, p, k); err != nil {
			return err
		}
		if !isSet {
			if err = read(ctx, p, e); err != nil {
				return err
			}
		}
		m.SetMapIndex(k, e)
	}
	v.Set(m)
	return nil
}
