// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A bed is what the checks stand on: three folders, a server in a process of its own, and a client.
type bed struct {
	here   string            // the files that are sent
	there  string            // the folder that is served
	back   string            // where fetched files go
	sums   map[string][]byte // of the files that are sent
	size   int64             // of the big one
	slow   time.Duration     // what 1 in 20 small calls may exceed
	client *yodel.Client

	addr   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// maxBytes is the limit of the server.
const maxBytes = 200_000_000

func newBed(ctx context.Context, size int64, slow time.Duration) (*bed, error) {
	dir, err := os.MkdirTemp("", "yodel-files-")
	if err != nil {
		return nil, err
	}
	b := &bed{here: filepath.Join(dir, "here"), there: filepath.Join(dir, "there"), back: filepath.Join(dir, "back"),
		sums: make(map[string][]byte), size: size, slow: slow, addr: "127.0.0.1:0"}
	for _, folder := range []string{b.here, b.there, b.back} {
		err = errors.Join(err, os.Mkdir(folder, 0o700))
	}
	if err == nil {
		err = errors.Join(b.make("middle", middleSize), b.start(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	b.client = yodel.Dial(b.addr)
	return b, nil
}

func (b *bed) close() error {
	b.client.Close()
	b.kill()
	return os.RemoveAll(filepath.Dir(b.here))
}

// start starts the server, the first time at any address, and then always at the same one.
func (b *bed) start(ctx context.Context) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	b.cmd = exec.CommandContext(context.WithoutCancel(ctx), binary, //nolint:gosec // this very program
		"serve", "-dir", b.there, "-addr", b.addr, "-max-bytes", fmt.Sprint(maxBytes), "-child")
	b.cmd.Stderr = &b.stderr
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		return err
	}
	if err = b.cmd.Start(); err != nil {
		return err
	}
	b.stdout = bufio.NewReader(stdout)
	line, _ := b.stdout.ReadString('\n')
	_, addr, ok := strings.Cut(strings.TrimSpace(line), " is served at ")
	if !ok {
		b.kill()
		return fmt.Errorf("the server did not start: %s", &b.stderr)
	}
	b.addr = addr
	return nil
}

// restart starts the server again, and has a new client, as whoever runs the command again.
func (b *bed) restart(ctx context.Context) error {
	b.client.Close()
	b.client = yodel.Dial(b.addr)
	return b.start(ctx)
}

// kill ends the server as a crash would.
func (b *bed) kill() {
	_ = b.cmd.Process.Kill() // it may have ended
	_ = b.cmd.Wait()         // it was killed
}

// shutDown ends the server orderly, and returns how much memory it says it had taken.
func (b *bed) shutDown() (taken int64, err error) {
	_ = b.stdin.Close() // it may have been closed
	text, err := io.ReadAll(b.stdout)
	if err := errors.Join(err, b.cmd.Wait()); err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(text), &taken)
	return taken, err
}

// make makes a file of random bytes, the same ones each time.
func (b *bed) make(name string, size int64) error {
	f, err := os.Create(filepath.Join(b.here, name)) //nolint:gosec // in the folder of the checks
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	var seed [32]byte
	copy(seed[:], name)
	_, err = io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8(seed), size)
	b.sums[name] = h.Sum(nil)
	return err
}

func (b *bed) put(ctx context.Context, name string, report progress) error {
	return put(ctx, b.client, filepath.Join(b.here, name), report)
}

func (b *bed) get(ctx context.Context, name string, report progress) error {
	return get(ctx, b.client, name, filepath.Join(b.back, name), report)
}

// same wants a file to have come to a folder unchanged, and nothing to be left of its way.
func (b *bed) same(name, folder string) error {
	got, err := sumOf(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, b.sums[name]) {
		return fmt.Errorf("%s is another file in %s", name, filepath.Base(folder))
	}
	if _, err := os.Stat(filepath.Join(folder, name+partSuffix)); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s%s is left over in %s", name, partSuffix, filepath.Base(folder))
	}
	return nil
}

func sumOf(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // in the folder of the checks
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

// timed runs f and returns how many bytes of size that makes in a second.
func timed(size int64, f func() error) (bytesPerSecond int64, err error) {
	began := time.Now()
	err = f()
	return int64(float64(size) / time.Since(began).Seconds()), err
}
