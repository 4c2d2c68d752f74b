// SPDX-License-Identifier: Apache-2.0

package registered

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/internal/carries"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/pipe"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
)

// This file registers methods. An error of its functions is a *fault.Fault, or the error of
// Methods.Accept.

// Publish registers methods under new names: either all of them or none. Accept is asked for each
// name first. Until it has accepted all of them, the methods cannot be called, and their names are
// reserved.
func (s *Methods) Publish(added map[string]*Method) error {
	for _, m := range added {
		m.Views = m.Takes(s.View)
	}
	return s.publish("", added)
}

// publish is Publish for the method named of too, which gets aliases, unless of is "".
func (s *Methods) publish(of string, added map[string]*Method) error {
	names := slices.Sorted(maps.Keys(added))
	if f := s.Reserve(names); f != nil {
		return f
	}
	defer s.Release(names) // also if Accept panics
	for _, name := range names {
		if s.Accept == nil {
			break
		}
		if err := s.Accept(name); err != nil {
			return fmt.Errorf("register %s: %w", name, err)
		}
	}
	if !s.Add(of, added) {
		return s.Unknown(of, "")
	}
	s.changed()
	return nil
}

// changed tells the owner of s that its services may have changed.
func (s *Methods) changed() {
	if s.Changed != nil {
		s.Changed()
	}
}

// Alias gives a method further names. It registers them one after the other, until one fails.
func (s *Methods) Alias(name string, aliases []string) error {
	m := s.Get(name)
	if m == nil {
		return s.Unknown(name, s.Similar(name))
	}
	for _, alias := range aliases {
		if err := s.publish(name, map[string]*Method{alias: m}); err != nil {
			return err
		}
	}
	return nil
}

// Unregister removes names. If there is no method for one of them, it removes none.
func (s *Methods) Unregister(names []string) error {
	removed, missing := s.Remove(names)
	if missing != "" {
		return s.Unknown(missing, s.Similar(missing))
	}
	for _, m := range removed {
		m.Unnamed.Store(true)
	}
	s.changed()
	return nil
}

// Mark calls mark for the methods of names. It panics if there is no method for one of them.
func (s *Methods) Mark(names []string, mark func(*Method)) {
	for _, name := range names {
		m := s.Get(s.Meant(name))
		if m == nil {
			panic("yodel: mark: " + s.Unknown(name, s.Similar(name)).Error())
		}
		mark(m)
		s.version.Add(1)
	}
}

// Functions registers functions as methods. V is the type of lists of values, and C that of codecs.
type Functions[V ~[]any, C any] struct {
	In     *Methods
	Codecs map[string]C // of the server, by their names
	// Param describes the parameters through which a function sends or receives the messages of a
	// stream: see reflectcall.Of.
	Param func(reflect.Type) (reflectcall.StreamParam[*pipe.Pipe], bool)
}

// ServiceOf returns the name of the type of rcvr, under which its methods are registered.
func (r Functions[V, C]) ServiceOf(rcvr any) (string, error) {
	t := reflect.TypeOf(rcvr)
	for t != nil && t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	switch {
	case t == nil:
		return "", fault.Of(catalogue.NotRegistered, "register", "nil has no methods")
	case t.Name() == "":
		return "", fault.Of(catalogue.NotRegistered, fmt.Sprintf("register %T", rcvr), "it has no type name; use RegisterName")
	}
	return t.Name(), nil
}

// Service registers the methods of rcvr under the name of a service. Chosen is as for
// reflectcall.Methods. Service returns the attributes of the log line about the methods that it has
// registered and skipped.
func (r Functions[V, C]) Service(service string, rcvr any, chosen []string) (line []any, err error) {
	v := reflect.ValueOf(rcvr)
	if !v.IsValid() {
		return nil, fault.Of(catalogue.NotRegistered, "register "+service, "nil has no methods")
	}
	prefix := service + "."
	if strings.HasSuffix(service, "/") {
		prefix = service
	}
	found := make(map[string]*Method)
	skipped, err := reflectcall.Methods[V](v, r.Param, chosen, func(name string, fn *reflectcall.Func[*pipe.Pipe]) (err error) {
		found[prefix+name], err = r.methodOf(fn)
		return err
	})
	if err != nil {
		return nil, fault.Of(catalogue.NotRegistered, fmt.Sprintf("register %T as %s", rcvr, service), "%v", err)
	}
	line = []any{"methods", strings.Join(slices.Sorted(maps.Keys(found)), " ")}
	if len(skipped) > 0 {
		line = append(line, "skipped", strings.Join(skipped, "; "))
	}
	return line, r.In.Publish(found)
}

// Handle registers a function or a closure of any shape.
func (r Functions[V, C]) Handle(name string, function any) error {
	v, doing := reflect.ValueOf(function), "handle "+name
	if v.Kind() != reflect.Func {
		return fault.Of(catalogue.NotRegistered, doing, "%T is not a function", function)
	}
	if v.IsNil() {
		return fault.Of(catalogue.NotRegistered, doing, "the %T is nil", function)
	}
	fn, err := reflectcall.Of[V](v, r.Param)
	if err != nil {
		return fault.Of(catalogue.NotRegistered, doing, "%v", err)
	}
	m, err := r.methodOf(fn)
	if err != nil {
		return fault.Of(catalogue.NotRegistered, doing, "%v", err)
	}
	return r.In.Publish(map[string]*Method{name: m})
}

// methodOf makes a method from a function that is called by reflection.
func (r Functions[V, C]) methodOf(fn *reflectcall.Func[*pipe.Pipe]) (*Method, error) {
	m := &Method{
		Kind: fn.Kind, Positional: fn.Positional, Args: fn.In, Results: fn.Out,
		NewArgs: fn.NewArgs, Call: fn.Call, Stream: fn.Stream,
	}
	return m, r.carry(m)
}

// Typed registers the method of a function whose shape the compiler has checked. The function must
// not be nil.
func (r Functions[V, C]) Typed(name string, isNil bool, m *Method) error {
	if isNil {
		return fault.Of(catalogue.NotRegistered, "register "+name, "the function is nil")
	}
	if err := r.carry(m); err != nil {
		return fault.Of(catalogue.NotRegistered, "register "+name, "%v", err)
	}
	return r.In.Publish(map[string]*Method{name: m})
}

// carry sets m.Uncarried: which codecs do not carry the types of the method, and why. It returns an
// error if none of the codecs carries all types, or if the method has a type that no codec can
// carry, such as a channel.
func (r Functions[V, C]) carry(m *Method) error {
	m.Uncarried = make(map[string]error)
	types := slices.DeleteFunc(slices.Concat(m.Args, m.Results), reflectcall.HasNoContent) // one-way calls have no reply
	for name, codec := range r.Codecs {
		if err := carries.Check(codec, types...); err != nil {
			m.Uncarried[name] = err
		}
	}
	for _, t := range types {
		if err := reflectcall.Usable(t); err != nil {
			return err
		}
	}
	if len(m.Uncarried) == len(r.Codecs) {
		return fmt.Errorf("none of the codecs %s carries its types: %w", r.In.Codecs, m.Uncarried["json"])
	}
	return nil
}
