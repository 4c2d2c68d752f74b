// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// program returns the command as a process of its own.
func program(ctx context.Context, folder string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "YODEL_TEST_AS_PROGRAM=1", "XDG_CONFIG_HOME="+filepath.Dir(folder), "YODEL_CONTEXT=", "YODEL_REGISTRY=")
	cmd.Dir = filepath.Dir(folder)
	return cmd
}

// consoleLine is the line of the banner about the console. Its port and its token differ.
var consoleLine = regexp.MustCompile(`(Console +)http://.*`)

// devOutput returns what yodel dev prints until five instances are up and one is ejected.
func devOutput(scanner *bufio.Scanner) (text string, ejected bool) {
	var b strings.Builder
	for up := 0; (up < 5 || !ejected) && scanner.Scan(); {
		line := scanner.Text() + "\n"
		if strings.Contains(line, "ejected  shop.Pay@") {
			ejected = true
			continue
		}
		b.WriteString(line)
		if strings.Contains(line, "  up   ") {
			up++
		}
	}
	return b.String(), ejected
}

// stableDev returns the output of yodel dev without what differs from run to run. Its last five
// lines are those of the instances, which come in any order.
func stableDev(text, folder string) string {
	lines := strings.Split(strings.TrimRight(consoleLine.ReplaceAllString(stable(text, folder), "${1}LINK"), "\n"), "\n")
	slices.Sort(lines[max(len(lines)-5, 0):])
	return strings.Join(lines, "\n") + "\n"
}

// TestDevDemo runs yodel dev --demo as a process: within 10 s it shows the registry, the services,
// traffic and the failing instance. Ctrl-C ends it cleanly, and the instances are withdrawn.
func TestDevDemo(t *testing.T) {
	folder := filepath.Join(t.TempDir(), ".yodel")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := program(ctx, folder, "dev", "--demo")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	text, ejected := devOutput(scanner)
	link := regexp.MustCompile(`http://[^ ]+/#login=[A-Z0-9]+`).FindString(text)
	golden(t, "dev", stableDev(text, folder))
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "$ go run ./cmd/yodel dev --demo\n")
	block, _, _ = strings.Cut(block, "```")
	if shown, said := devOutput(bufio.NewScanner(strings.NewReader(block))); !said || stableDev(shown, folder) != stableDev(text, folder) {
		t.Errorf("the README shows\n%s\nand the program prints\n%s", block, text)
	}
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set("Accept", "text/html") // as a browser; other programs get a line of text
	page, err := http.DefaultClient.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	page.Body.Close()
	if !strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") {
		t.Errorf("the console answers %s, with %q", page.Status, page.Header)
	}
	http.DefaultClient.CloseIdleConnections()
	if took := time.Since(began); !ejected || took > 10*time.Second && !race {
		t.Errorf("the failing instance was ejected: %t, after %v", ejected, took)
	}
	list, err := program(ctx, folder, "ls").Output() // finds the registry in its folder
	if err != nil || !regexp.MustCompile(`(?m)^shop\.Stock .* 1/1 +\d+\.\d`).Match(list) {
		t.Errorf("ls: %v\n%s", err, list)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for scanner.Scan() { // until the process has ended
		t.Log(scanner.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(folder, "yodel", "*", "127.0.0.1*"))
	if err != nil || len(left) > 0 {
		t.Errorf("the records %q were not withdrawn, %v", left, err)
	}
}

// TestDevSaysHowToFindItsRegistry: a registry outside of the working directory needs a variable,
// with which other commands then find it.
func TestDevSaysHowToFindItsRegistry(t *testing.T) {
	folder := filepath.Join(t.TempDir(), ".yodel")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := program(ctx, folder, "dev", "--memory", "--no-console")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	variable := ""
	scanner := bufio.NewScanner(out)
	for scanner.Scan() && !strings.Contains(scanner.Text(), "Ctrl-C") {
		if _, after, ok := strings.Cut(scanner.Text(), "export "); ok {
			variable = after
		}
	}
	list := program(ctx, folder, "ls")
	list.Env = append(list.Env, variable)
	if text, err := list.CombinedOutput(); err != nil || variable == "" {
		t.Errorf("with %q, ls prints %s, %v", variable, text, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for scanner.Scan() { // until the process has ended
		t.Log(scanner.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

// TestProgramIsSmall builds the program as make yodel does. A new dependency that uses methods by
// their names makes the linker keep all methods, which costs 10 MB: the bound
// leaves half a MB for what the program itself needs.
func TestProgramIsSmall(t *testing.T) {
	if os.Getenv("YODEL_REAL") != "all" {
		t.Skip("it compiles for a minute: set YODEL_REAL=all, or run make before-end")
	}
	path := filepath.Join(t.TempDir(), "yodel")
	text, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(25_500_000); info.Size() > most {
		t.Errorf("the program has %d bytes, want at most %d", info.Size(), most)
	}
	t.Logf("the program has %d bytes", info.Size())
}

// TestReadCommandsAreQuick wants each read command to take less than 100 ms, as a process, on a
// fleet on this machine. The best of several runs counts, because the machine does other things
// too.
func TestReadCommandsAreQuick(t *testing.T) {
	if race {
		t.Skip("the race detector makes it slow")
	}
	folder := startShop(t)
	for _, args := range [][]string{
		{"ls"},
		{"ls", "shop.Pay"},
		{"describe", "shop.Cart/Add"},
		{"explain", "YDL1103"},
		{"samples", "shop.Pay"},
		{"doctor"},
		{"rule", "ls"},
		{"call", "shop.Cart/Get", "--explain"},
		{"top", "-n", "1"},
		{"help"},
	} {
		best := time.Hour
		for range 10 {
			began := time.Now()
			_ = program(t.Context(), folder, args...).Run() // doctor fails, because an instance does
			best = min(best, time.Since(began))
			if best < 50*time.Millisecond {
				break
			}
		}
		t.Logf("yodel %s takes %v", strings.Join(args, " "), best)
		if best > 100*time.Millisecond {
			t.Errorf("yodel %s takes %v", strings.Join(args, " "), best)
		}
	}
}
