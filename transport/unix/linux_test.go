// SPDX-License-Identifier: Apache-2.0

//go:build linux

package unix_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/transport/unix"
)

// Two servers start on the socket of a dead one. While the first holds the lock, the second must
// not act on what it saw before.
func TestListenWaitsForAServerThatReplacesTheSameSocket(t *testing.T) {
	path := socketPath(t)
	leaveSocket(t, path)
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	go func() {
		l, err := unix.Transport{}.Listen(path)
		if err == nil {
			_ = l.Close()
		}
		outcome <- err
	}()
	select {
	case err := <-outcome:
		t.Fatalf("Listen did not wait for the lock, and returned %v", err)
	case <-time.After(50 * time.Millisecond): // time for it to go wrong; the rule holds without
	}
	_ = os.Remove(path)
	first, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_ = folder.Close() // which unlocks it
	if err := <-outcome; err == nil {
		t.Error("the second server replaced the first one's new socket")
	}
	wantFiles(t, path, filepath.Base(path))
}
