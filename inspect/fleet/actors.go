// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
)

// HasActors reports whether the process of the instance uses package actor.
func (in *Instance) HasActors() bool {
	return in.Info != nil && slices.ContainsFunc(in.Info.Methods, func(m introspect.Method) bool { return m.Name == string(inspect.Actors) })
}

// Actors asks an instance for its actors of a kind, or for all if the kind is empty. Client is
// Fleet.Client of its address. The result has at most limit actors, those with the longest inboxes,
// and counts the others.
func Actors(ctx context.Context, client *yodel.Client, kind string, limit int) (*introspect.Actors, error) {
	all, err := inspect.Actors.Call(ctx, client, &introspect.ActorsQuery{Kind: kind})
	if err != nil {
		return nil, err
	}
	all.Actors = slices.DeleteFunc(all.Actors, func(a introspect.Actor) bool { return kind != "" && a.Kind != kind })
	for i := range all.Actors { // a process may say anything
		a := &all.Actors[i]
		a.Inbox, a.Held = max(a.Inbox, 0), max(a.Held, 0)
	}
	slices.SortStableFunc(all.Actors, func(a, b introspect.Actor) int {
		return cmp.Or(b.Inbox-a.Inbox, strings.Compare(a.Name, b.Name))
	})
	all.Left, all.Waiting = max(all.Left, 0)+max(len(all.Actors)-limit, 0), max(all.Waiting, 0)
	all.Actors = first(all.Actors, limit)
	shorten(reflect.ValueOf(all))
	return all, nil
}
