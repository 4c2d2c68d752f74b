// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A reader who follows a page from an empty folder gets a program that builds, without the
// workspace of this repository.
func TestPagesBeginInAnEmptyFolder(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the pages show commands for a Unix shell")
	}
	readme, protobuf := read(t, "../README.md"), read(t, "../docs/protobuf.md")
	t.Run("README.md", func(t *testing.T) {
		e := newEmptyFolder(t, "GOPROXY=off") // so no other module can be needed
		e.run(t, shell(t, readme, "mkdir hello"))
		e.enter("hello")
		e.copy(t, "first/main.go", "main.go") // package house compares it with the page
		for _, command := range []string{"go mod tidy", "go run . -serve"} {
			if !strings.Contains(readme, "`"+command+"`") {
				t.Fatalf("the page does not show %q", command)
			}
		}
		e.run(t, "go mod tidy")
		e.run(t, "go build .")
	})
	t.Run("docs/protobuf.md", func(t *testing.T) {
		e := newEmptyFolder(t)
		e.run(t, "mkdir shop && cd shop && go mod init shop")
		e.enter("shop")
		e.copy(t, "../codec/protobuf/example_test.go", "shop_test.go") // the program that the page shows
		e.run(t, shell(t, protobuf, "go mod edit -replace"))
		e.run(t, "go test -vet=off .")
	})
}

// shell returns the first block of commands in a page that begins so.
func shell(t *testing.T, page, begin string) string {
	t.Helper()
	_, commands, ok := strings.Cut(page, "```sh\n"+begin)
	commands, _, ends := strings.Cut(commands, "```")
	if !ok || !ends {
		t.Fatalf("the page has no block of commands that begins with %q", begin)
	}
	return begin + commands
}

// An emptyFolder is where a reader begins, beside a clone of yodel.
type emptyFolder struct {
	dir string
	env []string
}

func newEmptyFolder(t *testing.T, env ...string) *emptyFolder {
	t.Helper()
	clone, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(clone, filepath.Join(dir, "yodel")); err != nil {
		t.Fatal(err)
	}
	// With -trimpath the build cache serves any folder.
	return &emptyFolder{dir, append(os.Environ(), append(env, "GOWORK=off", "GOFLAGS=-buildvcs=false -trimpath", "GO111MODULE=")...)}
}

func (e *emptyFolder) enter(name string) { e.dir = filepath.Join(e.dir, name) }

// run runs commands as the reader would, each of which has to succeed.
func (e *emptyFolder) run(t *testing.T, commands string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	cmd.Dir, cmd.Env = e.dir, e.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
}

// copy copies a file of the repository into the folder.
func (e *emptyFolder) copy(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, to), []byte(read(t, from)), 0o600); err != nil {
		t.Fatal(err)
	}
}
