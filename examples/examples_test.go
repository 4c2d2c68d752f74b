// SPDX-License-Identifier: Apache-2.0

// Package examples_test runs each example as a process of its own, and compares what it prints with
// what the documents say that it prints.
package examples_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// patience is how long a program may take at most. It is long because the machine may be busy.
const patience = time.Minute

func TestExamples(t *testing.T) {
	e := build(t)
	t.Run("first", e.testFirst)
	t.Run("hello", e.testHello)
	for _, name := range []string{"async", "auth", "canary", "connect", "dubbo", "grpc", "lineecho", "middleware", "rpcx", "streams", "thrift", "tls"} {
		t.Run(name, func(t *testing.T) {
			got, want := e.output(t, name), commentedOutput(t, name+"/main.go")
			if got != want {
				t.Errorf("it prints\n%s\nwant\n%s", got, want)
			}
		})
	}
	t.Run("netrpc", e.testNetRPC)
	t.Run("wires", e.testWires)
	t.Run("wrong use", e.testWrongUse)
	t.Run("files", e.testFiles)
	t.Run("actors", e.testActors)
	t.Run("quickstart", e.testQuickstart)
	t.Run("quickstart interrupted", e.testQuickstartInterrupted)
	t.Run("quickstart killed", e.testQuickstartKilled)
	if withCluster {
		t.Run("cluster", e.testCluster)
		t.Run("cluster interrupted", e.testClusterInterrupted)
		t.Run("cluster killed", e.testClusterKilled)
	} else {
		t.Run("cluster", func(t *testing.T) {
			t.Skip("its etcd is needed, which compiles for minutes: set YODEL_REAL=all, or run make before-end")
		})
	}
	t.Run("faults", e.testFaults)
	t.Run("restart", e.testRestart)
	t.Run("restart interrupted", e.testRestartInterrupted)
	t.Run("restart killed", e.testRestartKilled)
}

// withCluster says that the example with an etcd server in it is built and tested, which takes
// minutes.
var withCluster = os.Getenv("YODEL_REAL") == "all"

// examples is the folder with the built programs.
type examples string

// build builds all examples, with the race detector if the test has it too. Cluster has it never,
// because its etcd would take minutes.
func build(t *testing.T) examples {
	t.Helper()
	dir := t.TempDir()
	goBuild := func(args ...string) {
		args = append([]string{"build", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}, args...) // linked in two thirds of the time
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	all := []string{"./...", "./connect", "./grpc"} // modules of their own
	if raceDetector() {
		all = append([]string{"-race"}, all...)
	}
	goBuild(all...)
	if withCluster {
		goBuild("./cluster") // a module of its own too
	}
	return examples(dir)
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// command returns a command that runs an example, and is ended with the test. If it ends by itself,
// it has to leave no temporary file.
func (e examples) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	temporary, err := os.MkdirTemp(string(e), "tmp") //nolint:usetesting // those that a killed program has started may use it for a moment longer than the test lasts
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience) // a cleanup may still need the program
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(string(e), name), args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "TMPDIR="+temporary, "TMP="+temporary)
	cmd.Stderr = new(bytes.Buffer)
	realserver.EndWithParent(cmd)
	t.Cleanup(func() { // when it has ended
		left, err := os.ReadDir(temporary)
		if ended := cmd.ProcessState; ended != nil && ended.Exited() && (err != nil || len(left) > 0) {
			t.Errorf("%s leaves %v, %v", cmd, left, err)
		}
	})
	return cmd
}

// output runs an example and returns what it prints.
func (e examples) output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := e.command(t, name, args...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", name, err, out, cmd.Stderr)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

// commentedOutput returns what the package comment in a file says that the program prints.
func commentedOutput(t *testing.T, file string) string {
	t.Helper()
	_, comment, ok := strings.Cut(read(t, file), "// It prints:\n//\n")
	if !ok {
		t.Fatalf("%s does not say what it prints", file)
	}
	var want strings.Builder
	for line := range strings.Lines(comment) {
		printed, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			break
		}
		want.WriteString(printed)
	}
	return want.String()
}

func (e examples) testFirst(t *testing.T) {
	server, addr := e.startServer(t, "first", "-serve")
	if got, want := e.output(t, "first", "-addr", addr), block(t, read(t, "../README.md"), "$ go run .\n"); got != want {
		t.Errorf("it prints\n%s\nwant\n%s", got, want)
	}
	server.interrupt(t)
}

func (e examples) testHello(t *testing.T) {
	first, one := e.startServer(t, "server")
	second, two := e.startServer(t, "server")
	// The comment shows a run with one server at the usual address.
	want := strings.ReplaceAll(commentedOutput(t, "hello/client/main.go"), "127.0.0.1:8972", one)
	if got := e.output(t, "client", "-servers", one); got != want {
		t.Errorf("one server: got\n%s\nwant\n%s", got, want)
	}
	var got string
	for range 10 { // on a busy machine, the four calls may be over before the second connection is there
		got = e.output(t, "client", "-servers", one+","+two)
		if strings.Count(got, "hello Ann, from "+one+"\n") == 2 && strings.Count(got, "hello Ann, from "+two+"\n") == 2 {
			got = ""
			break
		}
	}
	if got != "" {
		t.Errorf("two servers do not get two of four calls each:\n%s", got)
	}
	second.interrupt(t)
	if got := e.output(t, "client", "-servers", one+","+two); got != want {
		t.Errorf("one of two servers: got\n%s\nwant\n%s", got, want)
	}
	first.interrupt(t)
}

// startServer starts a program that listens where its flag -addr says, at any free address, and
// returns the address.
func (e examples) startServer(t *testing.T, name string, args ...string) (p *process, addr string) {
	t.Helper()
	for range 5 { // somebody else may take the port in between
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr = l.Addr().String()
		l.Close()
		p = e.start(t, name, append(slices.Clone(args), "-addr", addr)...)
		if p.listens(addr) {
			return p, addr
		}
	}
	t.Fatal("the server does not listen")
	return nil, ""
}

// A process is an example that is running.
type process struct {
	cmd    *exec.Cmd
	stdout io.Reader
	gone   chan struct{} // closed when it has ended
	err    error         // how
}

// start starts an example. It is killed with the test, if it has not ended.
func (e examples) start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: e.command(t, name, args...), gone: make(chan struct{})}
	var err error
	if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.gone)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.gone
}

// interrupt ends the program as Ctrl-C does, and wants it to end without an error.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	p.signal(t, os.Interrupt)
}

// signal ends the program by a signal, and wants it to end without an error.
func (p *process) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if runtime.GOOS == "windows" { // where a program cannot send one
		p.kill()
		return
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
	<-p.gone
	if p.err != nil {
		t.Errorf("%s after the signal %v: %v\n%s", p.cmd, sig, p.err, p.cmd.Stderr)
	}
}

// ends are the signals that end a program in good order.
var ends = []os.Signal{os.Interrupt, syscall.SIGTERM}

// listens waits until somebody listens at addr, and reports whether that happened before the
// program ended.
func (p *process) listens(addr string) bool {
	return waitFor(p.gone, func() bool { return answers(addr) })
}

func answers(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// waitFor reports whether a condition came true before a channel was closed, or patience ended.
func waitFor(gone <-chan struct{}, condition func() bool) bool {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if condition() {
			return true
		}
		select {
		case <-again.C:
		case <-gone:
			return false
		}
	}
	return false
}

func (e examples) testNetRPC(t *testing.T) {
	readme := read(t, "netrpc/README.md")
	for _, name := range []string{"before", "after"} {
		if got, want := e.output(t, name), block(t, readme, "$ go run ./examples/netrpc/"+name+"\n"); got != want {
			t.Errorf("%s prints\n%s\nwant\n%s", name, got, want)
		}
	}
	if got, want := e.output(t, "both"), commentedOutput(t, "netrpc/both/main.go"); got != want {
		t.Errorf("both prints\n%s\nwant\n%s", got, want)
	}
	diff := block(t, readme, "```diff\n")
	for name, not := range map[string]byte{"before": '+', "after": '-'} {
		var side strings.Builder
		for line := range strings.Lines(diff) {
			if line[0] != not {
				side.WriteString(line[1:])
			}
		}
		_, want, _ := strings.Cut(read(t, "netrpc/"+name+"/main.go"), "\npackage main\n")
		if side.String() != "package main\n"+want {
			t.Errorf("the diff in the README is of another %s, which goes on with\n%s", name, want)
		}
	}
}

// Who starts a program wrongly is shown how to start it, and nothing else happens.
func (e examples) testWrongUse(t *testing.T) {
	for name, wrong := range map[string][][]string{
		"quickstart": {{"nonsense"}, {"-nonsense"}, {"-callers", "0"}, {"-seconds", "0"}, {"-seconds", "NaN"}},
		"cluster":    {{"nonsense"}, {"-nonsense"}, {"-callers", "0"}, {"-step", "-1s"}},
		"faults":     {{"nonsense"}, {"-nonsense"}, {"-callers", "0"}, {"-window", "1ms"}},
		"restart":    {{"nonsense"}, {"-nonsense"}, {"-callers", "-1"}, {"-streams", "-1"}, {"-restarts", "-1"}, {"-for", "0"}},
		"files":      {{}, {"nonsense"}, {"-nonsense"}, {"serve"}, {"put"}, {"get"}, {"get", "a", "b"}, {"-check", "nonsense"}, {"-check", "-size", "-1"}},
	} {
		if name == "cluster" && !withCluster {
			continue // it is not built
		}
		for _, args := range wrong {
			cmd := e.command(t, name, args...)
			var ended *exec.ExitError
			out, err := cmd.Output()
			if said := fmt.Sprint(cmd.Stderr); !errors.As(err, &ended) || len(out) > 0 || !strings.Contains(strings.ToLower(said), "usage") || strings.Contains(said, "goroutine") {
				t.Errorf("%s %q: %v\n%s%s", name, args, err, out, said)
			}
		}
	}
}

func (e examples) testQuickstart(t *testing.T) {
	out := e.output(t, "quickstart", "-seconds", "3")
	if !strings.HasSuffix(out, "\n0 failed\n") {
		t.Errorf("the last line is not %q:\n%s", "0 failed", out)
	}
	_, shown, _ := strings.Cut(read(t, "../README.md"), "$ go run ./examples/quickstart | tail -n 3\n")
	shown, _, _ = strings.Cut(shown, "```")
	if shown == "" || !strings.HasSuffix(out, "\n"+shown) {
		t.Errorf("the README shows the end\n%s\nand the program prints\n%s", shown, out)
	}
}

func (e examples) testFiles(t *testing.T) {
	args := []string{"-check"}
	if raceDetector() { // which makes copying many times slower
		args = append(args, "-size", "10000000", "-slow", "1s")
	}
	out := e.output(t, "files", args...)
	if !strings.HasSuffix(out, "\n0 failed\n") {
		t.Errorf("the last line is not %q:\n%s", "0 failed", out)
	}
	shown := block(t, read(t, "files/README.md"), "$ go run ./examples/files -check\n")
	if got, want := labels(out), labels(shown); !slices.Equal(got, want) {
		t.Errorf("the README shows lines that begin with\n%q, the program prints\n%q", want, got)
	}
}

func (e examples) testActors(t *testing.T) {
	out := e.output(t, "actors", "-check")
	for _, line := range []string{`map +48 `, `reduce +12 `, `words +960000 of 960000`, `shuffled +576 of 576`, `checked +0 `, `0 lost$`} {
		if !regexp.MustCompile(`(?m)^` + line).MatchString(out) {
			t.Errorf("no line is like %s:\n%s", line, out)
		}
	}
	shown := block(t, read(t, "actors/README.md"), "$ go run ./examples/actors -check\n")
	if got, want := labels(out), labels(shown); !slices.Equal(got, want) {
		t.Errorf("the README shows lines that begin with\n%q, the program prints\n%q", want, got)
	}
}

// labels returns the first word of each line that begins with one.
func labels(text string) []string {
	return regexp.MustCompile(`(?m)^ *[a-zA-Z]\S*`).FindAllString(text, -1)
}

func (e examples) testQuickstartInterrupted(t *testing.T) {
	for _, sig := range ends {
		p, instances := e.startInstances(t, "quickstart", "-seconds", "100")
		p.signal(t, sig)
		wantGone(t, p, instances)
	}
}

func (e examples) testQuickstartKilled(t *testing.T) {
	p, instances := e.startInstances(t, "quickstart", "-seconds", "100")
	wantGone(t, p, instances)
}

func (e examples) testCluster(t *testing.T) {
	out := e.output(t, "cluster", "-check")
	if !strings.HasSuffix(out, "\n0 failed\n") {
		t.Errorf("the last line is not %q:\n%s", "0 failed", out)
	}
	shown := block(t, read(t, "cluster/README.md"), "$ go run ./examples/cluster -check\n")
	if got, want := labels(out), labels(shown); !slices.Equal(got, want) {
		t.Errorf("the README shows lines that begin with\n%q, the program prints\n%q", want, got)
	}
}

func (e examples) testClusterInterrupted(t *testing.T) {
	for _, sig := range ends {
		p, instances := e.startInstances(t, "cluster")
		p.signal(t, sig)
		wantGone(t, p, instances)
	}
}

func (e examples) testClusterKilled(t *testing.T) {
	p, instances := e.startInstances(t, "cluster")
	wantGone(t, p, instances)
}

func (e examples) testRestart(t *testing.T) {
	skipWithoutRestarts(t)
	out := e.output(t, "restart", "-check", "-restarts", "6", "-for", "4s")
	for _, line := range []string{`calls +\d{3}`, `stream messages +\d{3}`, `restarts +6 `, `executed twice +0$`, `0 lost$`} {
		if !regexp.MustCompile(`(?m)^` + line).MatchString(out) {
			t.Errorf("no line is like %s:\n%s", line, out)
		}
	}
	shown := block(t, read(t, "restart/README.md"), "$ go run ./examples/restart -check\n")
	if got, want := labels(out), labels(shown); !slices.Equal(got, want) {
		t.Errorf("the README shows lines that begin with\n%q, the program prints\n%q", want, got)
	}
}

// All protocols pass the check, and the program says so for each.
func (e examples) testWires(t *testing.T) {
	out := e.output(t, "wires", "-check")
	for _, line := range []string{`yodel +yodel +yes +yes +yes +yes `, `net/rpc +net/rpc +- `, `13 clients, all calls succeeded, `} {
		if !regexp.MustCompile(`(?m)^` + line).MatchString(out) {
			t.Errorf("no line is like %s:\n%s", line, out)
		}
	}
}

func (e examples) testRestartInterrupted(t *testing.T) {
	skipWithoutRestarts(t)
	for _, sig := range ends {
		p, instances := e.startInstances(t, "restart")
		p.signal(t, sig)
		wantGone(t, p, instances)
	}
}

func (e examples) testRestartKilled(t *testing.T) {
	skipWithoutRestarts(t)
	p, instances := e.startInstances(t, "restart")
	wantGone(t, p, instances)
}

// skipWithoutRestarts skips a test where package restart does not work.
func skipWithoutRestarts(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot hand its sockets over")
	}
}

// wantGone wants nothing to be left of a program with instances when it has ended or was killed.
func wantGone(t *testing.T, p *process, instances []string) {
	t.Helper()
	p.kill()
	for _, addr := range instances {
		if !waitFor(nil, func() bool { return !answers(addr) }) {
			t.Errorf("the instance at %s outlived its parent", addr)
		}
	}
}

// startInstances starts a program that goes on for longer than the test takes, and returns the
// addresses of its instances.
func (e examples) startInstances(t *testing.T, name string, args ...string) (p *process, instances []string) {
	t.Helper()
	p = e.start(t, name, args...)
	var out []byte
	for !bytes.Contains(out, []byte("callers")) {
		b := make([]byte, 1024)
		n, err := p.stdout.Read(b)
		if err != nil {
			t.Fatalf("%v\n%s%s", err, out, p.cmd.Stderr)
		}
		out = append(out, b[:n]...)
	}
	instances = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(string(out), -1)
	if len(instances) != 3 {
		t.Fatalf("there are not three instances:\n%s", out)
	}
	return p, instances
}

// block returns what stands in a document between a line and the end of the block of code, or the
// next command in it.
func block(t *testing.T, document, line string) string {
	t.Helper()
	_, rest, ok := strings.Cut(document, "\n"+line)
	if !ok {
		t.Fatalf("the document has no line %q", line)
	}
	end := regexp.MustCompile("(?m)^(```|\\$ )").FindStringIndex(rest)
	if end == nil {
		t.Fatalf("the block with %q does not end", line)
	}
	return rest[:end[0]]
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// How long the calls take is judged by who runs it on a machine that does nothing else.
func (e examples) testFaults(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no process can be stopped there")
	}
	p := e.command(t, "faults", "-window", "1s", "-callers", "12")
	out, err := p.Output()
	if !regexp.MustCompile(`(?m)^\d+ calls, 0 failed$`).Match(out) {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, fault := range []string{"slow", "stopped", "cut off", "failing"} {
		if !regexp.MustCompile(`(?m)^` + fault + ` +\d{3}`).Match(out) {
			t.Errorf("there is nothing of a server that is %s:\n%s", fault, out)
		}
	}
	if err != nil {
		t.Errorf("%v: %s\n%s", err, p.Stderr, out)
	}
}
