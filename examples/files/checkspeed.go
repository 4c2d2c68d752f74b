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
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/inspect"
)

// smallCalls makes small calls on the connection that carries a file in each direction, and wants
// not more than 1 in 20 to be slow.
func (b *bed) smallCalls(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- b.put(ctx, "big", noReport) }()
	go func() { ended <- b.get(ctx, "big", noReport) }()
	var took []time.Duration
	for open := 2; open > 0; {
		began := time.Now()
		_, err := inspect.Ping.Call(ctx, b.client, &inspect.Empty{})
		took = append(took, time.Since(began))
		select {
		case e := <-ended:
			err = errors.Join(err, e)
			open--
		default:
		}
		if err != nil {
			cancel()
			for range open {
				err = errors.Join(err, <-ended)
			}
			return "", err
		}
	}
	slices.Sort(took)
	late := 0
	for _, t := range took {
		if t > b.slow {
			late++
		}
	}
	text := fmt.Sprintf("%d calls: half within %v, 95 of 100 within %v, worst %v", len(took),
		took[len(took)/2].Round(time.Microsecond), took[len(took)*95/100].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond))
	if late*20 > len(took) {
		return "", fmt.Errorf("%s; %d took longer than %v", text, late, b.slow)
	}
	return text, nil
}

// throughput compares transfers with io.Copy over a connection of its own that does the same with
// the file.
func (b *bed) throughput(ctx context.Context) (string, error) {
	rates, err := b.best(2,
		func() error { return b.put(ctx, "big", noReport) },
		func() error { return b.get(ctx, "big", noReport) },
		func() error { return b.copyFile(ctx) })
	if err != nil {
		return "", err
	}
	up, down, bare := rates[0], rates[1], rates[2]
	return fmt.Sprintf("put %s/s, get %s/s: %d %% and %d %% of io.Copy over bare TCP (%s/s), all with SHA-256 and fsync",
		megabytes(up), megabytes(down), 100*up/bare, 100*down/bare, megabytes(bare)), nil
}

// pour is an upload to nowhere.
const pour yodel.Upload[[]byte, []byte] = "Check.Pour"

// streamThroughput compares a stream alone, from memory to nowhere, with io.Copy.
func (b *bed) streamThroughput(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := yodel.NewServer(nil)
	pour.Handle(server, func(_ context.Context, recv yodel.Recv[[]byte]) (*[]byte, error) {
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
		}
		return new([]byte), nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = server.Serve(ctx, l) }() // it ends with the check
	client := yodel.Dial(l.Addr().String())
	defer client.Close()
	rates, err := b.best(3,
		func() error {
			_, err := pour.Do(ctx, client, &yodel.Call{Codec: raw.Codec}, func(send yodel.Send[[]byte]) error {
				return b.chunks(func(chunk []byte) error { return send(&chunk) })
			})
			return err
		},
		func() error { return b.copyMemory(ctx) })
	if err != nil {
		return "", err
	}
	stream, bare := rates[0], rates[1]
	return fmt.Sprintf("%s/s: %d %% of io.Copy over bare TCP (%s/s), both from memory to nowhere", megabytes(stream), 100*stream/bare, megabytes(bare)), nil
}

// best runs what moves as many bytes as the big file has, in turn, and returns the best rate of
// each: the machine may be busy.
func (b *bed) best(rounds int, runs ...func() error) (bytesPerSecond []int64, err error) {
	rates := make([]int64, len(runs))
	for range rounds {
		for i, run := range runs {
			rate, err := timed(b.size, run)
			if err != nil {
				return nil, err
			}
			rates[i] = max(rates[i], rate)
		}
	}
	return rates, nil
}

// chunks makes as many bytes as the big file has.
func (b *bed) chunks(each func(chunk []byte) error) error {
	chunk := make([]byte, chunkSize)
	for left := b.size; left > 0; left -= chunkSize {
		if err := each(chunk[:min(left, chunkSize)]); err != nil {
			return err
		}
	}
	return nil
}

// copyMemory copies as many bytes, from memory to nowhere.
func (b *bed) copyMemory(ctx context.Context) error {
	return overTCP(ctx, func(w io.Writer) error {
		return b.chunks(func(chunk []byte) error {
			_, err := w.Write(chunk)
			return err
		})
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
