// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A program is how a peer is started: argv and, behind it, "serve" or "load".
type program struct {
	key  string
	name string // in tables, instead of what it says of itself
	kind Kind
	argv []string
	dir  string // to start it in

	build    []string // the command that makes it; nil if it is there
	buildDir string

	client *program // makes the calls instead of this program; nil for none

	// callsOnly is set if the program only makes the calls of scenarios that name it as their
	// client, because -peers does not name it.
	callsOnly bool

	layouts []string // of a pair: each round runs the next of these programs instead of argv
}

// findPeers lists the programs under root, the folder of this file: every module in peers, and with
// java those that java/peers.json names.
func findPeers(root string, java bool) ([]program, error) {
	folders, err := filepath.Glob(filepath.Join(root, "peers", "*", "go.mod"))
	if err != nil {
		return nil, err
	}
	var found []program
	for _, mod := range folders {
		folder := filepath.Dir(mod)
		key := filepath.Base(folder)
		binary := filepath.Join(root, "bin", key)
		found = append(found, program{
			key: key, kind: kindOf(key), argv: []string{binary},
			build: []string{"go", "build", "-o", binary, "."}, buildDir: folder,
		})
	}
	if java {
		onJVM, err := javaPeers(filepath.Join(root, "java"))
		if err != nil {
			return nil, err
		}
		found = append(found, onJVM...)
	}
	return found, nil
}

func kindOf(key string) Kind {
	switch {
	case key == yodel:
		return kindYodel
	case selects(yodel, key):
		return kindVariant
	case selects("raw", key), key == actorsChannel:
		return kindCeiling
	default:
		return kindGo
	}
}

// javaPeers reads which programs the Maven project in folder makes.
func javaPeers(folder string) ([]program, error) {
	text, err := os.ReadFile(filepath.Join(folder, "peers.json"))
	if err != nil {
		return nil, err
	}
	var commands map[string][]string
	if err := json.Unmarshal(text, &commands); err != nil {
		return nil, fmt.Errorf("java/peers.json: %w", err)
	}
	var found []program
	for key, argv := range commands {
		found = append(found, program{
			key: key, kind: kindJava, argv: argv, dir: folder,
			build: []string{"mvn", "-q", "package"}, buildDir: folder,
		})
	}
	slices.SortFunc(found, func(a, b program) int { return strings.Compare(a.key, b.key) })
	return found, nil
}

// selects says whether name, as given to -peers, means the peer key: itself, or all that begin so:
// "kitex" means kitex-thrift and kitex-protobuf.
func selects(name, key string) bool { return key == name || strings.HasPrefix(key, name+"-") }

// choose keeps the peers that the names mean. A name that means none is an error.
func choose(found []program, names []string) ([]program, error) {
	for _, name := range names {
		if !slices.ContainsFunc(found, func(p program) bool { return selects(name, p.key) }) {
			return nil, fmt.Errorf("no peer %q; there are %s", name, strings.Join(keysOf(found), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(p program) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return selects(name, p.key) })
	}), nil
}

// needed returns those of the chosen programs that take part in one of the scenarios, and the
// clients of these scenarios. The others need not be built.
func needed(chosen, found []program, scenarios []Scenario) []program {
	needed := slices.DeleteFunc(slices.Clone(chosen), func(p program) bool {
		return !slices.ContainsFunc(scenarios, func(s Scenario) bool { return s.takes(p) })
	})
	for _, s := range scenarios {
		serves := slices.ContainsFunc(needed, s.takes)
		i := slices.IndexFunc(found, func(p program) bool { return p.key == s.Client })
		if serves && i >= 0 && !slices.Contains(keysOf(needed), s.Client) {
			client := found[i]
			client.callsOnly = true
			needed = append(needed, client)
		}
	}
	return needed
}

func keysOf(programs []program) []string {
	var keys []string
	for _, p := range programs {
		keys = append(keys, p.key)
	}
	return keys
}

// buildPeers builds the programs, outside of the workspace: each peer has the dependencies of its
// own go.mod. Those that do not build are left out, and said to be in the errors. saying tells what
// is going on. When ctx is done nothing more is built.
func buildPeers(ctx context.Context, programs []program, saying func(string)) (built []program, failed []error) {
	done := make(map[string]error) // by folder: the peers on the JVM share one
	for _, p := range programs {
		if p.build == nil {
			built = append(built, p)
			continue
		}
		err, known := done[p.buildDir]
		if !known {
			saying("building " + p.key)
			err = build(ctx, p)
			if ctx.Err() != nil { // it is not to blame for that
				return built, failed
			}
			done[p.buildDir] = err
			if err != nil {
				failed = append(failed, err)
			}
		}
		if err == nil {
			built = append(built, p)
		}
	}
	return built, failed
}

func build(ctx context.Context, p program) error {
	cmd := exec.CommandContext(ctx, p.build[0], p.build[1:]...)
	cmd.Dir = p.buildDir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	// A group of its own, so that all that it has started ends with it: first as by Control-C, for
	// it to tidy up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil && cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // mostly nobody is left
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not built: %w", p.key, err)
	}
	if err != nil {
		return fmt.Errorf("%s is not built: %s: %w\n%s", p.key, strings.Join(p.build, " "), err, text)
	}
	return nil
}
