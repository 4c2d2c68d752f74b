// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// maxActors is how many actors ls and describe show.
const maxActors = 20

// actorService is the service of every process with actors. Each kind of actors is another one.
const actorService = "actors"

// An actorRow is an actor in the output of ls and describe.
type actorRow struct {
	Addr string `json:"addr"`

	introspect.Actor
}

// An actorList is the actors of some instances, those with the longest inboxes first.
type actorList struct {
	Actors []actorRow `json:"actors"`
	Left   int        `json:"left,omitempty"` // further actors
}

// actorsOf asks instances for their actors of a kind, or for all if the kind is empty. It returns
// nil if no process of theirs has actors.
func actorsOf(ctx context.Context, f *fleet.Fleet, instances []*fleet.Instance, kind string) *actorList {
	var mu sync.Mutex
	var list *actorList
	var asking sync.WaitGroup
	for _, in := range instances {
		client := f.Client(in.Addr)
		if client == nil || !in.HasActors() {
			continue
		}
		asking.Go(func() {
			all, err := fleet.Actors(ctx, client, kind, maxActors)
			if err != nil {
				return // it shows no diagnostics, which WHY says
			}
			mu.Lock()
			defer mu.Unlock()
			list = cmp.Or(list, new(actorList))
			list.Left += all.Left
			for _, one := range all.Actors {
				list.Actors = append(list.Actors, actorRow{in.Addr, one})
			}
		})
	}
	asking.Wait()
	if list == nil || len(list.Actors) == 0 {
		return nil
	}
	sort.Slice(list.Actors, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &list.Actors[i], &list.Actors[j]
		return cmp.Or(b.Inbox-a.Inbox, strings.Compare(a.Name, b.Name), strings.Compare(a.Addr, b.Addr)) < 0
	})
	if more := len(list.Actors) - maxActors; more > 0 {
		list.Left += more
		list.Actors = list.Actors[:maxActors]
	}
	return list
}

// table returns the actors as a table, with their addresses if they may be of several instances. It
// returns "" for nil.
func (l *actorList) table(addresses bool) string {
	if l == nil {
		return ""
	}
	heads := []string{"ACTOR", "KIND", ">INBOX", "?HELD", ">HANDLED"}
	if addresses {
		heads = append(heads, "INSTANCE")
	}
	t := newTable(heads...)
	for i := range l.Actors {
		a := &l.Actors[i]
		held := ""
		if a.Held > 0 {
			held = fmt.Sprint(a.Held)
		}
		cells := []string{a.Name, a.Kind, fmt.Sprint(a.Inbox), held, fmt.Sprint(a.Handled)}
		if addresses {
			cells = append(cells, a.Addr)
		}
		t.add(cells...)
	}
	text := "\n" + t.String()
	if l.Left > 0 {
		text += fmt.Sprintf("%s with shorter inboxes\n", plural(l.Left, "more actor"))
	}
	return text
}
