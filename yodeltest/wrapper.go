// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// Described is the Resolver and Registrar that TestWrapper wraps.
type Described interface {
	discovery.Resolver
	discovery.Registrar
	Describe() yodel.Description
}

// TestWrapper tests a Resolver or a Registrar that wraps another one: all that the inner one can
// do, by its yodel.Description, must be possible with the wrapper. Wrap returns the wrapper of
// inner. Own has the names of the fields that the wrapper has in place of those of inner.
//
//	func TestCached(t *testing.T) {
//		yodeltest.TestWrapper(t, func(inner yodeltest.Described) any { return Cached(inner) })
//	}
func TestWrapper(t *testing.T, wrap func(inner Described) any, own ...string) {
	t.Helper()
	if err := wrapperFault(wrap, own); err != nil {
		t.Error(err)
	}
}

func wrapperFault(wrap func(Described) any, own []string) error {
	inner := &innerOne{called: make(map[string]bool)}
	all := reflect.ValueOf(&inner.d).Elem()
	for i := range all.NumField() {
		name := all.Type().Field(i).Name
		if all.Field(i).Kind() == reflect.String {
			all.Field(i).SetString("the inner " + name)
		} else {
			all.Field(i).Set(inner.recorder(name, all.Field(i).Type()))
		}
	}
	var errs []error
	outer := reflect.ValueOf(yodel.Description{}.Over(wrap(inner)))
	for i := range outer.NumField() {
		name := outer.Type().Field(i).Name
		if slices.Contains(own, name) {
			continue
		}
		if got := outer.Field(i); got.Kind() == reflect.String {
			inner.called[name] = strings.Contains(got.String(), "the inner "+name)
		} else if !got.IsNil() {
			got.Call(arguments(got.Type()))
		}
		if !inner.called[name] {
			errs = append(errs, fmt.Errorf("the wrapper hides the %s of the inner one: has it a method Describe that returns Description{…}.Over(inner)?", name))
		}
	}
	return errors.Join(errs...)
}

// innerOne is a Resolver and Registrar without instances.
type innerOne struct {
	d      yodel.Description
	called map[string]bool // the fields of d that have been called
}

// Describe implements the optional method of discovery.Resolver and discovery.Registrar.
func (d *innerOne) Describe() yodel.Description { return d.d }

// Watch implements discovery.Resolver.
func (d *innerOne) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	update(nil)
	<-ctx.Done()
	return nil
}

// Announce implements discovery.Registrar.
func (d *innerOne) Announce(context.Context, string, discovery.Instance, time.Duration) error {
	return nil
}

// Withdraw implements discovery.Registrar.
func (d *innerOne) Withdraw(context.Context, string, string) error { return nil }

// recorder returns a function that notes that it was called. It returns its arguments where the
// types of its results are theirs, and zero values otherwise.
func (d *innerOne) recorder(name string, of reflect.Type) reflect.Value {
	return reflect.MakeFunc(of, func(args []reflect.Value) []reflect.Value {
		d.called[name] = true
		results := make([]reflect.Value, of.NumOut())
		for i := range results {
			results[i] = reflect.Zero(of.Out(i))
			for _, arg := range args {
				if arg.Type() == of.Out(i) {
					results[i] = arg
				}
			}
		}
		return results
	})
}

// arguments returns arguments for a function: a context, pointers to zero values, and zero values.
func arguments(of reflect.Type) []reflect.Value {
	args := make([]reflect.Value, of.NumIn())
	for i := range args {
		switch in := of.In(i); {
		case in == reflect.TypeFor[context.Context]():
			args[i] = reflect.ValueOf(context.Background())
		case in.Kind() == reflect.Pointer:
			args[i] = reflect.New(in.Elem())
		default:
			args[i] = reflect.Zero(in)
		}
	}
	return args
}
