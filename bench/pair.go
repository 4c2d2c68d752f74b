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
	"strings"
	"text/tabwriter"
)

// A pair is yodel as it is in the working tree, and as it was at another commit. Both run each
// scenario in each round, one right after the other, so that their ratio in a round depends little
// on what else the machine does.

// yodelBefore is yodel at the other commit.
const yodelBefore = "yodel-before"

// pairScenarios are measured unless -run names others.
var pairScenarios = regexp.MustCompile(`^(closed-(1|100|1000|5000)|async-message|async-echo|stream|large-1m|idle-10000)$`)

// pairRounds is how many rounds a pair runs unless -rounds says so.
const pairRounds = 9

// before returns the peer as it was at revision. Its program is kept in bin, and built if it is not
// there.
func before(ctx context.Context, root, revision string) (program, error) {
	hash, err := output(ctx, filepath.Dir(root), "git", "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return program{}, err
	}
	binary := filepath.Join(root, "bin", "before-"+hash)
	if _, err := os.Stat(binary); err != nil {
		if err := buildBefore(ctx, filepath.Dir(root), hash, binary); err != nil {
			return program{}, err
		}
	}
	return program{key: yodelBefore, name: "before", kind: kindVariant, argv: []string{binary}}, nil
}

// buildBefore builds the peer from the sources of a commit, which it has in a temporary folder
// meanwhile.
func buildBefore(ctx context.Context, repository, hash, binary string) (err error) {
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
	return build(ctx, program{
		key: yodelBefore, build: []string{"go", "build", "-o", binary, "."}, buildDir: filepath.Join(folder, "bench", "peers", yodel),
	})
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
	other, err := before(ctx, b.root, b.pair)
	if err != nil {
		return errUsage{fmt.Errorf("-pair: %w", err)}
	}
	if p.programs, err = choose(p.programs, []string{yodel}); err != nil {
		return err
	}
	for _, peer := range p.programs {
		if peer.key == yodel {
			p.programs = []program{peer, other}
			break
		}
	}
	if b.run == "" {
		p.scenarios = nil
		for _, s := range scenarios {
			if pairScenarios.MatchString(s.Name) {
				p.scenarios = append(p.scenarios, s)
			}
		}
	}
	for i := range p.scenarios {
		p.scenarios[i].Variants = []string{yodelBefore}
	}
	return nil
}

// writePair writes the medians of the ratios of yodel to yodel before.
func (r *Report) writePair(w io.Writer) error {
	figures := []struct {
		name string
		of   figure
	}{
		{"calls/s", rate},
		{"CPU", cpu},
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
			if q, ok := r.ratio(s.Name, yodel, f.of, false, named(yodelBefore)); ok {
				fmt.Fprintf(t, "\t%.3f (%.2f to %.2f)", q.Median, q.Min, q.Max)
			} else {
				fmt.Fprint(t, "\t-")
			}
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
