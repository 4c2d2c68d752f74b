// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is screen S4, one instance.

const (
	askTimeout = 3 * time.Second // for an instance that a user looks at
	maxActors  = 50
)

// instance serves one instance.
func (c *Console) instance(r *http.Request) (any, error) {
	s, err := c.snapshotOf(r)
	if err != nil {
		return nil, err
	}
	service, err := s.find(r)
	if err != nil {
		return nil, err
	}
	var in *fleet.Instance
	for _, one := range service.Instances {
		if one.Addr == r.FormValue("addr") {
			in = one
		}
	}
	if in == nil {
		return nil, yodel.Errorf(yodel.NotFound, "%s has no instance at %s: it may have left", service.Name, r.FormValue("addr"))
	}
	set, err := c.settings(r.Context(), service)
	out := map[string]any{"at": s.At, "span": s.Span.Seconds(), "view": instanceOf(in, service, set[in.Addr]), "record": in.Instance}
	if err != nil {
		out["setErr"] = errorText(err)
	}
	if in.Info != nil {
		out["agent"], out["codecs"], out["compressors"], out["overrides"] = in.Info.Agent, in.Info.Codecs, in.Info.Compressors, in.Info.Overrides
		out["limits"] = in.Info.Limits
	}
	serves := func(s *introspect.Series) bool { return s.Side == "server" && fleet.ServiceOf(s.Method) != "yodel" }
	if in.Live != nil {
		out["process"], out["name"], out["left"], out["events"] = in.Live.Process, in.Live.Name, in.Live.Left, events(in.Live.Events, 50)
		out["chart"] = chartOf([]*introspect.Live{in.Live}, serves)
	}
	out["service"] = numbersOf(&service.Traffic)
	methods := make([]row, 0, len(in.Methods))
	for i := range in.Methods {
		methods = append(methods, row{in.Methods[i].Name, numbersOf(&in.Methods[i].Traffic)})
	}
	out["methods"] = methods
	if in.State == fleet.Down || in.State == fleet.Silent || in.Unasked || in.State == fleet.Listed {
		return out, nil
	}
	client, err := c.fleet.client(r.Context(), in.Addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	if conns, err := inspect.Conns.Call(ctx, client, &inspect.Empty{}); err != nil {
		out["connsErr"] = errorText(err)
	} else {
		out["conns"] = conns
	}
	if in.HasActors() {
		if actors, err := fleet.Actors(ctx, client, "", maxActors); err != nil {
			out["actorsErr"] = errorText(err)
		} else {
			out["actors"] = actors
		}
	}
	return out, nil
}

// registryName names the registry, without secrets.
func (c *Console) registryName() string {
	return cmp.Or(c.describe().Name, fmt.Sprintf("%T", c.source))
}

// setInstance sets the state and the weight of an instance in the registry.
func (c *Console) setInstance(r *http.Request, user User) (any, error) {
	var in struct {
		Service, Addr, State, Reason string
		Weight                       int
		Was                          *struct { // the setting that the user has seen; nil means any
			State  string
			Weight int
		}
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	to := c.describe()
	if to.Override == nil {
		return nil, yodel.Errorf(yodel.Unimplemented, "this registry keeps no settings of operators")
	}
	if in.Reason == "" || len(in.Reason) > maxReason || in.Weight < 0 || in.Weight > 10_000 || in.State != "" && in.State != "active" && in.State != "inactive" {
		return nil, yodel.Errorf(yodel.InvalidArgument, `a setting needs a reason of at most 256 bytes, a state of "", "active" or "inactive", and a weight from 0 to 10000`)
	}
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		return nil, err
	}
	service := s.Service(in.Service)
	if service == nil || !slices.ContainsFunc(service.Instances, func(one *fleet.Instance) bool { return one.Addr == in.Addr }) {
		return nil, yodel.Errorf(yodel.NotFound, "%s has no instance at %s", in.Service, in.Addr)
	}
	set, err := c.readSettings(r.Context(), service)
	if err != nil {
		return nil, err
	}
	before := set[in.Addr]
	if in.Was != nil && (before.State != in.Was.State || before.Weight != in.Was.Weight) {
		return nil, yodel.Errorf(yodel.Aborted, "another operator has changed the setting of %s: it was %s, and is %s", in.Addr, setting{State: in.Was.State, Weight: in.Was.Weight}.words(), before.words())
	}
	if in.State == "inactive" && isLast(service, in.Addr, set) && r.URL.Query().Get("confirm") != in.Service {
		return nil, &unconfirmedError{in.Service, fmt.Sprintf("%s is the last instance of %s that gets calls", in.Addr, in.Service)}
	}
	err = to.Override(r.Context(), in.Service, in.Addr, in.State, in.Weight)
	c.forgetSettings()
	e := entry{
		Action: "instance", Object: in.Service + " " + in.Addr, Before: before.words(), After: setting{State: in.State, Weight: in.Weight}.words(),
		Reason: in.Reason, Result: resultOf(err),
	}
	if err == nil {
		e.Undo = &undo{"instance", map[string]any{"service": in.Service, "addr": in.Addr, "state": before.State, "weight": before.Weight}}
	}
	c.audit.add(r, user, e)
	return struct{}{}, err
}

// isLast reports whether an instance is the only one of a service that gets calls. Set has the
// present settings, some of which the instances may not have heard of.
func isLast(s *fleet.Service, addr string, set map[string]setting) bool {
	others, gets := false, false
	for _, in := range s.Instances {
		open := in.Gets() && set[in.Addr].State != "inactive"
		gets = gets || open && in.Addr == addr
		others = others || open && in.Addr != addr
	}
	return gets && !others
}

// resultOf returns the result of a change for the audit log.
func resultOf(err error) string {
	if err != nil {
		return errorText(err)
	}
	return "ok"
}
