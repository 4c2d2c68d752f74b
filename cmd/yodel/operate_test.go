// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/registry/file"
)

// The page with the tasks, of which TestOperate runs every command.
const operatePage = "../../docs/operate.md"

// A step is a command of the page.
type step struct {
	// line is the command line. {slow}, {failing} and {stock} stand for addresses of the shop.
	line string
	code int
	want string // a regular expression that matches the output
	// again says that the command is repeated until its output is as wanted, because clients and
	// statistics take a moment to follow a change.
	again bool
	// then checks the fleet after the command, until it holds.
	then func(o *operated) bool
}

// steps are the commands of the page, in its order.
func steps() []step {
	return []step{
		// Find the slow instance.
		{line: "yodel ls shop.Cart", want: `{slow} .* up `},
		{line: "yodel tap shop.Cart/Checkout --slower 5ms -n 3", want: `{slow} `, again: true, then: (*operated).slowIsSlow},
		// Find out why a call failed.
		{line: "yodel samples shop.Cart/Checkout --failed --limit 1", want: `internal: the card reader is unplugged`, again: true},
		{line: "yodel samples shop.Pay --failed --limit 1", want: `^{failing}\n.*the card reader is unplugged`, again: true},
		{line: "yodel ls shop.Pay", want: `{failing} .* b `},
		// Drain an instance.
		{line: "yodel drain shop.Pay {failing}", want: `{failing} is idle\n$`, then: func(o *operated) bool { return o.quiet("shop.Pay", "{failing}") }},
		{line: "yodel ls shop.Pay", want: `{failing} .* inactive .* an operator has disabled it`, again: true},
		{line: "yodel enable shop.Pay {failing}", want: `inactive → no setting`, then: func(o *operated) bool { return !o.quiet("shop.Pay", "{failing}") }},
		// Send 10 % of the calls to a canary.
		{
			line: "yodel rule canary shop.Cart --to v1.1.0 --percent 10 --id try --expires 2h --reason 'CHG-88: try v1.1'",
			want: `revision 1: Send 10 % of the calls`, then: func(o *operated) bool { s := o.share("v1.1.0"); return s > 0 && s < 0.25 },
		},
		{line: "yodel rule ls shop.Cart", want: `try +canary +active`},
		// Limit a caller.
		{
			line: "yodel rule limit shop.Cart --caller web --method Get --per-second 3 --id web --expires 1h --reason 'CHG-89: web calls too often'",
			want: `revision 2: Limit the calls of shop.Cart.Get from web to 3 a second`,
		},
		{line: "yodel tap shop.Cart/Get --caller web --failed -n 2", want: `web .* resource_exhausted: .* the limit of 3 calls a second is used up`, again: true},
		{line: "yodel samples shop.Cart/Get --failed --limit 1", want: `\[YDL3301\][^$]*rule web: limit the calls`, again: true},
		// Mock a dependency that is down.
		{line: "yodel disable shop.Stock {stock} --force", want: `no setting → inactive`, then: func(o *operated) bool { return o.quiet("shop.Stock", "{stock}") }},
		{line: `yodel call shop.Cart/Add '{"sku":"tea","qty":2}'`, code: exitFailed, want: `shop.Stock.Reserve: no instance .* \[YDL1001\]`, again: true},
		{
			line: `yodel rule set '{"service":"shop.Stock","id":"mock","method":"Reserve","mock":{"reply":{"sku":"tea","left":1}}}' --reason 'Stock is down'`,
			want: `revision 1: Answer the calls of shop.Stock.Reserve with a fixed reply`,
		},
		{line: `yodel call shop.Cart/Add '{"sku":"tea","qty":2}'`, want: `^{"total": \d+, `, again: true},
		{line: "yodel enable shop.Stock {stock}", want: `inactive → no setting`},
		{line: "yodel rule rm shop.Stock mock --reason 'Stock is back'", want: `did remove rule mock`},
		{line: `yodel call shop.Cart/Add '{"sku":"tea","qty":2}'`, want: `^{"total": \d+, `, again: true, then: func(o *operated) bool { return !o.quiet("shop.Stock", "{stock}") }},
		// Find out who calls a method.
		{line: "yodel describe shop.Stock/Reserve", want: `Callers +shop.Cart +\d+\.\d calls/s`, again: true},
		{line: "yodel tap shop.Stock/Reserve -n 2", want: `shop.Cart +→ shop.Stock/Reserve`},
		// Find out what changed at 14:02.
		{line: "yodel events --limit 12", want: `rule +shop.Stock/mock +ann +remove: Stock is back \(revision 2\)[^$]*instance down +{stock}`},
		{line: "yodel rule history shop.Cart -v", want: `2 .* put web by ann: CHG-89[^$]*1 .* put try by ann: CHG-88`},
		// Roll back.
		{line: "yodel rule rollback shop.Cart 1 --reason 'web is fixed'", want: `to revision 1`, then: func(o *operated) bool { return o.refused() == 0 && o.share("v1.1.0") < 0.25 }},
		{line: "yodel rule off shop.Cart try --reason 'v1.1 is slow'", want: `switch the rule try of shop.Cart off`, then: func(o *operated) bool { return o.share("v1.1.0") == 0 }},
		{line: "yodel rule ls", want: `try +canary +off`},
		// Prove that a restart loses nothing.
		{line: "yodel drain-test shop.Cart/Get", want: `2 instances drained and enabled: 0 lost`},
	}
}

// operated is the demonstration as a process, which operators' commands change.
type operated struct {
	t      *testing.T
	folder string
	bin    string // has a program with the name yodel
	fleet  *fleet.Fleet
	addrs  map[string]string // by placeholder
}

// startOperated starts the demonstration, which the test ends.
func startOperated(t *testing.T) *operated {
	t.Helper()
	o := &operated{t: t, folder: filepath.Join(t.TempDir(), ".yodel"), bin: t.TempDir()}
	if err := os.Symlink(os.Args[0], filepath.Join(o.bin, "yodel")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(o.folder, "yodel"), 0o750); err != nil { // to watch it before the program does
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	cmd := program(ctx, o.folder, "dev", "--demo", "--no-console")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, out) // so that the program can write
	}()
	o.fleet = fleet.New(file.New(o.folder, nil), nil)
	t.Cleanup(func() {
		o.fleet.Close()
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		<-drained
		if err := cmd.Wait(); err != nil {
			t.Errorf("after Ctrl-C: %v", err)
		}
		cancel()
	})
	until(t, "all instances are up", func() bool {
		o.addrs = make(map[string]string)
		for _, s := range o.read().Services {
			for _, in := range s.Instances {
				switch {
				case in.State == fleet.Down || in.Traffic.Rate == 0:
				case s.Name == "shop.Cart" && in.Version == "v1.1.0":
					o.addrs["{slow}"] = in.Addr
				case s.Name == "shop.Pay" && in.Zone == "b":
					o.addrs["{failing}"] = in.Addr
				case s.Name == "shop.Stock":
					o.addrs["{stock}"] = in.Addr
				}
			}
		}
		return len(o.addrs) == 3
	})
	return o
}

// read reads the fleet.
func (o *operated) read() *fleet.View {
	o.t.Helper()
	view, err := o.fleet.Read(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	return view
}

// fill replaces the placeholders of a text.
func (o *operated) fill(s string) string {
	for placeholder, addr := range o.addrs {
		s = strings.ReplaceAll(s, placeholder, addr)
	}
	return s
}

// last returns the calls in the last two full seconds of the instances of a service that match.
func (o *operated) last(service string, match func(in *fleet.Instance) bool) (calls float64) {
	for _, in := range o.read().Service(service).Instances {
		points := in.Traffic.Points
		for _, n := range points[max(len(points)-2, 0):] {
			if match(in) {
				calls += n
			}
		}
	}
	return calls
}

// quiet reports whether an instance has had no calls lately.
func (o *operated) quiet(service, placeholder string) bool {
	return o.last(service, func(in *fleet.Instance) bool { return in.Addr == o.addrs[placeholder] }) == 0
}

// share returns the share of a version in the calls of the carts.
func (o *operated) share(version string) float64 {
	all := o.last("shop.Cart", func(*fleet.Instance) bool { return true })
	return o.last("shop.Cart", func(in *fleet.Instance) bool { return in.Version == version }) / max(all, 1)
}

// refused returns how many calls the carts have refused in the last full second.
func (o *operated) refused() (n uint64) {
	for _, in := range o.read().Service("shop.Cart").Instances {
		for _, s := range in.Live.Series {
			if counts := s.Errors["resource_exhausted"]; s.Side == "server" && len(counts) > 1 {
				n += counts[len(counts)-2]
			}
		}
	}
	return n
}

// slowIsSlow reports whether the instance that the page calls slow has the longest calls.
func (o *operated) slowIsSlow() bool {
	var slow, fast time.Duration
	for _, in := range o.read().Service("shop.Cart").Instances {
		if in.Addr == o.addrs["{slow}"] {
			slow = in.Traffic.P90
		} else {
			fast = in.Traffic.P90
		}
	}
	return slow > fast
}

// sh runs a command line in a shell, in the folder of the demonstration.
func (o *operated) sh(line string) (string, int) {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "sh", "-c", line)
	cmd.Dir = filepath.Dir(o.folder)
	cmd.Env = append(os.Environ(), "PATH="+o.bin+":"+os.Getenv("PATH"), "YODEL_TEST_AS_PROGRAM=1", "XDG_CONFIG_HOME="+cmd.Dir, "YODEL_CONTEXT=", "YODEL_REGISTRY=", "YODEL_AUTHOR=ann")
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		o.t.Fatal(err)
	}
	return strings.ReplaceAll(string(out), o.folder, ".yodel"), cmd.ProcessState.ExitCode()
}

// run runs a step and returns what it printed.
func (o *operated) run(s *step) string {
	o.t.Helper()
	line, want := o.fill(s.line), regexp.MustCompile("(?m)"+strings.ReplaceAll(o.fill(s.want), `{"`, `\{"`))
	out, code := o.sh(line)
	if s.again {
		for range 100 {
			if code == s.code && want.MatchString(out) {
				break
			}
			out, code = o.sh(line)
		}
	}
	if code != s.code || !want.MatchString(out) {
		o.t.Fatalf("%s: exit code %d, want %d, and the output\n%s\nmatches %s", line, code, s.code, out, want)
	}
	if s.then != nil {
		until(o.t, "the fleet is as wanted after "+line, func() bool { return s.then(o) })
	}
	return out
}

// TestOperate runs the tasks of docs/operate.md against the demonstration: every command of the
// page, in the order of the page. It compares the command lines of the page with those that it
// runs. -update writes the outputs on the page.
func TestOperate(t *testing.T) {
	t.Parallel() // it mostly waits for what its commands have changed
	page, err := os.ReadFile(operatePage)
	if err != nil {
		t.Fatal(err)
	}
	all := steps()
	var want []string
	for i := range all {
		want = append(want, regexp.MustCompile(`{(slow|failing|stock)}`).ReplaceAllString(all[i].line, "ADDR"))
	}
	var lines []string
	for _, line := range commandLines(string(page)) {
		lines = append(lines, addresses.ReplaceAllString(line, "ADDR"))
	}
	if !slices.Equal(lines, want) {
		t.Fatalf("the page has the commands\n%s\nand the test runs\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	o := startOperated(t)
	if *update {
		<-time.After(70 * time.Second) // the outputs on the page have a full minute of calls
	}
	var outputs []string
	for i := range all {
		t.Logf("%s  %s", time.Now().Format(time.TimeOnly), all[i].line)
		outputs = append(outputs, "$ "+o.fill(all[i].line)+"\n"+o.run(&all[i]))
	}
	if *update {
		if err := os.WriteFile(operatePage, []byte(withOutputs(string(page), outputs)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// commandLines returns the command lines in the blocks of a page, without their prompts.
func commandLines(page string) []string {
	var lines []string
	for line := range strings.SplitSeq(page, "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			lines = append(lines, command)
		}
	}
	return lines
}

// withOutputs returns a page with the commands and outputs of a run in its blocks.
func withOutputs(page string, outputs []string) string {
	var b strings.Builder
	inside, next := false, 0
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.HasPrefix(line, "```text")
			b.WriteString(line)
		case !inside:
			b.WriteString(line)
		case strings.HasPrefix(line, "$ "):
			fmt.Fprintf(&b, "%s\n", strings.TrimRight(outputs[next], "\n"))
			next++
		}
	}
	return b.String()
}

// TestTopKeys presses keys in top on a terminal: q ends it, and Ctrl-C interrupts it.
func TestTopKeys(t *testing.T) {
	folder := startShop(t)
	for key, want := range map[string]int{"q": exitOK, "\x03": exitInterrupted} {
		var out buffer
		a := &app{
			in: strings.NewReader(key), out: &out, err: &out, inTTY: true, outTTY: true,
			env: func(name string) string { return map[string]string{"YODEL_REGISTRY": "file:" + folder}[name] },
		}
		if code := a.run(t.Context(), []string{"top"}); code != want {
			t.Errorf("the key %q: exit code %d, want %d: %s", key, code, want, out.String())
		}
	}
}
