// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type (
	Say     struct{ Text string }
	Said    struct{ Text string }
	Number  struct{ N int }
	Total   struct{}
	Sum     struct{ Numbers []int }
	Ask     struct{ Who actor.Ref }
	Blocked struct{}
)

// An Echo answers and collects.
type Echo struct {
	numbers []int
	free    chan struct{}
}

func (*Echo) Say(_ context.Context, m *Say) (*Said, error) {
	if m.Text == "" {
		return nil, yodel.Errorf(yodel.InvalidArgument, "say something")
	}
	return &Said{strings.ToUpper(m.Text)}, nil
}

func (e *Echo) Number(_ context.Context, m *Number) error {
	e.numbers = append(e.numbers, m.N)
	return nil
}

func (e *Echo) Total(context.Context, *Total) (*Sum, error) { return &Sum{e.numbers}, nil }

func (e *Echo) Ask(ctx context.Context, m *Ask) (*Said, error) {
	return actor.AskSync[Said](ctx, actor.In(ctx), m.Who, &Say{"from " + actor.Self(ctx).Name})
}

func (e *Echo) Blocked(ctx context.Context, _ *Blocked) error {
	select {
	case <-e.free:
	case <-ctx.Done():
	}
	return nil
}

var echoes = actor.NewKind("Echo", actor.Answer((*Echo).Say), actor.On((*Echo).Number), actor.Answer((*Echo).Total), actor.Answer((*Echo).Ask), actor.On((*Echo).Blocked))

// system returns a System that ends with the test. If it listens, it does so at a free port.
func system(t *testing.T, listens bool, o *actor.Options) *actor.System {
	t.Helper()
	s := actor.NewSystem(o)
	if listens {
		if err := s.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

func start(t *testing.T, s *actor.System, name string) actor.Ref {
	t.Helper()
	ref, err := echoes.Start(s, name, &Echo{free: make(chan struct{})}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestMessagesAreHandledInOrder(t *testing.T) {
	host := system(t, true, nil)
	for name, from := range map[string]*actor.System{"here": host, "from another system": system(t, true, nil)} {
		t.Run(name, func(t *testing.T) {
			ref := start(t, host, strings.ReplaceAll(name, " ", "-"))
			if got, err := actor.AskSync[Said](t.Context(), from, ref, &Say{"hello"}); err != nil || got.Text != "HELLO" {
				t.Fatalf("got %v, %v", got, err)
			}
			const n = 2000
			for i := range n {
				if err := from.Send(t.Context(), ref, &Number{i}); err != nil {
					t.Fatal(err)
				}
			}
			sum, err := actor.AskSync[Sum](t.Context(), from, ref, &Total{})
			if err != nil || len(sum.Numbers) != n {
				t.Fatalf("got %d numbers, %v", len(sum.Numbers), err)
			}
			for i, got := range sum.Numbers {
				if got != i {
					t.Fatalf("number %d is %d", i, got)
				}
			}
		})
	}
}

func TestRefsOfSystemsThatDoNotListen(t *testing.T) {
	host, client := system(t, true, nil), system(t, false, nil)
	far, near := start(t, host, "far"), start(t, client, "near")
	got, err := actor.AskSync[Said](t.Context(), client, far, &Ask{near})
	if err != nil || got.Text != "FROM FAR" {
		t.Errorf("got %v, %v", got, err)
	}
	found, err := client.Lookup(t.Context(), host.Addr(), "far")
	if err != nil || found != far {
		t.Errorf("found %v, %v", found, err)
	}
	if _, err := client.Lookup(t.Context(), host.Addr(), "other"); yodel.CodeOf(err) != yodel.NotFound {
		t.Errorf("got %v", err)
	}
}
