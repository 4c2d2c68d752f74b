// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/internal/nearest"
)

// An app is one run of the program.
type app struct {
	in                    io.Reader
	out, err              io.Writer // data, and talk
	failed                error     // the first error of out
	input                 *input    // in, once it is read
	env                   func(string) string
	args                  []string // of the command
	inTTY, outTTY, errTTY bool

	o      options
	target *target // the fleet of the command, once it is open
}

// options are the flags of all commands.
type options struct {
	registry string
	at       []string
	context  string
	output   string
	watch    bool
	every    time.Duration
	timeout  time.Duration
	patient  bool // the user has given timeout
	verbose  bool
	tls      bool
	ca       string
	cert     string
	key      string
	token    string
}

// The exit codes.
const (
	exitOK          = 0
	exitFailed      = 1 // the call failed
	exitUsage       = 2
	exitCheck       = 3 // a check failed, or a threshold was exceeded
	exitUnreachable = 4
	exitInterrupted = 130
)

// A fault is an error with an exit code and lines that help.
type fault struct {
	code int
	text string
	help [][2]string // heading and text
	part bool        // a part of the data has been printed: see partly
}

func (f *fault) Error() string { return f.text }

func faultf(code int, format string, args ...any) *fault {
	singleLines(args)
	return &fault{code: code, text: fmt.Sprintf(format, args...)}
}

// partly returns the fault of a command that has printed its data without some of them, or nil if
// there are no reasons.
func partly(reasons ...string) error {
	var said []string
	for _, why := range reasons {
		if why != "" && !slices.Contains(said, singleLine(why)) {
			said = append(said, singleLine(why))
		}
	}
	if len(said) == 0 {
		return nil
	}
	return &fault{code: exitUnreachable, text: strings.Join(said, "\n"), part: true}
}

// addf adds a line that helps.
func (f *fault) addf(heading, format string, args ...any) {
	singleLines(args)
	f.help = append(f.help, [2]string{heading, fmt.Sprintf(format, args...)})
}

// with adds a line that helps, and returns f.
func (f *fault) with(heading, format string, args ...any) *fault {
	f.addf(heading, format, args...)
	return f
}

// run runs the program and returns its exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root() //nolint:contextcheck // commands get ctx from cobra
	root.SetArgs(args)
	a.args = args
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.unwritten()
	}
	switch f, ok := errors.AsType[*fault](err); {
	case err == nil:
		return exitOK
	case ctx.Err() == nil:
		return a.report(ctx, err)
	case ok && f.code != exitUnreachable: // it may say what the interrupted command has left behind
		a.report(ctx, err)
	}
	return exitInterrupted
}

// report prints an error and returns its exit code.
func (a *app) report(ctx context.Context, err error) int {
	var f *fault
	var e *yodel.Error
	code, help := exitFailed, [][2]string(nil)
	switch {
	case errors.As(err, &f):
		code, help = f.code, f.help
	case errors.As(err, &e):
		code = exitFailed
		if unreached(e) {
			code = exitUnreachable
			help = a.hintTLS(ctx, e)
		}
		if _, next, ok := e.Explain(); ok && help == nil {
			help = [][2]string{{"next", next}}
		}
		if e.ID != "" {
			help = append(help, [2]string{"", "yodel explain " + e.ID})
		}
	case errors.Is(err, context.DeadlineExceeded):
		code = exitUnreachable
	}
	text := clip(err.Error())
	if f == nil {
		text = singleLine(text) // the text of a fault is safe, and may have several lines
	}
	if text != "" {
		a.say(text + "\n")
	}
	for _, line := range help {
		a.sayf("  %-14s %s\n", line[0], line[1])
	}
	return code
}

// clip shortens a message, which may have a long argument of the user in it.
func clip(message string) string {
	const longest = 600
	if runes := []rune(message); len(runes) > longest {
		return string(runes[:longest]) + "…"
	}
	return message
}

// unreached reports whether an error says that the command reached no server. A server may pass on
// the same error from a server behind it: then the server has answered, and the call has failed.
func unreached(e *yodel.Error) bool {
	if r := e.Report; r != nil {
		for i := range r.Attempts {
			// The client itself makes no attempt if it knows no instance, and the last attempt of
			// several that failed has an error of its own. So an attempt that ended with such an
			// error has it from the server. Not every protocol reports the server's times.
			at := &r.Attempts[i]
			if at.Queue > 0 || at.Handler > 0 || at.BytesIn > 0 || at.ID == e.ID && e.OfClient() && e.Code == yodel.Unavailable {
				return false
			}
		}
	}
	const lateID = "YDL1005" // the deadline passed while the client was connecting
	return e.AboutConnection() || e.OfClient() && (e.Code == yodel.Unavailable || e.ID == lateID)
}

// tags of commands in their help.
const (
	reads  = "read"  // the command changes nothing
	writes = "write" // the command changes the fleet
	local  = "local" // the command does not touch a fleet
)

// root returns the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "yodel",
		Short: "Show, call, measure and operate yodel services",
		Long: "yodel shows, calls, measures and operates yodel services.\n\n" +
			"The fleet is the one of --at or --registry, else that of --context or YODEL_CONTEXT, else the one in YODEL_REGISTRY,\n" +
			"else that of a yodel.toml, else that of the context, else that of the yodel dev whose folder .yodel is here or above.",
		Example:       "  yodel dev --demo\n  yodel ls\n  yodel call shop.Cart/Add '{\"sku\":\"tea\",\"qty\":2}'\n  yodel bench shop.Cart/Get -d 5s",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagFault)
	f := root.PersistentFlags()
	f.StringVar(&a.o.registry, "registry", "", "`URL` of the registry: etcd://, zookeeper://, consul://, redis://, nacos://, kubernetes://, file:PATH, mdns:, dns://")
	f.StringSliceVar(&a.o.at, "at", nil, "`HOST:PORT` of servers, instead of a registry")
	f.StringVar(&a.o.context, "context", "", "`NAME` of the context to use")
	f.StringVarP(&a.o.output, "output", "o", "table", "`FORMAT` of the output: table, json, ndjson, name or yaml")
	f.DurationVar(&a.o.timeout, "timeout", 3*time.Second, "how long to wait for the registry, for a connection and for a reply; without it, each instance of a fleet has 1s")
	f.BoolVarP(&a.o.verbose, "verbose", "v", false, "say more on stderr")
	f.BoolVar(&a.o.tls, "tls", false, "connect with TLS, trusting the roots of this machine")
	f.StringVar(&a.o.ca, "ca", "", "connect with TLS, trusting the authorities in this PEM `FILE`")
	f.StringVar(&a.o.cert, "cert", "", "PEM `FILE` with the client's certificate")
	f.StringVar(&a.o.key, "key", "", "PEM `FILE` with the key of the client's certificate")
	f.StringVar(&a.o.token, "token", "", "token for middleware/auth; default: the variable YODEL_TOKEN")
	a.complete(root, "output", formats)
	root.AddCommand(
		a.lsCommand(), a.describeCommand(), a.callCommand(), a.explainCommand(), a.samplesCommand(), a.eventsCommand(),
		a.devCommand(), a.newCommand(), a.consoleCommand(), a.drainCommand(), a.weightCommand(), a.disableCommand(), a.enableCommand(), a.doctorCommand(), a.topCommand(), a.tapCommand(),
		a.benchCommand(), a.drainTestCommand(), a.ruleCommand(), a.ctxCommand(), a.completionCommand(), a.cheatCommand(), a.versionCommand(),
	)
	root.SetHelpCommand(a.helpCommand())
	// The examples come before the usage. A template would make the linker keep all methods.
	usual := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		example := c.Example
		if example != "" {
			_, _ = fmt.Fprintf(c.OutOrStderr(), "Examples:\n%s\n\n", example)
		}
		c.Example = ""
		defer func() { c.Example = example }()
		return usual(c)
	})
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return a.checkOptions(c) }
	for _, c := range root.Commands() {
		slices.Sort(c.Aliases)
	}
	return root
}

// formats are the values of --output.
var formats = []string{"table", "json", "ndjson", "name", "yaml"}

// checkOptions checks the flags of all commands, and that no number is negative.
func (a *app) checkOptions(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *flagOf) {
		number := slices.Contains([]string{"int", "float64", "duration"}, f.Value.Type())
		least := f.Name == "timeout" || f.Name == "every" || f.Name == "deadline" && c.Name() == "call" // bench has none by default
		least = least && strings.Trim(f.Value.String(), "0s") == ""
		if number && (least || slices.Contains([]string{"NaN", "+Inf"}, f.Value.String()) || strings.HasPrefix(f.Value.String(), "-")) {
			err = faultf(exitUsage, "--%s cannot be %s", f.Name, f.Value)
		}
	})
	if err != nil {
		return err
	}
	a.o.patient = c.Flags().Changed("timeout")
	if !slices.Contains(formats, a.o.output) {
		return faultf(exitUsage, "there is no output format %q", a.o.output).with("formats", "%s", strings.Join(formats, ", "))
	}
	if len(a.o.at) > 0 && a.o.registry != "" {
		return faultf(exitUsage, "--at and --registry exclude each other")
	}
	return nil
}

// complete sets the values of a flag for completion.
func (a *app) complete(c *cobra.Command, flag string, values []string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// unknownCommand returns the fault for a command that does not exist below another one.
func unknownCommand(above *cobra.Command, name string) error {
	f := faultf(exitUsage, "there is no command %q", name)
	var names []string
	for _, c := range above.Commands() {
		names = append(names, c.Name())
		names = append(names, c.Aliases...)
	}
	if near := similar(name, names); near != "" {
		f.addf("did you mean", "%s %s", above.CommandPath(), near)
	}
	return f.with("commands", "%s", helpOf(above))
}

// helpOf returns the command that explains a command.
func helpOf(c *cobra.Command) string {
	return strings.TrimSpace("yodel help " + strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "yodel"), " "))
}

// negative is what cobra says of a negative number that it takes for a flag.
var negative = regexp.MustCompile(`^unknown shorthand flag: '\d' in (-\d[\d.]*)$`)

// flagFault returns the fault for a flag that does not exist, or has a wrong value.
func flagFault(c *cobra.Command, err error) error {
	f := faultf(exitUsage, "%s", err)
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		var names []string
		c.Flags().VisitAll(func(flag *flagOf) { names = append(names, flag.Name) })
		c.InheritedFlags().VisitAll(func(flag *flagOf) { names = append(names, flag.Name) })
		if near := similar(name, names); slices.Contains(formats, name) {
			f.addf("did you mean", "-o %s", name)
		} else if near != "" {
			f.addf("did you mean", "--%s", near)
		}
	}
	if m := negative.FindStringSubmatch(err.Error()); m != nil {
		f.text = m[1] + " is taken for a flag"
		f.addf("try", "-- %s   behind all flags: what follows -- is no flag", m[1])
	}
	return f.with("flags", "%s", helpOf(c))
}

// similar returns the most similar of the names, or "". A name that differs in case only is the
// most similar one.
func similar(name string, names []string) string {
	return nearest.Word(name, names, min(max(len(name)/3, 2)+1, len(name)))
}

// again runs f once, or with --watch again and again until ctx ends. A check that fails does not
// end a watch, nor do data that are not complete.
func (a *app) again(ctx context.Context, f func() error) error {
	for {
		if a.o.watch && a.outTTY {
			a.control(a.out, "\x1b[H\x1b[2J")
		}
		err := f()
		failed, _ := errors.AsType[*fault](err)
		if goOn := failed != nil && (failed.code == exitCheck || failed.part); !a.o.watch || err != nil && !goOn {
			return err
		}
		if failed != nil && failed.part {
			a.say(failed.text + "\n")
		}
		if !a.outTTY && a.o.output == "table" {
			a.printf("\n")
		}
		select {
		case <-time.After(a.o.every):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// limited returns a context that ends when the registry, or a server, has had --timeout to answer.
func (a *app) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, a.o.timeout)
}

// withFleet returns the RunE of a command that reads the fleet. With --watch, it runs run again and
// again.
func (a *app) withFleet(run func(ctx context.Context, f *fleet.Fleet, t *target, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		f, t, done, err := a.fleet(c.Context())
		if err != nil {
			return err
		}
		defer done()
		return a.again(c.Context(), func() error { return run(c.Context(), f, t, args) })
	}
}

// watchable adds the flags of a command that reads.
func (a *app) watchable(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&a.o.watch, "watch", "w", false, "show it again and again")
	c.Flags().DurationVar(&a.o.every, "every", time.Second, "the interval for --watch")
	return c
}

// command returns a command with a tag.
func command(tag string, c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{"tag": tag}
	c.Long = strings.TrimSpace(c.Short + ".\n\n" + c.Long + "\n\nThis command is tagged " + tag + ".")
	c.Args = counted(c.Args)
	return c
}

// counted makes a wrong number of arguments a fault.
func counted(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = cobra.NoArgs
	}
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return faultf(exitUsage, "%s", err).with("usage", "%s", c.UseLine())
		}
		return nil
	}
}
