// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
)

// A concurrent actor handles as many messages at once as it says, if there are no more.
func TestConcurrentActors(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		const n = 3
		both := make(chan struct{}, n)
		p := newProbe()
		p.do = func(ctx context.Context, _ *Do) (*Said, error) {
			both <- struct{}{}
			for len(both) < n {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				runtime.Gosched()
			}
			return &Said{"together"}, nil
		}
		ref := startProbe(t, host, "probe", p, &actor.StartOptions{Concurrent: n})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all []*actor.Question[Said]
		for range n {
			all = append(all, actor.Ask[Said](ctx, from, ref, &Do{"x"}))
		}
		for _, q := range all {
			if _, err := q.Get(); err != nil {
				t.Error(err)
			}
		}
	})
}

// An Owner answers with its own memory, and changes that with the next message.
type (
	Change struct{}
	State  struct{ Values []int }
	Owner  struct{ state State }
)

func (o *Owner) Change(context.Context, *Change) (*State, error) {
	for i := range o.state.Values {
		o.state.Values[i]++
	}
	return &o.state, nil
}

var owners = actor.NewKind("Owner", actor.Answer((*Owner).Change))

// An answer is as it was when the handler returned it. Meanwhile the actor handles other messages.
func TestAnswersAreSnapshots(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		ref, err := owners.Start(host, "owner", &Owner{State{make([]int, 1000)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var all []*actor.Question[State]
		for range 100 {
			all = append(all, actor.Ask[State](t.Context(), from, ref, &Change{}))
		}
		for i, q := range all {
			got, err := q.Get()
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range got.Values {
				if v != i+1 {
					t.Fatalf("answer %d has %d", i, v)
				}
			}
		}
	})
}

// Handlers that end their goroutine in OnStop end the actor all the same.
func TestOnStopThatEndsItsGoroutine(t *testing.T) {
	for _, o := range []*actor.StartOptions{nil, {OwnGoroutine: true}, {Concurrent: 3}} {
		s := actor.NewSystem(&actor.Options{Logger: quiet})
		p := newProbe()
		p.stop = func(context.Context) error { runtime.Goexit(); return nil }
		startProbe(t, s, "probe", p, o)
		shutdown(t, s)
	}
}

// A question is not handled after its deadline, even if the actor is free at that very moment.
func TestQuestionsAreNotHandledAfterTheirDeadlines(t *testing.T) {
	deadlines := make(chan time.Time, 1)
	host := system(t, true, &actor.Options{Server: &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if deadline, has := ctx.Deadline(); has && call.Method == "Probe.Do" {
				select {
				case deadlines <- deadline:
				default:
				}
			}
			return next(ctx, call)
		}
	}}}})
	from := system(t, false, nil)
	p := newProbe()
	p.do = func(_ context.Context, m *Do) (*Said, error) {
		if m.Text == "wait" {
			for deadline := <-deadlines; !time.Now().After(deadline); {
				runtime.Gosched()
			}
		}
		return &Said{}, nil
	}
	ref := startProbe(t, host, "probe", p, nil)
	for range 5 {
		if err := from.Send(t.Context(), ref, &Tell{"wait"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := actor.AskSync[Said](ctx, from, ref, &Do{"late"}); yodel.CodeOf(err) != yodel.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	if _, err := ask(t, from, ref, "last"); err != nil {
		t.Error(err)
	}
	if all := strings.Join(p.all(), " "); strings.Contains(all, "late") {
		t.Errorf("a question was handled after its deadline: %s", all)
	}
}

// A message to a full inbox is not sent after Options.SendTimeout.
func TestSendsEnd(t *testing.T) {
	bothWays(t, &actor.Options{Inbox: 1, Window: 1, SendTimeout: 30 * time.Millisecond, OnLost: func(actor.Ref, string, error) {}}, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		free := make(chan struct{})
		p.do = func(context.Context, *Do) (*Said, error) { <-free; return &Said{}, nil }
		ref := startProbe(t, host, "probe", p, nil)
		for range 2 { // one is handled, the other one fills the inbox
			if err := from.Send(t.Context(), ref, &Tell{"x"}); err != nil {
				t.Fatal(err)
			}
			p.waitFor(t, "tell x", 1)
		}
		err := from.Send(t.Context(), ref, &Tell{"y"})
		if from == host && (yodel.CodeOf(err) != yodel.DeadlineExceeded || !strings.Contains(err.Error(), "SendTimeout")) {
			t.Errorf("got %v", err)
		}
		if from != host { // the window has room again when the message is lost
			if err := from.Send(t.Context(), ref, &Tell{"z"}); err != nil {
				t.Error(err)
			}
		}
		close(free)
		if _, err := ask(t, from, ref, "last"); err != nil {
			t.Error(err)
		}
		if all := strings.Join(p.all(), " "); strings.Contains(all, "tell y") {
			t.Errorf("a message that was not sent was handled: %s", all)
		}
	})
}

// Shutdown waits for the messages of Send, also for those that OnStop sends.
func TestShutdownWaitsForMessages(t *testing.T) {
	host := system(t, true, nil)
	k := newProbe()
	to := startProbe(t, host, "probe", k, nil)
	from := actor.NewSystem(nil)
	p := newProbe()
	const n = 200
	p.stop = func(ctx context.Context) error {
		for range n {
			if err := actor.In(ctx).Send(ctx, to, &Tell{"the end"}); err != nil {
				return err
			}
		}
		return nil
	}
	startProbe(t, from, "probe", p, nil)
	shutdown(t, from)
	k.waitFor(t, "tell the end", n)
	if err := from.Send(t.Context(), to, &Tell{"x"}); yodel.CodeOf(err) != yodel.Unavailable {
		t.Errorf("a message after Shutdown: got %v", err)
	}
}

// The order of messages is what the peer says of it. Whatever it says, each call is answered.
func TestOrdersFromPeers(t *testing.T) {
	host := system(t, true, nil)
	p := newProbe()
	startProbe(t, host, "probe", p, nil)
	c := yodel.Dial(host.Addr())
	t.Cleanup(c.Close)
	send := func(order string) chan error {
		done := make(chan error, 1)
		call := &yodel.Call{
			Method: "Probe.Do", Args: &Do{order}, Reply: new(Said),
			Metadata: yodel.Metadata{"actor": "probe", "actor-way": "ask nowhere " + order},
		}
		c.Go(t.Context(), call, func(err error) { done <- err })
		return done
	}
	for _, wrong := range []string{"s", "s 1", "s x 1", "s 0 1", "s 5 1 7", "s 5 1 9-8", "s 5 1" + strings.Repeat(" 7-7", 17), strings.Repeat("s", 200) + " 1 1"} {
		if err := <-send(wrong); yodel.CodeOf(err) != yodel.InvalidArgument {
			t.Errorf("%q: got %v", wrong, err)
		}
	}
	// The second attempt of a message that is held takes the place of the first.
	first := send("a 2 1")
	await(t, host, func(s introspect.Actor) bool { return s.Held == 1 })
	second := send("a 2 1")
	if err := <-first; yodel.CodeOf(err) != yodel.Aborted {
		t.Errorf("the first attempt: got %v", err)
	}
	if err := <-send("a 1 1"); err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
	if err := <-send("a 2 1"); yodel.CodeOf(err) != yodel.Aborted {
		t.Errorf("a message that was handled: got %v", err)
	}
	// A message that is held is refused when the actor stops.
	held := send("a 9 3")
	await(t, host, func(s introspect.Actor) bool { return s.Held == 1 })
	host.Stop(actor.Ref{Addr: host.Addr(), Kind: "Probe", Name: "probe"})
	if err := <-held; yodel.CodeOf(err) != yodel.NotFound {
		t.Errorf("a message that was held: got %v", err)
	}
}

// await waits until the actor with the longest inbox of a System is as ok wants.
func await(t *testing.T, s *actor.System, ok func(introspect.Actor) bool) {
	t.Helper()
	for !ok(s.List().Actors[0]) {
		if t.Context().Err() != nil {
			return
		}
		runtime.Gosched()
	}
}

// A picky is a codec that carries only messages of the tests, as the codec of protobuf carries only
// generated types.
type picky struct{ yodel.Codec }

func (picky) Name() string { return "picky" }

func (picky) CheckType(of reflect.Type) error {
	if name := of.String(); !strings.Contains(name, "actor_test.") {
		return errors.New("not a message of the tests: " + name)
	}
	return nil
}

func (p picky) Append(dst []byte, v any) ([]byte, error) {
	if err := p.CheckType(reflect.TypeOf(v)); err != nil {
		return nil, err
	}
	return p.Codec.Append(dst, v)
}

func (p picky) Decode(src []byte, v any) error {
	if err := p.CheckType(reflect.TypeOf(v)); err != nil {
		return err
	}
	return p.Codec.Decode(src, v)
}

// K13. The codec of the messages need not carry what the Systems tell each other: lookups, and that
// a message is lost.
func TestCodecsOfMessages(t *testing.T) {
	o := &actor.Options{Client: &yodel.ClientOptions{Codec: picky{yodel.JSON}}, OnLost: func(actor.Ref, string, error) {}}
	refuse, refused := make(chan struct{}), make(chan struct{})
	withRefusals := *o
	withRefusals.Server = &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "Probe.Tell" {
				close(refused)
				<-refuse
				return yodel.Errorf(yodel.ResourceExhausted, "not now")
			}
			return next(ctx, call)
		}
	}}}
	host, from := system(t, true, &withRefusals), system(t, false, o)
	startProbe(t, host, "probe", newProbe(), nil)
	ref, err := from.Lookup(t.Context(), host.Addr(), "probe")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, from, ref, "x"); err != nil || got != "did x" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := from.Send(t.Context(), ref, &Tell{"lost"}); err != nil {
		t.Fatal(err)
	}
	<-refused
	q := actor.Ask[Said](t.Context(), from, ref, &Do{"after it"})
	await(t, host, func(s introspect.Actor) bool { return s.Held == 1 })
	close(refuse)
	if got, err := q.Get(); err != nil || got.Text != "did after it" {
		t.Errorf("a question behind a message that was lost: got %v, %v", got, err)
	}
}

// A spare is a codec that carries neither empty answers nor the answer of a handler that has none.
type spare struct{ yodel.Codec }

func (spare) Name() string { return "spare" }

func (s spare) Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case *struct{}:
		return nil, errors.New("there is nothing to carry")
	case *Said:
		if *v == (Said{}) {
			return nil, errors.New("the answer is empty")
		}
	}
	return s.Codec.Append(dst, v)
}

// K13. A message of Send has no answer, so its codec need not carry one. A message that has arrived
// is not reported as lost.
func TestSendNeedsNoAnswer(t *testing.T) {
	o := &actor.Options{
		Client: &yodel.ClientOptions{Codec: spare{yodel.JSON}},
		OnLost: func(_ actor.Ref, message string, err error) { t.Errorf("%s is lost: %v", message, err) },
	}
	host, from := system(t, true, o), system(t, false, o)
	for where, s := range map[string]*actor.System{"far": from, "here": host} {
		p := newProbe()
		ref := startProbe(t, host, where, p, nil)
		for _, message := range []any{&Tell{"x"}, &Do{"y"}} {
			if err := s.Send(t.Context(), ref, message); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
		if got, err := ask(t, s, ref, "z"); err != nil || got != "did z" {
			t.Errorf("%s: got %q, %v", where, got, err)
		}
		p.waitFor(t, "tell x", 1)
	}
	if err := from.Shutdown(t.Context()); err != nil { // waits for the calls of the messages
		t.Error(err)
	}
}

// The list has the actors with the longest inboxes, and counts the others. Other processes get it
// for one kind or for all, if the server shares its diagnostics.
func TestTheListOfActors(t *testing.T) {
	const many, listed = 1005, 1000
	for _, shared := range []bool{true, false} {
		s := actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Diagnostics: shared}})
		defer s.Shutdown(t.Context())
		for i := range many {
			if _, err := probes.Start(s, fmt.Sprint("probe-", i), newProbe(), nil); err != nil {
				t.Fatal(err)
			}
		}
		waits, free := newProbe(), make(chan struct{})
		defer close(free)
		waits.do = func(context.Context, *Do) (*Said, error) { <-free; return &Said{}, nil }
		ref := startProbe(t, s, "waits", waits, nil)
		for range 3 { // one is handled
			if err := s.Send(t.Context(), ref, &Tell{"x"}); err != nil {
				t.Fatal(err)
			}
		}
		waits.waitFor(t, "tell x", 1)
		if _, err := ask(t, s, actor.Ref{Addr: s.Addr(), Kind: "Probe", Name: "probe-0"}, "x"); err != nil {
			t.Fatal(err)
		}
		for s.List().Waiting != 2 { // some have not started
			runtime.Gosched()
		}
		want := []introspect.Actor{{Kind: "Probe", Name: "waits", Inbox: 2}, {Kind: "Probe", Name: "probe-0", Handled: 1}, {Kind: "Probe", Name: "probe-1"}}
		if all := s.List(); len(all.Actors) != listed || all.Left != many+1-listed || !slices.Equal(all.Actors[:len(want)], want) {
			t.Errorf("the list has %d actors, and counts %d others: %v", len(all.Actors), all.Left, all.Actors[:len(want)])
		}
		if err := s.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		c := yodel.Dial(s.Addr())
		defer c.Close()
		for kind, want := range map[string]int{"": listed, "Probe": listed, "Nothing": 0} {
			all, err := inspect.Actors.Call(t.Context(), c, &introspect.ActorsQuery{Kind: kind})
			switch {
			case !shared && yodel.CodeOf(err) != yodel.PermissionDenied:
				t.Errorf("without diagnostics: got %v", err)
			case shared && (err != nil || len(all.Actors) != want || want > 0 && (all.Actors[0].Name != "waits" || all.Actors[0].Inbox < 2)):
				t.Errorf("actors of the kind %q: got %v, %v, want %d", kind, all, err, want)
			}
		}
	}
}

// A handler that fails after it has said that it answers later has answered.
func TestAHandlerThatFailsAfterLater(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		p.do = func(ctx context.Context, _ *Do) (*Said, error) {
			actor.Later(ctx)
			return nil, yodel.Errorf(yodel.FailedPrecondition, "not today")
		}
		ref := startProbe(t, host, "probe", p, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := actor.AskSync[Said](ctx, from, ref, &Do{"x"}); yodel.CodeOf(err) != yodel.FailedPrecondition {
			t.Errorf("got %v", err)
		}
	})
}

// A message of Send arrives though the context of Send has ended. Its call has the values of the
// context.
func TestMessagesOutliveTheContextOfSend(t *testing.T) {
	type key struct{}
	canceled := make(chan struct{})
	host := system(t, true, &actor.Options{Server: &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Method == "Probe.Tell" {
				<-canceled
			}
			return next(ctx, call)
		}
	}}}})
	values := make(chan any, 10)
	from := system(t, false, &actor.Options{
		OnLost: func(_ actor.Ref, _ string, err error) { t.Errorf("the message is lost: %v", err) },
		Client: &yodel.ClientOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				values <- ctx.Value(key{})
				return next(ctx, call)
			}
		}}},
	})
	p := newProbe()
	ref := startProbe(t, host, "probe", p, nil)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	if err := from.Send(ctx, ref, &Tell{"x"}); err != nil {
		t.Fatal(err)
	}
	cancel()
	close(canceled)
	if got := <-values; got != "value" {
		t.Errorf("the call has the value %v", got)
	}
	p.waitFor(t, "tell x", 1)
}
