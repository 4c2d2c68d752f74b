// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"net/http"
	"slices"
	"sort"
	"strconv"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

// This file is screen S5, who calls whom.

// A node is a service, or a program that only calls others.
type node struct {
	ID    string      `json:"id"`
	Kind  string      `json:"kind"` // "service" or "caller"
	State fleet.State `json:"state,omitempty"`
	Up    int         `json:"up"`
	Total int         `json:"total"`
	numbers
}

// An edge is the calls of one node to another.
type edge struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Callers []string `json:"callers"` // the names that clients have sent, of which From stands for all
	numbers
}

const (
	maxHops  = 3
	maxNodes = 600
)

// graph serves the nodes within some hops of a service, or all if the request names none.
func (c *Console) graph(r *http.Request) (any, error) {
	s, err := c.snapshotOf(r)
	if err != nil {
		return nil, err
	}
	nodes, edges := s.topology()
	focus := r.FormValue("focus")
	if focus != "" {
		hops, err := strconv.Atoi(r.FormValue("hops"))
		if err != nil || hops < 1 || hops > maxHops {
			hops = 1
		}
		near := within(edges, focus, hops)
		nodes = slices.DeleteFunc(nodes, func(n node) bool { return !near[n.ID] })
		edges = slices.DeleteFunc(edges, func(e edge) bool { return !near[e.From] || !near[e.To] })
	}
	left := max(len(nodes)-maxNodes, 0)
	if left > 0 {
		nodes = nodes[:maxNodes]
		shown := make(map[string]bool)
		for _, n := range nodes {
			shown[n.ID] = true
		}
		edges = slices.DeleteFunc(edges, func(e edge) bool { return !shown[e.From] || !shown[e.To] })
	}
	// The map has the same order as long as it has the same nodes.
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].ID < nodes[j].ID })
	worst := ""
	if len(s.Services) > 0 {
		worst = s.Services[0].Name
	}
	return map[string]any{"at": s.At, "nodes": nodes, "edges": edges, "left": left, "worst": worst}, nil
}

// topology returns all nodes, those that need attention first, and all edges. The callers of a
// service are the names that clients have sent. A name that is also the name of a process with
// instances of a service stands for that service.
func (s *snapshot) topology() ([]node, []edge) {
	host := make(map[string]string) // the service of a process, by the name of the process
	nodes := make([]node, 0, len(s.Services))
	for _, service := range s.Services {
		nodes = append(nodes, node{service.Name, "service", service.State, service.Up, len(service.Instances), numbersOf(&service.Traffic)})
		for _, in := range service.Instances {
			if in.Live != nil && in.Live.Name != "" {
				host[in.Live.Name] = min(cmp.Or(host[in.Live.Name], service.Name), service.Name)
			}
		}
	}
	sums := make(map[[2]string]*fleet.Traffic)
	names := make(map[[2]string][]string)
	callers := make(map[string]*fleet.Traffic)
	for _, service := range s.Services {
		for i := range service.Callers {
			caller := &service.Callers[i]
			from := host[caller.Name]
			if from == "" {
				from = "→ " + cmp.Or(caller.Name, "?")
				addTo(callers, from, &caller.Traffic)
			}
			between := [2]string{from, service.Name}
			addTo(sums, between, &caller.Traffic)
			names[between] = append(names[between], caller.Name)
		}
	}
	for name, t := range callers {
		nodes = append(nodes, node{ID: name, Kind: "caller", numbers: numbersOf(t)})
	}
	edges := make([]edge, 0, len(sums))
	for between, t := range sums {
		edges = append(edges, edge{between[0], between[1], names[between], numbersOf(t)})
	}
	// sort.Slice needs no code of its own for each type, which is 20 KB for such large ones.
	sort.Slice(edges, func(i, j int) bool {
		a, b := &edges[i], &edges[j]
		return a.From < b.From || a.From == b.From && a.To < b.To
	})
	sort.SliceStable(nodes, func(i, j int) bool {
		a, b := &nodes[i], &nodes[j]
		if a.Kind != b.Kind {
			return a.Kind > b.Kind // services first
		}
		return a.Kind == "caller" && a.ID < b.ID
	})
	return nodes, edges
}

// within returns the nodes within some hops of focus.
func within(edges []edge, focus string, hops int) map[string]bool {
	near := map[string]bool{focus: true}
	for range hops {
		next := make(map[string]bool)
		for _, e := range edges {
			if near[e.From] {
				next[e.To] = true
			}
			if near[e.To] {
				next[e.From] = true
			}
		}
		for id := range next {
			near[id] = true
		}
	}
	return near
}
