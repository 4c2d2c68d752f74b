// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/examples/internal/process"
)

// region executor
// An executor runs tasks, as many at once as it has slots.
type executor struct{ shuffle actor.Ref }

const slots = 2

func (e *executor) runMap(ctx context.Context, m *RunMap) (*Ran, error) {
	_, err := actor.AskSync[struct{}](ctx, actor.In(ctx), e.shuffle, &Put{m.Task, m.Job.count(m.Task)})
	return &Ran{}, err
}

func (e *executor) runReduce(ctx context.Context, m *RunReduce) (*Ran, error) {
	r := &Ran{Counts: make(map[string]int)}
	fetches := make([]*actor.Question[Counts], len(m.Outputs))
	for i, from := range m.Outputs {
		fetches[i] = actor.Ask[Counts](ctx, actor.In(ctx), from, &Fetch{i, m.Task})
	}
	for i, f := range fetches {
		part, _ := f.Get()
		if part == nil { // for any reason: the driver runs the map task again
			return &Ran{Lost: m.Outputs[i].Addr}, nil
		}
		for word, n := range part.Counts {
			r.Counts[word] += n
		}
		r.Maps = append(r.Maps, i)
	}
	return r, nil
}

// A shuffle has the output of the map tasks of its executor. It handles one message at a time.
type shuffle struct{ outputs map[int][]map[string]int }

func (s *shuffle) put(_ context.Context, m *Put) error {
	s.outputs[m.Map] = m.Parts
	return nil
}

func (s *shuffle) fetch(_ context.Context, m *Fetch) (*Counts, error) {
	parts := s.outputs[m.Map]
	if m.Reduce < 0 || m.Reduce >= len(parts) {
		return nil, yodel.Errorf(yodel.NotFound, "the output of map task %d is not here", m.Map)
	}
	return &Counts{parts[m.Reduce]}, nil
}

var (
	executors = actor.NewKind("Executor", actor.Answer((*executor).runMap), actor.Answer((*executor).runReduce))
	shuffles  = actor.NewKind("Shuffle", actor.On((*shuffle).put), actor.Answer((*shuffle).fetch))
)

// endregion executor

// execute is what the process of an executor does, until the driver closes its standard input.
func execute(driver string) error {
	ctx := process.UntilToldToEnd(func(string) error { return nil })
	s := actor.NewSystem(&actor.Options{Server: quietServer(), Client: quietClient(), Logger: quiet()})
	if err := s.Listen("127.0.0.1:0"); err != nil {
		return err
	}
	fmt.Println(s.Addr())
	err := join(ctx, s, driver)
	if err == nil {
		<-ctx.Done()
	}
	end, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = s.Shutdown(end) // the driver needs nothing of it any more
	return err
}

// join starts the actors of an executor, and registers them with the driver.
func join(ctx context.Context, s *actor.System, driver string) error {
	at, err := shuffles.Start(s, "shuffle", &shuffle{make(map[int][]map[string]int)}, nil)
	if err != nil {
		return err
	}
	self, err := executors.Start(s, "executor", &executor{at}, &actor.StartOptions{Concurrent: slots})
	if err != nil {
		return err
	}
	to, err := s.Lookup(ctx, driver, "driver")
	if err != nil {
		return err
	}
	return s.Send(ctx, to, &Register{self, at})
}
