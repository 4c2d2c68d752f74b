// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Main is the program of a framework: `PROGRAM serve`, `PROGRAM serve-tls` or `PROGRAM load`. It
// speaks JSON, an object on each line, over its standard input and output, and ends with its input.
// bench/README.md has the protocol.
func Main(p Peer) {
	out, err := claimStdout()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	role := ""
	if len(os.Args) == 2 {
		role = os.Args[1]
	}
	roles := map[string]func(*Peer, io.Reader, io.Writer) error{"serve": serve, "serve-tls": serveTLS, "load": load}
	if roles[role] == nil {
		fmt.Fprintf(os.Stderr, "usage: %s serve|serve-tls|load\n", os.Args[0])
		os.Exit(2)
	}
	stop, err := profile(role)
	if err == nil {
		err = errors.Join(roles[role](&p, os.Stdin, out), stop())
	}
	if err != nil {
		say(out, troubleOf(err)) //nolint:errcheck // the exit code tells whoever cannot be told
		os.Exit(1)
	}
}

// claimStdout returns the standard output for our own use. What frameworks print there goes to the
// standard error.
func claimStdout() (io.Writer, error) {
	own, err := unix.Dup(1)
	if err != nil {
		return nil, fmt.Errorf("dup: %w", err)
	}
	unix.CloseOnExec(own)
	if err := unix.Dup3(2, 1, 0); err != nil {
		return nil, fmt.Errorf("dup3: %w", err)
	}
	return os.NewFile(uintptr(own), "answers"), nil
}

func say(out io.Writer, v any) error { return json.NewEncoder(out).Encode(v) }

// Trouble is what cannot be done.
type trouble struct {
	Event    string `json:"event"`
	Text     string `json:"text"`
	Declined bool   `json:"declined,omitempty"` // it is nothing that the framework does
}

func troubleOf(err error) trouble {
	text := strings.TrimSuffix(err.Error(), ": "+errors.ErrUnsupported.Error()) // which is said by the field
	return trouble{"error", text, errors.Is(err, errors.ErrUnsupported)}
}

// A greeting says who serves where.
type greeting struct {
	Addr    string `json:"addr"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Setup   string `json:"setup"`

	Certificate string `json:"certificate,omitempty"` // in PEM: clients trust it
}

// Counters are what the Go runtime counts, since the program began or over a measurement.
type counters struct {
	Mallocs uint64 `json:"mallocs"`
	Bytes   uint64 `json:"bytes"`
	GCs     uint32 `json:"gcs"`
}

func readCounters() counters {
	var m runtime.MemStats
	runtime.ReadMemStats(&m) // not runtime/metrics, which does not see what the processors have not reported yet
	return counters{m.Mallocs, m.TotalAlloc, m.NumGC}
}

func (c counters) since(before counters) counters {
	return counters{c.Mallocs - before.Mallocs, c.Bytes - before.Bytes, c.GCs - before.GCs}
}

// A command is a line of the input.
type command struct {
	Do string `json:"do"`
}

func serve(p *Peer, in io.Reader, out io.Writer) error {
	addr, stop, err := p.Serve("127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer stop()
	return p.answer(addr, "", in, out)
}

func serveTLS(p *Peer, in io.Reader, out io.Writer) error {
	if p.ServeTLS == nil {
		return fmt.Errorf("no TLS: %w", errors.ErrUnsupported)
	}
	config, certificate, err := selfSigned()
	if err != nil {
		return err
	}
	addr, stop, err := p.ServeTLS("127.0.0.1:0", config)
	if err != nil {
		return fmt.Errorf("serve with TLS: %w", err)
	}
	defer stop()
	return p.answer(addr, certificate, in, out)
}

// answer greets as a server at addr, and answers what it is asked until the input ends.
func (p *Peer) answer(addr, certificate string, in io.Reader, out io.Writer) error {
	if err := say(out, greeting{addr, p.Name, version(p.Module), p.Setup, certificate}); err != nil {
		return err
	}
	for lines := json.NewDecoder(in); ; {
		var c command
		if err := lines.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the input: %w", err)
		}
		if c.Do != "figures" {
			return fmt.Errorf("a server knows nothing of %q", c.Do)
		}
		if err := say(out, readCounters()); err != nil {
			return err
		}
	}
}

// version returns the version of a module that the program was built with. The standard library has
// Go's.
func version(module string) string {
	if module == "std" {
		return runtime.Version()
	}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, dep := range info.Deps {
		switch {
		case dep.Path != module:
		case dep.Replace != nil:
			return dep.Replace.Version // "(devel)" is a folder
		default:
			return dep.Version
		}
	}
	return ""
}

// load makes the calls that the first line of the input orders. The second line begins the
// measurement.
func load(p *Peer, in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(in)
	var o order
	if err := lines.Decode(&o); err != nil {
		return fmt.Errorf("the order: %w", err)
	}
	if err := o.check(p); err != nil {
		return err
	}
	sleep := time.Sleep
	if o.Mode == open {
		alarm, err := newAlarm()
		if err != nil {
			return err
		}
		sleep = alarm.sleep
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := newRun(o, sleep)
	if err := r.start(ctx, p); err != nil {
		return err
	}
	defer r.close()
	if err := r.warmUp(); err != nil {
		return err
	}
	if err := say(out, struct {
		Event string `json:"event"`
	}{"ready"}); err != nil {
		return err
	}
	if proceed, err := r.awaitGo(lines); !proceed {
		return err
	}
	d, err := r.measure()
	if err != nil {
		return err
	}
	if err := say(out, d); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in) // whoever asked reads our figures until the input ends
	return err
}
