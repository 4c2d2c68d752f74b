// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
)

// A transferFunc is b.put or b.get.
type transferFunc func(ctx context.Context, name string, report progress) error

// An interruption is how a transfer comes to a sudden end.
type interruption struct {
	during func(b *bed, cancel func()) error
	after  func(b *bed, ctx context.Context) error // makes all well again
	code   yodel.Code                              // of the error that the transfer has to end with
}

var (
	canceled = interruption{
		during: func(_ *bed, cancel func()) error { cancel(); return nil },
		after:  func(*bed, context.Context) error { return nil },
		code:   yodel.Canceled,
	}
	killed = interruption{
		during: func(b *bed, _ func()) error { b.kill(); return nil },
		after:  (*bed).restart,
		code:   yodel.Unavailable,
	}
	stopped = interruption{
		during: func(b *bed, _ func()) error {
			err := b.stdin.Close()
			for refused := error(nil); refused == nil && err == nil; { // until the server has noticed
				_, refused = inspect.Ping.Call(context.Background(), b.client, &inspect.Empty{})
			}
			return err
		},
		after: func(b *bed, ctx context.Context) error {
			_, err := b.shutDown()
			return errors.Join(err, b.restart(ctx))
		},
		code: yodel.Unavailable,
	}
)

// interrupted interrupts a transfer when half of it is done, and then goes on with it.
func (b *bed) interrupted(transfer transferFunc, folder string, by interruption) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		complete := filepath.Join(folder, "middle")
		if err := b.prepare(ctx, folder); err != nil {
			return "", err
		}
		half, cancel := context.WithCancel(ctx)
		defer cancel()
		var once bool
		var failed error
		err := transfer(half, "middle", func(at, size int64) {
			if !once && at >= size/2 {
				once = true
				failed = by.during(b, cancel)
			}
		})
		if err := errors.Join(failed, by.after(b, ctx)); err != nil {
			return "", err
		}
		if yodel.CodeOf(err) != by.code {
			return "", fmt.Errorf("it ended with %w, not with %w", err, by.code)
		}
		if _, err := os.Stat(complete); !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("the file is there before it is complete: %w", err)
		}
		from, err := b.goOn(ctx, transfer, folder)
		if err == nil && from == 0 {
			err = errors.New("it began anew")
		}
		return "went on at " + megabytes(from), err
	}
}

// prepare removes the file from a folder. It remains on the server if it is to be fetched.
func (b *bed) prepare(ctx context.Context, folder string) error {
	err := os.RemoveAll(filepath.Join(folder, "middle"))
	if err == nil && folder == b.back {
		if _, missing := os.Stat(filepath.Join(b.there, "middle")); missing != nil {
			err = b.put(ctx, "middle", noReport)
		}
	}
	return err
}

// goOn makes a transfer and returns where it began.
func (b *bed) goOn(ctx context.Context, transfer transferFunc, folder string) (from int64, err error) {
	m := &meter{quiet: true}
	if err := transfer(ctx, "middle", m.report); err != nil {
		return 0, err
	}
	return m.from, b.same("middle", folder)
}

// otherPart finds a part that is not the beginning of the file.
func (b *bed) otherPart(transfer transferFunc, folder string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if err := b.prepare(ctx, folder); err != nil {
			return "", err
		}
		part, err := os.ReadFile(filepath.Join(b.here, "chunk"))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, "middle"+partSuffix), part, 0o600); err != nil { //nolint:gosec // in the folder of the checks
			return "", err
		}
		from, err := b.goOn(ctx, transfer, folder)
		if err == nil && from != 0 {
			err = fmt.Errorf("it went on at %d", from)
		}
		return "began anew", err
	}
}
