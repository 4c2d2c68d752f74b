// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// This file stores records of operators, such as rules, beside the records of instances:
//
//	yodel/Inventory/10.0.0.7:8972      what the server announces
//	yodel/Inventory^rules/canary-7f3a  what an operator has set
//
// Package rules says what the records mean.

// Keep stores value as the record id of a kind for a service. The record does not expire. A nil
// value removes the record. Removing an unknown record succeeds. A kind is a word of letters.
func (r *Registry) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	key := r.keptPrefix(service, kind) + Records.Name(id)
	if value == nil {
		return r.store.Delete(ctx, key)
	}
	return r.store.Put(ctx, key, value, 0)
}

// Kept calls update with all records of a kind for a service, by ID, at once and after every
// change, until ctx ends. The receiver does not change the values. An error means that Kept may
// have missed changes.
func (r *Registry) Kept(ctx context.Context, name, kind string, update func(records map[string][]byte)) error {
	opts := r.opts
	opts.Layout = Records
	of := &service{&Registry{store: r.store, opts: opts}, name, r.keptPrefix(name, kind)}
	return of.Watch(ctx, func(instances []discovery.Instance) { update(RecordsIn(instances)) })
}

// KeptServices returns all services that have, or had, records of a kind. If it returns an error,
// the names may be incomplete. It returns an error if the store cannot list names.
func (r *Registry) KeptServices(ctx context.Context, kind string) ([]string, error) {
	lister, ok := r.store.(Lister)
	if !ok {
		return nil, fmt.Errorf("%T cannot list services", r.store)
	}
	names, err := lister.List(ctx, r.opts.Prefix+"/")
	var services []string
	for _, name := range names {
		if name, ok := strings.CutSuffix(name, "^"+kind); ok {
			services = append(services, unescape(name))
		}
	}
	return services, err
}

func (r *Registry) keptPrefix(service, kind string) string {
	return strings.TrimSuffix(r.prefix(service), "/") + "^" + kind + "/"
}

// Records is a layout for values that are not instances. It reads any value as an instance whose
// address is the name of the record. RecordsIn returns the values. It is for registries that reuse
// their code for watching instances.
var Records Layout = recordLayout{}

type recordLayout struct{}

func (recordLayout) Name(id string) string { return escape(id) }

func (recordLayout) Value(in discovery.Instance) ([]byte, error) { return []byte(in.Metadata[""]), nil }

func (recordLayout) Instance(name string, value []byte) (discovery.Instance, error) {
	return discovery.Instance{Addr: unescape(name), Metadata: yodel.Metadata{"": string(value)}}, nil
}

// RecordsIn returns the values of instances that the layout Records has read, by the names of the
// records.
func RecordsIn(instances []discovery.Instance) map[string][]byte {
	records := make(map[string][]byte, len(instances))
	for _, in := range instances {
		records[in.Addr] = []byte(in.Metadata[""])
	}
	return records
}
