// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/hessian"
)

// split returns the service and the method of the name of a method.
func split(name string) (service, method string) {
	if i := strings.LastIndexAny(name, "./"); i >= 0 {
		return name[:i], name[i+1:]
	}
	return "", name
}

// typesOf returns the descriptors of the parameters of a call.
func typesOf(call *yodel.Call) (string, error) {
	var b strings.Builder
	switch args := call.Args.(type) {
	case nil:
	case *yodel.Encoded:
		return "", errors.New("the arguments are encoded already: WireOptions.Parameters has to have the types of the parameters")
	case yodel.Values:
		for i, arg := range args {
			descriptor, err := typeOf(reflect.TypeOf(arg))
			if err != nil {
				return "", fmt.Errorf("value %d: %w", i+1, err)
			}
			b.WriteString(descriptor)
		}
	default:
		t := reflect.TypeOf(args)
		if t.Kind() == reflect.Pointer {
			t = t.Elem() // the pointer is that of yodel's API
		}
		if hasNoFields([]reflect.Type{t}) {
			break
		}
		return typeOf(t)
	}
	return b.String(), nil
}

// maxPointers is how many pointers are followed to the type that they point to. A type may point to
// itself without end.
const maxPointers = 8

// typeOf returns the descriptor of the Java type for a Go type. A pointer to a number or to a bool
// is the class for that type.
func typeOf(t reflect.Type) (string, error) {
	if t == nil {
		return "", errors.New("a nil has no type")
	}
	boxed := t.Kind() == reflect.Pointer
	for n := 0; t.Kind() == reflect.Pointer && n < maxPointers; n++ {
		t = t.Elem()
	}
	class := hessian.ClassOf(t)
	switch primitive, wrapper := primitiveOf(t.Kind()); {
	case class != "":
	case t == reflect.TypeFor[time.Time]():
		class = "java.util.Date"
	case primitive != "" && !boxed:
		return primitive, nil
	case primitive != "":
		class = wrapper
	case t.Kind() == reflect.String:
		class = "java.lang.String"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "[B", nil
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		class = "java.util.List"
	case t.Kind() == reflect.Map:
		class = "java.util.Map"
	case t.Kind() == reflect.Struct:
		return "", fmt.Errorf("the type %v has no method JavaClassName: add it, or name the parameters in dubbo.WireOptions.Parameters", t)
	default:
		return "", fmt.Errorf("the type %v stands for no type of Java", t)
	}
	return "L" + strings.ReplaceAll(class, ".", "/") + ";", nil
}

// primitiveOf returns the primitive type of Java for a kind of Go, and its class.
func primitiveOf(k reflect.Kind) (primitive, class string) {
	switch k {
	case reflect.Bool:
		return "Z", "java.lang.Boolean"
	case reflect.Int8:
		return "B", "java.lang.Byte"
	case reflect.Int16:
		return "S", "java.lang.Short"
	case reflect.Int32, reflect.Uint8, reflect.Uint16:
		return "I", "java.lang.Integer"
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64:
		return "J", "java.lang.Long"
	case reflect.Float32:
		return "F", "java.lang.Float"
	case reflect.Float64:
		return "D", "java.lang.Double"
	}
	return "", ""
}
