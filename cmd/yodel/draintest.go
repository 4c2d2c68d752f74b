// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/registry"
)

// drainOptions are the flags of drain-test.
type drainOptions struct {
	callOptions

	callers int
	rate    float64
	restart string
	rounds  int
	allow   int
	settle  time.Duration
	dryRun  bool
	yes     bool
}

func (a *app) drainTestCommand() *cobra.Command {
	var o drainOptions
	c := command(writes, &cobra.Command{
		Use:   "drain-test SERVICE/METHOD [JSON | @FILE | -]",
		Short: "Restart the instances of a service one after the other under load, and count lost calls",
		Long: "The command of --restart restarts one instance. It runs in a shell, with {addr}, {host} and {port} replaced and\n" +
			"YODEL_ADDR set. The next instance follows when the service has as many instances as before, and this command is\n" +
			"connected to the new one, for which it waits 5 seconds at most. The output of processes that the command of\n" +
			"--restart leaves in the background is lost, unless it redirects it. Without --restart, each instance is drained\n" +
			"by an operator's setting and enabled again.\n" +
			"A call is sent again only if a server has refused it before processing it, as one that is shutting down does.\n" +
			"The exit code is 3 if more than --allow calls fail.",
		Example:           "  yodel drain-test shop.Cart/Get --restart 'systemctl restart shop@{port}'\n  yodel drain-test shop.Cart/Get --rate 500 --rounds 3",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeMethod,
		RunE: func(c *cobra.Command, args []string) error {
			body := ""
			if len(args) == 2 {
				body = args[1]
			}
			return a.drainTest(c.Context(), args[0], body, &o)
		},
	})
	f := c.Flags()
	f.IntVarP(&o.callers, "callers", "c", 50, "`N` calls in flight at most")
	f.Float64Var(&o.rate, "rate", 200, "calls a second")
	f.StringVar(&o.restart, "restart", "", "`COMMAND` that restarts the instance at {addr}")
	f.IntVar(&o.rounds, "rounds", 1, "restart the whole service `N` times")
	f.IntVar(&o.allow, "allow", 0, "`N` failed calls are allowed")
	f.DurationVar(&o.settle, "settle", 30*time.Second, "how long an instance may take to become idle, and to return")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be restarted and how, and do nothing")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for a confirmation in a guarded context")
	return c
}

// A drainResult is the result of drain-test.
type drainResult struct {
	Method   string            `json:"method"`
	Restarts int               `json:"restarts"`
	Calls    uint64            `json:"calls"`
	Lost     uint64            `json:"lost"`
	Codes    map[string]uint64 `json:"codes"`
	Seconds  float64           `json:"seconds"`
	P99      time.Duration     `json:"p99"`
	Max      time.Duration     `json:"max"`
}

func (a *app) drainTest(ctx context.Context, name, body string, o *drainOptions) error {
	f, t, done, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer done()
	if t.registry == nil {
		return faultf(exitUsage, "drain-test needs a registry, because restarted instances have to be found")
	}
	service, _, ok := split(name)
	switch {
	case !ok:
		return faultf(exitUsage, "%q is no method", name).with("try", "yodel drain-test SERVICE/METHOD, for example shop.Cart/Get")
	case !(o.rate > 0) || math.IsInf(o.rate, 0) || o.callers < 1:
		return faultf(exitUsage, "--rate and -c must be positive")
	}
	if o.dryRun {
		return a.planDrain(ctx, f, t, service, o)
	}
	if err := a.confirm(ctx, t, o.yes, service); err != nil {
		return err
	}
	l, _, end, err := a.load(ctx, name, body, &o.callOptions, 1)
	if err != nil {
		return err
	}
	defer end()
	l.rate, l.deadline = o.rate, a.o.timeout
	loading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	began := time.Now()
	l.prepare(o.callers)
	go func() {
		defer close(ended)
		l.run(loading)
	}()
	restarts, failure := a.rollAll(ctx, f, t, l.client, service, o)
	stop()
	<-ended
	r := l.result(time.Since(began))
	out := drainResult{
		Method: shown(l.method.Name), Restarts: restarts, Calls: r.Calls, Lost: r.Calls - r.Codes["ok"], Codes: r.Codes, Seconds: r.Seconds,
		P99: r.Latency.P99, Max: r.Latency.Max,
	}
	var b strings.Builder
	fprintf(&b, "%s  %s in %.1fs, %s %s: %d lost   p99 %s  max %s\n", out.Method, plural(int(out.Calls), "call"), out.Seconds, plural(restarts, "instance"), o.action(), out.Lost, brief(out.P99), brief(out.Max)) //nolint:gosec // fewer calls than 2^63
	if out.Lost > 0 {
		for _, code := range slices.Sorted(maps.Keys(out.Codes)) {
			fprintf(&b, "  %s %d\n", code, out.Codes[code])
		}
	}
	if err := a.show(out, text(b.String()), func() []string { return []string{out.Method} }); err != nil {
		return err
	}
	for i := range l.counters {
		if e := l.counters[i].firstError; e != nil {
			a.sayf("first error: %v\n", e)
			break
		}
	}
	if failure != nil {
		return failure
	}
	if out.Lost > uint64(max(o.allow, 0)) {
		return faultf(exitCheck, "%s lost, and %d are allowed", plural(int(out.Lost), "call"), o.allow) //nolint:gosec // few
	}
	return nil
}

// action says what happens to each instance.
func (o *drainOptions) action() string {
	if o.restart == "" {
		return "drained and enabled"
	}
	return "restarted"
}

// rollAll restarts all instances while client calls them, and returns how many.
func (a *app) rollAll(ctx context.Context, f *fleet.Fleet, t *target, client *yodel.Client, service string, o *drainOptions) (int, error) {
	restarts := 0
	for range max(o.rounds, 1) {
		s, err := a.service(ctx, f, t, service)
		if err != nil {
			return restarts, err
		}
		if s.Up < 2 {
			a.sayf("warning: %s has %s, so a restart loses calls\n", service, plural(s.Up, "instance"))
		}
		for _, addr := range serving(s) {
			a.sayf("%s  %s\n", time.Now().Format(time.TimeOnly), addr)
			if o.restart != "" {
				err = a.restart(ctx, f, t, client, s, addr, o)
			} else {
				err = a.cycle(ctx, f, t, service, addr, o)
			}
			if err != nil {
				return restarts, err
			}
			restarts++
		}
	}
	return restarts, nil
}

// serving returns the addresses of the instances that get calls.
func serving(s *fleet.Service) (addrs []string) {
	for _, in := range s.Instances {
		if in.Gets() {
			addrs = append(addrs, in.Addr)
		}
	}
	return addrs
}

// planDrain says what a drain-test would do to each instance.
func (a *app) planDrain(ctx context.Context, f *fleet.Fleet, t *target, service string, o *drainOptions) error {
	s, err := a.service(ctx, f, t, service)
	if err != nil {
		return err
	}
	type planned struct {
		Service  string `json:"service"`
		Instance string `json:"instance"`
		How      string `json:"how"`
	}
	plan := []planned{}
	var b strings.Builder
	for _, addr := range serving(s) {
		how := "drain it by an operator's setting, and enable it again"
		if o.restart != "" {
			if how, err = restartLine(o.restart, addr); err != nil {
				return err
			}
		}
		plan = append(plan, planned{service, addr, how})
		fprintf(&b, "%s@%s: %s\n", service, addr, how)
	}
	fprintf(&b, "%s, %s (dry run, nothing was called or restarted)\n", plural(len(plan), "instance"), plural(max(o.rounds, 1), "round"))
	return a.show(plan, text(b.String()), func() []string { return serving(s) })
}

var plainAddress = regexp.MustCompile(`^[][a-zA-Z0-9.:/_-]+$`)

// restartLine returns the user's command for an instance. The address comes from the registry, so
// it must have no character with a meaning for the shell.
func restartLine(command, addr string) (string, error) {
	if !plainAddress.MatchString(addr) {
		return "", faultf(exitCheck, "the address %q cannot stand in a command of the shell", addr)
	}
	host, port, _ := net.SplitHostPort(addr) // a path has none
	return strings.NewReplacer("{addr}", addr, "{host}", host, "{port}", port).Replace(command), nil
}

// isConnected reports whether a client has the record of an instance, and a connection to its
// address.
func isConnected(client *yodel.Client, addr, incarnation string) bool {
	return slices.ContainsFunc(client.Endpoints(), func(ep *yodel.Endpoint) bool {
		in := ep.Instance()
		return in.Addr == addr && in.Incarnation == incarnation && ep.Connected()
	})
}

// restart runs the user's command for an instance, and waits until the service has as many
// instances as it had in s, when the round began, and one that was started after the command. If
// the client was connected to the instance, restart also waits until it is connected to that one:
// before, the restart of the next instance would lose calls.
func (a *app) restart(ctx context.Context, f *fleet.Fleet, t *target, client *yodel.Client, s *fleet.Service, addr string, o *drainOptions) error {
	line, err := restartLine(o.restart, addr)
	if err != nil {
		return err
	}
	shell := []string{"sh", "-c"}
	if runtime.GOOS == "windows" {
		shell = []string{"cmd", "/c"}
	}
	before, err := a.service(ctx, f, t, s.Name) // the restarts of this round have changed it
	if err != nil {
		return err
	}
	known := make(map[string]string)
	for _, in := range before.Instances {
		known[in.Addr] = in.Incarnation
	}
	used := isConnected(client, addr, known[addr])
	cmd := exec.CommandContext(ctx, shell[0], shell[1], line) //nolint:gosec // the user's own command
	cmd.Env = append(os.Environ(), "YODEL_ADDR="+addr)
	if output, err := outputOf(cmd); err != nil {
		return faultf(exitFailed, "the command for %s failed: %v\n%s", addr, err, output)
	}
	recovered := func(connected bool) func(*fleet.Service) bool {
		return func(now *fleet.Service) bool {
			fresh := slices.ContainsFunc(now.Instances, func(in *fleet.Instance) bool {
				incarnation, ok := known[in.Addr]
				return in.Gets() && (!ok || incarnation != in.Incarnation) && (!connected || isConnected(client, in.Addr, in.Incarnation))
			})
			return fresh && now.Up >= s.Up
		}
	}
	if err := a.await(ctx, f, s.Name, o.settle, recovered(false)); err != nil || !used {
		return err
	}
	if a.await(ctx, f, s.Name, min(o.settle, maxConnecting), recovered(true)) != nil && ctx.Err() == nil {
		a.sayf("warning: this command is not connected to the new instance yet, so the next restart may lose calls\n")
	}
	return context.Cause(ctx)
}

// maxConnecting is how long drain-test waits until it is connected to a new instance. A client that
// makes few calls does not connect to all instances.
const maxConnecting = 5 * time.Second

// outputOf runs a command and returns the end of its output. The output goes to a file: with a
// pipe, the command would not end before the processes that it has left in the background.
func outputOf(cmd *exec.Cmd) ([]byte, error) {
	file, err := os.CreateTemp("", "yodel-restart")
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}()
	cmd.Stdout, cmd.Stderr = file, file
	failed := cmd.Run()
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	const most = 4 << 10
	output, _ := io.ReadAll(io.NewSectionReader(file, max(end-most, 0), most)) // the command's error says more
	return output, failed
}

// cycle drains an instance by an operator's setting, and enables it again.
func (a *app) cycle(ctx context.Context, f *fleet.Fleet, t *target, service, addr string, o *drainOptions) error {
	registrar, ok := t.registry.(discovery.Registrar)
	if !ok {
		return faultf(exitUsage, "%s keeps no settings of operators", t.name).with("next", "give --restart COMMAND")
	}
	all, err := a.settings(ctx, t, service)
	if err != nil {
		return err
	}
	before := all[addr]
	set := func(ctx context.Context, state string) error {
		ctx, cancel := a.limited(ctx)
		defer cancel()
		return registry.Override(ctx, registrar, service, addr, state, before.weight)
	}
	inState := func(state fleet.State) func(*fleet.Service) bool {
		return func(s *fleet.Service) bool {
			return slices.ContainsFunc(s.Instances, func(in *fleet.Instance) bool {
				return in.Addr == addr && in.State == state && (state == fleet.Up || recent(in) == 0 && in.Traffic.Inflight == 0)
			})
		}
	}
	drained := set(ctx, "inactive")
	if drained != nil {
		drained = faultf(exitFailed, "%v", drained) // the registry may have stored it nevertheless
	} else {
		drained = a.await(ctx, f, service, o.settle, inState(fleet.Inactive))
	}
	if err := set(context.WithoutCancel(ctx), before.state); err != nil {
		return faultf(exitFailed, "%s stays inactive: %v", addr, err).with("next", "yodel enable %s %s", service, addr)
	}
	if drained != nil {
		return drained
	}
	return a.await(ctx, f, service, o.settle, inState(fleet.Up))
}

// await reads a service until it is as wanted.
func (a *app) await(ctx context.Context, f *fleet.Fleet, service string, limit time.Duration, wanted func(*fleet.Service) bool) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		view, err := f.Read(ctx, service)
		if err == nil && wanted(view.Service(service)) {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			if outer.Err() != nil {
				return context.Cause(outer)
			}
			return faultf(exitCheck, "%s has not recovered within %s", service, limit).with("next", "yodel ls %s", service)
		}
	}
}
