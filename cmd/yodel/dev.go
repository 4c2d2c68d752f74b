// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
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

// consolePort is where the console listens. If the port is taken, the next free one is used.
const consolePort = 7080

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
	console, err := a.console(ctx, o, registry, &wg)
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
	a.printf("yodel %s  development server (not for production: no authentication on this machine)\n\n", programVersion())
	row := func(name, format string, args ...any) { a.printf("  %-10s %s\n", name, fmt.Sprintf(format, args...)) }
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
	known := make(map[string][3]string) // what was printed of an instance, by service and address
	for {
		view, err := f.Read(ctx)
		if ctx.Err() != nil {
			return
		}
		now := make(map[string][3]string)
		if err == nil {
			for _, s := range view.Services {
				for _, in := range s.Instances {
					now[s.Name+"@"+in.Addr] = [3]string{string(in.State), in.Version, in.Why}
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

// printChanges prints a line for each instance that has changed.
func (a *app) printChanges(known, now map[string][3]string) {
	var names []string
	for name := range now {
		if known[name] != now[name] {
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
		parts := now[name]
		a.printf("%s  %-8s %s  %s\n", clock, parts[0], name, orDash(parts[1])+spaced(parts[2]))
	}
}

func spaced(s string) string {
	if s == "" {
		return ""
	}
	return "  " + s
}

// mount returns the console of a registry, the path of a link that logs its user in once, and what
// ends the console.
func mount(registry fleet.Source, o *devOptions) (h http.Handler, link string, end func(), err error) {
	c, err := console.New(registry, &console.Options{Environment: "dev", Audit: filepath.Join(o.folder, "audit.ndjson"), Logger: silence()})
	if err != nil {
		return nil, "", nil, err
	}
	return c, c.LoginLink(console.User{Name: "developer", Role: console.Admin}), func() { _ = c.Close() }, nil
}

// console serves the console until ctx ends, and returns what the banner says of it.
func (a *app) console(ctx context.Context, o *devOptions, registry fleet.Source, wg *sync.WaitGroup) (string, error) {
	if o.noConsole {
		return "off", nil
	}
	l, hint, err := listenConsole(o.port)
	if err != nil {
		return "", err
	}
	h, link, end, err := mount(registry, o)
	if err != nil {
		l.Close()
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	wg.Go(func() { _ = server.Serve(l) }) // ends by Close
	wg.Go(func() {
		<-ctx.Done()
		_ = server.Close()
		end()
	})
	return fmt.Sprintf("http://%s%s   (the link works once)%s", l.Addr(), link, hint), nil
}

// listenConsole listens on a port. If no port is given, it takes the first free one from the
// default port on, and the hint says so.
func listenConsole(port int) (l net.Listener, hint string, err error) {
	if port != 0 {
		l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return nil, "", faultf(exitFailed, "the console cannot listen: %v", err).with("try", "yodel dev --console-port 0 takes the next free port")
		}
		return l, "", nil
	}
	for port = consolePort; port < consolePort+20; port++ {
		l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			if port > consolePort {
				hint = fmt.Sprintf("   (%d is used by another program; --console-port chooses one)", consolePort)
			}
			return l, hint, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, "", faultf(exitFailed, "the console cannot listen: %v", err).with("try", "yodel dev --no-console")
}
