// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

func (a *app) samplesCommand() *cobra.Command {
	var q introspect.SamplesQuery
	c := a.watchable(command(reads, &cobra.Command{
		Use:     "samples [SERVICE | SERVICE/METHOD]",
		Aliases: []string{"rpcz"},
		Short:   "Show records of slow and failed calls, the newest first",
		Long: "A record says where the time of a call went, which attempts it made, and why it failed. Servers share their\n" +
			"records if ServerOptions.Diagnostics is set. With --trace, the records of one trace are shown, the oldest first:\n" +
			"the failed and slow calls that were made for one call, in all services. They have a trace if a tracer such as\n" +
			"trace/otel is in use, or if the first caller has sent a traceparent.\n" +
			partHelp,
		Example: "  yodel samples shop.Pay --failed\n  yodel samples shop.Pay/Charge --slow --limit 3\n" +
			"  yodel samples --trace 4bf92f3577b34da6a3ce929d0e0e4736",
		Args: cobra.MaximumNArgs(1),
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			return a.samples(ctx, f, t, args, q)
		}),
		ValidArgsFunction: a.completeMethod,
	}))
	c.Flags().BoolVar(&q.Failed, "failed", false, "show only failed calls")
	c.Flags().BoolVar(&q.Slow, "slow", false, "show only slow calls")
	c.Flags().BoolVar(&q.Explained, "explained", false, "show only calls whose caller asked for a record")
	c.Flags().StringVar(&q.Side, "side", "", "show only records of the client or of the server")
	c.Flags().StringVar(&q.Trace, "trace", "", "show only calls of the trace with this `ID`, of all services if none is given")
	c.Flags().StringVar(&q.Tenant, "tenant", "", "show only calls for this tenant")
	c.Flags().IntVar(&q.Limit, "limit", 10, "show at most `N` records")
	return c
}

// A sample is a record of a call, and the instance that kept it.
type sample struct {
	Instance string `json:"instance"`

	introspect.CallReport
}

func (a *app) samples(ctx context.Context, f *fleet.Fleet, t *target, args []string, q introspect.SamplesQuery) error {
	services, err := a.samplesOf(ctx, f, t, args, &q)
	if err != nil {
		return err
	}
	view, err := f.Read(ctx, services...)
	if err != nil {
		return t.unreachable(err)
	}
	if side := q.Side; side != "" && side != "client" && side != "server" {
		return faultf(exitUsage, "--side is client or server, not %q", side)
	}
	all, refused := a.collect(ctx, f, view, &q, services)
	for _, why := range refused {
		a.sayf("%s\n", why)
	}
	if len(refused) > 0 && len(refused) == len(addressesOf(view, false)) {
		return faultf(exitFailed, "no instance shows its records")
	}
	sort.SliceStable(all, func(i, j int) bool { // smaller code than slices.SortFunc
		x, y := &all[i], &all[j]
		if q.Trace != "" { // a story
			return x.Began.Before(y.Began)
		}
		return y.Began.Before(x.Began)
	})
	if q.Limit > 0 {
		all = all[:min(len(all), q.Limit)]
	}
	var b strings.Builder
	for i := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(singleLine(all[i].Instance) + "\n" + all[i].String() + "\n")
	}
	others := 0 // that the flags leave out
	if len(all) == 0 && len(refused) == 0 {
		every, _ := a.collect(ctx, f, view, &introspect.SamplesQuery{Method: q.Method}, services) // refusals are printed
		others = len(every)
	}
	switch {
	case len(all) > 0 || len(refused) > 0 || len(incomplete(view)) > 0:
	case others > 0:
		a.sayf("No call has such a record. %s of other calls: leave out --failed, --slow, --explained, --side, --trace and --tenant\n", plural(others, "record"))
	default:
		a.sayf("No call has a record. Slow and failed calls have one, and calls with Call.Explain.\n")
	}
	if err := a.show(all, text(b.String()), func() []string {
		var names []string
		for i := range all {
			names = append(names, shown(all[i].Method))
		}
		return names
	}); err != nil {
		return err
	}
	return partly(incomplete(view)...)
}

// samplesOf returns the services of the instances to ask, and sets the method of the query.
func (a *app) samplesOf(ctx context.Context, f *fleet.Fleet, t *target, args []string, q *introspect.SamplesQuery) ([]string, error) {
	if len(args) == 0 {
		return nil, nil
	}
	service, method, ok := split(args[0])
	if !ok || a.hasService(ctx, f, args[0]) {
		service, method = args[0], ""
	}
	s, err := a.service(ctx, f, t, service)
	if err != nil {
		return nil, err
	}
	if method != "" {
		m, err := findMethod(s, method)
		if err != nil {
			return nil, err
		}
		q.Method = m.Name
	}
	return []string{service}, nil
}

// collect asks the instances for their records. Refused has the reasons of those that gave none.
func (a *app) collect(ctx context.Context, f *fleet.Fleet, view *fleet.View, q *introspect.SamplesQuery, services []string) (all []sample, refused []string) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	all = []sample{} // [] in JSON if there is none
	for _, addr := range addressesOf(view, false) {
		client := f.Client(addr)
		if client == nil {
			continue
		}
		wg.Go(func() {
			query := *q
			query.Limit = 0 // records are left out below
			samples, err := inspect.Samples.Call(ctx, client, &query)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused = append(refused, fmt.Sprintf("%s: %v", addr, err))
				return
			}
			for _, r := range samples.Calls {
				of := fleet.ServiceOf(r.Method)
				if len(services) == 0 && of != "yodel" || slices.Contains(services, of) {
					all = append(all, sample{addr, r})
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(refused)
	return all, refused
}
