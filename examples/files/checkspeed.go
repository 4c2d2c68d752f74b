// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/yodel-rpc/yodel"
)

// slow is what a small call may take beside a transfer, if not more than 1 in 20 takes longer.
const slow = 10 * time.Millisecond

// smallCalls makes small calls on the connection that carries a file in each direction.
func (b *bed) smallCalls(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- b.put(ctx, "big", noReport) }()
	go func() { ended <- b.get(ctx, "big", noReport) }()
	var took []time.Duration
	var err error
	for open := 2; open > 0; {
		began := time.Now()
		_, e := yodel.Ping.Call(ctx, b.client, &yodel.Empty{})
		took = append(took, time.Since(began))
		err = errors.Join(err, e)
		select {
		case e := <-ended:
			err = errors.Join(err, e)
			open--
		default:
		}
	}
	if err != nil {
		return "", err
	}
	slices.Sort(took)
	late := 0
	for _, t := range took {
		if t > slow {
			late++
		}
	}
	text := fmt.Sprintf("%d calls: half within %v, 95 of 100 within %v, worst %v", len(took),
		took[len(took)/2].Round(time.Microsecond), took[len(took)*95/100].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond))
	if late*20 > len(took) {
		return "", fmt.Errorf("%s; %d took longer than %v", text, late, slow)
	}
	return text, nil
}

// throughput compares transfers with io.Copy over a connection of their own. What is best of three counts, because the machine may
// be busy.
func (b *bed) throughput(ctx context.Context) (string, error) {
	var bare, file, up, down int64
	for range 3 {
		for _, run := range []struct {
			best *int64
			f    func() error
		}{
			{&bare, func() error { return b.copyBytes(ctx) }},
			{&file, func() error { return b.copyFile(ctx) }},
			{&up, func() error { return b.put(ctx, "big", noReport) }},
			{&down, func() error { return b.get(ctx, "big", noReport) }},
		} {
			rate, err := timed(bigSize, run.f)
			if err != nil {
				return "", err
			}
			*run.best = max(*run.best, rate)
		}
	}
	share := func(a, b int64) string { return fmt.Sprintf("%d %%", 100*a/b) }
	return fmt.Sprintf("put %s/s, get %s/s\n"+
		"%35s%s and %s of io.Copy over bare TCP from file to file with fsync and SHA-256: %s/s\n"+
		"%35s%s and %s of io.Copy over bare TCP from memory to nowhere: %s/s",
		megabytes(up), megabytes(down),
		"", share(up, file), share(down, file), megabytes(file),
		"", share(up, bare), share(down, bare), megabytes(bare)), nil
}

// copyBytes copies as many bytes as the file has.
func (b *bed) copyBytes(ctx context.Context) error {
	return overTCP(ctx, func(w io.Writer) error {
		chunk := make([]byte, chunkSize)
		for n := 0; n < bigSize; n += len(chunk) {
			if _, err := w.Write(chunk[:min(len(chunk), bigSize-n)]); err != nil {
				return err
			}
		}
		return nil
	}, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
}

// copyFile copies the file and does with it what a transfer does.
func (b *bed) copyFile(ctx context.Context) error {
	return overTCP(ctx, func(w io.Writer) error {
		f, err := os.Open(filepath.Join(b.here, "big"))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(io.MultiWriter(w, sha256.New()), f)
		return err
	}, func(r io.Reader) error {
		f, err := os.Create(filepath.Join(b.back, "copy"))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(io.MultiWriter(f, sha256.New()), r)
		return errors.Join(err, f.Sync())
	})
}

// overTCP connects what send writes with what receive reads.
func overTCP(ctx context.Context, send func(io.Writer) error, receive func(io.Reader) error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			err = errors.Join(send(conn), conn.Close())
		}
		sent <- err
	}()
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(receive(conn), <-sent)
}
