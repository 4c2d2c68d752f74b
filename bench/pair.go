// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// A pair is yodel as it is in the working tree, and as it was at another commit. Both run each
// scenario in each round, one right after the other, so that their ratio in a round depends little
// on what else the machine does.
//
// Where the linker puts the functions changes the CPU time of a call by up to 4 % either way. So
// each program is linked in several random layouts, and each round takes the next one: the median
// is that of the code, not of one layout. E. Berger and C. Curtsinger describe this in "STABILIZER:
// Statistically Sound Performance Evaluation" (2013).

// layouts is in how many random layouts each program of a pair is linked.
const layouts = 9

// beforeOf is the key of a peer at the other commit.
func beforeOf(key string) string { return key + "-before" }

// pairScenarios are measured unless -run names others.
var pairScenarios = regexp.MustCompile(`^(closed-(1|100|1000|5000)|async-message|async-echo|stream|large-1m|idle-10000)$`)

// pairRounds is how many rounds a pair runs unless -rounds says so.
const pairRounds = 9

// before returns the peer with a key as it was at revision. Its programs are kept in bin, and built
// if they are not there.
func before(ctx context.Context, root, key, revision string) (program, error) {
	hash, err := output(ctx, filepath.Dir(root), "git", "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return program{}, err
	}
	p := program{key: beforeOf(key), name: "before", kind: kindVariant, layouts: layoutsOf(filepath.Join(root, "bin", beforeOf(key)+"-"+hash))}
	if _, err := os.Stat(p.layouts[layouts-1]); err != nil {
		if err := buildBefore(ctx, filepath.Dir(root), hash, key, p); err != nil {
			return program{}, err
		}
	}
	return p, nil
}

// layoutsOf returns the names of a program's layouts.
func layoutsOf(binary string) (names []string) {
	for i := range layouts {
		names = append(names, fmt.Sprintf("%s-%d", binary, i+1))
	}
	return names
}

// buildLayouts builds p in its layouts from the sources in a folder.
func buildLayouts(ctx context.Context, p program, folder string) error {
	for i, binary := range p.layouts {
		p.buildDir, p.build = folder, []string{"go", "build", fmt.Sprintf("-ldflags=-randlayout=%d", i+1), "-o", binary, "."}
		if err := build(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// buildBefore builds the peer with a key from the sources of a commit, which it has in a temporary
// folder meanwhile.
func buildBefore(ctx context.Context, repository, hash, key string, p program) (err error) {
	folder, err := os.MkdirTemp("", "yodel-before")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	archive := filepath.Join(folder, "sources.tar")
	if _, err := output(ctx, repository, "git", "archive", "-o", archive, hash); err != nil {
		return err
	}
	if _, err := output(ctx, folder, "tar", "-xf", archive); err != nil {
		return err
	}
	return buildLayouts(ctx, p, filepath.Join(folder, "bench", "peers", key))
}

// output runs a program in a folder and returns what it says.
func output(ctx context.Context, folder, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// planPair is what -pair measures.
func (b *bench) planPair(ctx context.Context, p *plan) error {
	if b.run == "" {
		p.scenarios = slices.DeleteFunc(slices.Clone(scenarios), func(s Scenario) bool { return !pairScenarios.MatchString(s.Name) })
	}
	found := p.programs
	p.programs = nil
	for i := range p.scenarios {
		s := &p.scenarios[i]
		key := s.yodel()
		s.Variants = []string{key, beforeOf(key)} // key matters only if it is a variant itself
		if slices.Contains(keysOf(p.programs), key) {
			continue
		}
		pair, err := pairOf(ctx, b.root, b.pair, found, key)
		if err != nil {
			return err
		}
		p.programs = append(p.programs, pair...)
	}
	return nil
}

// pairOf returns the peer with a key as it is, and as it was at revision.
func pairOf(ctx context.Context, root, revision string, found []program, key string) ([]program, error) {
	other, err := before(ctx, root, key, revision)
	if err != nil {
		return nil, errUsage{fmt.Errorf("-pair: %w", err)}
	}
	i := slices.IndexFunc(found, func(peer program) bool { return peer.key == key })
	if i < 0 {
		return nil, fmt.Errorf("-pair: there is no peer %s", key)
	}
	now := found[i]
	now.layouts = layoutsOf(now.argv[0])
	if err := buildLayouts(ctx, now, now.buildDir); err != nil {
		return nil, err
	}
	now.build = nil // it is built
	return []program{now, other}, nil
}

// writePair writes the medians of the ratios of yodel to yodel before.
func (r *Report) writePair(w io.Writer) error {
	figures := []struct {
		name string
		of   figure
	}{
		{"calls/s", rate},
		{"CPU", cpu},
		{"server CPU", serverCPU},
		{"p50", p50},
		{"p99", p99},
		{"allocations", func(run Result) float64 { return perCall(run, run.Client.Mallocs+run.Server.Mallocs) }},
		{"bytes allocated", func(run Result) float64 { return perCall(run, run.Client.Bytes+run.Server.Bytes) }},
		{"memory", func(run Result) float64 { return run.Client.Memory + run.Server.Memory }},
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "now / before, medians of rounds")
	for _, f := range figures {
		fmt.Fprintf(t, "\t%s", f.name)
	}
	fmt.Fprintln(t)
	for _, s := range r.Scenarios {
		fmt.Fprint(t, s.Name)
		for _, f := range figures {
			if q, ok := r.ratio(s.Name, s.yodel(), f.of, false, named(beforeOf(s.yodel()))); ok {
				fmt.Fprintf(t, "\t%.3f (%.2f to %.2f)", q.Median, q.Min, q.Max)
			} else {
				fmt.Fprint(t, "\t-")
			}
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
