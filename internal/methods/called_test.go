// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"fmt"
	"testing"

	"github.com/yodel-rpc/yodel/internal/methods"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func called(idempotent ...string) *methods.Called[string] {
	c := &methods.Called[string]{}
	c.SetUp(idempotent)
	return c
}

func bind(c *methods.Called[string], name, codec string, usual bool) *methods.Binding[string] {
	return c.Bind(mux.Method{Name: name, Codec: codec}, codec, usual)
}

func TestAMethodHasOneBindingForEachCodec(t *testing.T) {
	c := called()
	if c.Last("A.B") != nil || c.Find("A.B") != nil {
		t.Error("a method that was not called is known")
	}
	usual, other := bind(c, "A.B", "json", true), bind(c, "A.B", "raw", false)
	if usual == other || usual.Of != other.Of || usual.Handle == other.Handle {
		t.Errorf("two codecs have the bindings %+v and %+v", usual.Method, other.Method)
	}
	if bind(c, "A.B", "json", true) != usual || bind(c, "A.B", "raw", false) != other {
		t.Error("a second binding was made")
	}
	for what, as := range map[string]mux.Method{
		"compressor": {Name: "A.B", Codec: "json", Compressor: "gzip"}, "values": {Name: "A.B", Codec: "json", Positional: true}, "kind": {Name: "A.B", Codec: "json", Kind: 1},
	} {
		if c.Bind(as, "json", false) == usual {
			t.Errorf("calls that differ in their %s share a binding", what)
		}
	}
	m := c.Find("A.B")
	if m == nil || m != usual.Of || c.Last("A.B") != m || c.Last("A.C") != nil {
		t.Fatalf("the method is %v, the last one %v", m, c.Last("A.B"))
	}
	if m.Usual(false, 0) != usual || m.Usual(true, 0) != nil || m.Usual(false, 1) != nil {
		t.Error("calls get a usual binding that does not fit them, or none")
	}
}

// The method of a handle may have been removed when a server answers. What it says is then of
// another method.
func TestAServerSaysSomethingOfAMethod(t *testing.T) {
	c := called("A.Mine")
	mine, theirs := bind(c, "A.Mine", "json", true), bind(c, "A.Theirs", "json", true)
	if !mine.Idempotent || theirs.Idempotent || !c.Idempotent("A.Mine") || c.Idempotent("A.Theirs") || c.Idempotent("A.Unknown") {
		t.Error("not only the declared method is idempotent")
	}
	c.Learn(theirs.Handle, theirs.Generation, wire.Info{Known: 1, Idempotent: 1, Nests: 1})
	if !c.Idempotent("A.Theirs") || !theirs.Of.Nests.Load() || mine.Of.Nests.Load() {
		t.Error("what a server says was not stored")
	}
	c.Learn(theirs.Handle, theirs.Generation, wire.Info{Known: 1})
	c.Learn(mine.Handle, mine.Generation, wire.Info{Known: 1})
	if c.Idempotent("A.Theirs") || !c.Idempotent("A.Mine") {
		t.Error("another method under the name keeps what was said of the first one, or what was declared is forgotten")
	}
	c.Learn(theirs.Handle, theirs.Generation+1, wire.Info{Known: 1, Idempotent: 1})
	c.Learn(1000, 0, wire.Info{Known: 1, Idempotent: 1})
	if c.Idempotent("A.Theirs") {
		t.Error("what was said of another generation was stored")
	}
}

func TestTheHandleOfARemovedMethodIsUsedAgain(t *testing.T) {
	c := called()
	again := 0
	for i := range 2 * methods.Max {
		b := bind(c, fmt.Sprint("M", i), "json", true)
		if b.Handle >= methods.Max {
			t.Fatalf("%d methods were called, and there is a handle %d", i+1, b.Handle)
		}
		if b.Generation > 0 {
			again++
		}
		if c.Last(b.Name) != nil || c.Find(b.Name) != b.Of {
			t.Fatalf("%s is not there", b.Name)
		}
	}
	if again < methods.Max/2 {
		t.Errorf("%d handles were used again, want at least %d", again, methods.Max/2)
	}
}
