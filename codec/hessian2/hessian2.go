// SPDX-License-Identifier: Apache-2.0

// Package hessian2 encodes messages in Hessian 2, as Dubbo does, without generated code:
//
//	type User struct {
//		ID   int64
//		Name string
//		Tags []string `hessian:"labels"`
//	}
//
//	func (User) JavaClassName() string { return "com.acme.User" }
//
// The method JavaClassName names the Java class for which a Go type stands. Types of dubbo-go have
// it too. No type is registered. A struct is an object of that class. A struct without that method
// is sent as a map of its fields. Java converts such a map if it knows which class it expects, but
// not within a collection. Decode ignores the names of classes: a struct takes an object of any
// class, or a map with strings as keys.
//
// The tag names the field in Java. Without a tag, that is the name in Go with its first letter
// lowered, or with all letters lowered if all are capital. Decode takes such a field by the name
// that dubbo-go gives it too: ID is "id", and "iD" in messages of dubbo-go. The tag "-" leaves a
// field out. The fields of an embedded struct are fields of the struct itself. Decode skips fields
// that it does not know.
//
// The types correspond as follows:
//
//	boolean                       bool
//	byte, short, int              int8, uint8, int16, uint16, int32
//	long                          int, int64, uint, uint32, uint64
//	float, double                 float32, float64
//	char, String                  string
//	byte[]                        []byte
//	List, Set, array              a slice or an array
//	Map                           a map
//	java.util.Date                time.Time, with a precision of a millisecond; null is the zero time
//	enum                          a string type with the method JavaClassName; null is ""
//	null                          a nil pointer, slice or map; decoded, the zero value of any type
//
// Decode takes any number that fits in the type. It takes an object whose only field is called name
// or value, such as an enum, a BigDecimal or a java.sql.Timestamp, as that field. Into an empty
// interface it decodes bool, int32, int64, float64, string, []byte, time.Time, []any, and for a map
// map[string]any, or map[any]any if a key is not a string. An object becomes a map[string]any that
// has the name of the class under the key "class".
//
// A value that occurs more than once in a message is one value in Java. A pointer or a map that
// occurs more than once keeps its identity in Go, too. Other values are copied.
//
// Decode limits the depth of messages to 256, and its memory to a multiple of the message's length.
package hessian2

import (
	"reflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/hessian"
)

// Codec encodes messages in Hessian 2. It is called "hessian2".
var Codec yodel.Codec = new(codec)

type codec struct{ types hessian.Types }

// Name implements yodel.Codec.
func (*codec) Name() string { return "hessian2" }

// CheckType returns why the codec does not carry messages of a type: see yodel.Codec.
func (c *codec) CheckType(t reflect.Type) error { return c.types.CheckType(t) }

// Append implements yodel.Codec.
func (c *codec) Append(dst []byte, v any) ([]byte, error) { return c.types.Append(dst, v) }

// Decode implements yodel.Codec.
func (c *codec) Decode(src []byte, v any) error { return c.types.Decode(src, v) }
