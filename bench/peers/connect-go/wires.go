// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
	"github.com/yodel-rpc/yodel/bench/peers/connect-go/suite"
)

// The service of ../wires.proto.
type wires struct{}

func (wires) Wait(_ context.Context, m *message.BenchmarkMessage) (*message.BenchmarkMessage, error) {
	time.Sleep(peer.Pause)
	message.Answer(m)
	return m, nil
}

func (wires) Duplex(_ context.Context, s *connect.BidiStream[suite.Body, suite.Body]) error {
	for {
		m, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.Send(m); err != nil {
			return err
		}
	}
}

// wires returns a caller of the work Wait or Duplex.
func (c *client) wires(stub suite.WiresClient) func() error {
	if c.o.Work == peer.Wait {
		m := message.New()
		return func() error {
			ctx, cancel := c.o.Context()
			defer cancel()
			reply, err := stub.Wait(ctx, m)
			if err != nil {
				return err
			}
			return message.Check(reply)
		}
	}
	body := &suite.Body{Data: peer.Body(c.o.Size)}
	return func() error {
		ctx, cancel := c.o.Context()
		defer cancel()
		return duplex(ctx, stub, body, c.o.Messages)
	}
}

// duplex sends n messages and receives them meanwhile.
func duplex(ctx context.Context, stub suite.WiresClient, body *suite.Body, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the sending too
	s, err := stub.Duplex(ctx)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		for range n {
			if err := s.Send(body); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseRequest()
	}()
	for got := 0; ; got++ {
		m, err := s.Receive()
		switch {
		case errors.Is(err, io.EOF) && got == n:
			return errors.Join(<-sent, s.CloseResponse())
		case err != nil:
			return fmt.Errorf("after %d messages of %d: %w", got, n, err)
		}
		if err := peer.CheckBody(m.Data, body.Data); err != nil {
			return err
		}
	}
}
