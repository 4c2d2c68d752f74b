// SPDX-License-Identifier: Apache-2.0

package pagetest_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/pagetest"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// A recorder is a test whose failures are kept.
type recorder struct {
	testing.TB

	failures []string
}

func (r *recorder) Helper()      {}
func (r *recorder) Failed() bool { return len(r.failures) > 0 }
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(r) }

// run runs a page, and returns how it fails.
func run(t *testing.T, page string, o *pagetest.Options) (ran int, failure string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(name, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	func() {
		defer func() {
			if v := recover(); v != nil && v != any(r) {
				panic(v)
			}
		}()
		ran = pagetest.Run(r, name, o)
	}()
	return ran, strings.Join(r.failures, "\n")
}

func sh(commands string) string      { return "```sh\n" + commands + "\n```\n" }
func console(commands string) string { return "```console\n" + commands + "\n```\n" }

func TestCommandsRun(t *testing.T) {
	ran, failure := run(t, "Begin:\n"+sh("mkdir -p a/b\ncd a")+
		"<!-- write: b/c.go -->\n<!-- file: any.go -->\n```go\npackage PLACE\n```\n"+
		console("$ cat \\\n  b/c.go\npackage here\n$ echo $KIND\nthe kind")+
		"<!-- go test ./internal/pagetest -run TestCommandsRun runs this block. -->\n"+sh("false")+sh("true\nmissing --flag")+console("$ missing it\nanything"),
		&pagetest.Options{Env: []string{"KIND=the kind"}, Replace: []string{"PLACE", "here"}, Without: []string{"missing"}})
	if failure != "" || ran != 4 {
		t.Errorf("%d commands run; %s", ran, failure)
	}
}

func TestMistakesOfAPageAreFound(t *testing.T) {
	for name, test := range map[string]struct{ page, want string }{
		"a command that fails":       {sh("true\nfalse\ntrue"), "fails: exit status 1"},
		"another output":             {console("$ echo one\ntwo"), "prints\none"},
		"a test that does not exist": {"<!-- go test ./internal/pagetest -run TestNothing runs this block. -->\n" + sh("true"), "TestNothing"},
		"a server that ends":         {"<!-- background: 127.0.0.1:1 -->\n" + sh("true"), "does not listen at 127.0.0.1:1"},
	} {
		if _, failure := run(t, test.page, nil); !strings.Contains(failure, test.want) {
			t.Errorf("%s: the failure is %q", name, failure)
		}
	}
}

// A server runs until the test ends. Commands that follow can reach it.
func TestServersRunInTheBackground(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	const program = `package main

import ("context"; "net"; "os"; "os/signal")

func main() {
	l, err := net.Listen("tcp", "ADDRESS")
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Close()
	}
}
`
	_, failure := run(t, sh("go mod init a")+"<!-- write: main.go -->\n```go\n"+program+"```\n"+
		"<!-- background: ADDRESS -->\n"+sh("go run .")+console("$ ls\ngo.mod\nmain.go"),
		&pagetest.Options{Env: []string{"GOWORK=off", "GO111MODULE="}, Replace: []string{"ADDRESS", l.Addr().String()}})
	if failure != "" {
		t.Error(failure)
	}
}
