// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/registry"
)

// changeOptions are the flags of commands that change the fleet.
type changeOptions struct {
	dryRun bool
	yes    bool
	force  bool
	wait   time.Duration
}

func (o *changeOptions) flags(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "say what would change, and change nothing")
	c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for a confirmation in a guarded context")
	c.Flags().BoolVar(&o.force, "force", false, "go on, even if this stops calls or names something that does not exist")
	return c
}

func (a *app) drainCommand() *cobra.Command {
	o := &changeOptions{}
	c := o.flags(command(writes, &cobra.Command{
		Use:   "drain SERVICE HOST:PORT",
		Short: "Give an instance no new calls, and wait until it is idle",
		Long: "An operator's setting in the registry makes the instance inactive. It wins over what the instance announces,\n" +
			"and outlives a restart. Clients stop calling the instance as soon as they have heard of it.",
		Example:           "  yodel drain shop.Pay 127.0.0.1:51816\n  yodel enable shop.Pay 127.0.0.1:51816     # undo",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			return a.override(c.Context(), o, args[0], args[1], func(s setting) setting { s.state = "inactive"; return s }, true)
		},
	}))
	c.Flags().DurationVar(&o.wait, "wait", 30*time.Second, "how long to wait until the instance is idle")
	return c
}

func (a *app) disableCommand() *cobra.Command {
	o := &changeOptions{}
	return o.flags(command(writes, &cobra.Command{
		Use: "disable SERVICE HOST:PORT", Short: "Give an instance no new calls",
		Long:    "It is drain without waiting.",
		Example: "  yodel disable shop.Pay 127.0.0.1:51816", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			return a.override(c.Context(), o, args[0], args[1], func(s setting) setting { s.state = "inactive"; return s }, false)
		},
	}))
}

func (a *app) enableCommand() *cobra.Command {
	o := &changeOptions{}
	return o.flags(command(writes, &cobra.Command{
		Use: "enable SERVICE HOST:PORT", Short: "Undo drain and disable",
		Long:    "The instance's own state counts again. Its weight stays as an operator has set it.",
		Example: "  yodel enable shop.Pay 127.0.0.1:51816", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			return a.override(c.Context(), o, args[0], args[1], func(s setting) setting { s.state = ""; return s }, false)
		},
	}))
}

func (a *app) weightCommand() *cobra.Command {
	o := &changeOptions{}
	return o.flags(command(writes, &cobra.Command{
		Use: "weight SERVICE HOST:PORT N", Short: "Set the share of the calls that an instance gets",
		Long:    "Balancers that use weights give the instance N times the calls of one with weight 1. 0 removes the setting.",
		Example: "  yodel weight shop.Cart 127.0.0.1:51812 3", Args: cobra.ExactArgs(3), ValidArgsFunction: a.completeInstance,
		RunE: func(c *cobra.Command, args []string) error {
			weight, err := strconv.Atoi(args[2])
			if err != nil || weight < 0 {
				return faultf(exitUsage, "the weight %q is no number from 0 on", args[2])
			}
			return a.override(c.Context(), o, args[0], args[1], func(s setting) setting { s.weight = weight; return s }, false)
		},
	}))
}

// A setting is what an operator has set for an instance. The zero value sets nothing.
type setting struct {
	state   string
	weight  int
	problem string // why it cannot be read
}

func (s setting) String() string {
	if s.problem != "" {
		return "a setting that cannot be read (" + s.problem + ")"
	}
	var parts []string
	if s.state != "" {
		parts = append(parts, s.state)
	}
	if s.weight > 0 {
		parts = append(parts, fmt.Sprintf("weight %d", s.weight))
	}
	if len(parts) == 0 {
		return "no setting"
	}
	return strings.Join(parts, ", ")
}

// A changed is a change in the output of commands that set the settings of operators.
type changed struct {
	Service  string `json:"service"`
	Instance string `json:"instance"`
	Before   string `json:"before"`
	After    string `json:"after"`
	DryRun   bool   `json:"dryRun,omitempty"`
	Drained  string `json:"drained,omitempty"` // idle, left or unknown, after drain
}

func (c *changed) names() []string { return []string{c.Instance} }

// override changes the setting of an instance.
func (a *app) override(ctx context.Context, o *changeOptions, service, addr string, change func(setting) setting, drain bool) error {
	f, t, done, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer done()
	registrar, ok := t.registry.(discovery.Registrar)
	if !ok {
		return faultf(exitUsage, "operators' settings need a registry").with("try", "yodel --registry URL …")
	}
	s, err := a.service(ctx, f, t, service)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(s.Instances, func(in *fleet.Instance) bool { return in.Addr == addr }) {
		return unknownInstance(s, addr)
	}
	set, err := a.settings(ctx, t, service)
	if err != nil {
		return err
	}
	before := set[addr]
	after := change(before)
	after.problem = "" // the change replaces the setting
	last := a.warn(s, addr, after, set)
	out := &changed{Service: service, Instance: addr, Before: before.String(), After: after.String(), DryRun: o.dryRun}
	said := singleLine(fmt.Sprintf("%s@%s: %s → %s", service, addr, before, after))
	if o.dryRun {
		return a.show(out, text(said+" (dry run, nothing was changed)\n"), out.names)
	}
	if last && before.state != "inactive" && !o.force {
		return a.forced(fmt.Sprintf("%s is the last instance of %s that gets calls", addr, service))
	}
	if err := a.confirm(ctx, t, o.yes, service); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.o.timeout+o.wait)
	defer cancel()
	if now, err := a.settings(ctx, t, service); err != nil || now[addr] != before {
		return cmp.Or(err, a.settingConflict(service, addr, before, now[addr]))
	}
	if err := registry.Override(ctx, registrar, service, addr, after.state, after.weight); err != nil {
		return faultf(exitFailed, "%v", err)
	}
	if !drain {
		return a.show(out, text(said+"\n"), out.names)
	}
	if a.o.output == "table" { // the wait may be long
		a.printf("%s\n", said)
	}
	if out.Drained, err = a.awaitIdle(ctx, f, service, addr); err != nil {
		return err
	}
	said = map[string]string{"idle": addr + " is idle\n", "left": addr + " has left\n"}[out.Drained]
	return a.show(out, text(said), out.names)
}

// unknownInstance returns the fault for an address that is none of a service.
func unknownInstance(s *fleet.Service, addr string) error {
	var addrs []string
	for _, in := range s.Instances {
		addrs = append(addrs, in.Addr)
	}
	f := faultf(exitFailed, "not_found: %s has no instance at %s", s.Name, addr)
	if near := similar(addr, addrs); near != "" {
		f.addf("did you mean", "%s", near)
	}
	return f.with("instances", "%s     (yodel ls %s)", shorten(addrs), s.Name)
}

// settings reads the settings for a service, by address.
func (a *app) settings(ctx context.Context, t *target, service string) (map[string]setting, error) {
	registry := yodel.Description{}.Over(t.registry)
	if registry.Overrides == nil {
		return nil, faultf(exitUsage, "%s keeps no settings of operators", t.name)
	}
	ctx, cancel := a.limited(ctx)
	defer cancel()
	found := make(map[string]setting)
	read := false
	err := fleet.Bounded(registry.Overrides(service)).Watch(ctx, func(all []discovery.Instance) {
		for _, in := range all {
			found[in.Addr] = setting{in.State, in.Weight, in.Metadata["problem"]}
		}
		read = true
		cancel()
	})
	if !read {
		if err == nil {
			err = errors.New("the registry has not answered in time")
		}
		return found, t.unreachable(err)
	}
	return found, nil
}

// brokenSettings returns the settings of operators for all services that cannot be read, and why
// there may be others.
func (a *app) brokenSettings(ctx context.Context, t *target) (said []string) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	broken, err := fleet.BrokenSettings(ctx, t.registry)
	for i := range broken {
		said = append(said, broken[i].String())
	}
	if err != nil {
		said = append(said, err.Error())
	}
	return said
}

// settingConflict is the fault of a change that is based on a setting which another operator has
// changed meanwhile.
func (a *app) settingConflict(service, addr string, before, now setting) error {
	return faultf(exitFailed, "the setting of %s@%s has changed: it was %s, and is %s", service, addr, before, now).with("again", "%s", a.command())
}

// warn says on stderr what a setting does to the service. It reports whether the setting takes the
// last instance that gets calls. Set has the present settings, some of which the instances may not
// have heard of.
func (a *app) warn(s *fleet.Service, addr string, after setting, set map[string]setting) (last bool) {
	left, gets := 0, false
	for _, in := range s.Instances {
		gets = gets || in.Gets() && in.Addr == addr
		if in.Gets() && set[in.Addr].state != "inactive" && (in.Addr != addr || after.state != "inactive") {
			left++
		}
	}
	if after.state == "inactive" && left == 0 {
		a.sayf("warning: no other instance of %s gets calls\n", s.Name)
		return gets
	}
	return false
}

// confirm asks for the name of the service in a guarded context.
func (a *app) confirm(ctx context.Context, t *target, yes bool, service string) error {
	if !t.guarded || yes {
		return nil
	}
	if !a.inTTY {
		return faultf(exitUsage, "the context is guarded").with("next", "give --yes, or --dry-run to see what would change")
	}
	a.sayf("The context is guarded. Type %s to go on: ", service)
	typed, err := bufio.NewReader(a.stdin(ctx)).ReadString('\n')
	if err != nil || strings.TrimSpace(typed) != service {
		return faultf(exitUsage, "nothing was changed")
	}
	return nil
}

// awaitIdle waits until an instance has no calls in flight, and returns idle then, left if it has
// left, or unknown if it does not say.
func (a *app) awaitIdle(ctx context.Context, f *fleet.Fleet, service, addr string) (string, error) {
	quiet := 0
	for {
		view, err := f.Read(ctx, service)
		if err != nil {
			return "", faultf(exitCheck, "%s still has calls in flight", addr)
		}
		var in *fleet.Instance
		for _, one := range view.Service(service).Instances {
			if one.Addr == addr {
				in = one
			}
		}
		switch {
		case in == nil || in.State == fleet.Down:
			return "left", nil
		case in.State == fleet.Silent, in.Unasked:
			quiet = 0
		case in.Live == nil && in.Stats == nil:
			a.sayf("%s does not share its statistics, so it is unknown when it is idle\n", addr)
			return "unknown", nil
		case in.Traffic.Inflight == 0 && in.State != fleet.Up && recent(in) == 0:
			if quiet++; quiet > 1 {
				return "idle", nil
			}
		default:
			quiet = 0
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			if in.State == fleet.Silent || in.Unasked {
				return "", faultf(exitCheck, "it is unknown whether %s is idle: %s", addr, in.Why)
			}
			return "", faultf(exitCheck, "%s is not idle yet: %d calls in flight", addr, in.Traffic.Inflight)
		}
	}
}

// recent returns the rate of calls in the last full second. Without live data it is that since the
// last read.
func recent(in *fleet.Instance) float64 {
	if n := len(in.Traffic.Points); n > 0 {
		return in.Traffic.Points[n-1]
	}
	return in.Traffic.Rate
}
