// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// openFolder opens the registry of the processes that follow rules.
func openFolder(addr string) rules.Registry { return file.New(addr, nil) }

// An operator changes rules with the command.
type operator struct{ folder string }

// yodel runs the command as a process of its own, and returns its output.
func (o operator) yodel(ctx context.Context, args ...string) ([]byte, error) {
	cmd := program(ctx, o.folder, append([]string{"--registry", "file:" + o.folder}, args...)...)
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("yodel %q: %w: %s", args, err, failed.Stderr)
	}
	return out, err
}

// Put runs the command for the kind of the rule, or otherwise yodel rule set.
func (o operator) Put(ctx context.Context, r rules.Rule) (stored rules.Rule, err error) {
	args, ok := flagsOf(&r)
	if !ok {
		data, err := json.Marshal(&r)
		if err != nil {
			return r, err
		}
		args = []string{"set", string(data)}
	}
	out, err := o.yodel(ctx, append(append([]string{"rule"}, args...), "--force", "--author", r.Author, "--reason", r.Reason, "--output", "json")...)
	if err != nil {
		return r, err
	}
	return stored, json.Unmarshal(out, &stored)
}

// flagsOf returns the arguments of the command for the kind of a rule, or false if its flags do not
// have all fields of the rule.
func flagsOf(r *rules.Rule) (args []string, ok bool) {
	if r.Side != "" || r.Rollback != nil || !r.Expires.IsZero() || r.ID != "" {
		return nil, false
	}
	args = []string{r.Kind(), r.Service}
	flag := func(name, value string) {
		if value != "" {
			args = append(args, "--"+name, value)
		}
	}
	to := func(t *rules.Target) {
		for key, value := range map[string]string{"addr": t.Addr, "version": t.Version, "tag": t.Tag} {
			if value != "" {
				flag("to", key+"="+value)
			}
		}
	}
	switch {
	case r.Weight != nil:
		to(&r.Weight.To)
		flag("percent", strconv.Itoa(r.Weight.Percent))
	case r.Canary != nil:
		to(&r.Canary.To)
		flag("percent", fmt.Sprint(r.Canary.Percent))
	case r.Route != nil:
		to(&r.Route.To)
	case r.Disable != nil:
		if r.Disable.To != nil {
			to(r.Disable.To)
		}
	case r.Limit != nil:
		flag("per-second", fmt.Sprint(r.Limit.PerSecond))
		flag("by", r.Limit.By)
	default:
		return nil, false
	}
	flag("method", r.Method)
	flag("caller", r.Caller)
	return args, true
}

func (o operator) Remove(ctx context.Context, service, id string, _ int, author, reason string) error {
	_, err := o.yodel(ctx, "rule", "rm", service, id, "--force", "--author", author, "--reason", reason)
	return err
}

func (o operator) Rollback(ctx context.Context, service string, revision, _ int, author, reason string) error {
	_, err := o.yodel(ctx, "rule", "rollback", service, strconv.Itoa(revision), "--force", "--author", author, "--reason", reason)
	return err
}

// newOperator returns a registry whose rules the command changes.
func newOperator(t *testing.T) governed.Registry {
	t.Helper()
	folder := filepath.Join(t.TempDir(), ".yodel")
	if err := os.MkdirAll(filepath.Join(folder, "yodel"), 0o750); err != nil {
		t.Fatal(err)
	}
	return governed.Registry{Addr: folder, Open: openFolder, Operator: operator{folder}}
}

func TestRulesMoveProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	t.Parallel() // it mostly waits for its processes, as the next one does
	r := newOperator(t)
	governed.SomeKinds(t, r)
	// The processes still run, and remember the rules.
	out, err := operator{r.Addr}.yodel(t.Context(), "events", "Shop", "--limit", "500")
	for _, want := range []string{` +ann +in force: send 10 % of the calls of Shop to version v2: a test \(revision \d+\)`, ` +ann +remove: done`} {
		if err != nil || !regexp.MustCompile(`rule +Shop/canary-[0-9a-f]{4}`+want).Match(out) {
			t.Errorf("the events lack %q, %v:\n%s", want, err, out)
		}
	}
}

func TestRulesExpireAndRollBack(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	t.Parallel()
	governed.Restarts(t, newOperator(t))
}
