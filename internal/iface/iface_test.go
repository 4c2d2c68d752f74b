// SPDX-License-Identifier: Apache-2.0

package iface_test

import (
	"testing"
	"unsafe"

	"github.com/yodel-rpc/yodel/internal/iface"
)

func TestIsNil(t *testing.T) {
	n := 7
	for _, v := range []any{nil, (*int)(nil), (map[string]int)(nil), (func())(nil), (chan int)(nil)} {
		if !iface.IsNil(v) {
			t.Errorf("%T is nil, and is said not to be", v)
		}
	}
	for _, v := range []any{&n, n, 0, "", struct{}{}, []byte(nil), map[string]int{}, new(struct{})} {
		if iface.IsNil(v) {
			t.Errorf("%T is not nil, and is said to be", v)
		}
	}
}

func TestTypeOf(t *testing.T) {
	n, other, text := 7, 8, "text"
	if iface.TypeOf(&n) != iface.TypeOf(&other) || iface.TypeOf(&n) != iface.TypeOf((*int)(nil)) {
		t.Error("pointers to int have several types")
	}
	if iface.TypeOf(&n) == iface.TypeOf(&text) || iface.TypeOf(n) == iface.TypeOf(&n) {
		t.Error("different types have one number")
	}
	if iface.TypeOf(nil) != 0 {
		t.Error("nil has a type")
	}
}

func TestData(t *testing.T) {
	n := 7
	if got := iface.Data(&n); got != unsafe.Pointer(&n) {
		t.Errorf("a pointer is at %p, want %p", got, &n)
	}
	if got := *(*string)(iface.Data("text")); got != "text" {
		t.Errorf("a string is read as %q", got)
	}
	m := iface.Data(map[string]int{"a": 1})
	if got := *(*map[string]int)(unsafe.Pointer(&m)); got["a"] != 1 {
		t.Errorf("a map is read as %v", got)
	}
}

func TestSame(t *testing.T) {
	type pair struct{ a, b any }
	slice, number := any(struct{ s []int }{[]int{1}}), any(300)
	for _, same := range []pair{{nil, nil}, {1, 1}, {number, 300}, {"a", "a"}, {slice, slice}, {&number, &number}, {struct{}{}, struct{}{}}} {
		if !iface.Same(same.a, same.b) {
			t.Errorf("%v and %v are the same", same.a, same.b)
		}
	}
	for _, other := range []pair{{nil, 1}, {1, nil}, {1, 2}, {1, int8(1)}, {slice, struct{ s []int }{[]int{1}}}, {new(int), new(int)}, {any([1]any{slice}), any([1]any{slice})}} {
		if iface.Same(other.a, other.b) {
			t.Errorf("%v and %v are not the same", other.a, other.b)
		}
	}
	if got := testing.AllocsPerRun(100, func() { _ = iface.Same(slice, slice) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
