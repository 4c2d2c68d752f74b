// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/console"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/registry/file"
)

// devFolder is the folder in which the commands find the registry by themselves.
const devFolder = ".yodel"

// devOptions are the flags of dev.
type devOptions struct {
	demo      bool
	memory    bool
	noConsole bool
	port      int
	folder    string
}

func (a *app) devCommand() *cobra.Command {
	var o devOptions
	c := command(local, &cobra.Command{
		Use:   "dev",
		Short: "Run a registry, rules and the console for development, until Ctrl-C",
		Long: "The registry is a folder, ./.yodel, which servers and clients on this machine share:\n" +
			"file.New(\".yodel\", nil) of package registry/file. Commands in this folder and below find it by themselves.\n" +
			"--demo adds a shop with three services, five instances and traffic. One instance fails and one is slow, on purpose.",
		Example: "  yodel dev --demo\n  yodel dev --memory --no-console",
		RunE:    func(c *cobra.Command, _ []string) error { return a.dev(c.Context(), &o) },
	})
	f := c.Flags()
	f.BoolVar(&o.demo, "demo", false, "add a small shop with traffic, a failing and a slow instance")
	f.BoolVar(&o.memory, "memory", false, "forget everything at the end")
	f.BoolVar(&o.noConsole, "no-console", false, "do not serve the console")
	f.IntVar(&o.port, "console-port", 0, fmt.Sprintf("`PORT` of the console (default %d, or the next free one)", consolePort))
	f.StringVar(&o.folder, "folder", devFolder, "`PATH` of the registry's folder")
	return c
}

// programVersion returns the version of the program.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.1.0-dev"
}

func (a *app) versionCommand() *cobra.Command {
	return command(local, &cobra.Command{
		Use: "version", Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}{programVersion(), runtime.Version()}
			return a.show(v, text("yodel "+v.Version+"\n"), func() []string { return []string{v.Version} })
		},
	})
}

func (a *app) dev(ctx context.Context, o *devOptions) error {
	kept := "kept between runs"
	if o.memory && o.folder != devFolder {
		return faultf(exitUsage, "--memory and --folder exclude each other")
	}
	if o.memory {
		folder, err := os.MkdirTemp("", "yodel-dev")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		o.folder, kept = folder, "removed at the end"
	}
	if err := os.MkdirAll(filepath.Join(o.folder, "yodel"), 0o755); err != nil { //nolint:gosec // other users' servers may announce themselves there
		return err
	}
	registry := file.New(o.folder, nil)
	f := fleet.New(registry, nil)
	defer f.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	failed := make(chan error, 2)
	console, err := a.devConsole(ctx, o, registry, func(serve func() error) {
		wg.Go(func() {
			if err := serve(); err != nil {
				failed <- err
				cancel()
			}
		})
	})
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	if o.demo {
		p := &shop{folder: o.folder}
		wg.Go(func() {
			if err := p.run(ctx, func() { close(ready) }); err != nil {
				failed <- err
				cancel()
			}
		})
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	a.banner(o, kept, console)
	a.follow(ctx, f)
	cancel()
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil // Ctrl-C is how it ends
	}
}

// banner prints what runs where, and what to try.
func (a *app) banner(o *devOptions, kept, console string) {
	a.printf("yodel %s  development server (not for production: the console asks for a login, the registry and the servers do not)\n\n", programVersion())
	row := a.rowf
	row("Registry", "file:%s      (%s)", o.folder, kept)
	row("Console", "%s", console)
	if o.demo {
		row("Demo", "3 services, 5 instances, 40 calls/s; one fails and one is slow, on purpose")
	}
	a.printf("\n")
	try := "Try"
	if filepath.Base(o.folder) != devFolder { // the commands do not look there by themselves
		row(try, "export YODEL_REGISTRY=file:%s", o.folder)
		try = ""
	}
	if o.demo {
		row(try, "yodel ls")
		row("", "yodel call shop.Cart/Add '{\"sku\":\"tea\",\"qty\":2}'")
		row("", "yodel bench shop.Cart/Get")
	} else {
		row(try, "yodel ls        after starting a server with Registrars: file.New(%q, nil)", o.folder)
	}
	row("Stop", "Ctrl-C")
	a.printf("\n")
}

// follow prints the instances that come and go, until ctx ends.
func (a *app) follow(ctx context.Context, f *fleet.Fleet) {
	known, ejected := make(map[string]seen), make(map[string]time.Time) // by service and address; when it was ejected last
	for {
		view, err := f.Read(ctx)
		if ctx.Err() != nil {
			return
		}
		now := make(map[string]seen)
		if err == nil {
			for _, s := range view.Services {
				for _, in := range s.Instances {
					name, one := s.Name+"@"+in.Addr, seen{in.State, in.Version, in.Why}
					if in.State == fleet.Ejected {
						ejected[name] = time.Now()
					}
					if old := known[name]; old.state == fleet.Ejected && in.State == fleet.Up && time.Since(ejected[name]) < time.Minute {
						one = old // an instance that fails is tried again and again, which is said once
					}
					now[name] = one
				}
			}
			a.printChanges(known, now)
			known = now
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// A seen is what was printed of an instance.
type seen struct {
	state   fleet.State
	version string
	why     string // which may change by itself
}

// printChanges prints a line for each instance whose state or version has changed.
func (a *app) printChanges(known, now map[string]seen) {
	var names []string
	for name := range now {
		if old, ok := known[name]; !ok || old.state != now[name].state || old.version != now[name].version {
			names = append(names, name)
		}
	}
	for name := range known {
		if _, ok := now[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	clock := time.Now().Format(time.TimeOnly)
	for _, name := range names {
		if _, ok := now[name]; !ok {
			a.printf("%s  %-8s %s\n", clock, "left", name)
			continue
		}
		one := now[name]
		why := one.why
		if one.state == fleet.Up {
			why = "" // for example that it passes on errors of others, which is no change
		}
		a.printf("%s  %-8s %s  %s\n", clock, one.state, name, orDash(one.version)+spaced(why))
	}
}

func spaced(s string) string {
	if s == "" {
		return ""
	}
	return "  " + s
}

// devConsole opens the console, and passes a function that serves it until ctx ends to start. It
// returns what the banner says of the console.
func (a *app) devConsole(ctx context.Context, o *devOptions, registry fleet.Source, start func(serve func() error)) (string, error) {
	if o.noConsole {
		return "off", nil
	}
	addr := ""
	if o.port != 0 {
		addr = fmt.Sprintf("%s:%d", consoleHost, o.port)
	}
	l, hint, err := listenConsole(addr)
	if err != nil {
		return "", err
	}
	c, err := console.New(registry, &console.Options{Environment: "dev", Audit: filepath.Join(o.folder, "audit.ndjson"), Logger: silence()})
	if err != nil {
		l.Close()
		return "", err
	}
	start(func() error { return serveConsole(ctx, l, c, nil) })
	link := c.LoginLink(console.User{Name: "developer", Role: console.Admin})
	return fmt.Sprintf("http://%s%s   (the link works once)%s", l.Addr(), link, hint), nil
}
