// SPDX-License-Identifier: Apache-2.0

// Bench measures RPC frameworks side by side: it starts each one's server and client as processes
// on loopback, interleaves their runs, and reports medians over rounds, as a table, JSON, CSV,
// charts and a page. README.md says what is measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

const helpText = `Measures RPC frameworks side by side. Run it in bench/:

  go run . -list                          the scenarios and the peers
  go run . -peers yodel,raw -run closed   two peers, the scenarios whose names match
  go run .                                the Go peers, the main scenarios, 3 rounds: under 10 minutes
  go run . -full -json all.json -page ../docs/benchmarks
                                          everything, with the peers on the JVM: two hours
  go run . -from all.json -page DIR       table, page and charts again, without measuring
  go run . -check                         is yodel still ahead? At most a minute; exit code 1 when not
  go run . -pair HEAD~1                   yodel as it is here beside yodel of another commit

Flags:
`

// Options are the flags.
type options struct {
	peers, run, json, csv, page, from string
	pair                              string
	rounds                            int
	measure, warmup                   time.Duration
	check, full, java, list           bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is the program: its exit code is 2 for wrong use, 1 when something failed or a target is
// missed, otherwise 0.
func command(ctx context.Context, args []string, out, errs io.Writer) int {
	o, err := parse(args, errs)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(errs, err)
		return 2
	}
	b := &bench{options: o, out: out, show: &progress{out: errs, terminal: isTerminal(errs)}}
	b.root, err = folder()
	if err == nil {
		err = b.do(ctx)
	}
	var wrong errUsage
	switch {
	case errors.As(err, &wrong):
		fmt.Fprintln(errs, err)
		return 2
	case err != nil:
		fmt.Fprintln(errs, err)
		return 1
	}
	return 0
}

// errUsage is an error of whoever called the command.
type errUsage struct{ error }

func parse(args []string, errs io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprint(errs, helpText)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.peers, "peers", "", "only these `NAMES`, separated by commas; kitex means also kitex-thrift")
	flags.StringVar(&o.run, "run", "", "only scenarios whose names match `REGEXP`, also those of -full")
	flags.IntVar(&o.rounds, "rounds", 0, "how often each peer runs each scenario (default 3, with -full 5)")
	flags.DurationVar(&o.measure, "measure", 0, "how long a run is measured (default 400ms, with -full 1s)")
	flags.DurationVar(&o.warmup, "warmup", 0, "how long it runs before that (default 200ms, with -full 500ms; on the JVM at least 4s)")
	flags.BoolVar(&o.full, "full", false, "all scenarios and peers, also those on the JVM")
	flags.BoolVar(&o.java, "java", false, "also the peers on the JVM; needs a JDK and Maven")
	flags.BoolVar(&o.check, "check", false, "measure only what targets 1 and 3 need, and judge it: at most a minute")
	flags.StringVar(&o.pair, "pair", "", "measure yodel beside yodel of `COMMIT`, in 9 rounds, and print ratios")
	flags.BoolVar(&o.list, "list", false, "list the scenarios and the peers")
	flags.StringVar(&o.json, "json", "", "write all results to `FILE`")
	flags.StringVar(&o.csv, "csv", "", "write a line for each run to `FILE`")
	flags.StringVar(&o.page, "page", "", "write a page and its charts to the folder `DIR`")
	flags.StringVar(&o.from, "from", "", "measure nothing, take the results of `FILE`, written by -json")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errors.New("see -help") // flag has said what is wrong
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("what is %q? see -help", flags.Arg(0))
	case o.rounds < 0 || o.measure < 0 || o.warmup < 0:
		return o, errors.New("-rounds, -measure and -warmup are positive")
	case o.measure > 0 && o.measure < time.Millisecond:
		return o, errors.New("-measure is at least 1ms")
	case o.pair != "" && (o.full || o.java || o.check || o.list || o.from != "" || o.peers != ""):
		return o, errors.New("-pair chooses its own peers: it does not go with -full, -java, -check, -list, -from and -peers")
	case o.from != "" && (o.full || o.java || o.list || o.run != "" || o.peers != "" || o.rounds > 0 || o.measure > 0 || o.warmup > 0):
		return o, errors.New("-from measures nothing: it goes with -json, -csv, -page and -check only")
	case o.check && (o.full || o.java || o.run != "" || o.peers != ""):
		return o, errors.New("-check chooses its own peers and scenarios: it does not go with -full, -java, -run and -peers")
	}
	o.defaults()
	return o, nil
}

// defaults fills in what depends on other flags.
func (o *options) defaults() {
	rounds, measure, warmup := 3, 400*time.Millisecond, 200*time.Millisecond
	if o.full {
		rounds, measure, warmup = 5, time.Second, 500*time.Millisecond
	}
	if o.pair != "" {
		rounds, measure = pairRounds, time.Second
	}
	if o.rounds == 0 {
		o.rounds = rounds
	}
	if o.measure == 0 {
		o.measure = measure
	}
	if o.warmup == 0 {
		o.warmup = warmup
	}
	o.java = o.java || o.full
}

// A bench is one execution of the command.
type bench struct {
	options

	root   string
	out    io.Writer
	show   *progress
	report *Report
}

func (b *bench) do(ctx context.Context) error {
	if b.list {
		return b.printList()
	}
	var failed []error
	if b.from != "" {
		var err error
		if b.report, err = readReport(b.from); err != nil {
			return err
		}
		for _, s := range b.report.Scenarios {
			if err := b.report.writeTable(b.out, s); err != nil {
				return err
			}
		}
	} else {
		var err error
		if failed, err = b.measureAll(ctx); err != nil {
			return err
		}
	}
	failed = append(failed, b.output()...)
	if b.pair != "" {
		failed = append(failed, b.report.writePair(b.out))
	}
	if b.check && ctx.Err() == nil {
		failed = append(failed, b.report.check(b.out))
	}
	return errors.Join(failed...)
}

// measureAll builds and measures. What goes wrong with single peers is failed.
func (b *bench) measureAll(ctx context.Context) (failed []error, err error) {
	p, err := b.plan(ctx)
	if err != nil {
		return nil, err
	}
	// Do not find out after hours that the results cannot be written.
	if err := b.writable(); err != nil {
		return nil, err
	}
	b.report = &Report{
		Date: time.Now().UTC().Truncate(time.Second), Command: strings.Join(append([]string{"go run ."}, os.Args[1:]...), " "),
		Machine: thisMachine(b.root, b.java),
		Rounds:  p.rounds, WarmupMS: p.timing.warmup.Milliseconds(), MeasureMS: p.timing.measure.Milliseconds(),
	}
	p.programs, failed = buildPeers(ctx, p.programs, b.show.step)
	for _, err := range failed {
		b.show.clear()
		fmt.Fprintln(b.show.out, err)
	}
	var tables error
	p.carryOut(ctx, b.report, b.show, func(s Scenario) { tables = errors.Join(tables, b.report.writeTable(b.out, s)) })
	if n := len(failed); n > 0 { // their text stands above
		failed = []error{fmt.Errorf("%d builds failed", n)}
	}
	if problems := b.report.failures(); len(problems) > 0 {
		failed = append(failed, fmt.Errorf("%d runs failed:\n  %s", len(problems), strings.Join(problems, "\n  ")))
	}
	if ctx.Err() != nil {
		failed = append(failed, errors.New("interrupted"))
	}
	return append(failed, tables), nil
}

// plan finds out what is to be measured.
func (b *bench) plan(ctx context.Context) (*plan, error) {
	p := &plan{
		rounds: b.rounds, jvmWarmup: 4 * time.Second,
		timing: timing{warmup: b.warmup, measure: b.measure, patience: 20 * time.Second, grace: 10 * time.Second},
	}
	found, err := findPeers(b.root, b.java)
	if err != nil {
		return nil, err
	}
	p.programs = found
	if b.check {
		p.scenarios, b.peers = checkScenarios(), strings.Join(checkPeers, ",")
	} else if p.scenarios, err = selectScenarios(b.run, b.full); err != nil {
		return nil, err
	}
	if b.pair != "" {
		if err = b.planPair(ctx, p); err != nil {
			return nil, err
		}
	}
	if b.peers != "" {
		if p.programs, err = b.choose(p.programs); err != nil {
			return nil, errUsage{err}
		}
	}
	p.programs = needed(p.programs, found, p.scenarios)
	if len(p.programs) == 0 {
		return nil, errors.New("there are no peers")
	}
	return p, nil
}

// choose keeps the peers that -peers names.
func (b *bench) choose(found []program) ([]program, error) {
	names := strings.Split(b.peers, ",")
	chosen, err := choose(found, names)
	if err == nil || b.java {
		return chosen, err
	}
	if all, err := findPeers(b.root, true); err == nil {
		if _, err := choose(all, names); err == nil {
			return nil, fmt.Errorf("-peers %s: some of these are on the JVM, which takes -java", b.peers)
		}
	}
	return nil, err
}

// selectScenarios are those whose names match the pattern, or without one those of a usual or a
// full run.
func selectScenarios(pattern string, full bool) ([]Scenario, error) {
	matching, err := regexp.Compile(pattern)
	if err != nil {
		return nil, errUsage{fmt.Errorf("-run: %w", err)}
	}
	var selected []Scenario
	for _, s := range scenarios {
		if matching.MatchString(s.Name) && (full || pattern != "" || !s.Full) {
			selected = append(selected, s)
		}
	}
	if len(selected) == 0 {
		return nil, errUsage{fmt.Errorf("no scenario's name matches %q; -list shows them", pattern)}
	}
	return selected, nil
}

// output writes the files that the flags name.
func (b *bench) output() (failed []error) {
	if b.json != "" {
		failed = append(failed, b.report.write(b.json))
	}
	if b.csv != "" {
		failed = append(failed, writeFile(b.csv, b.report.writeCSV))
	}
	if b.page != "" {
		failed = append(failed, b.report.writePage(b.page))
	}
	return failed
}

func (b *bench) printList() error {
	for _, s := range scenarios {
		when := ""
		if s.Full {
			when = " (-full)"
		}
		fmt.Fprintf(b.out, "%-18s %s%s\n", s.Name, s.Title, when)
	}
	found, err := findPeers(b.root, true)
	if errors.Is(err, fs.ErrNotExist) {
		found, err = findPeers(b.root, false)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(b.out)
	for _, p := range found {
		fmt.Fprintf(b.out, "%-18s %s\n", p.key, p.kind)
	}
	return nil
}

// folder is that of this file: the peers are beside it. The command is made to be run by go run, in
// it.
func folder() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Dir(file)
	if _, err := os.Stat(filepath.Join(root, "peers")); err != nil {
		return "", fmt.Errorf("run this with go run . in bench/: %w", err)
	}
	return root, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// writable checks that all files that the flags name can be written.
func (b *bench) writable() error {
	files := []string{b.json, b.csv}
	if b.page != "" {
		if err := os.MkdirAll(b.page, 0o755); err != nil {
			return err
		}
		files = append(files, filepath.Join(b.page, "README.md"))
	}
	for _, file := range files {
		if file == "" {
			continue
		}
		if err := writable(file); err != nil {
			return err
		}
	}
	return nil
}

// writable checks that a file can be written, and leaves it as it is.
func writable(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// writeFile creates a file and lets write fill it.
func writeFile(file string, write func(io.Writer) error) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
