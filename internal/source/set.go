// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/text"
)

// A Found is an instance in a set of the resolver.
type Found struct {
	discovery.Instance
	Active   bool // it may get calls
	Protocol int  // for calls to an active instance: an index in the list that the client speaks
}

// Read returns a set of instances with each address once, in the order of their first records. Of
// several records of an address, the first active one counts. Speaks has the names of the protocols
// that the client speaks. An instance that speaks several of them gets calls in the first one. One
// without a list of protocols speaks only the first. An instance that speaks none of them is not
// active.
func (s *Source) Read(instances []discovery.Instance, speaks []string) (set []Found) {
	at := make(map[string]int, len(instances))
	active, left := 0, leftOut{}
	for _, in := range instances {
		i, seen := at[in.Addr]
		if seen && set[i].Active {
			continue
		}
		if !seen {
			i = len(set)
			at[in.Addr] = i
			set = append(set, Found{Instance: in})
		}
		if in.State == discovery.Inactive {
			continue
		}
		protocol := choose(in.Protocols, speaks)
		if protocol < 0 {
			left.count(in.Protocols)
			continue
		}
		set[i] = Found{Instance: in, Active: true, Protocol: protocol}
		active++
	}
	left.inactive = len(set) - active - left.unspoken
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = left
	return set
}

// choose returns the index of the first protocol in speaks that an instance speaks too, or -1.
func choose(protocols, speaks []string) int {
	if len(protocols) == 0 {
		return 0
	}
	return slices.IndexFunc(speaks, func(name string) bool { return slices.Contains(protocols, name) })
}

// Limits for the protocols in a message.
const (
	maxProtocols    = 5
	maxProtocolName = 20
)

// A leftOut counts the instances of a set that are not active.
type leftOut struct {
	inactive  int      // according to their records
	unspoken  int      // none of whose protocols the client speaks
	protocols []string // of those that are unspoken, sorted, without duplicates
}

// count counts an instance, none of whose protocols the client speaks.
func (l *leftOut) count(protocols []string) {
	l.unspoken++
	for _, p := range protocols {
		if i, found := slices.BinarySearch(l.protocols, p); !found && len(l.protocols) < maxProtocols {
			l.protocols = slices.Insert(l.protocols, i, text.Clip(p, maxProtocolName))
		}
	}
}

// spoken returns the end of a message that begins with "no instance".
func (l *leftOut) spoken() string {
	return fmt.Sprintf(" speaks a protocol that this client has: they speak %s, and ClientOptions.Wires has no Wire for it", strings.Join(l.protocols, " and "))
}
