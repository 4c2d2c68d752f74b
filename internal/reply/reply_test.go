// SPDX-License-Identifier: Apache-2.0

package reply_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/yodel-rpc/yodel/internal/reply"
)

// several is a type like yodel.Values.
type several []any

func TestRepliesThatCanBeFilled(t *testing.T) {
	n, text := 1, "x"
	for _, test := range []struct {
		reply any
		want  bool
	}{
		{nil, true}, {&n, true}, {several{}, true}, {several{&n, &text}, true}, {&[]byte{}, true},
		{n, false}, {(*int)(nil), false}, {several{&n, nil}, false}, {several{&n, text}, false}, {several{(*int)(nil)}, false},
		{several{several{&n}}, false}, {map[string]int{}, false}, {[]byte{}, false},
	} {
		if got := reply.Fillable(test.reply); got != test.want {
			t.Errorf("%T %v: got %v, want %v", test.reply, test.reply, got, test.want)
		}
	}
}

func TestANewReplyIsCopiedToTheFirstOne(t *testing.T) {
	n := 1
	other := reply.New(&n)
	*other.(*int) = 2
	if n != 1 {
		t.Error("both replies share their variable")
	}
	if reply.Copy(&n, other); n != 2 {
		t.Errorf("the reply is %d after the copy, want 2", n)
	}
	text := "first"
	all := several{&n, &text}
	others := reply.New(all).(several)
	*others[0].(*int), *others[1].(*string) = 3, "second"
	if n != 2 || text != "first" {
		t.Error("both replies share variables")
	}
	if reply.Copy(all, others); n != 3 || text != "second" {
		t.Errorf("the reply is %d and %q after the copy, want 3 and second", n, text)
	}
	reply.Copy(nil, &n)
	if reply.Copy(&n, nil); n != 3 {
		t.Errorf("the reply became %d by a copy of nothing", n)
	}
}

// picky is a codec that takes no bool.
type picky struct{}

func (picky) Name() string { return "picky" }

func (picky) CheckType(t reflect.Type) error {
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Bool {
		return errors.New("no bool")
	}
	return nil
}

func TestRepliesThatCannotBeDecoded(t *testing.T) {
	for _, test := range []struct {
		replies []any
		named   bool
		want    string
	}{
		{nil, false, ""},
		{[]any{new(int)}, false, ""},
		{[]any{5}, false, "A.B: the reply cannot be decoded into int: give a pointer to it"},
		{[]any{new(int), (*int)(nil)}, true, "A.B: result 2 cannot be decoded into a nil *int: give a pointer to it"},
		{[]any{new(bool)}, false, "A.B: the reply cannot be decoded: no bool (codec picky)"},
		{[]any{new(string)}, false, ""},
	} {
		f := reply.Check("A.B", picky{}, test.replies, test.named, func(any) bool { return false })
		if (f == nil) != (test.want == "") || f != nil && (f.Error() != test.want || f.ID != "YDL2102" || !f.Unprocessed) {
			t.Errorf("%v: got %+v, want %q", test.replies, f, test.want)
		}
	}
	if f := reply.Check("A.B", picky{}, []any{new(bool)}, false, func(any) bool { return true }); f != nil {
		t.Errorf("a reply that takes any encoding: got %v", f)
	}
}
