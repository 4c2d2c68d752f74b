// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	stdtls "crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/console"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// These are where the console listens. If the port is taken, the next free one is used.
const (
	consoleHost = "127.0.0.1"
	consolePort = 7080
)

// consoleFlags are the flags of console.
type consoleFlags struct {
	console.Options

	listen    string
	cert, key string
	noTLS     bool
	proxies   []string
	role      string
	users     string
}

func (a *app) consoleCommand() *cobra.Command {
	var o consoleFlags
	c := command(writes, &cobra.Command{
		Use:   "console",
		Short: "Serve the web console of the fleet, until Ctrl-C",
		Long: "The console shows and changes the fleet that other commands would show and change, with the same flags and contexts.\n" +
			"It prints a link that logs its user in once, within 15 minutes. An admin invites others on the screen Audit.\n" +
			"Each login and change is a line on stderr, and in the file of --audit.\n" +
			"A line of the file of --users has a name, a role and a token of at least 32 bytes. Programs send the token as\n" +
			"Authorization: Bearer.\n" +
			"A --listen address that other machines can reach needs TLS, or --no-tls.",
		Example: "  yodel console\n  yodel --context prod console --read-only\n" +
			"  yodel --registry etcd://10.0.0.1:2379 console --listen :7443 --listen-cert tls.crt --listen-key tls.key --audit audit.ndjson\n" +
			"  yodel console --url https://ops.example/yodel/     # behind a proxy",
		RunE: func(c *cobra.Command, _ []string) error { return a.runConsole(c.Context(), &o) },
	})
	f := c.Flags()
	f.StringVar(&o.listen, "listen", "", fmt.Sprintf("`HOST:PORT` of the console (default %s:%d, or the next free port)", consoleHost, consolePort))
	f.StringVar(&o.cert, "listen-cert", "", "PEM `FILE` with the console's certificate, which is read again when it changes")
	f.StringVar(&o.key, "listen-key", "", "PEM `FILE` with the key of the console's certificate (default: that of --listen-cert)")
	f.BoolVar(&o.noTLS, "no-tls", false, "let other machines reach the console without TLS, as in a container behind a proxy")
	f.StringVar(&o.URL, "url", "", "`URL` of the console in browsers, if a proxy is in front of it; it may have a path")
	f.StringSliceVar(&o.proxies, "proxy", nil, "`ADDRESS` or network of proxies whose X-Forwarded-For is believed")
	f.BoolVar(&o.ReadOnly, "read-only", false, "refuse every change")
	f.StringVar(&o.Audit, "audit", "", "`FILE` to which every login and change is appended, as JSON")
	f.StringVar(&o.Environment, "environment", "", "`NAME` of the fleet, beside which PROD asks for confirmations (default: the name of the context)")
	f.StringVar(&o.role, "role", console.Admin.String(), "`ROLE` of the user of the printed link: viewer, operator or admin")
	f.StringVar(&o.users, "users", "", "`FILE` with a line NAME ROLE TOKEN for each program that may use the console")
	a.complete(c, "role", []string{"viewer", "operator", "admin"})
	return c
}

func (a *app) runConsole(ctx context.Context, o *consoleFlags) error {
	role, config, err := o.check()
	if err != nil {
		return err
	}
	t, err := a.openTarget(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = t.close() }()
	services, err := a.servicesOf(ctx, t)
	if err != nil {
		return err
	}
	l, hint, err := listenConsole(o.listen)
	if err != nil {
		return err
	}
	defer l.Close()
	o.Client, o.Logger = t.client, slog.New(slog.NewTextHandler(a.err, nil))
	o.Environment = cmp.Or(o.Environment, t.context, "default")
	o.Hosts = hostsOf(o.listen, l.Addr())
	c, err := console.New(t.source, &o.Options)
	if err != nil {
		return faultf(exitUsage, "%v", err)
	}
	u := console.User{Name: cmp.Or(a.author(), "operator"), Role: role}
	a.printf("yodel %s  console of %s\n\n", programVersion(), t.name)
	a.rowf("Fleet", "%s", plural(services, "service"))
	a.rowf("Console", "%s%s   (the link works once, within 15 minutes, and logs %s in as %s)%s", o.address(l.Addr(), config != nil), c.LoginLink(u), u.Name, u.Role, hint)
	if o.ReadOnly {
		a.rowf("Changes", "refused: the console is read-only")
	} else {
		a.rowf("Changes", "logged on %s", strings.Join(slices.DeleteFunc([]string{"stderr", o.Audit}, func(s string) bool { return s == "" }), " and in "))
	}
	a.rowf("Stop", "Ctrl-C")
	return serveConsole(ctx, l, c, config)
}

// rowf prints a line of a banner.
func (a *app) rowf(name, format string, args ...any) {
	a.printf("  %-10s %s\n", name, fmt.Sprintf(format, args...))
}

// check checks the flags, and returns the role of the user, and how the console uses TLS, or nil.
func (o *consoleFlags) check() (role console.Role, config *stdtls.Config, err error) {
	if role = roleNamed(o.role); role == console.NoRole {
		return role, nil, faultf(exitUsage, "there is no role %q", o.role).with("roles", "viewer, operator, admin")
	}
	for _, text := range o.proxies {
		p, err := netip.ParsePrefix(text)
		if one, notOne := netip.ParseAddr(text); notOne == nil {
			p, err = netip.PrefixFrom(one, one.BitLen()), nil
		}
		if err != nil {
			return role, nil, faultf(exitUsage, "--proxy %s: an address or a network is wanted, such as 10.0.0.0/8", text)
		}
		o.Proxies = append(o.Proxies, p)
	}
	if o.Tokens, err = readUsers(o.users); err != nil {
		return role, nil, err
	}
	switch {
	case o.key != "" && o.cert == "":
		return role, nil, faultf(exitUsage, "--listen-key needs --listen-cert")
	case o.cert != "" && o.noTLS:
		return role, nil, faultf(exitUsage, "--listen-cert and --no-tls exclude each other")
	case o.cert != "":
		certificate, err := tls.Reload(o.cert, cmp.Or(o.key, o.cert)) // a file may have both
		if err != nil {
			return role, nil, faultf(exitUsage, "--listen-cert and --listen-key: %v", err)
		}
		return role, &stdtls.Config{GetCertificate: certificate.GetCertificate, MinVersion: stdtls.VersionTLS12}, nil
	}
	return role, nil, o.checkPlain()
}

// checkPlain refuses to listen without TLS where other machines can connect, unless --no-tls says
// so: sessions and tokens would be in clear on the network.
func (o *consoleFlags) checkPlain() error {
	if o.listen == "" {
		return nil
	}
	at, err := net.ResolveTCPAddr("tcp", o.listen)
	if err != nil {
		return faultf(exitUsage, "--listen %s: %s", o.listen, cmp.Or(problemOf(err), err.Error())).with("try", "--listen 127.0.0.1:%d", consolePort)
	}
	if o.noTLS || at.IP.IsLoopback() {
		return nil
	}
	return faultf(exitUsage, "--listen %s lets other machines reach the console, without TLS: the sessions and tokens of its users could be read on the network", o.listen).
		with("try", "--listen-cert FILE --listen-key FILE").
		with("or", "--listen 127.0.0.1:%d, behind a proxy with TLS on this machine", consolePort).
		with("or", "--no-tls, if everything between the browsers, or a proxy with TLS, and the console is trusted")
}

// roleNamed returns the role with a name, or NoRole.
func roleNamed(name string) console.Role {
	for role := console.Viewer; role <= console.Admin; role++ {
		if role.String() == name {
			return role
		}
	}
	return console.NoRole
}

// readUsers reads the programs that may use the console, by token. Errors do not show tokens.
func readUsers(path string) (map[string]console.User, error) {
	if path == "" {
		return map[string]console.User{}, nil
	}
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, faultf(exitUsage, "--users: %v", err)
	}
	defer file.Close()
	users := make(map[string]console.User)
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 3 || roleNamed(words[1]) == console.NoRole {
			return nil, faultf(exitUsage, "--users: line %d of %s is not NAME ROLE TOKEN, with a role of viewer, operator and admin", n, path)
		}
		users[words[2]] = console.User{Name: words[0], Role: roleNamed(words[1])}
	}
	if err := lines.Err(); err != nil {
		return nil, faultf(exitUsage, "--users: %v", err)
	}
	return users, nil
}

// servicesOf counts the services of the fleet, which shows that it can be read.
func (a *app) servicesOf(ctx context.Context, t *target) (int, error) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	names, err := t.source.Services(ctx)
	if err != nil && len(names) == 0 {
		return 0, t.unreachable(err)
	}
	return len(names), nil
}

// hostsOf returns the hosts for which a console answers that listens at an address.
func hostsOf(listen string, at net.Addr) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		hosts = append(hosts, strings.ToLower(host))
	}
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			hosts = append(hosts, strings.ToLower(name))
		}
		addrs, _ := net.InterfaceAddrs() // without them, --url names the host
		for _, addr := range addrs {
			if in, ok := addr.(*net.IPNet); ok {
				hosts = append(hosts, in.IP.String())
			}
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// address returns the address of the console in browsers, without the last slash.
func (o *consoleFlags) address(at net.Addr, secure bool) string {
	if o.URL != "" {
		return strings.TrimSuffix(o.URL, "/")
	}
	scheme, where := "http://", at.String()
	if secure {
		scheme = "https://"
	}
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		name, err := os.Hostname()
		if err != nil {
			name = "localhost"
		}
		where = net.JoinHostPort(name, fmt.Sprint(tcp.Port))
	}
	return scheme + where
}

// author returns the name of the user of the command, or "".
func (a *app) author() string {
	name := a.env("YODEL_AUTHOR")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	return name
}

// listenConsole listens at an address. If none is given, it takes the first free port from the
// default port on, and the hint says so.
func listenConsole(addr string) (l net.Listener, hint string, err error) {
	if addr != "" {
		if l, err = net.Listen("tcp", addr); err != nil {
			return nil, "", faultf(exitFailed, "the console cannot listen: %v", err).with("try", "port 0, which is any free port")
		}
		return l, "", nil
	}
	for port := consolePort; port < consolePort+20; port++ {
		l, err = net.Listen("tcp", fmt.Sprintf("%s:%d", consoleHost, port))
		if err == nil {
			if port > consolePort {
				hint = fmt.Sprintf("   (%d is used by another program)", consolePort)
			}
			return l, hint, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, "", faultf(exitFailed, "the console cannot listen: %v", err)
}

// serveConsole serves a console until ctx ends, with TLS if config is not nil. It closes the
// console, and returns when all requests have ended.
func serveConsole(ctx context.Context, l net.Listener, c *console.Console, config *stdtls.Config) error {
	server := &http.Server{Handler: c, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	ended := make(chan error, 1)
	go func() {
		if config != nil {
			ended <- server.ServeTLS(l, "", "")
			return
		}
		ended <- server.Serve(l)
	}()
	select {
	case err := <-ended:
		return errors.Join(err, c.Close())
	case <-ctx.Done():
	}
	err := c.Close() // it ends the pages that watch calls, and waits for changes
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if server.Shutdown(last) != nil { // a client is slow
		_ = server.Close()
	}
	<-ended //nolint:errcheck // Serve ends with the server
	return err
}
