// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each command that the console offers to copy works in a shell. A test of the console checks that
// the file has all of them.
func TestCommandsOfTheConsoleRun(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "console", "testdata", "commands.txt"))
	if err != nil {
		t.Fatal(err)
	}
	folder := startShop(t)
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "yodel")); err != nil {
		t.Fatal(err)
	}
	commands := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(commands) < 8 {
		t.Fatalf("the console offers %d commands", len(commands))
	}
	for _, command := range commands {
		want := map[string]int{"yodel doctor": exitCheck, "yodel tap shop.Cart": 130}[command] // problems found; Ctrl-C
		if out, code := inShell(t, bin, folder, command); code != exitOK && code != want {
			t.Errorf("%s: exit code %d\n%s", command, code, out)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(folder), "hacked")); err == nil {
		t.Error("the shell has run a part of an argument")
	}
}

// inShell runs a command in a shell that finds the program in bin. It ends a command that goes on
// after its first line, as Ctrl-C does.
func inShell(t *testing.T, bin, folder, command string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Dir = filepath.Dir(folder)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "YODEL_TEST_AS_PROGRAM=1", "YODEL_REGISTRY=file:"+folder, "YODEL_CONTEXT=", "XDG_CONFIG_HOME="+filepath.Dir(folder))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for scanner := bufio.NewScanner(pipe); scanner.Scan(); {
		lines.WriteString(scanner.Text() + "\n")
		if strings.HasPrefix(command, "yodel tap") && strings.Count(lines.String(), "\n") == 1 { // a second signal would kill it
			_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		}
	}
	_ = cmd.Wait() // the exit code says more
	return lines.String() + errs.String(), cmd.ProcessState.ExitCode()
}
