// SPDX-License-Identifier: Apache-2.0

package reflectcall

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
)

// This file decides which methods of a value Register publishes. A method that is published by
// mistake is a security hole. For example, a single remote call of Lock of an embedded mutex stops
// a service. A method that is left out by mistake fails at its first call.

// Methods returns the Funcs of the methods of v that remote callers can call, by name. Stream is as
// for Of. Chosen has the names of the methods to publish; empty means all. A name after "-" leaves
// a method out. Add is called with each method and its Func, and may refuse it.
//
// Skipped has the methods that were not chosen by name and are not meant for callers, each with the
// reason. Methods fails if a method has no suitable shape although it was chosen, or although it is
// nearly suitable: see nearly. It also fails if add refuses a method. The error has all such
// methods.
func Methods[V ~[]any, S any](
	v reflect.Value, stream func(reflect.Type) (StreamParam[S], bool), chosen []string, add func(name string, f *Func[S]) error,
) (skipped []string, err error) {
	t := v.Type()
	var only, without, faults []string
	for _, name := range chosen {
		left, ok := strings.CutPrefix(name, "-")
		if _, has := t.MethodByName(left); !has && (!ok || !pointed(t, left)) {
			faults = append(faults, fmt.Sprintf("%s: %v has no exported method of this name", left, t))
		}
		if ok {
			without = append(without, left)
		} else {
			only = append(only, name)
		}
	}
	found := false
	for m := range t.Methods() {
		named := slices.Contains(only, m.Name)
		why := ""
		switch {
		case len(only) > 0 && !named:
			continue
		case slices.Contains(without, m.Name):
			why = "it was left out"
		case !named:
			why = unmeant(t, m)
		}
		if why != "" {
			skipped = append(skipped, m.Name+": "+why)
			continue
		}
		f, err := Of[V](m.Func, stream, v)
		shaped := err == nil
		if shaped {
			found, err = true, add(m.Name, f)
		}
		switch {
		case err == nil:
		case named:
			faults = append(faults, fmt.Sprintf("%s: %v", m.Name, err))
		case shaped, nearly(m.Type, stream):
			faults = append(faults, fmt.Sprintf("%s: %v; or leave it out with %q", m.Name, err, "-"+m.Name))
		default:
			skipped = append(skipped, fmt.Sprintf("%s: %v", m.Name, err))
		}
	}
	if len(only) == 0 {
		faults = append(faults, unreached(t, without)...)
	}
	switch {
	case len(faults) > 0:
		return nil, errors.New(listed(faults))
	case found:
		return skipped, nil
	case len(skipped) == 0:
		skipped = []string{"it has no exported methods"}
	}
	return nil, fmt.Errorf("no suitable method: %s", strings.Join(skipped, "; "))
}

// maxListed is how many bytes of faults are listed whole, because an error is shown as one line of
// limited length, and maxOthers is how many bytes of names of further methods are.
const (
	maxListed = 150
	maxOthers = 100
)

// listed returns the first faults whole, and the names of the methods that have the others. If
// these are many, it returns how many there are besides.
func listed(faults []string) string {
	n, size := 1, len(faults[0])
	for ; n < len(faults); n++ {
		if size += len(faults[n]); size > maxListed {
			break
		}
	}
	text := strings.Join(faults[:n], "; ")
	if n == len(faults) {
		return text
	}
	text += ". Other methods that it cannot register: "
	begin := len(text)
	for i, fault := range faults[n:] {
		name, _, _ := strings.Cut(fault, ":")
		switch {
		case i == 0:
		case len(text)-begin+len(name) > maxOthers:
			return fmt.Sprintf("%s and %d more", text, len(faults)-n-i)
		default:
			text += ", "
		}
		text += name
	}
	return text
}

// pointed reports whether a pointer to a value of type t has a method.
func pointed(t reflect.Type, name string) bool {
	_, has := reflect.PointerTo(t).MethodByName(name)
	return has
}

// unreached returns the methods that a pointer to a value of type t has and the value lacks, with
// what to do.
func unreached(t reflect.Type, without []string) (faults []string) {
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Interface {
		return nil
	}
	p := reflect.PointerTo(t)
	for m := range p.Methods() {
		if _, has := t.MethodByName(m.Name); !has && !slices.Contains(without, m.Name) && unmeant(p, m) == "" {
			faults = append(faults, fmt.Sprintf("%s: it has a pointer receiver; register a pointer", m.Name))
		}
	}
	return faults
}

// nearly reports whether a method without a suitable shape looks as if it was meant for remote
// callers: it takes a context or a stream, its last result is an error of a type of its own, or all
// that it takes and returns could be sent. Other methods take or return what exists in one process
// only, such as a function, a channel or an interface.
func nearly[S any](m reflect.Type, stream func(reflect.Type) (StreamParam[S], bool)) bool {
	in := slices.Collect(m.Ins())[1:]
	out := slices.Collect(m.Outs())
	for _, t := range in {
		if _, streams := stream(t); streams || isContext(t) || t.Implements(contextualType) {
			return true
		}
	}
	if len(out) > 0 && ownError(out[len(out)-1]) {
		return true
	}
	out = slices.DeleteFunc(out, func(t reflect.Type) bool { return t == errorType })
	return !slices.ContainsFunc(append(in, out...), func(t reflect.Type) bool { return Usable(t) != nil })
}

// wellKnown lists interfaces whose methods are for the process itself. Register takes such a method
// only by name.
var wellKnown = []struct {
	name string
	t    reflect.Type
}{
	{"error", reflect.TypeFor[error]()},
	{"fmt.Stringer", reflect.TypeFor[fmt.Stringer]()},
	{"fmt.GoStringer", reflect.TypeFor[fmt.GoStringer]()},
	{"io.Closer", reflect.TypeFor[io.Closer]()},
	{"io.Reader", reflect.TypeFor[io.Reader]()},
	{"io.Writer", reflect.TypeFor[io.Writer]()},
	{"io.Seeker", reflect.TypeFor[io.Seeker]()},
	{"io.ReaderAt", reflect.TypeFor[io.ReaderAt]()},
	{"io.WriterAt", reflect.TypeFor[io.WriterAt]()},
	{"io.ByteReader", reflect.TypeFor[io.ByteReader]()},
	{"io.ByteWriter", reflect.TypeFor[io.ByteWriter]()},
	{"io.StringWriter", reflect.TypeFor[io.StringWriter]()},
	{"sort.Interface", reflect.TypeFor[sort.Interface]()},
	{"sync.Locker", reflect.TypeFor[sync.Locker]()},
	{"slog.LogValuer", reflect.TypeFor[slog.LogValuer]()},
	{"flag.Value", reflect.TypeFor[flagValue]()},
	{"encoding.TextMarshaler", reflect.TypeFor[encoding.TextMarshaler]()},
	{"encoding.TextUnmarshaler", reflect.TypeFor[encoding.TextUnmarshaler]()},
	{"encoding.TextAppender", reflect.TypeFor[encoding.TextAppender]()},
	{"encoding.BinaryMarshaler", reflect.TypeFor[encoding.BinaryMarshaler]()},
	{"encoding.BinaryUnmarshaler", reflect.TypeFor[encoding.BinaryUnmarshaler]()},
	{"encoding.BinaryAppender", reflect.TypeFor[encoding.BinaryAppender]()},
	{"json.Marshaler", reflect.TypeFor[json.Marshaler]()},
	{"json.Unmarshaler", reflect.TypeFor[json.Unmarshaler]()},
	{"gob.GobEncoder", reflect.TypeFor[gobEncoder]()},
	{"gob.GobDecoder", reflect.TypeFor[gobDecoder]()},
	{"errors.Unwrap", reflect.TypeFor[interface{ Unwrap() error }]()},
	{"heap.Interface", reflect.TypeFor[interface{ Pop() any }]()},
	{"driver.Valuer", reflect.TypeFor[interface{ Value() (any, error) }]()},
	{"sql.Scanner", reflect.TypeFor[interface{ Scan(src any) error }]()},
}

// The interfaces of packages that this package does not import.
type (
	flagValue interface {
		String() string
		Set(text string) error
	}
	gobEncoder interface{ GobEncode() ([]byte, error) }
	gobDecoder interface{ GobDecode(data []byte) error }
)

// unmeant returns why Register does not publish a method of t whose name its caller did not give.
// It returns "" if Register publishes the method.
func unmeant(t reflect.Type, m reflect.Method) string {
	for _, known := range wellKnown {
		if _, has := known.t.MethodByName(m.Name); has && t.Implements(known.t) {
			return "it belongs to " + known.name
		}
	}
	if from := promotedFrom(t, m.Name); from != nil && from.PkgPath() != structOf(t).PkgPath() {
		return "it is promoted from " + from.String()
	}
	f := m.Type
	takesContext := f.NumIn() > 1 && f.In(1) == contextType
	if !takesContext && f.NumOut() == 0 {
		return "it has neither a context, a result nor an error"
	}
	return ""
}

// structOf returns t, or the type that t points to.
func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// promotedFrom returns the type that t embeds and that declares the method with this name, or nil
// if t declares it itself. As in the language, the least deeply embedded type counts.
func promotedFrom(t reflect.Type, name string) reflect.Type {
	t = structOf(t)
	if declares(t, name) {
		return nil
	}
	seen := map[reflect.Type]bool{t: true} // a type may embed a pointer to itself
	for level := embedded(t); len(level) > 0; {
		var next []reflect.Type
		for _, from := range level {
			if seen[from] {
				continue
			}
			seen[from] = true
			if declares(from, name) {
				return from
			}
			next = append(next, embedded(from)...)
		}
		level = next
	}
	return nil
}

// embedded returns the types that a struct embeds.
func embedded(t reflect.Type) (types []reflect.Type) {
	if t.Kind() != reflect.Struct {
		return nil
	}
	for field := range t.Fields() {
		if field.Anonymous {
			types = append(types, structOf(field.Type))
		}
	}
	return types
}

// declares reports whether t itself has a method, with either kind of receiver. The compiler makes
// wrappers for promoted methods and gives them no source file.
func declares(t reflect.Type, name string) bool {
	if t.Kind() == reflect.Interface {
		_, has := t.MethodByName(name)
		return has
	}
	for _, t := range [...]reflect.Type{t, reflect.PointerTo(t)} {
		m, has := t.MethodByName(name)
		if !has {
			continue
		}
		f := runtime.FuncForPC(m.Func.Pointer())
		if file, _ := f.FileLine(f.Entry()); file != "<autogenerated>" {
			return true
		}
	}
	return false
}
