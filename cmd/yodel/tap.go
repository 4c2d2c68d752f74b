// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

func (a *app) tapCommand() *cobra.Command {
	var q introspect.TapQuery
	count := 0
	c := command(reads, &cobra.Command{
		Use:   "tap [SERVICE | SERVICE/METHOD]",
		Short: "Show calls as they end, until Ctrl-C",
		Long: "Each instance sends at most --rate calls a second, and says how many it left out. Servers send calls if\n" +
			"ServerOptions.Diagnostics is set. Requests and replies are not shown.",
		Example: "  yodel tap shop.Pay --failed\n  yodel tap --slower 100ms -o ndjson",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			return a.tap(ctx, f, t, args, q, count)
		}),
		ValidArgsFunction: a.completeMethod,
	})
	f := c.Flags()
	f.BoolVar(&q.Failed, "failed", false, "only failed calls")
	f.DurationVar(&q.Slower, "slower", 0, "only calls that took at least so long")
	f.StringVar(&q.Peer, "caller", "", "only calls of this caller")
	f.StringVar(&q.Tenant, "tenant", "", "only calls for this tenant")
	f.IntVar(&q.PerSecond, "rate", 100, "at most so many calls a second from each instance")
	f.IntVarP(&count, "count", "n", 0, "end after `N` calls")
	return c
}

// A tappedRow is a call in the output of tap.
type tappedRow struct {
	Instance string `json:"instance"`

	introspect.Tapped
}

func (a *app) tap(ctx context.Context, f *fleet.Fleet, t *target, args []string, q introspect.TapQuery, count int) error {
	sq := introspect.SamplesQuery{}
	services, err := a.samplesOf(ctx, f, t, args, &sq)
	if err != nil {
		return err
	}
	q.Method = sq.Method
	view, err := f.Read(ctx, services...)
	if err != nil {
		return t.unreachable(err)
	}
	a.sayIncomplete(view)
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	shownCalls, refused := 0, 0
	var wg sync.WaitGroup
	asked := 0
	for _, addr := range addressesOf(view, true) {
		client := f.Client(addr)
		if client == nil {
			continue
		}
		asked++
		wg.Go(func() {
			for call, err := range inspect.Tap.Call(ctx, client, &q) {
				mu.Lock()
				switch {
				case ctx.Err() != nil:
				case err != nil:
					refused++
					a.sayf("%s: %v\n", addr, err)
				case call.Left > 0 && call.Method == "":
					a.sayf("%s: %s left out\n", addr, plural(call.Left, "call"))
				case len(services) == 0 || fleet.ServiceOf(call.Method) == services[0]:
					a.printTapped(addr, call)
					if shownCalls++; shownCalls == count {
						cancel()
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	switch {
	case outer.Err() != nil:
		a.sayf("%s shown\n", plural(shownCalls, "call"))
		return context.Cause(outer)
	case asked == 0:
		return faultf(exitUnreachable, "no instance can be asked")
	case refused == asked:
		return faultf(exitFailed, "no instance shows its calls")
	}
	return nil
}

func (a *app) printTapped(instance string, call *introspect.Tapped) {
	switch a.o.output {
	case "name":
		a.printf("%s\n", shown(call.Method))
		return
	case "yaml":
		if b, err := asYAML(tappedRow{instance, *call}); err == nil { // as for JSON
			a.printEscaped(append([]byte("---\n"), b...))
		}
		return
	case "json", "ndjson":
		_ = a.showLine(tappedRow{instance, *call}) // a struct without values that JSON lacks
		return
	}
	outcome := "ok"
	if call.Code != "" {
		outcome = call.Code + ": " + call.Message
	}
	line := fmt.Sprintf("%s  %-12s → %-24s %-21s %7s  in %d out %d  %s", clockTime(call.At), orDash(call.Peer), shown(call.Method), instance,
		brief(max(call.Took, time.Microsecond)), call.In, call.Out, outcome)
	if call.Tenant != "" {
		line += "  tenant " + call.Tenant
	}
	if call.Trace != "" {
		line += "  trace " + call.Trace
	}
	a.printf("%s\n", strings.TrimRight(line, " "))
}
