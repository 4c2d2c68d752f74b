// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is screen S7, the records of single calls.

const (
	maxSampled  = 50  // instances that are asked for records
	perInstance = 50  // records
	maxSamples  = 300 // records in all
	maxAsked    = 16  // instances that are asked at a time
)

// A sample is the record of a call, with the instance that kept it.
type sample struct {
	introspect.CallReport

	Service  string `json:"service"`
	Instance string `json:"instance"`
	Text     string `json:"text"` // the record as text for people
	// Group is the method and the address of the group of the record; empty if it did not fail.
	Group [2]string `json:"group"`
}

// A group is the failures with the same code and much the same text.
type group struct {
	Code string `json:"code"`
	ID   string `json:"id,omitempty"`
	Text string `json:"text"`
	// Method and Addr are where the call failed. Addr is empty if the caller sent it to no
	// instance. Via is the method of a server that passed the error on to its own callers; empty if
	// none did.
	Method string `json:"method"`
	Addr   string `json:"addr"`
	Via    string `json:"via,omitempty"`
	Calls  int    `json:"calls"`
	Since  string `json:"since"`

	sides map[string]int // its records, by side
}

// samples serves the newest records of a service, or of the services that need attention most.
func (c *Console) samples(r *http.Request) (any, error) {
	s, err := c.snapshotOf(r)
	if err != nil {
		return nil, err
	}
	var from []*fleet.Instance
	for _, service := range s.Services {
		if name := r.FormValue("service"); name != "" && name != service.Name {
			continue
		}
		for _, in := range service.Instances {
			asked := slices.ContainsFunc(from, func(other *fleet.Instance) bool { return other.Addr == in.Addr })
			wanted := r.FormValue("addr") == "" || r.FormValue("addr") == in.Addr
			if in.Live != nil && wanted && !asked && len(from) < maxSampled {
				from = append(from, in)
			}
		}
	}
	kind := r.FormValue("kind")
	q := &introspect.SamplesQuery{Method: r.FormValue("method"), Failed: kind == "failed", Slow: kind == "slow", Explained: kind == "explained", Trace: r.FormValue("trace"), Limit: perInstance}
	all, refused := c.gather(r.Context(), r.FormValue("service"), from, q)
	sort.Slice(all, func(i, j int) bool { // smaller code than slices.SortFunc
		a, b := &all[i], &all[j]
		if kind == "slow" {
			return cmp.Or(cmp.Compare(b.Took, a.Took), b.Began.Compare(a.Began)) < 0
		}
		return b.Began.Before(a.Began)
	})
	all = all[:min(len(all), maxSamples)]
	return map[string]any{"samples": all, "groups": groups(all), "asked": len(from), "refused": refused}, nil
}

// each calls f for the elements of list, for which the console has maxAsked places in all. It ends
// after askTimeout. If there is no place until then, f gets an error.
func each[T any](ctx context.Context, c *Console, list []T, f func(ctx context.Context, one T, err error)) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var asked sync.WaitGroup
	defer asked.Wait()
	for _, one := range list {
		select {
		case c.places <- struct{}{}:
			asked.Go(func() {
				defer func() { <-c.places }()
				f(ctx, one, nil)
			})
		case <-ctx.Done():
			f(ctx, one, yodel.Errorf(yodel.Unavailable, "the console asks too many others at this time"))
		}
	}
}

// ask calls f for instances, with their clients.
func (c *Console) ask(ctx context.Context, from []*fleet.Instance, f func(ctx context.Context, in *fleet.Instance, client *yodel.Client, err error)) {
	each(ctx, c, from, func(ctx context.Context, in *fleet.Instance, err error) {
		var client *yodel.Client
		if err == nil {
			client, err = c.fleet.client(ctx, in.Addr)
		}
		f(ctx, in, client, err)
	})
}

// gather asks instances for their records. Service is empty, or that of the records of servers.
// Refused is the error of one that refused.
func (c *Console) gather(ctx context.Context, service string, from []*fleet.Instance, q *introspect.SamplesQuery) (all []sample, refused string) {
	var mu sync.Mutex
	all = []sample{}
	c.ask(ctx, from, func(ctx context.Context, in *fleet.Instance, client *yodel.Client, err error) {
		var found *introspect.Samples
		if err == nil {
			found, err = inspect.Samples.Call(ctx, client, q)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			refused = errorText(err)
			return
		}
		for i := range found.Calls[:min(len(found.Calls), perInstance)] {
			report, of := found.Calls[i], in.Service
			if report.Side == "server" { // the process may serve several services
				of = fleet.ServiceOf(report.Method)
			}
			if !strings.HasPrefix(report.Method, "yodel.") && (service == "" || service == of) {
				all = append(all, sample{CallReport: report, Service: of, Instance: in.Addr, Text: report.String()})
			}
		}
	})
	return all, refused
}

// groups returns the failures by code, ID, method and instance, those with most calls first. The
// error of a call that a server made for another one, and passed on, counts once: where it arose.
func groups(all []sample) []*group {
	arose := make(map[[3]string]*sample) // the calls that processes have made, by process, code and text
	for i := range all {
		if one := &all[i]; one.Side == "client" && len(one.Attempts) > 0 {
			arose[[3]string{one.Instance, one.Code, one.Message}] = one
		}
	}
	byKey := make(map[[4]string]*group)
	out := []*group{}
	for i := range all {
		one := &all[i]
		if !one.Failed() {
			continue
		}
		at, via := one, ""
		if from := arose[[3]string{one.Instance, one.Code, one.Message}]; one.Side == "server" && from != nil {
			at, via = from, one.Method
		}
		addr := at.Instance
		if at.Side == "client" { // the instance that kept the record is the caller
			addr = ""
		}
		if n := len(at.Attempts); n > 0 {
			addr = at.Attempts[n-1].Addr
		}
		key := [4]string{one.Code, cmp.Or(one.ID, one.Message), at.Method, addr}
		if byKey[key] == nil {
			byKey[key] = &group{Code: one.Code, ID: one.ID, Text: one.Message, Method: at.Method, Addr: addr, sides: make(map[string]int)}
			out = append(out, byKey[key])
		}
		g := byKey[key]
		g.Via = cmp.Or(g.Via, via)
		if via == "" { // a call that failed has a record on each side
			g.sides[one.Side]++
			g.Calls = max(g.Calls, g.sides[one.Side])
		}
		if since := one.Began.UTC().Format("2006-01-02T15:04:05Z"); g.Since == "" || since < g.Since {
			g.Since = since
		}
		one.Group = [2]string{at.Method, addr}
	}
	slices.SortStableFunc(out, func(a, b *group) int { return cmp.Compare(b.Calls, a.Calls) })
	return out
}

// methods serves the methods of all services, for the call tester and the search.
func (c *Console) methods(r *http.Request) (any, error) {
	s, err := c.snapshotOf(r)
	if err != nil {
		return nil, err
	}
	type of struct {
		Service   string              `json:"service"`
		Methods   []introspect.Method `json:"methods"`
		Instances []string            `json:"instances"`
	}
	out := make([]of, 0, len(s.Services))
	for _, service := range s.Services {
		one := of{Service: service.Name, Methods: []introspect.Method{}, Instances: []string{}}
		for i := range service.Methods {
			one.Methods = append(one.Methods, service.Methods[i].Method)
		}
		for _, in := range service.Instances {
			one.Instances = append(one.Instances, in.Addr)
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b of) int { return strings.Compare(a.Service, b.Service) })
	return out, nil
}
