// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

const (
	middleSize = 20_000_000  // of the file that is interrupted: many times what is on its way at once
	maxMemory  = 100_000_000 // of each process
)

// check tries all that the program promises, prints a line for each, and fails if one of them
// fails.
func check(ctx context.Context, size int64, slow time.Duration) error {
	b, err := newBed(ctx, size, slow)
	if err != nil {
		return err
	}
	failed := 0
	for _, c := range []struct {
		name string
		run  func(ctx context.Context) (string, error)
	}{
		{"a file of 0 bytes", b.thereAndBack("empty", 0)},
		{"a file of 1 byte", b.thereAndBack("one", 1)},
		{"a file of one chunk", b.thereAndBack("chunk", chunkSize)},
		{fmt.Sprintf("a file of %d MB", size/1e6), b.thereAndBack("big", size)},
		{"put is canceled", b.interrupted(b.put, b.there, canceled)},
		{"get is canceled", b.interrupted(b.get, b.back, canceled)},
		{"the server is killed in a put", b.interrupted(b.put, b.there, killed)},
		{"the server is killed in a get", b.interrupted(b.get, b.back, killed)},
		{"the server is stopped in a put", b.interrupted(b.put, b.there, stopped)},
		{"the server is stopped in a get", b.interrupted(b.get, b.back, stopped)},
		{"put finds a part of another file", b.otherPart(b.put, b.there)},
		{"get finds a part of another file", b.otherPart(b.get, b.back)},
		{"two uploads of one name", b.twoAtOnce},
		{"names outside of the folder", b.names},
		{"a file beyond the limit", b.tooLarge},
		{"small calls beside transfers", b.smallCalls},
		{"throughput of a file", b.throughput},
		{"throughput of a stream", b.streamThroughput},
		{"memory", b.memory},
	} {
		text, err := c.run(ctx)
		if ctx.Err() != nil {
			fmt.Printf("%-33s interrupted\n", c.name)
			break
		}
		if err != nil {
			failed++
			text = "FAILED: " + err.Error()
		}
		fmt.Printf("%-33s %s\n", c.name, text)
	}
	fmt.Printf("\n%d failed\n", failed)
	if failed > 0 {
		err = errors.New("see above\n" + b.stderr.String())
	}
	if ctx.Err() != nil {
		err = errors.Join(err, errors.New("interrupted: the rest was not tried"))
	}
	return errors.Join(err, b.close())
}

func noReport(int64, int64) {}

// thereAndBack sends a new file and fetches it.
func (b *bed) thereAndBack(name string, size int64) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if err := b.make(name, size); err != nil {
			return "", err
		}
		up, err := timed(size, func() error { return b.put(ctx, name, noReport) })
		if err != nil {
			return "", err
		}
		down, err := timed(size, func() error { return b.get(ctx, name, noReport) })
		if err != nil {
			return "", err
		}
		text := "there and back"
		if name == "big" {
			text += fmt.Sprintf(" at %s/s and %s/s, with fsync", megabytes(up), megabytes(down))
		}
		return text, errors.Join(b.same(name, b.there), b.same(name, b.back))
	}
}

// memory wants both processes to have taken a moderate amount from the system.
func (b *bed) memory(context.Context) (string, error) {
	theirs, err := b.shutDown()
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("client %s, server %s", megabytes(taken()), megabytes(theirs))
	if theirs > maxMemory || taken() > maxMemory {
		return "", fmt.Errorf("%s: more than %s", text, megabytes(maxMemory))
	}
	return text, nil
}

// taken returns how much memory this process has from the system.
func taken() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys) //nolint:gosec // far from 8 EB
}
