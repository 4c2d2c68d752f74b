// SPDX-License-Identifier: Apache-2.0

package carries_test

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/carries"
)

type (
	open    struct{ A int }
	hidden  struct{ a int } //nolint:unused // it is what is hidden
	loop    struct{ *loop }
	around  struct{ open }
	behind  struct{ *open }
	nothing struct{ hidden } //nolint:unused // as above
)

func TestHides(t *testing.T) {
	for _, test := range []struct {
		v    any
		want bool
	}{
		{open{}, false}, {hidden{}, true}, {around{}, false}, {behind{}, false}, {nothing{}, true}, {loop{}, true},
		{struct{}{}, false}, {struct{ _ int }{}, false}, {time.Time{}, true}, {new(sync.Mutex), false}, {0, false},
	} {
		if got := carries.Hides(reflect.TypeOf(test.v)); got != test.want {
			t.Errorf("%T: %v", test.v, got)
		}
	}
}

func TestSort(t *testing.T) {
	b := []byte("headb2a1c")
	carries.Sort(b[4:], 4, []int{6, 8, 9})
	if string(b) != "heada1b2c" {
		t.Errorf("got %q", b)
	}
}

var errChannel = errors.New("a channel")

type picky struct{}

func (picky) CheckType(t reflect.Type) error {
	if t.Kind() == reflect.Chan {
		return errChannel
	}
	return nil
}

func TestCheck(t *testing.T) {
	types := []reflect.Type{nil, reflect.TypeFor[int](), reflect.TypeFor[chan int]()}
	if err := carries.Check(picky{}, types...); err != errChannel {
		t.Errorf("got %v", err)
	}
	if err := carries.Check(picky{}, types[:2]...); err != nil {
		t.Errorf("got %v", err)
	}
	if err := carries.Check("a codec that carries all types", types...); err != nil {
		t.Errorf("got %v", err)
	}
}
