// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/pagetest"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

// yodel new writes a project that passes its own test, and whose README is right: a server starts,
// a client finds it in the registry, curl calls it, and it has metrics.
func TestNewProject(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the README of the project has commands for a Unix shell")
	}
	if exec.CommandContext(t.Context(), "curl", "--json", "{}", "--version").Run() != nil {
		t.Skip("the README of the project needs curl 7.82")
	}
	t.Chdir(t.TempDir())
	clone := thisClone
	if r := yodelWith(t.Context(), nil, nil, "new", "example.com/team/shop", "--yodel", clone); r.code != exitOK {
		t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	for _, file := range []string{".dockerignore", ".gitignore", "Dockerfile", "README.md", "go.mod", "go.sum", "greeting/greeting.go", "greeting/greeting_test.go", "server/main.go", "client/main.go"} {
		text, err := os.ReadFile(filepath.Join("shop", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{"starter", "SPDX", "cmd/yodel", "<!--"} {
			if strings.Contains(string(text), left) {
				t.Errorf("%s has the text %q of this repository", file, left)
			}
		}
	}
	flags := os.Getenv("GOFLAGS") + " -buildvcs=false" // what the tests of this repository have compiled is compiled already
	if race {
		flags += " -race"
	}
	// go vet has vetted all packages when go test would do so again, with fewer checks.
	env := []string{"GOWORK=off", "GOPROXY=off", "GO111MODULE=", "GOFLAGS=" + flags + " -vet=off"}
	inProject(t, env, "test -z \"$(gofmt -l .)\" && go vet ./...")
	dir, err := filepath.Abs("shop")
	if err != nil {
		t.Fatal(err)
	}
	n := pagetest.Run(t, filepath.Join(clone, "cmd", "yodel", "starter", "README.md"), &pagetest.Options{
		Dir: dir, Env: env,
		Replace: []string{"127.0.0.1:8972", realserver.FreeAddr(t), "127.0.0.1:9090", realserver.FreeAddr(t), "docker build", "true", "starter", "shop"},
	})
	if n != 4 {
		t.Errorf("the README has %d blocks of commands", n)
	}

	// The image is built from the folder alone, without the clone.
	for _, file := range []string{"go.mod", "vendor/modules.txt"} {
		name := filepath.Join(dir, file)
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, []byte(strings.ReplaceAll(string(text), clone, "/there/is/no/clone")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dockerfile, err := os.ReadFile(filepath.Join(dir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, build, _ := strings.Cut(string(dockerfile), "\nRUN ")
	build, _, _ = strings.Cut(build, "\n")
	if os.Getenv("YODEL_REAL") != "all" { // compiling it takes half a minute
		build = strings.Replace(build, "go build -mod=vendor -trimpath -o /bin/server", "go list -mod=vendor -deps", 1)
	}
	inProject(t, append(env, "GOFLAGS=-buildvcs=false"), strings.Replace(build, "/bin/server", "./bin/server", 1))
}

// thisClone is the folder of this repository: go test starts tests in the folder of their package.
var thisClone, _ = filepath.Abs(filepath.Join("..", ".."))

// inProject runs commands in the folder of the project, all of which have to succeed.
func inProject(t *testing.T, env []string, commands string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	cmd.Dir, cmd.Env = "shop", append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
}

// Without --yodel, the project uses the clone that the command was built from. A command that was
// built with -trimpath does not know which one that is.
func TestNewFindsItsClone(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("shop", 0o700); err != nil { // an empty folder is fine
		t.Fatal(err)
	}
	r := yodelWith(t.Context(), nil, nil, "new", "shop")
	if _, file, _, _ := runtime.Caller(0); !filepath.IsAbs(file) {
		if r.code != exitUsage || !strings.Contains(r.err, "yodel new NAME --yodel PATH") {
			t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.err)
		}
		return
	}
	if r.code != exitOK || !strings.Contains(r.err, "cd shop && go test ./...") {
		t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	goMod, err := os.ReadFile(filepath.Join("shop", "go.mod"))
	want := "\tgithub.com/yodel-rpc/yodel => " + thisClone + "\n"
	if err != nil || !strings.Contains(string(goMod), want) || !strings.HasPrefix(string(goMod), "module shop\n") {
		t.Errorf("%v: the go.mod is\n%s", err, goMod)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, folder := range []string{"taken", "empty"} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"file", filepath.Join("taken", "mine.txt")} {
		if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, want string
		code       int
	}{
		{"", "an element of a module path", exitUsage},
		{"Shop", "lower-case letters", exitUsage},
		{"my shop", "lower-case letters", exitUsage},
		{"../shop", "lower-case letters", exitUsage},
		{"/shop", "lower-case letters", exitUsage},
		{"shop/", "lower-case letters", exitUsage},
		{".", "lower-case letters", exitUsage},
		{"example.com/shop.", "lower-case letters", exitUsage},
		{"example.com/v2.0", "the last element is the name of the service", exitUsage},
		{"example.com/2shop", "the last element is the name of the service", exitUsage},
		{"shöp", "lower-case letters", exitUsage},
		{"shop\nrequire", "lower-case letters", exitUsage},
		{"-shop", "unknown shorthand flag", exitUsage},
		{"internal", "reserves", exitUsage},
		{"example.com/vendor/shop", "reserves", exitUsage},
		{"std", "reserves", exitUsage},
		{"a/" + strings.Repeat("b", 200), "more than 200 bytes", exitUsage},
		{"taken", "the folder taken is not empty", exitFailed},
		{"example.com/taken", "the folder taken is not empty", exitFailed},
		{"file", "file exists and is not a folder", exitFailed},
	} {
		if r := yodelWith(t.Context(), nil, nil, "new", test.name, "--yodel", thisClone); r.code != test.code || !strings.Contains(r.err, test.want) {
			t.Errorf("%q: exit code %d, %q, want %d and %q", test.name, r.code, r.err, test.code, test.want)
		}
	}
	if r := yodelWith(t.Context(), nil, nil, "new", "shop", "--yodel", "taken"); r.code != exitUsage || !strings.Contains(r.err, "taken is not a clone of yodel") {
		t.Errorf("a wrong clone: exit code %d, %q", r.code, r.err)
	}
	for folder, want := range map[string]int{".": 3, "taken": 1} { // nothing was written
		if entries, err := os.ReadDir(folder); err != nil || len(entries) != want {
			t.Errorf("%s has %d entries: %v", folder, len(entries), err)
		}
	}
}
