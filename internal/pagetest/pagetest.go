// SPDX-License-Identifier: Apache-2.0

// Package pagetest runs the shell commands of a page in Markdown, so that a reader who types them
// gets what the page says.
package pagetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Options say where the commands of a page run. The zero value is an empty folder.
type Options struct {
	Dir     string   // the folder to begin in; default: a new empty one
	Env     []string // is added to the environment
	Without []string // programs that are missing: blocks and commands that begin with one do not run
	Replace []string // pairs of a text of the page and what stands for it, such as an address that is free
}

// Run runs the blocks of commands of a page, in order. Each block begins in the folder in which the
// one before it ended.
//
//   - The commands of a block "sh" have to succeed. A block "console" has commands after "$ ", and
//     the lines that follow a command are what it prints.
//   - A block below the comment "background: ADDRESS" is a server, which listens at the address and
//     runs until the test ends. Then it gets an interrupt, and has to end without an error.
//   - A block below the comment "write: FILE" is written into the file.
//   - A block below the comment "go test PACKAGE -run TEST runs this block." runs in another test,
//     which has to exist.
//
// Run returns the number of commands and blocks that it has run.
func Run(t testing.TB, page string, o *Options) int {
	t.Helper()
	r := &reader{t: t}
	if o != nil {
		r.Options = *o
	}
	if runtime.GOOS == "windows" {
		t.Skip("the page has commands for a Unix shell")
	}
	if r.Dir == "" {
		r.Dir = t.TempDir()
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	r.replace = strings.NewReplacer(r.Replace...)
	for _, b := range blocks(string(text)) {
		r.block(b)
	}
	return r.ran
}

// A reader types what a page shows.
type reader struct {
	Options

	t       testing.TB
	replace *strings.Replacer
	ran     int
}

// A block is a fenced block, with the comments directly above it.
type block struct {
	language, text string
	comments       []string
}

var (
	comment    = regexp.MustCompile(`^<!-- (.*) -->$`)
	otherTest  = regexp.MustCompile(`^go test (\S+) -run (\w+)`)
	background = regexp.MustCompile(`^background: (\S+)$`)
	written    = regexp.MustCompile(`^write: (\S+)$`)
)

// blocks returns the blocks of a page.
func blocks(page string) (all []block) {
	var comments []string
	var open *block
	for line := range strings.Lines(strings.ReplaceAll(page, "\r\n", "\n")) {
		trimmed := strings.TrimSpace(line)
		is := comment.FindStringSubmatch(trimmed)
		switch language, fence := strings.CutPrefix(trimmed, "```"); {
		case open != nil && trimmed == "```":
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line
		case fence:
			open = &block{language: language, comments: comments}
			comments = nil
		case is != nil:
			comments = append(comments, is[1])
		case trimmed != "":
			comments = nil
		}
	}
	return all
}

// find returns what a comment of the block has in the groups of a pattern, or nil.
func (b block) find(pattern *regexp.Regexp) []string {
	for _, c := range b.comments {
		if found := pattern.FindStringSubmatch(c); found != nil {
			return found[1:]
		}
	}
	return nil
}

// block does what a reader does with a block.
func (r *reader) block(b block) {
	r.t.Helper()
	commands := b.language == "sh" || b.language == "console"
	if to := b.find(written); to != nil {
		r.write(filepath.Join(r.Dir, to[0]), b.text)
	}
	if !commands {
		return
	}
	r.ran++
	if test := b.find(otherTest); test != nil {
		r.wantTest(test[0], test[1])
		return
	}
	text := r.replace.Replace(b.text)
	addr := b.find(background)
	switch {
	case addr != nil:
		r.start(text, r.replace.Replace(addr[0]))
	case b.language == "sh" && r.without(text):
		r.ran--
	case b.language == "sh":
		r.run(text)
	default:
		r.ran += r.console(text) - 1
	}
	r.rewrite()
}

// console runs the commands of a block that shows what they print, and returns their number.
func (r *reader) console(text string) int {
	r.t.Helper()
	steps := strings.Split("\n"+text, "\n$ ")[1:]
	ran := 0
	for _, step := range steps {
		command, want := cutCommand(step)
		if r.without(command) {
			continue
		}
		ran++
		if got := r.run(command); strings.TrimSpace(got) != strings.TrimSpace(want) {
			r.t.Errorf("$ %s\nprints\n%s\nwant\n%s", command, got, want)
		}
	}
	return ran
}

// without reports whether commands need a program that is missing.
func (r *reader) without(commands string) bool {
	return slices.ContainsFunc(strings.Split(commands, "\n"), func(line string) bool {
		return slices.ContainsFunc(r.Without, func(program string) bool { return strings.HasPrefix(line, program+" ") })
	})
}

// cutCommand divides a command, whose lines but the last end with a backslash, from what it prints.
func cutCommand(step string) (command, prints string) {
	lines := strings.SplitAfter(step, "\n")
	n := 1
	for n < len(lines) && strings.HasSuffix(lines[n-1], "\\\n") {
		n++
	}
	return strings.TrimSpace(strings.Join(lines[:n], "")), strings.Join(lines[n:], "")
}

// patience is how long a command may take. It is long because the machine may be busy.
const patience = 5 * time.Minute

// run runs commands, goes on in the folder in which they end, and returns what they print.
func (r *reader) run(commands string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	folder := filepath.Join(r.t.TempDir(), "folder")
	cmd := r.command(ctx, commands+"\npwd >'"+folder+"'")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		var dir []byte
		dir, err = os.ReadFile(folder)
		r.Dir = strings.TrimSpace(string(dir))
	}
	if err != nil {
		r.t.Fatalf("%s\nfails: %v\n%s%s", commands, err, &out, &errs)
	}
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

func (r *reader) command(ctx context.Context, commands string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-ec", commands)
	cmd.Dir, cmd.Env = r.Dir, slices.Concat(os.Environ(), r.Env)
	cmd.WaitDelay = 10 * time.Second // a process that a killed command has started may hold its output
	return cmd
}

// goRun is a command that compiles a program and runs it. The signals of a test have to reach the
// program itself, so start has it built first.
var goRun = regexp.MustCompile(`(?m)^go run (\S+)(.*)$`)

// start runs a server until the test ends.
func (r *reader) start(commands, addr string) {
	r.t.Helper()
	program := filepath.Join(r.t.TempDir(), "program")
	cmd := r.command(context.WithoutCancel(r.t.Context()), goRun.ReplaceAllString(commands, "go build -o '"+program+"' $1\nexec '"+program+"'$2"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		select {
		case err := <-ended:
			if err != nil && !r.t.Failed() {
				r.t.Errorf("%s\nends with %v after an interrupt\n%s", commands, err, &out)
			}
		case <-time.After(patience):
			_ = cmd.Process.Kill() // as above
			err := <-ended
			r.t.Errorf("%s\ndoes not end after an interrupt: %v\n%s", commands, err, &out)
		}
	})
	if err := listens(r.t.Context(), addr, ended); err != nil {
		r.t.Fatalf("%s\ndoes not listen at %s: %v\n%s", commands, addr, err, &out)
	}
}

// listens waits until a server listens at addr, and returns an error if its process ends before.
func listens(ctx context.Context, addr string, ended chan error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		var d net.Dialer
		if conn, err := d.DialContext(ctx, "tcp", addr); err == nil {
			itself := conn.LocalAddr().String() == addr // the system may choose the port of addr for this end too
			if err := conn.Close(); err != nil || !itself {
				return err
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			ended <- err
			return fmt.Errorf("it has ended: %w", cmp.Or(err, errSuccess))
		}
	}
}

var errSuccess = errors.New("without an error")

// write writes a file of the page.
func (r *reader) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(name, []byte(r.replace.Replace(text)), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// rewrite replaces texts in the Go files that commands have copied into the folder.
func (r *reader) rewrite() {
	r.t.Helper()
	err := filepath.WalkDir(r.Dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Ext(name) != ".go" {
			return err
		}
		text, err := os.ReadFile(name)
		if replaced := r.replace.Replace(string(text)); err == nil && replaced != string(text) {
			err = os.WriteFile(name, []byte(replaced), 0o600)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// wantTest wants a test to exist in a package of the repository.
func (r *reader) wantTest(pkg, name string) {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(repository(r.t), filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("func "+name+"(t *testing.T)")) {
			return
		}
	}
	r.t.Errorf("the page names the test %s of %s, which does not exist", name, pkg)
}

// repository returns the root of the repository.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	t.Fatalf("no folder above %s has a go.work: %v", dir, err)
	return ""
}
