// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel/bench/peer"
)

// Caller returns what calls over a connection of its own.
func (c *client) Caller() (func() error, error) {
	conn, err := c.connect()
	if err != nil {
		return nil, err
	}
	in := &frames{conn: conn}
	switch {
	case c.Work == peer.Stream:
		return func() error { return c.stream(in) }, nil
	case c.Work == peer.Echo && header+c.Size > large:
		return c.copied(in), nil
	}
	request, check := c.work()
	var out []byte
	return func() error {
		out = request(appendHeader(out[:0], 0, 0))
		binary.LittleEndian.PutUint32(out, uint32(len(out)-header))
		if _, err := conn.Write(out); err != nil {
			return err
		}
		for {
			if err := in.read(); err != nil {
				return err
			}
			if _, body, ok := in.next(); ok {
				return check(body)
			}
		}
	}, nil
}

// copied returns what calls with a large body, which is compared as it comes.
func (c *client) copied(in *frames) func() error {
	request := append(appendHeader(nil, c.Size, 0), c.data...)
	send, sent := make(chan struct{}), make(chan error, 1)
	go func() { // ends with the program
		for range send {
			_, err := in.conn.Write(request)
			sent <- err
		}
	}()
	return func() error {
		if len(request) <= batch { // the sockets hold that much
			if _, err := in.conn.Write(request); err != nil {
				return err
			}
			return in.compare(request)
		}
		send <- struct{}{}
		return errors.Join(in.compare(request), <-sent)
	}
}

// compare reads as many bytes as are wanted, and compares them.
func (f *frames) compare(want []byte) error {
	return f.through(len(want), func(b []byte) error {
		if !bytes.Equal(b, want[:len(b)]) {
			return errors.New("other bytes came back")
		}
		want = want[len(b):]
		return nil
	})
}

func (c *client) stream(in *frames) error {
	request := binary.LittleEndian.AppendUint64(appendHeader(nil, 8+c.Size, 0), uint64(c.Messages))
	if _, err := in.conn.Write(append(request, c.data...)); err != nil {
		return err
	}
	for n := 0; n < c.Messages; {
		if err := in.read(); err != nil {
			return fmt.Errorf("message %d of %d: %w", n+1, c.Messages, err)
		}
		for _, body, ok := in.next(); ok; _, body, ok = in.next() {
			if !bytes.Equal(body, c.data) {
				return errors.New("another message came")
			}
			n++
		}
	}
	return nil
}
