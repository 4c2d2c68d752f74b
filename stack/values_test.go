// SPDX-License-Identifier: Apache-2.0

package stack_test

import (
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/stack"
)

// Values are popped one after the other, in the order in which they were pushed. A value that does
// not fit is popped again with another type, and further values may be pushed meanwhile.
func TestValuesArePoppedOneByOne(t *testing.T) {
	s := stack.New(nil)
	push := func(values ...any) {
		t.Helper()
		if err := s.Push(values...); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(err error, code yodel.Code, want ...string) {
		t.Helper()
		for _, want := range want {
			if yodel.CodeOf(err) != code || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %v with %q", err, code, want)
			}
		}
	}
	var (
		text string
		n    int
		at   *point
	)
	push("a", 7)
	if err := s.Pop(&text); err != nil || text != "a" || s.Len() != 1 {
		t.Errorf("got %q, %v, and %d are left", text, err, s.Len())
	}
	fails(s.Pop(&text), yodel.InvalidArgument, "value 2", "string")
	fails(s.Pop(n), yodel.InvalidArgument, "value 2", "int")
	fails(s.Pop((*int)(nil)), yodel.InvalidArgument, "value 2", "*int")
	push(point{X: 3})
	if err := s.Pop(&n); err != nil || n != 7 {
		t.Errorf("got %d, %v", n, err)
	}
	fails(s.Push(1.5, func() {}, 2), yodel.InvalidArgument, "value 5", "func()")
	if err := s.Pop(&at); err != nil || at.X != 3 {
		t.Errorf("got %v, %v", at, err)
	}
	var x float64
	if err := s.Pop(&x); err != nil || x != 1.5 || s.Len() != 0 {
		t.Errorf("got %v, %v, and %d are left", x, err, s.Len())
	}
	fails(s.Pop(&n), yodel.OutOfRange, "value 5", "there are 4 values")
}

// The results of a call take the place of its arguments. A call that fails changes nothing.
func TestACallReplacesItsArgumentsByItsResults(t *testing.T) {
	_, c := newServer(t)
	s := stack.New(nil)
	if err := s.Push("t", 7, 8); err != nil {
		t.Fatal(err)
	}
	if err := s.Call(t.Context(), c, string(hello)); err == nil || !strings.Contains(err.Error(), "3 values came, 4 are expected") || s.Len() != 3 {
		t.Errorf("got %v, and %d values are left", err, s.Len())
	}
	if err := s.Push(0.5); err != nil {
		t.Fatal(err)
	}
	if err := s.Call(t.Context(), c, string(hello)); err != nil || s.Len() != 4 {
		t.Fatalf("got %v, and %d results", err, s.Len())
	}
	var text string
	if err := s.Pop(&text); err != nil || text != "t:server response8" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := s.Pop(&text); err == nil || !strings.Contains(err.Error(), "value 2 does not fit string") {
		t.Errorf("got %v", err)
	}
	var num, i int
	if s.Pop(&num) != nil || s.Pop(&i) != nil || num != 7 || i != 9 {
		t.Errorf("got %d and %d", num, i)
	}
	results := stack.New(nil)
	if err := results.Push("u", int64(5)); err != nil {
		t.Fatal(err)
	}
	for n, more := range []any{int64(6), int64(7)} { // the result is the first argument of the next call
		if err := results.Call(t.Context(), c, string(join)); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		if err := results.Push(more); err != nil {
			t.Fatal(err)
		}
	}
	if err := results.Pop(&text); err != nil || text != "u56" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := stack.New(nil).Call(t.Context(), nil, "x"); yodel.CodeOf(err) != yodel.InvalidArgument {
		t.Errorf("without a caller: got %v", err)
	}
}

// Gob has no encoding of nil pointers. One that is a result is popped into a pointer only.
func TestNilPointersArePopped(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}})
	if err := s.Handle("Kiss.Nil", func(n int) (*point, int, error) { return nil, n, nil }); err != nil {
		t.Fatal(err)
	}
	c := yodel.Dial(serve(t, s))
	t.Cleanup(c.Close)
	values := stack.New(gob.Codec)
	if err := values.Push(4); err != nil {
		t.Fatal(err)
	}
	if err := values.Call(t.Context(), c, "Kiss.Nil"); err != nil {
		t.Fatal(err)
	}
	at, n := &point{X: 1}, 0
	if err := values.Pop(&n); err == nil || !strings.Contains(err.Error(), "value 1 does not fit int: it is a nil pointer") {
		t.Errorf("got %v", err)
	}
	if err := values.Pop(&at); err != nil || at != nil {
		t.Errorf("got %v, %v", at, err)
	}
	if err := values.Pop(&n); err != nil || n != 4 {
		t.Errorf("got %d, %v", n, err)
	}
}
