// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
)

// An input is the standard input of a command. Read returns the error of ctx when ctx ends,
// although a read from a terminal or a pipe does not end then. One goroutine at a time may call
// Read.
type input struct {
	ctx     context.Context //nolint:containedctx // readers have no context
	from    io.Reader
	reading bool // whether a goroutine is reading
	read    chan piece
	rest    piece
}

// A piece is what one read has returned.
type piece struct {
	data []byte
	err  error
}

// stdin returns the input of the command, which ends with ctx.
func (a *app) stdin(ctx context.Context) io.Reader {
	if a.input == nil {
		a.input = &input{ctx: ctx, from: a.in, read: make(chan piece, 1)}
	}
	return a.input
}

// Read implements io.Reader. It reads from another goroutine, of which there is at most one. If ctx
// ends first, that goroutine ends with its read.
func (in *input) Read(p []byte) (int, error) {
	if len(in.rest.data) == 0 && in.rest.err == nil {
		if !in.reading {
			in.reading = true
			go func() {
				data := make([]byte, 32<<10)
				n, err := in.from.Read(data)
				in.read <- piece{data[:n], err}
			}()
		}
		select {
		case in.rest = <-in.read:
			in.reading = false
		case <-in.ctx.Done():
			return 0, in.ctx.Err()
		}
	}
	n := copy(p, in.rest.data)
	in.rest.data = in.rest.data[n:]
	if n == 0 {
		return 0, in.rest.err
	}
	return n, nil
}
