// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/identity"
	"github.com/yodel-rpc/yodel/internal/keyscope"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestServerNamesItsServices(t *testing.T) {
	named := func(s *Server) (names []string) {
		if err := wire.EachService(s.methods.EncodedServices(), func(name []byte) { names = append(names, string(name)) }); err != nil {
			t.Fatal(err)
		}
		return names
	}
	s := NewServer(nil)
	if got := named(s); got != nil {
		t.Errorf("a server without methods names the services %q", got)
	}
	echo := func(in *int) (*int, error) { return in, nil }
	for _, name := range []string{"Orders.Get", "Orders.Put", "Bare", "pkg.Stock/Take"} {
		if err := s.Handle(name, echo); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(named(s)), "[Bare Orders pkg.Stock]"; got != want {
		t.Errorf("the server names the services %s, want %s", got, want)
	}
	id := identity.Of(&wire.Limits{Incarnation: []byte("one"), Services: s.methods.EncodedServices()}, nil)
	for service, want := range map[string]bool{"Orders": true, "Bare": true, "Order": false, "Orders.Get": false} {
		if id.MayBe("another", service) != want {
			t.Errorf("a server with the service %q: got %t, want %t", service, !want, want)
		}
	}
	for i := range wire.MaxServices {
		if err := s.Handle(fmt.Sprintf("S%d.M", i), echo); err != nil {
			t.Fatal(err)
		}
	}
	if got := named(s); got != nil {
		t.Errorf("a list of %d services that is too long was sent in part", len(got))
	}
}

type panickingKeys struct{}

func (panickingKeys) Guard(next Handler) Handler     { return next }
func (panickingKeys) Scope() (string, time.Duration) { panic("no name") }

// A server whose KeyMemory panics says that it remembers no keys.
func TestServerSurvivesItsKeyMemory(t *testing.T) {
	s := NewServer(&ServerOptions{Keys: panickingKeys{}, Logger: slog.New(slog.DiscardHandler)})
	if got := s.keyScope(); *got != (keyscope.Scope{}) {
		t.Errorf("the scope is %q for %v, want none", got.Name, got.Keep)
	}
}
