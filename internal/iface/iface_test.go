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
