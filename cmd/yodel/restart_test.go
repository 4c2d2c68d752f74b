// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/file"
)

// serveAt is a process with an instance of shop.Cart. It writes its process id into a file named
// after its port, and removes the file when it has ended its calls.
func serveAt(addr, folder string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Logger: silence(), Registrars: []discovery.Registrar{file.New(folder, nil)}})
	cartGet.Handle(s, func(context.Context, *empty) (*CartReply, error) { return &CartReply{Lines: []Line{}}, nil })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	pid := filepath.Join(filepath.Dir(folder), port+".pid")
	if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(pid) }()
	return s.Serve(ctx, l)
}

// TestDrainTestRestartsProcesses restarts two processes under load with a command, as
// docs/operate.md says, and loses no call. The command leaves a process in the background, which
// has its output. Then a command restarts only the first of them: that is not taken for a restart
// of the second one.
func TestDrainTestRestartsProcesses(t *testing.T) {
	folder := filepath.Join(t.TempDir(), ".yodel")
	if err := os.MkdirAll(filepath.Join(folder, "yodel"), 0o750); err != nil {
		t.Fatal(err)
	}
	t.Setenv("YODEL_TEST_FOLDER", folder)
	pids := func() map[string]int {
		found := make(map[string]int)
		paths, _ := filepath.Glob(filepath.Join(filepath.Dir(folder), "*.pid")) // the pattern is valid
		for _, path := range paths {
			if text, err := os.ReadFile(path); err == nil {
				found[path], _ = strconv.Atoi(string(text)) // 0 while it is being written
			}
		}
		return found
	}
	for range 2 {
		cmd := exec.CommandContext(context.Background(), os.Args[0])
		cmd.Env = append(os.Environ(), "YODEL_TEST_AS_SERVER=127.0.0.1:0")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() }) // it was ended by a signal, here or by the restart
	}
	t.Cleanup(func() {
		until(t, "the processes have ended", func() bool {
			for _, pid := range pids() {
				if process, err := os.FindProcess(pid); err == nil && pid > 0 {
					_ = process.Signal(syscall.SIGTERM) // it may have ended
				}
			}
			return len(pids()) == 0
		})
	})
	until(t, "two instances are up", func() bool { return strings.Count(run(t, folder, "ls", "shop.Cart", "-o", "name").out, "\n") == 2 })
	var before map[string]int
	until(t, "both processes have written their ids", func() bool {
		before = pids()
		return len(before) == 2 && !slices.Contains(slices.Collect(maps.Values(before)), 0)
	})
	restart := fmt.Sprintf("set -e; pid=%[1]s/{port}.pid; kill $(cat $pid); while [ -e $pid ]; do sleep 0.02; done; YODEL_TEST_AS_SERVER={addr} %[2]s &",
		filepath.Dir(folder), os.Args[0])
	r := run(t, folder, "drain-test", "shop.Cart/Get", "--restart", restart, "-o", "json")
	var out drainResult
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != exitOK || out.Restarts != 2 || out.Lost != 0 || out.Calls == 0 {
		t.Errorf("exit code %d, %+v, %v\n%s", r.code, out, err, r.err)
	}
	until(t, "two processes run", func() bool { return len(pids()) == 2 })
	for path, pid := range pids() {
		if pid == before[path] {
			t.Errorf("%s has the process %d, and had %d", path, pid, before[path])
		}
	}
	t.Logf("%d calls, %d restarts, %d lost", out.Calls, out.Restarts, out.Lost)
	once := fmt.Sprintf("mkdir %s/once || exit 0; %s", filepath.Dir(folder), restart)
	r = run(t, folder, "drain-test", "shop.Cart/Get", "--restart", once, "--settle", "4s", "--allow", "100000", "-o", "json")
	out = drainResult{}
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != exitCheck || out.Restarts != 1 || !strings.Contains(r.err, "has not recovered within 4s") {
		t.Errorf("a command that does nothing: exit code %d, %+v, %v\n%s", r.code, out, err, r.err)
	}
}
