// SPDX-License-Identifier: Apache-2.0

// Package greeting is the service: the contract that its clients import, and its methods.
package greeting

import (
	"context"

	"github.com/yodel-rpc/yodel"
)

// Greet greets a person.
const Greet yodel.Method[Request, Reply] = "starter.Greet"

// Request says whom to greet.
type Request struct {
	Name string `json:"name" pb:"1"`
}

// Reply has the greeting.
type Reply struct {
	Text string `json:"text" pb:"1"`
}

// Register adds the methods of the service to a server.
func Register(s *yodel.Server) {
	Greet.Handle(s, greet)
}

// greet is the method. A caller that gives no name gets invalid_argument.
func greet(_ context.Context, in *Request) (*Reply, error) {
	if in.Name == "" {
		return nil, yodel.Errorf(yodel.InvalidArgument, "name is empty")
	}
	return &Reply{Text: "hello " + in.Name}, nil
}
