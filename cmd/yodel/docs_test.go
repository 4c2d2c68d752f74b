// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestDocument keeps docs/cli.md equal to the commands. -update writes it.
func TestDocument(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: io.Discard, err: io.Discard, env: func(string) string { return "" }}
	got := document(a.root())
	path := filepath.Join("..", "..", "docs", "cli.md")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("docs/cli.md is not what the commands say (%v): go test ./cmd/yodel -run TestDocument -update", err)
	}
}

// document returns the commands as Markdown.
func document(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# The command yodel\n\n")
	b.WriteString("<!-- go test ./cmd/yodel -run TestDocument -update writes this page from the commands. -->\n\n")
	b.WriteString("`yodel` shows, calls, measures and operates yodel services. `go run ./cmd/yodel dev --demo` starts a fleet to try it with.\n\n")
	b.WriteString("`make yodel` builds it with 23 MB instead of 47 MB. The tag `grpcnotrace` leaves out a package of templates, for which the linker would keep\n" +
		"every exported method of the program.\n\n")
	b.WriteString("## Which fleet\n\n")
	b.WriteString("A command works on the fleet that comes first in this list:\n\n" +
		"1. `--at` or `--registry`\n2. the context of `--context` or of the variable `YODEL_CONTEXT`\n3. the variable `YODEL_REGISTRY`\n" +
		"4. the file `yodel.toml` in the working directory or above it\n5. the context that `yodel ctx` has chosen\n" +
		"6. the `yodel dev` whose folder `.yodel` is in the working directory or above it\n\n" +
		"A `yodel.toml` has either `registry`, `at` (a list) or `context` (a name), and may have `tls`, `ca`, `cert`, `key` and `guarded`.\n" +
		"Its paths are relative to its folder:\n\n```toml\nregistry = \"etcd://10.0.0.1:2379\"\nca = \"deploy/ca.pem\"\nguarded = true\n```\n\n")
	b.WriteString("| Registry | URL |\n|---|---|\n")
	for _, row := range [][2]string{
		{"etcd", "`etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX]`"},
		{"ZooKeeper", "`zookeeper://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX]`"},
		{"Consul", "`consul://HOST:PORT[?token=…&dc=…]`"},
		{"Redis", "`redis://[USER:PASSWORD@]HOST:PORT[/PREFIX][?db=N]`"},
		{"Nacos", "`nacos://[USER:PASSWORD@]HOST:PORT[?namespace=…&group=…&v=1]`"},
		{"Kubernetes", "`kubernetes://NAMESPACE[?server=URL&token-file=PATH&ca-file=PATH&prefix=…]`"},
		{"a folder", "`file:PATH[?prefix=…]`"},
		{"multicast DNS", "`mdns:[INTERFACE,…]`; a list takes 300 ms, and keeps no settings of operators and no rules"},
		{"DNS", "`dns://NAME:PORT` or `dns://_SERVICE._tcp.NAME`, resolved once"},
	} {
		fmt.Fprintf(&b, "| %s | %s |\n", row[0], row[1])
	}
	b.WriteString("\nWith `?layout=rpcx`, etcd, ZooKeeper and Redis have the records of rpcx.\n\n")
	b.WriteString("## Output and exit codes\n\n")
	b.WriteString("Data goes to stdout and everything else to stderr. `-o` chooses `table`, `json`, `ndjson` (a line for each element), `name` or `yaml`.\n" +
		"Durations in JSON are nanoseconds, and rates are calls per second. Output that is no terminal has no escape sequences.\n" +
		"`yodel help --json` prints all commands and flags as a tree, for programs.\n\n")
	b.WriteString("| Code | Meaning |\n|---|---|\n| 0 | success |\n| 1 | the call failed, the object does not exist, or the output cannot be written |\n| 2 | wrong usage |\n" +
		"| 3 | a check failed, or a threshold was exceeded |\n| 4 | the fleet or the server cannot be reached; or a part of it cannot, and the output has the rest |\n| 130 | interrupted |\n\n")
	b.WriteString("## Flags of all commands\n\n```text\n" + root.PersistentFlags().FlagUsages() + "```\n")
	for _, c := range root.Commands() {
		describeCommand(&b, c, 2)
	}
	return b.String()
}

func describeCommand(b *strings.Builder, c *cobra.Command, level int) {
	if c.Hidden || c.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "\n%s %s\n\n```text\n%s\n```\n\n%s\n", strings.Repeat("#", level), c.CommandPath(), c.UseLine(), strings.TrimSpace(c.Long))
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimSpace(c.Example), "\n  ", "\n"))
	}
	if c.HasAvailableLocalFlags() {
		if flags := c.NonInheritedFlags().FlagUsages(); flags != "" {
			fmt.Fprintf(b, "\n```text\n%s```\n", flags)
		}
	}
	for _, sub := range c.Commands() {
		describeCommand(b, sub, level+1)
	}
}
