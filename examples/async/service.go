// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

const (
	// Square squares a number, which takes a while.
	Square yodel.Method[int, int] = "Service.Square"
	// Note takes note of a line, and has nothing to reply.
	Note yodel.Method[string, struct{}] = "Service.Note"
)

// A service counts how many squares it was asked for at once.
type service struct {
	noted chan string

	mu         sync.Mutex
	open, most int
}

func (s *service) newServer() *yodel.Server {
	server := yodel.NewServer(nil)
	Square.Handle(server, s.square)
	Note.Handle(server, s.note)
	return server
}

func (s *service) square(_ context.Context, x *int) (*int, error) {
	s.count(1)
	defer s.count(-1)
	<-time.After(time.Millisecond)
	square := *x * *x
	return &square, nil
}

// count counts change more open calls, and returns the largest number so far.
func (s *service) count(change int) (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += change
	s.most = max(s.most, s.open)
	return s.most
}

func (s *service) note(_ context.Context, line *string) (*struct{}, error) {
	s.noted <- *line
	return &struct{}{}, nil
}
