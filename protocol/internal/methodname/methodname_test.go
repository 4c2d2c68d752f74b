// SPDX-License-Identifier: Apache-2.0

package methodname_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/methodname"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A protocol serves each connection with serve.
type protocol struct{ serve func(*yodel.Session) }

func (protocol) Name() string                 { return "test" }
func (protocol) Match([]byte) (ok, more bool) { return true, false }
func (p protocol) Serve(_ context.Context, s *yodel.Session) error {
	p.serve(s)
	return s.Conn.Close()
}

func TestBegin(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := yodel.NewServer(&yodel.ServerOptions{
		Logger: slog.New(slog.DiscardHandler), Limits: yodel.Limits{MaxMethods: 2},
		Protocols: []yodel.Protocol{protocol{func(s *yodel.Session) {
			find := methodname.NewFinder(s)
			for range 2 { // also from what it remembers, which is not all
				for _, test := range []struct{ service, method, want, kind string }{
					{"Arith", "Add", "Arith.Add", "unary"},
					{"Arith", "add", "Arith.Add", "unary"},
					{"Arith", "same", "Arith.same", "unary"},
					{"Arith", "Same", "Arith.Same", "unary"},
					{"", "äh", "Äh", "unary"},
					{"", "none", "none", ""},
					{"Arith", "none", "Arith.none", ""},
					{"Arith", "", "Arith.", ""},
				} {
					v := find.Begin(test.service, test.method, s.Codec("json"))
					if got := v.Call().Method; got != test.want || v.Kind() != test.kind {
						t.Errorf("%q of %q is %q with the kind %q, want %q with %q", test.method, test.service, got, v.Kind(), test.want, test.kind)
					}
					v.End()
				}
			}
		}}},
	})
	for _, name := range []string{"Arith.Add", "Arith.same", "Arith.Same", "Äh"} {
		if err := s.Handle(name, func(_ context.Context, in *int) (*int, error) { return in, nil }); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("hello"))
	_, _ = io.ReadAll(c) // until the session has ended
	_ = c.Close()
	cancel()
	<-ended
}
