// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"net"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/introspect"
)

// Messages with memory in all of their parts.
type (
	Deep struct {
		Map     map[string][]int
		Pointer *Inner
		Nested  [][]int
		Structs []Inner
		Array   [1][]int
	}
	Partial struct {
		Seen   int
		Hidden int `json:"-"`
	}
	Own struct {
		Seen int
		own  int
	}
	Keeper struct {
		deep    *Deep
		partial *Partial
		own     *Own
	}
)

func (k *Keeper) Deep(_ context.Context, m *Deep) (*Deep, error) {
	k.deep = m
	return m, nil
}

func (k *Keeper) Partial(_ context.Context, m *Partial) error {
	k.partial = m
	return nil
}

func (k *Keeper) Own(_ context.Context, m *Own) error {
	k.own = m
	return nil
}

// MessageName gives Renamed the name of another type.
func (Renamed) MessageName() string { return "Other" }

type Renamed struct{ Text string }

func (*Keeper) Renamed(ctx context.Context, m *Renamed) (*Said, error) {
	return &Said{m.Text + " " + yodel.CallFrom(ctx).Method + " from " + actor.From(ctx)}, nil
}

var keepers = actor.NewKind("Keeper", actor.Answer((*Keeper).Deep), actor.On((*Keeper).Partial), actor.On((*Keeper).Own), actor.Answer((*Keeper).Renamed))

// No part of a message or of an answer is shared, and what the codec leaves out does not arrive,
// wherever the actor is.
func TestAllPartsOfMessagesAreCopied(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		k := new(Keeper)
		ref, err := keepers.Start(host, "Keeper", k, nil)
		if err != nil {
			t.Fatal(err)
		}
		fresh := func() *Deep {
			return &Deep{map[string][]int{"a": {1}}, &Inner{"b"}, [][]int{{2}}, []Inner{{"c"}}, [1][]int{{3}}}
		}
		sent := fresh()
		got, err := actor.AskSync[Deep](t.Context(), from, ref, sent)
		if err != nil || !reflect.DeepEqual(got, fresh()) {
			t.Fatalf("got %v, %v", got, err)
		}
		for _, change := range []*Deep{sent, k.deep} {
			change.Map["a"][0], change.Map["b"], change.Pointer.Name = 7, nil, "x"
			change.Nested[0][0], change.Structs[0].Name, change.Array[0][0] = 7, "x", 7
			for _, other := range []*Deep{sent, k.deep, got} {
				if other != change && !reflect.DeepEqual(other, fresh()) && other != sent {
					t.Errorf("a change of another copy has changed %v", other)
				}
			}
		}
		if _, err := actor.AskSync[struct{}](t.Context(), from, ref, &Partial{Seen: 1, Hidden: 2}); err != nil || *k.partial != (Partial{Seen: 1}) {
			t.Errorf("the actor got %v, %v", k.partial, err)
		}
		if _, err := actor.AskSync[struct{}](t.Context(), from, ref, &Own{Seen: 1, own: 3}); err != nil || *k.own != (Own{Seen: 1}) {
			t.Errorf("the actor got %v, %v", k.own, err)
		}
	})
}

// A message may have another name than its type. The handler knows the sender's System.
func TestNamesOfMessages(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		ref, err := keepers.Start(host, "Keeper", new(Keeper), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := actor.AskSync[Said](t.Context(), from, ref, &Renamed{"hello"})
		if want := "hello Keeper.Other from " + from.Addr(); err != nil || got.Text != want {
			t.Errorf("got %v, %v, want %q", got, err, want)
		}
		c := yodel.Dial(host.Addr()) // a caller that is not a System: the name is that of the kind
		defer c.Close()
		var said Said
		if err := c.Call(t.Context(), "Keeper.Other", &Renamed{"hello"}, &said); err != nil || said.Text != "hello Keeper.Other from " {
			t.Errorf("got %v, %v", said, err)
		}
	})
}

// OnStart and OnStop of a concurrent actor run alone.
func TestConcurrentActorsStartAndStopAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := actor.NewSystem(nil)
		p := newProbe()
		p.start = func(context.Context) error { time.Sleep(time.Second); p.note("started"); return nil }
		p.do = func(context.Context, *Do) (*Said, error) {
			time.Sleep(time.Second)
			p.note("done")
			return &Said{}, nil
		}
		ref := startProbe(t, s, "probe", p, &actor.StartOptions{Concurrent: 4})
		for range 3 {
			if err := s.Send(t.Context(), ref, &Tell{"x"}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := strings.Join(p.all(), " "); got != "start" {
			t.Errorf("before OnStart has returned: %s", got)
		}
		time.Sleep(1500 * time.Millisecond)
		s.Stop(ref)
		shutdown(t, s)
		if got := strings.Join(p.all(), " "); got != "start started"+strings.Repeat(" tell x", 3)+strings.Repeat(" done", 3)+" stop" {
			t.Errorf("got %s", got)
		}
	})
}

// All methods of an actor with its own goroutine run on it.
func TestOwnGoroutine(t *testing.T) {
	s := actor.NewSystem(nil)
	var mu sync.Mutex
	seen := make(map[string]int)
	note := func() {
		stack := make([]byte, 64)
		id, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), " [")
		mu.Lock()
		defer mu.Unlock()
		seen[id]++
	}
	p := newProbe()
	p.start = func(context.Context) error { note(); return nil }
	p.stop = p.start
	p.do = func(context.Context, *Do) (*Said, error) { note(); return &Said{}, nil }
	ref := startProbe(t, s, "probe", p, &actor.StartOptions{OwnGoroutine: true})
	for range 100 { // each finds an empty inbox
		if _, err := ask(t, s, ref, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := ask(t, s, startProbe(t, s, "other", newProbe(), nil), "x"); err != nil {
			t.Fatal(err)
		}
		s.Stop(actor.Ref{Addr: s.Addr(), Kind: "Probe", Name: "other"})
	}
	shutdown(t, s)
	if len(seen) != 1 {
		t.Errorf("the methods ran on the goroutines %v", seen)
	}
}

// An actor that sends to itself while its inbox is full, or asks itself, waits for itself. It gets
// an error at the end of the timeout, and goes on.
func TestActorsThatWaitForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := actor.NewSystem(&actor.Options{Inbox: 2, Logger: quiet})
		p := newProbe()
		p.do = func(ctx context.Context, m *Do) (*Said, error) {
			switch m.Text {
			case "fill":
				var err error
				for err == nil {
					err = actor.In(ctx).Send(ctx, actor.Self(ctx), &Tell{"x"})
				}
				return nil, err
			case "ask":
				return actor.AskSync[Said](ctx, actor.In(ctx), actor.Self(ctx), &Do{"x"})
			default:
				return &Said{"well"}, nil
			}
		}
		ref := startProbe(t, s, "probe", p, nil)
		defer shutdown(t, s)
		for text, option := range map[string]string{"fill": "SendTimeout", "ask": "deadline"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			if _, err := actor.AskSync[Said](ctx, s, ref, &Do{text}); yodel.CodeOf(err) != yodel.DeadlineExceeded || !strings.Contains(err.Error(), option) {
				t.Errorf("%s: got %v", text, err)
			}
			cancel()
			if got, err := ask(t, s, ref, "y"); err != nil || got != "well" {
				t.Errorf("after %s: got %q, %v", text, got, err)
			}
			if text == "fill" { // the inbox held two messages
				p.waitFor(t, "tell x", 2)
			}
		}
	})
}

// Shutdown does not wait for an actor that blocks longer than its context. It names the actor.
func TestShutdownOfAnActorThatBlocks(t *testing.T) {
	s := actor.NewSystem(nil)
	p := newProbe()
	ended := make(chan struct{})
	p.do = func(ctx context.Context, _ *Do) (*Said, error) { <-ctx.Done(); close(ended); return nil, ctx.Err() }
	ref := startProbe(t, s, "probe", p, nil)
	if err := s.Send(t.Context(), ref, &Tell{"x"}); err != nil {
		t.Fatal(err)
	}
	p.waitFor(t, "tell x", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); yodel.CodeOf(err) != yodel.DeadlineExceeded || !strings.Contains(err.Error(), "Probe probe") {
		t.Errorf("got %v", err)
	}
	<-ended // the context of the handler ends with the System
}

// Ports go round.
func TestPortsGoRound(t *testing.T) {
	s := system(t, false, nil)
	l, err := net.Listen("tcp", "127.0.0.1:65535")
	if err == nil {
		defer l.Close()
	}
	if err := s.Listen("127.0.0.1:65535"); err != nil {
		t.Fatal(err)
	}
	if addr := s.Addr(); len(addr) != len("127.0.0.1:1024") {
		t.Errorf("the System listens at %s", addr)
	}
}

// If more messages are lost than the sender can tell of, some between them are lost too. Each is
// answered, and later messages are handled.
func TestManyLostMessages(t *testing.T) {
	const n = 60
	var waiting sync.WaitGroup
	waiting.Add(n / 2)
	release := make(chan struct{})
	host := system(t, true, &actor.Options{Server: &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method != "Probe.Do" {
				return next(ctx, call)
			}
			way := strings.Fields(call.Metadata["actor-way"]) // the verb, the sender, the stream and the number
			if number, err := strconv.Atoi(way[3]); err == nil && number <= n {
				if number%2 == 1 {
					return yodel.Errorf(yodel.ResourceExhausted, "not now")
				}
				waiting.Done()
				<-release
			}
			return next(ctx, call)
		}
	}}}})
	ref := startProbe(t, host, "probe", newProbe(), nil)
	from := system(t, false, nil)
	var all []*actor.Question[Said]
	for i := range n {
		all = append(all, actor.Ask[Said](t.Context(), from, ref, &Do{strconv.Itoa(i)}))
	}
	for i := 0; i < n; i += 2 {
		if _, err := all[i].Get(); yodel.CodeOf(err) != yodel.ResourceExhausted {
			t.Errorf("question %d: got %v", i, err)
		}
	}
	waiting.Wait()
	last := actor.Ask[Said](t.Context(), from, ref, &Do{"last"})
	await(t, host, func(s introspect.Actor) bool { return s.Held == 1 })
	close(release)
	for i := 1; i < n; i += 2 {
		if _, err := all[i].Get(); err != nil && yodel.CodeOf(err) != yodel.Aborted {
			t.Errorf("question %d: got %v", i, err)
		}
	}
	if got, err := last.Get(); err != nil || got.Text != "did last" {
		t.Errorf("got %v, %v", got, err)
	}
}

// A sender that leaves while it waits for room makes no room. Those behind it go on waiting, and
// get the next room that there is.
func TestASenderThatLeavesMakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := actor.NewSystem(&actor.Options{Inbox: 1})
		defer shutdown(t, s)
		p, free := newProbe(), make(chan struct{})
		p.do = func(context.Context, *Do) (*Said, error) { <-free; return &Said{}, nil }
		ref := startProbe(t, s, "probe", p, nil)
		synctest.Wait()
		send := func(ctx context.Context, text string) chan error {
			sent := make(chan error, 1)
			go func() { sent <- s.Send(ctx, ref, &Tell{text}) }()
			synctest.Wait()
			return sent
		}
		for _, text := range []string{"one", "two"} { // one is handled, the other one fills the inbox
			if err := <-send(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		three, four, five := send(ctx, "three"), send(t.Context(), "four"), send(t.Context(), "five")
		cancel()
		if err := <-three; yodel.CodeOf(err) != yodel.Canceled {
			t.Errorf("the sender that left: %v", err)
		}
		synctest.Wait()
		select {
		case err := <-four:
			t.Errorf("the next one has room: %v", err)
		default:
		}
		close(free)
		for _, sent := range []chan error{four, five} {
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if got := strings.Join(p.all(), " "); got != "start tell one tell two tell four tell five" {
			t.Errorf("got %s", got)
		}
	})
}
