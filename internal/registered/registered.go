// SPDX-License-Identifier: Apache-2.0

// Package registered registers the methods of a server, and has them by name: what each takes and
// returns, and where it runs. A Bound is such a name as one connection calls it. It finds the
// method, and says why calls of the name cannot succeed.
package registered

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/rate"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// Methods are the methods of a server. A method may have several names. The methods of Methods may
// be called concurrently. Get takes no lock, except once after each change.
//
// A change makes no copy of the names. The first Get after a change makes one. So the time in which
// a server registers its methods grows linearly with their number.
type Methods struct {
	// BuiltIn is the service of the methods that every server has. Codecs and Compressors are the
	// names of those that the server has, for errors. The fields do not change.
	BuiltIn, Codecs, Compressors string
	// View is the type of parameters that are the encoded request itself.
	View reflect.Type
	// Accept is asked before a method is registered, and may refuse its name. Nil accepts all.
	Accept func(name string) error
	// Changed is called when methods were registered or removed. It may be nil.
	Changed func()

	current  atomic.Pointer[table] // nil after a change
	version  atomic.Uint64
	searches rate.Bucket

	mu       sync.Mutex
	byName   map[string]*Method
	names    map[*Method][]string // the first is the registered name, the others are aliases
	reserved map[string]bool
}

// A table has the methods between two changes. It does not change.
type table struct {
	byName   map[string]*Method
	services func() *services
}

// now returns the present table.
func (s *Methods) now() *table {
	if t := s.current.Load(); t != nil {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.current.Load()
	if t == nil {
		byName := maps.Clone(s.byName)
		t = &table{byName, sync.OnceValue(func() *services { return servicesOf(byName, s.BuiltIn) })}
		s.current.Store(t)
	}
	return t
}

// Get returns the method of a name, or nil.
func (s *Methods) Get(name string) *Method { return s.now().byName[name] }

// Meant returns the name of the method that a name means: the name itself, or the name with the
// other one of the separators "." and "/" before its last part.
func (s *Methods) Meant(name string) string {
	byName := s.now().byName
	if i := strings.LastIndexAny(name, "./"); i >= 0 && byName[name] == nil {
		other := name[:i] + string("./"[1-strings.IndexByte("./", name[i])]) + name[i+1:]
		if byName[other] != nil {
			return other
		}
	}
	return name
}

// Reserve checks the names of methods, and prevents other registrations of them until Release. Its
// fault says which name cannot be registered, and why.
func (s *Methods) Reserve(names []string) *fault.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		switch {
		case name == "":
			return fault.Of(catalogue.NotRegistered, "register", "a method needs a name")
		case len(name) > wire.MaxName:
			return fault.Of(catalogue.NotRegistered, fmt.Sprintf("register %.40s…", name), "the name has %d bytes, the limit is %d", len(name), wire.MaxName)
		case text.Line(name) != name: // errors and logs would show it as another name
			return fault.Of(catalogue.NotRegistered, fmt.Sprintf("register %q", name), "the name has control characters, or is not valid UTF-8")
		case s.byName[name] != nil || s.reserved[name]:
			return fault.Of(catalogue.NotRegistered, "register "+name, "the name is taken")
		}
	}
	if s.reserved == nil {
		s.reserved = make(map[string]bool)
	}
	for _, name := range names {
		s.reserved[name] = true
	}
	return nil
}

// Release ends the reservation of names.
func (s *Methods) Release(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.reserved, name)
	}
}

// Add adds methods with reserved names. If the names are aliases, of is the name of the method to
// which they belong. For new methods it is "". Add adds nothing and returns false if of has been
// removed in the meantime.
func (s *Methods) Add(of string, added map[string]*Method) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range added {
		if of != "" && s.byName[of] != m {
			return false
		}
	}
	if s.byName == nil {
		s.byName, s.names = make(map[string]*Method), make(map[*Method][]string)
	}
	for name, m := range added {
		s.names[m] = append(s.names[m], name)
		s.byName[name] = m
	}
	s.changedLocked()
	return true
}

// Remove removes names, and returns their methods. If one of the names does not exist, Remove
// removes none and returns that name.
func (s *Methods) Remove(names []string) (removed []*Method, missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if s.byName[name] == nil {
			return nil, name
		}
	}
	for _, name := range names {
		m := s.byName[name]
		if m == nil { // names contains the name twice
			continue
		}
		delete(s.byName, name)
		s.names[m] = slices.DeleteFunc(s.names[m], func(other string) bool { return other == name })
		if len(s.names[m]) == 0 {
			delete(s.names, m)
		}
		removed = append(removed, m)
	}
	s.changedLocked()
	return removed, ""
}

func (s *Methods) changedLocked() {
	s.current.Store(nil)
	s.version.Add(1)
}

// Version returns a number that grows with each change of the methods and of their names, and with
// each call of Mark.
func (s *Methods) Version() uint64 { return s.version.Load() }

// Each calls f for each method with its names, sorted by the first name. F may call the methods of
// s.
func (s *Methods) Each(f func(names []string, m *Method)) {
	s.mu.Lock()
	names := make(map[*Method][]string, len(s.names))
	for m, all := range s.names {
		names[m] = slices.Clone(all)
	}
	s.mu.Unlock()
	sorted := slices.SortedFunc(maps.Keys(names), func(a, b *Method) int { return strings.Compare(names[a][0], names[b][0]) })
	for _, m := range sorted {
		f(names[m], m)
	}
}

// Inflight returns how many calls of the methods are executing. It does not wait: ok is false if
// another goroutine changes or lists the methods.
func (s *Methods) Inflight() (calls int64, ok bool) {
	if !s.mu.TryLock() {
		return 0, false
	}
	defer s.mu.Unlock()
	for m := range s.names {
		calls += m.Stats.Inflight()
	}
	return calls, true
}
