// SPDX-License-Identifier: Apache-2.0

//go:build unix

package unix_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/unix"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var _ yodel.Transport = unix.Transport{}

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestUnixIsATransport(t *testing.T) {
	yodeltest.TestTransport(t, unix.Transport{}, socketPath(t))
}

func TestListenReplacesASocketThatADeadServerLeft(t *testing.T) {
	path := socketPath(t)
	leaveSocket(t, path)
	if _, err := (unix.Transport{}).Dial(t.Context(), path); err == nil {
		t.Fatal("the socket is not a dead one")
	}
	listen(t, unix.Transport{}, path)
	if c, err := (unix.Transport{}).Dial(t.Context(), path); err != nil {
		t.Errorf("got %v from Dial", err)
	} else {
		_ = c.Close()
	}
	wantFiles(t, path, filepath.Base(path))
}

func TestListenRefusesWhereAServerAnswers(t *testing.T) {
	path := socketPath(t)
	listen(t, unix.Transport{}, path)
	if l, err := (unix.Transport{}).Listen(path); err == nil {
		_ = l.Close()
		t.Fatal("got a second listener")
	} else if !strings.Contains(err.Error(), "a server answers") {
		t.Errorf("got %v, which does not say why", err)
	}
	if c, err := (unix.Transport{}).Dial(t.Context(), path); err != nil {
		t.Errorf("got %v from Dial to the first server", err)
	} else {
		_ = c.Close()
	}
}

func TestListenTakesABusyServerForNoDeadOne(t *testing.T) {
	path := socketPath(t)
	listener := listen(t, unix.Transport{}, path)
	var err error
	for dialed := 0; err == nil; dialed++ { // nobody accepts them
		if dialed > 100_000 {
			t.Skip("the system queues connections without bound")
		}
		var c net.Conn
		if c, err = net.Dial("unix", path); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	if l, err := (unix.Transport{}).Listen(path); err == nil {
		_ = l.Close()
		t.Fatal("got a second listener")
	}
	wantFiles(t, path, filepath.Base(path))
	_ = listener.Close()
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	path := socketPath(t)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := (unix.Transport{}).Listen(path); err == nil {
		_ = l.Close()
		t.Error("got a listener in place of a file")
	}
	if got, _ := os.ReadFile(path); string(got) != "precious" {
		t.Errorf("the file holds %q now", got)
	}
}

func TestListenRefusesAddressesWithoutAFile(t *testing.T) {
	for _, addr := range []string{"", "@yodel"} {
		if l, err := (unix.Transport{}).Listen(addr); err == nil {
			_ = l.Close()
			t.Errorf("got a listener at %q", addr)
		} else if !strings.Contains(err.Error(), "is no path") {
			t.Errorf("got %v, which does not say why", err)
		}
	}
}

func TestModeSaysWhoMayConnect(t *testing.T) {
	for mode, want := range map[fs.FileMode]fs.FileMode{0: 0o600, 0o660: 0o660, 0o666: 0o666} {
		t.Run(fmt.Sprintf("%o", mode), func(t *testing.T) {
			path := socketPath(t)
			listen(t, unix.Transport{Mode: mode}, path)
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("got mode %o, want %o", got, want)
			}
		})
	}
}

func TestCloseRemovesTheFile(t *testing.T) {
	path := socketPath(t)
	_ = listen(t, unix.Transport{}, path).Close()
	wantFiles(t, path)
}

// socketPath returns one that is short enough everywhere, which t.TempDir's may not be.
func socketPath(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "yodel") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return filepath.Join(folder, "socket")
}

// leaveSocket leaves the file of a server that died.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if c, err := net.Dial("unix", path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v, %v from a dead socket", c, err)
	}
}

func listen(t *testing.T, transport unix.Transport, path string) net.Listener {
	t.Helper()
	l, err := transport.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// wantFiles checks what the folder of path holds.
func wantFiles(t *testing.T, path string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got files %q, want %q", got, want)
	}
}
