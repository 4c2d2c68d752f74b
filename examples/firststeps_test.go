// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/pagetest"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

// A reader who types the commands of a page in an empty folder beside a clone gets what the page
// says, without the workspace of this repository.
func TestPagesBeginInAnEmptyFolder(t *testing.T) {
	t.Run("README.md", func(t *testing.T) {
		o := besideClone(t, "GOPROXY=off") // no other module is needed
		o.Env = append(o.Env, tools(t, o, "grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl"))
		o.Replace = append(o.Replace, "127.0.0.1:8972", realserver.FreeAddr(t))
		o.Without = append(o.Without, withoutCurl(t)...)
		pagetest.Run(t, "../README.md", o)
	})
	t.Run("docs/protobuf.md", func(t *testing.T) {
		o := besideClone(t)
		files := map[string]string{
			"shop_test.go": read(t, "../codec/protobuf/example_test.go"), // the program that the page shows
			"shop.proto":   "syntax = \"proto3\";\noption go_package = \"example.com/shop/shoppb\";\nmessage Order { string sku = 1; }\n",
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(o.Dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		enter(t, o, "go mod init shop")
		if os.Getenv("YODEL_REAL") != "all" {
			o.Without = []string{"go install"} // protoc, in C++, and the newest generator
		}
		enter(t, o, "go env GOMODCACHE >modcache")
		o.Env = append(o.Env, "GOBIN=", "GOPATH="+t.TempDir(), "GOMODCACHE="+strings.TrimSpace(read(t, filepath.Join(o.Dir, "modcache"))))
		pagetest.Run(t, "../docs/protobuf.md", o)
		enter(t, o, "go test -vet=off shop_test.go")
	})
	t.Run("docs/discovery.md", func(t *testing.T) {
		server := realserver.Etcd(t)
		o := besideClone(t, "ETCDCTL_ENDPOINTS="+server.Addr)
		o.Env = append(o.Env, tools(t, o, "etcdctl", "go.etcd.io/etcd/etcdctl/v3"))
		if n := pagetest.Run(t, "../docs/discovery.md", o); n == 0 {
			t.Error("the page has no commands")
		}
	})
	t.Run("docs/tutorial.md", func(t *testing.T) {
		server := realserver.Etcd(t)
		o := besideClone(t, "ETCDCTL_ENDPOINTS="+server.Addr)
		o.Env = append(o.Env, tools(t, o, "etcdctl", "go.etcd.io/etcd/etcdctl/v3"))
		o.Replace = append(o.Replace, "127.0.0.1:2379", server.Addr)
		for _, addr := range []string{"127.0.0.1:8971", "127.0.0.1:8972", "127.0.0.1:8973", "127.0.0.1:8974"} {
			o.Replace = append(o.Replace, addr, realserver.FreeAddr(t))
		}
		o.Without = append(o.Without, withoutCurl(t)...)
		if os.Getenv("YODEL_REAL") != "all" {
			o.Without = append(o.Without, "go run -C") // the command yodel takes minutes to compile
		}
		if n := pagetest.Run(t, "../docs/tutorial.md", o); n < 10 {
			t.Errorf("the page has %d commands", n)
		}
	})
}

// besideClone returns options for a page that a reader begins in an empty folder beside a clone.
// The path of this repository stands for that of the clone, so that what other tests have compiled
// is compiled already.
func besideClone(t *testing.T, env ...string) *pagetest.Options {
	t.Helper()
	clone, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	flags := "GOFLAGS=" + os.Getenv("GOFLAGS") + " -buildvcs=false"
	if raceDetector() {
		flags += " -race"
	}
	return &pagetest.Options{
		Dir:     t.TempDir(),
		Env:     append(env, "GOWORK=", "GO111MODULE=", flags),
		Replace: []string{"git clone https://github.com/yodel-rpc/yodel\n", "\n", "../yodel", clone},
	}
}

// enter runs a command in the folder where a page begins.
func enter(t *testing.T, o *pagetest.Options, command string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
	cmd.Dir, cmd.Env = o.Dir, append(os.Environ(), o.Env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// tools returns a PATH with a program that Go builds. Without YODEL_REAL it is not built, and its
// commands do not run.
func tools(t *testing.T, o *pagetest.Options, name, pkg string) string {
	t.Helper()
	path := "PATH=" + os.Getenv("PATH")
	if os.Getenv("YODEL_REAL") == "" {
		o.Without = append(o.Without, name)
		return path
	}
	return path + string(filepath.ListSeparator) + filepath.Dir(realserver.Tool(t, name, pkg))
}

// withoutCurl returns curl if this machine has none that knows --json.
func withoutCurl(t *testing.T) []string {
	t.Helper()
	if exec.CommandContext(t.Context(), "curl", "--json", "{}", "--version").Run() != nil {
		return []string{"curl"}
	}
	return nil
}
