// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/source"
)

// set returns instances, each written as its address, its state, and its protocols after an "@".
// The version of an instance is its number.
func set(written ...string) (all []discovery.Instance) {
	for i, one := range written {
		record, protocols, _ := strings.Cut(one, "@")
		addr, state, _ := strings.Cut(record, " ")
		in := discovery.Instance{Addr: addr, State: state, Version: fmt.Sprint(i)}
		if protocols != "" {
			in.Protocols = strings.Split(protocols, ",")
		}
		all = append(all, in)
	}
	return all
}

func TestRead(t *testing.T) {
	for _, test := range []struct {
		name    string
		set     []discovery.Instance
		want    string // address, number of the record, and protocol if it is active
		message string // if there is no active one
	}{
		{"none", nil, "", "no instance is known of a file"},
		{"no protocols", set("a", "b active"), "a 0 yodel, b 1 yodel", ""},
		{"the first that the client speaks", set("a@netrpc,other,yodel", "b@http,netrpc", "c@http,other"), "a 0 yodel, b 1 netrpc, c 2 http", ""},
		{"inactive", set("a inactive", "b inactive@other"), "a 0, b 1", "no instance is active of 2 that are known of a file"},
		{"twice active", set("a@netrpc", "b", "a"), "a 0 netrpc, b 1 yodel", ""},
		{"twice, first inactive", set("a inactive", "a@netrpc", "a inactive"), "a 1 netrpc", ""},
		{"twice, first active", set("a", "a inactive"), "a 0 yodel", ""},
		{"twice inactive", set("a inactive", "a inactive"), "a 0", "no instance is active of 1 that are known of a file"},
		{"first in an unknown protocol", set("a@other", "a@http"), "a 1 http", ""},
		{"in an unknown protocol", set("a@other,more", "b inactive", "c@one"), "a 0, b 1, c 2",
			"no instance of a file speaks a protocol that this client has: they speak more and one and other, and ClientOptions.Wires has no Wire for it"},
		{"inactive, then in an unknown protocol", set("a inactive", "a@other"), "a 0",
			"no instance of a file speaks a protocol that this client has: they speak other, and ClientOptions.Wires has no Wire for it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s source.Source
			s.SetUp("a file", nil, nil)
			speaks := []string{"yodel", "netrpc", "http"}
			var got []string
			active := false
			for _, in := range s.Read(test.set, speaks) {
				one := in.Addr + " " + in.Version
				if in.Active {
					one += " " + speaks[in.Protocol]
					active = true
				}
				got = append(got, one)
			}
			if all := strings.Join(got, ", "); all != test.want {
				t.Errorf("read %s, want %s", all, test.want)
			}
			s.SetList(&list{failure: errors.New("no quorum")}, time.Second)
			if said := s.Nobody(); !active && said != test.message+"; it failed: no quorum" {
				t.Errorf("the message is %q, want %q", said, test.message)
			}
		})
	}
}

func TestTheLastSetCounts(t *testing.T) {
	var s source.Source
	s.SetList(new(list), time.Second)
	s.Read(set("a@other"), []string{"yodel"})
	s.Read(set("a inactive"), []string{"yodel"})
	if got, want := s.Nobody(), "no instance is active of 1 that are known"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAMessageNamesAFewProtocols(t *testing.T) {
	var s source.Source
	s.SetList(new(list), time.Second)
	s.Read(set("a@netrpc,"+strings.Repeat("p", 100), "b@a,b,c,d,netrpc"), []string{"yodel"})
	got := s.Nobody()
	if !strings.HasPrefix(got, "no instance speaks a protocol that this client has: they speak a and b and c and netrpc and ppp") || len(got) > 250 {
		t.Errorf("got %q", got)
	}
}
