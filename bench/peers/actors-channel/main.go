// SPDX-License-Identifier: Apache-2.0

// Goroutines that receive from channels: what actors of the same process are compared with. They
// have no names, no bounds that a caller could see, and share memory with their callers.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel/bench/peer"
)

func main() {
	peer.Main(peer.Peer{
		Name: "goroutine and channel", Module: "std", Actors: true,
		Setup: "a channel of 1000 messages for each actor, a channel for each answer; an idle actor has a channel without a buffer",
		Works: []peer.Work{peer.Echo, peer.Send},
		Serve: func(string) (string, func(), error) { return "none", func() {}, nil },
		Dial:  dial,
	})
}

// A message has an answer if there is a channel for it.
type message struct {
	body   []byte
	answer chan<- []byte
	count  chan<- int
}

func receive(inbox <-chan message) {
	n := 0
	for m := range inbox {
		switch {
		case m.answer != nil:
			m.answer <- m.body
		case m.count != nil:
			m.count <- n
			n = 0
		default:
			n++
		}
	}
}

type client struct {
	peer.Options

	inboxes []chan message
}

func dial(_ context.Context, o peer.Options) (peer.Client, error) {
	if !o.Local {
		return nil, fmt.Errorf("no other process: %w", errors.ErrUnsupported)
	}
	c := &client{Options: o}
	for range o.Idle {
		c.start(0)
	}
	return c, nil
}

func (c *client) start(room int) chan message {
	inbox := make(chan message, room)
	c.inboxes = append(c.inboxes, inbox)
	go receive(inbox)
	return inbox
}

func (c *client) Close() error {
	for _, inbox := range c.inboxes {
		close(inbox)
	}
	return nil
}

func (c *client) Caller() (func() error, error) {
	body, inbox := peer.Body(c.Size), c.start(1000)
	if c.Work == peer.Send {
		return func() error {
			for range c.Messages {
				inbox <- message{body: body}
			}
			count := make(chan int)
			inbox <- message{count: count}
			if n := <-count; n != c.Messages {
				return fmt.Errorf("%d of %d messages have arrived", n, c.Messages)
			}
			return nil
		}, nil
	}
	return func() error {
		answer := make(chan []byte)
		inbox <- message{body: body, answer: answer}
		if !bytes.Equal(<-answer, body) {
			return errors.New("other bytes came back")
		}
		return nil
	}, nil
}
