// SPDX-License-Identifier: Apache-2.0

// Package rawcodec is the codec of messages that are bytes already.
package rawcodec

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"
)

// A Codec carries []byte, V, and pointers to either. It may be used concurrently.
type Codec[V ~[]byte] struct{}

// Raw is implemented by every Codec of this package, and by no other type.
type Raw interface {
	// Bytes returns the bytes of a message.
	Bytes(v any) ([]byte, error)
	// Pointer returns v as a pointer to the bytes of a message, or nil if v has another type.
	Pointer(v any) *[]byte
	isRaw()
}

// Bytes implements Raw.
func (Codec[V]) Bytes(v any) ([]byte, error) { return bytesOf[V](v) }

// Pointer implements Raw.
func (Codec[V]) Pointer(v any) *[]byte { return pointer[V](v) }

func (Codec[V]) isRaw() {}

var errNil = errors.New("the raw codec was given a nil *[]byte")

// Name returns "raw".
func (Codec[V]) Name() string { return "raw" }

// CheckType returns why the codec does not carry messages of a type.
func (Codec[V]) CheckType(t reflect.Type) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[[]byte]() || t == reflect.TypeFor[V]() {
		return nil
	}
	return fmt.Errorf("the raw codec carries []byte and %v, not %v", reflect.TypeFor[V](), t)
}

// Append appends v to dst.
func (Codec[V]) Append(dst []byte, v any) ([]byte, error) {
	b, err := bytesOf[V](v)
	return append(dst, b...), err
}

// Decode copies src into the capacity of v, or into new memory.
func (Codec[V]) Decode(src []byte, v any) error {
	p := pointer[V](v)
	if p == nil {
		return notRaw[V](v, "decodes into *[]byte")
	}
	*p = append((*p)[:0], src...)
	return nil
}

// bytesOf returns the bytes of a message.
func bytesOf[V ~[]byte](v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return v, nil
	case V:
		return v, nil
	}
	p := pointer[V](v)
	if p == nil {
		return nil, notRaw[V](v, "takes []byte or *[]byte")
	}
	return *p, nil
}

// pointer returns v as a pointer to the bytes of a message, or nil if v has another type.
func pointer[V ~[]byte](v any) *[]byte {
	switch v := v.(type) {
	case *[]byte:
		return v
	case *V:
		return (*[]byte)(unsafe.Pointer(v)) //nolint:gosec // G103: V is a []byte
	}
	return nil
}

func notRaw[V ~[]byte](v any, takes string) error {
	switch v.(type) {
	case *[]byte, *V:
		return errNil
	}
	return fmt.Errorf("the raw codec %s, not %T", takes, v)
}
