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

// A pair is yodel as it is in the working tree, and as it was at another commit. Both run each scenario in each round, one
// right after the other, so that their ratio in a round depends little on what else the machine does.

// yodelBefore is yodel at the other commit.
const yodelBefore = "yodel-before"

// pairScenarios are measured unless -run names others.
var pairScenarios = regexp.MustCompile(`^(closed-(1|100|1000|5000)|async-message|async-echo|stream|large-1m|idle-10000)$`)

// pairRounds is how many rounds a pair runs unless -rounds says so.
const pairRounds = 9

// before returns the peer that is built from revision. Its sources go to a folder in bin, once for each commit.
func before(ctx context.Context, root, revision string) (program, error) {
	git := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = filepath.Dir(root)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
		}
		return out, err
	}
	hash, err := git("rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return program{}, err
	}
	dir := filepath.Join(root, "bin", "before-"+strings.TrimSpace(string(hash)))
	sources := filepath.Join(dir, "src")
	if _, err := os.Stat(sources); err != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return program{}, err
		}
		archive := filepath.Join(dir, "src.tar")
		if _, err := git("archive", "--prefix=src/", "-o", archive, strings.TrimSpace(string(hash))); err != nil {
			return program{}, err
		}
		if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
			return program{}, errors.Join(fmt.Errorf("tar: %w: %s", err, out), os.RemoveAll(sources))
		}
		if err := os.Remove(archive); err != nil {
			return program{}, err
		}
	}
	binary := filepath.Join(dir, yodel)
	return program{
		key: yodelBefore, name: "before", kind: kindVariant, argv: []string{binary},
		build: []string{"go", "build", "-o", binary, "."}, buildDir: filepath.Join(sources, "bench", "peers", yodel),
	}, nil
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
