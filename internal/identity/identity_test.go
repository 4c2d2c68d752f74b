// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"encoding/hex"
	"math"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// settings returns the settings of a server with services.
func settings(incarnation string, services ...string) *wire.Limits {
	l := &wire.Limits{Incarnation: []byte(incarnation), KeyScope: []byte("store"), KeyKeep: 3_000_000}
	for _, name := range services {
		l.Services = wire.AppendService(l.Services, name)
	}
	return l
}

func TestTheSameIdentityIsKept(t *testing.T) {
	first := identity.Of(settings("one", "Shop"), nil)
	if first.Keys.Name != "store" || first.Keys.Keep != 3*time.Second {
		t.Errorf("its memory of keys is %+v", first.Keys)
	}
	if identity.Of(settings("one", "Shop"), first) != first {
		t.Error("the same identity was made anew")
	}
	other, keep := settings("one", "Shop"), settings("one", "Shop")
	other.KeyScope, keep.KeyKeep = nil, math.MaxUint64
	for _, l := range []*wire.Limits{settings("two", "Shop"), settings("one", "Cart"), other, keep} {
		if identity.Of(l, first) == first {
			t.Errorf("%+v was taken for the first one", l)
		}
	}
	if got := identity.Of(keep, nil).Keys.Keep; got <= 0 {
		t.Errorf("a server may say anything: keys are kept for %v", got)
	}
}

func TestAnInstanceIsKnownByItsIncarnationOrItsServices(t *testing.T) {
	id := identity.Of(settings("one", "Shop", "Cart"), nil)
	hexOf := func(s string) string { return hex.EncodeToString([]byte(s)) }
	for _, test := range []struct {
		id                   *identity.Server
		incarnation, service string
		want                 bool
	}{
		{id, hexOf("one"), "Other", true},
		{id, "", "Other", true}, // the record does not say
		{id, hexOf("two"), "Cart", true},
		{id, hexOf("two"), "Car", false},
		{id, hexOf("two"), "", true},
		{identity.Of(settings("", "Shop"), nil), hexOf("two"), "Other", true}, // the server does not say
		{identity.Of(settings("one"), nil), hexOf("two"), "Other", true},      // nor of its services
	} {
		if got := test.id.MayBe(test.incarnation, test.service); got != test.want {
			t.Errorf("incarnation %q, service %q: got %v", test.incarnation, test.service, got)
		}
	}
	if !id.Same(nil) || !id.Same(identity.Of(settings("one"), nil)) || id.Same(identity.Of(settings("two"), nil)) {
		t.Error("incarnations are compared wrongly")
	}
	if a, b := identity.NewIncarnation(), identity.NewIncarnation(); len(a) != 16 || string(a) == string(b) {
		t.Errorf("two incarnations are %x and %x", a, b)
	}
}

func TestAnAgentIsNamed(t *testing.T) {
	for said, want := range map[string]string{"yodel/1.2": "yodel/1.2", "yodel/1.1": "yodel/1.1", "": ""} {
		if got := identity.Agent(&wire.Limits{Agent: []byte(said)}, "yodel/1.2"); got != want {
			t.Errorf("of %q: got %q, want %q", said, got, want)
		}
	}
	l := &wire.Limits{Agent: []byte("yodel/1.2, a long version")}
	if n := testing.AllocsPerRun(100, func() { _ = identity.Agent(l, "yodel/1.2, a long version") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
