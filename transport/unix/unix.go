// SPDX-License-Identifier: Apache-2.0

// Package unix connects processes of one machine through a socket in the file system. It is faster
// than TCP, and only users whom the file's mode permits can connect. Addresses are paths of at most
// about 100 bytes.
package unix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A Transport uses unix sockets. It may be used concurrently.
type Transport struct {
	// Mode is the mode of a listener's socket file. Users who may write to the file may connect.
	// The mode of its folder counts too. Default: 0o600, this user only.
	Mode fs.FileMode
}

// Dial connects to the socket file at path.
func (t Transport) Dial(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// Listen creates a socket file at path, which Close removes. It replaces a socket file that a dead
// server left there. Any other file is an error, and so is a socket on which a process listens.
//
// The abstract addresses of Linux, "@name", are refused: they have no file, so no mode protects
// them.
func (t Transport) Listen(path string) (net.Listener, error) {
	if path == "" || strings.HasPrefix(path, "@") {
		return nil, fmt.Errorf("listen unix %q: the address is no path", path)
	}
	listener, err := t.listen(path)
	if errors.Is(err, syscall.EADDRINUSE) {
		return t.replaceStale(path)
	}
	return listener, err
}

// listen fails if a file exists at path.
func (t Transport) listen(path string) (net.Listener, error) {
	mode := t.Mode.Perm()
	if mode == 0 {
		mode = 0o600
	}
	config := net.ListenConfig{Control: restrict(mode)}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// replaceStale listens at path if the file there is a dead server's socket. The lock prevents
// servers that start at the same moment from removing each other's new socket.
func (t Transport) replaceStale(path string) (net.Listener, error) {
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := stale(path); err != nil {
		return nil, fmt.Errorf("listen unix %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return t.listen(path)
}

// stale returns nil when path is a socket file that refuses connections. A server that is only
// too busy to answer does not refuse.
func stale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is no socket")
	}
	conn, err := new(net.Dialer).DialContext(context.Background(), "unix", path) // Dial does not wait
	if err == nil {
		_ = conn.Close()
		return errors.New("address already in use: a server answers there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether a server listens there: %w", err)
	}
	return nil
}
