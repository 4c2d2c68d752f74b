// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// topKinds are the kinds of rows.
var topKinds = []string{"services", "methods", "instances", "tenants"}

func (a *app) topCommand() *cobra.Command {
	count := 0
	by := "services"
	c := command(reads, &cobra.Command{
		Use:   "top [SERVICE]",
		Short: "Show services, methods, instances or tenants live",
		Long: "Keys: s services, m methods, i instances, t tenants; w worst first, r rate, e errors, p p99; space pauses, q ends.\n" +
			"Without a terminal, it prints a table each second until Ctrl-C, or --count tables. If a part of the fleet or of the\n" +
			"registry could not be read for the last of them, it ends with the exit code 4.",
		Example: "  yodel top\n  yodel top shop.Pay --by instances\n  yodel top shop.Pay --by tenants",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.withFleet(func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error {
			if !slices.Contains(topKinds, by) {
				return faultf(exitUsage, "--by is %s", strings.Join(topKinds, ", "))
			}
			if len(args) > 0 {
				if _, err := a.service(ctx, f, t, args[0]); err != nil {
					return err
				}
			}
			m := &topModel{ctx: ctx, fleet: f, target: t, services: args, by: by, order: "worst", every: a.o.every}
			if a.outTTY && a.inTTY && a.o.output == "table" {
				return m.runOnTerminal(a)
			}
			return a.topPlain(ctx, m, count)
		}),
		ValidArgsFunction: a.completeService,
	})
	c.Flags().DurationVar(&a.o.every, "every", time.Second, "the interval between two reads")
	c.Flags().IntVarP(&count, "count", "n", 0, "end after `N` tables, without a terminal")
	c.Flags().StringVar(&by, "by", by, "rows: "+strings.Join(topKinds, ", "))
	a.complete(c, "by", topKinds)
	return c
}

// A topRow is a row of top.
type topRow struct {
	Name  string      `json:"name"`
	State fleet.State `json:"state,omitempty"` // none in rows for tenants
	Note  string      `json:"note,omitempty"`
	// Tenant is set in rows for tenants, which have the calls of the last minute.
	Tenant string `json:"tenant,omitempty"`

	trafficRow
	Inflight int64 `json:"inflight"`
}

// topPlain prints tables.
func (a *app) topPlain(ctx context.Context, m *topModel, count int) error {
	for i := 0; ; i++ {
		view, err := readAsCalled(ctx, m.fleet, m.services...)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return m.target.unreachable(err)
		}
		if m.by == "tenants" {
			m.tenants = tenantRows(ctx, m.fleet, view)
		}
		rows := m.rows(view)
		if err := a.show(rows, tableOf(rows), func() []string {
			var names []string
			for _, r := range rows {
				names = append(names, r.Name)
			}
			return names
		}); err != nil {
			return err
		}
		if i+1 == count {
			return partly(incomplete(view)...)
		}
		a.sayIncomplete(view)
		if a.o.output == "table" {
			a.printf("\n")
		}
		select {
		case <-time.After(m.every):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tableOf returns the rows as a table. Of the calls of tenants, fewer things are known.
func tableOf(rows []topRow) *table {
	if len(rows) > 0 && rows[0].Tenant != "" {
		t := newTable("NAME", ">TENANT", ">CALLS/S", "OK", "?LIMITED")
		for i := range rows {
			cells := rows[i].cells()
			t.add(rows[i].Name, rows[i].Tenant, cells[0], cells[1], cells[5])
		}
		return t
	}
	t := newTable(slices.Concat([]string{"NAME", "STATE", ">NOW"}, trafficHeads, []string{"NOTE"})...)
	for i := range rows {
		r := &rows[i]
		t.add(slices.Concat([]string{r.Name, string(r.State), fmt.Sprint(r.Inflight)}, r.cells(), []string{r.Note})...)
	}
	return t
}

// A topModel is the state of top: a model of bubbletea.
type topModel struct {
	ctx      context.Context //nolint:containedctx // the methods of a model have no context
	fleet    *fleet.Fleet
	target   *target
	services []string
	by       string // one of topKinds
	order    string // worst, rate, errors or p99
	every    time.Duration

	view          *fleet.View
	tenants       []topRow // of the view, if the rows are tenants
	err           error
	paused        bool
	width, height int
}

// rows returns the rows of a view in the chosen order.
func (m *topModel) rows(view *fleet.View) []topRow {
	rows := []topRow{}
	if m.by == "tenants" {
		rows = append(rows, m.tenants...)
	}
	for _, s := range view.Services {
		switch m.by {
		case "tenants":
		case "methods":
			for i := range s.Methods {
				t := &s.Methods[i].Traffic
				rows = append(rows, topRow{Name: shown(s.Methods[i].Name), State: s.State, trafficRow: rowOf(t), Inflight: t.Inflight})
			}
		case "instances":
			for _, in := range s.Instances {
				rows = append(rows, topRow{Name: s.Name + "@" + in.Addr, State: in.State, Note: in.Why, trafficRow: rowOf(&in.Traffic), Inflight: in.Traffic.Inflight})
			}
		default:
			rows = append(rows, topRow{Name: s.Name, State: s.State, Note: s.Note, trafficRow: rowOf(&s.Traffic), Inflight: s.Traffic.Inflight})
		}
	}
	sort.SliceStable(rows, func(i, j int) bool {
		a, b := &rows[i], &rows[j]
		switch m.order {
		case "rate":
			return a.Rate > b.Rate
		case "errors":
			return a.OK < b.OK
		case "p99":
			return a.P99 > b.P99
		}
		return false
	})
	return rows
}

// These are the messages of the model.
type (
	readMsg struct {
		view    *fleet.View
		tenants []topRow
		err     error
	}
	tickMsg struct{}
)

// read returns the command that reads the fleet.
func (m *topModel) read() tea.Cmd {
	by := m.by
	return func() tea.Msg {
		view, err := readAsCalled(m.ctx, m.fleet, m.services...)
		if err != nil || by != "tenants" {
			return readMsg{view, nil, err}
		}
		return readMsg{view, tenantRows(m.ctx, m.fleet, view), nil}
	}
}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.read() }

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case readMsg:
		m.view, m.tenants, m.err = msg.view, msg.tenants, msg.err
		return m, tea.Tick(m.every, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		if m.paused {
			return m, tea.Tick(m.every, func(time.Time) tea.Msg { return tickMsg{} })
		}
		return m, m.read()
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

// press handles a key.
func (m *topModel) press(key string) tea.Cmd {
	switch key {
	case "ctrl+c":
		return tea.Interrupt
	case "q", "esc":
		return tea.Quit
	case "space", " ":
		m.paused = !m.paused
	case "s":
		m.by = "services"
	case "m":
		m.by = "methods"
	case "i":
		m.by = "instances"
	case "t":
		m.by = "tenants"
	case "w":
		m.order = "worst"
	case "r":
		m.order = "rate"
	case "e":
		m.order = "errors"
	case "p":
		m.order = "p99"
	}
	return nil
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	return v
}

// screen returns what the terminal shows.
func (m *topModel) screen() string {
	state := ""
	if m.paused {
		state = "  paused"
	}
	lines := []string{fmt.Sprintf("yodel top  %s  %s by %s%s", m.target.name, m.by, m.order, state), "s services  m methods  i instances  t tenants   w worst  r rate  e errors  p p99   space pause  q quit", ""}
	switch {
	case m.err != nil:
		lines = append(lines, m.err.Error())
	case m.view == nil:
		lines = append(lines, "reading …")
	default:
		lines = append(lines, incomplete(m.view)...)
		lines = append(lines, strings.Split(strings.TrimRight(tableOf(m.rows(m.view)).String(), "\n"), "\n")...)
	}
	if m.height > 0 {
		lines = lines[:min(len(lines), m.height)]
	}
	for i, line := range lines {
		line = singleLine(line) // tea obeys the control sequences in it
		lines[i] = line
		if runes := []rune(line); m.width > 0 && len(runes) > m.width {
			lines[i] = string(runes[:m.width])
		}
	}
	return strings.Join(lines, "\n")
}

// runOnTerminal shows the table until the user ends it.
func (m *topModel) runOnTerminal(a *app) error {
	_, err := tea.NewProgram(m, tea.WithContext(m.ctx), tea.WithInput(a.in), tea.WithOutput(a.out)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return &fault{code: exitInterrupted}
	}
	if errors.Is(err, tea.ErrProgramKilled) && m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	return err
}
