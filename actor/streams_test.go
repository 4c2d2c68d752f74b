// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A Sink counts numbers, and does not answer questions before they are answered.
type Sink struct {
	n      atomic.Int64
	answer func(answer any, err error) // of the last question
}

func (s *Sink) Number(context.Context, *Number) error { s.n.Add(1); return nil }

func (s *Sink) Ask(ctx context.Context, _ *Ask) (*Said, error) {
	s.n.Add(1)
	s.answer = actor.Later(ctx)
	return nil, nil
}

var sinks = actor.NewKind("Sink", actor.On((*Sink).Number), actor.Answer((*Sink).Ask))

// newSink starts the actor sink at host:1. The caller must shut the System down.
func newSink(t *testing.T, network yodel.Transport) (host *actor.System, sink *Sink, ref actor.Ref) {
	t.Helper()
	host, sink = actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Transport: network}}), new(Sink)
	if err := host.Listen("host:1"); err != nil {
		t.Fatal(err)
	}
	ref, err := sinks.Start(host, "sink", sink, nil)
	if err != nil {
		t.Fatal(err)
	}
	return host, sink, ref
}

// A streamer is a client that chooses the streams of its messages.
type streamer struct{ *yodel.Client }

func newStreamer(t *testing.T, network yodel.Transport) streamer {
	t.Helper()
	c := yodel.NewClient(discovery.Static("host:1"), &yodel.ClientOptions{Transport: network, DialTimeout: time.Minute})
	t.Cleanup(c.Close)
	return streamer{c}
}

// begin sends the message with an order, and calls done when it is accepted or refused.
func (s streamer) begin(ctx context.Context, verb, order string, done func(error)) {
	s.beginOf(ctx, "Sink.Number", new(Number), verb, order, done)
}

func (s streamer) beginOf(ctx context.Context, method string, message any, verb, order string, done func(error)) {
	s.Go(ctx, &yodel.Call{
		Method: method, Args: message,
		Metadata: yodel.Metadata{"actor": "sink", "actor-way": verb + " nowhere " + order},
	}, done)
}

// send sends the message with an order.
func (s streamer) send(t *testing.T, order string) error {
	t.Helper()
	done := make(chan error, 1)
	s.begin(t.Context(), "send", order, func(err error) { done <- err })
	return <-done
}

// Clients that begin streams under many names do not keep others out. They lose what the actor
// remembers of their own streams, and others do not: none of their messages is handled twice.
func TestAClientWithManyStreamsHarmsOnlyItself(t *testing.T) {
	const many = 70_000 // more than an actor remembers
	for _, conns := range []int{1, 280} {
		t.Run(fmt.Sprint(conns, " connections"), func(t *testing.T) {
			network := mem.New()
			host, sink, ref := newSink(t, network)
			defer shutdown(t, host)
			honest, left := newStreamer(t, network), newStreamer(t, network)
			for _, err := range []error{honest.send(t, "honest 1 1"), honest.send(t, "honest 2 2"), left.send(t, "left 1 1")} {
				if err != nil {
					t.Fatal(err)
				}
			}
			left.Close()
			var all sync.WaitGroup
			var refused atomic.Int64
			for i := range conns {
				attacker := newStreamer(t, network)
				for n := range many / conns {
					all.Add(1)
					attacker.begin(t.Context(), "send", fmt.Sprintf("%d-%d 1 1", i, n), func(err error) {
						if err != nil {
							refused.Add(1)
						}
						all.Done()
					})
				}
			}
			all.Wait()
			if refused.Load() > 0 {
				t.Errorf("%d messages were refused", refused.Load())
			}
			newcomer := actor.NewSystem(&actor.Options{Client: &yodel.ClientOptions{Transport: network}})
			defer shutdown(t, newcomer)
			handled := func() int64 { // of all messages that were accepted: the question is behind them
				if _, err := actor.AskSync[struct{}](t.Context(), newcomer, ref, &Number{1}); err != nil {
					t.Errorf("a new sender: %v", err)
				}
				return sink.n.Load()
			}
			before := handled()
			if err := honest.send(t, "honest 2 2"); yodel.CodeOf(err) != yodel.Aborted {
				t.Errorf("a message that was handled: %v", err)
			}
			if err := honest.send(t, "honest 3 3"); err != nil {
				t.Errorf("the next message: %v", err)
			}
			if conns == 1 {
				if err := newStreamer(t, network).send(t, "left 1 1"); yodel.CodeOf(err) != yodel.Aborted {
					t.Errorf("a message that was handled, over a new connection: %v", err)
				}
			}
			if got := handled() - before; got != 2 {
				t.Errorf("%d messages were handled, want 2: the next one and the question", got)
			}
		})
	}
}

// A connection may have 256 streams. While none of them is idle, it may begin no other one. It may
// when one is. A stream whose message is repeated over a new connection belongs to that one.
func TestTheStreamsOfAConnection(t *testing.T) {
	const most = 256
	network := mem.New()
	host, _, _ := newSink(t, network)
	defer shutdown(t, host)
	c, other := newStreamer(t, network), newStreamer(t, network)
	ended := make([]chan error, most)
	for i := range ended { // each waits for a message 1
		ended[i] = make(chan error, 1)
		c.begin(t.Context(), "ask", fmt.Sprintf("s%d 2 1", i), func(err error) { ended[i] <- err })
	}
	await(t, host, func(s introspect.Actor) bool { return s.Held == most })
	if err := c.send(t, "more 1 1"); yodel.CodeOf(err) != yodel.ResourceExhausted {
		t.Errorf("one stream more: got %v", err)
	}
	if err := other.send(t, "more 1 1"); err != nil {
		t.Errorf("a stream of another connection: %v", err)
	}
	if err := c.send(t, "more 2 2"); yodel.CodeOf(err) != yodel.ResourceExhausted {
		t.Errorf("the next message of that stream: %v", err)
	}
	if err := other.send(t, "s7 1 1"); err != nil { // the stream is the other connection's now
		t.Errorf("the message that is missing: %v", err)
	}
	if err := <-ended[7]; err != nil {
		t.Error(err)
	}
	if err := c.send(t, "more 2 2"); err != nil {
		t.Errorf("with one stream less: %v", err)
	}
	if err := c.send(t, "again 1 1"); err != nil { // "more" is idle
		t.Errorf("in place of an idle stream: %v", err)
	}
	if err := c.send(t, "again 1 1"); yodel.CodeOf(err) != yodel.Aborted {
		t.Errorf("a message that was handled: %v", err)
	}
	if err := c.send(t, "more 2 2"); err != nil { // it is forgotten
		t.Errorf("a stream that was forgotten: %v", err)
	}
	for i := range ended {
		if err := c.send(t, fmt.Sprintf("s%d 1 1", i)); i != 7 && err != nil {
			t.Error(err)
		}
		if i != 7 {
			if err := <-ended[i]; err != nil {
				t.Error(err)
			}
		}
	}
}

// An actor remembers a stream for 10 minutes after its last message, and longer while one of its
// messages waits, to be handled or to be answered.
func TestAnActorForgetsOldStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		host, sink, _ := newSink(t, network)
		defer shutdown(t, host)
		c := newStreamer(t, network)
		repeated := func(order string, refused bool) {
			t.Helper()
			if err := c.send(t, order); refused != (yodel.CodeOf(err) == yodel.Aborted) {
				t.Errorf("%s again: got %v, want that it is refused: %t", order, err, refused)
			}
		}
		many := func(name string) { // so many that the actor looks for old ones
			for i := range 130 {
				if err := c.send(t, fmt.Sprintf("%s%d 1 1", name, i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		ended := make(chan error, 2)
		done := func(err error) { ended <- err }
		c.begin(t.Context(), "ask", "held 2 1", done)
		c.beginOf(t.Context(), "Sink.Ask", new(Ask), "ask", "asked 1 1", done)
		if err := c.send(t, "old 1 1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(9 * time.Minute)
		many("a")
		repeated("old 1 1", true)
		<-time.After(11 * time.Minute)
		many("b")
		repeated("old 1 1", false)
		repeated("asked 1 1", true)
		if err := c.send(t, "held 1 1"); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("a message that was held: %v", err)
		}
		sink.answer(&Said{}, nil)
		if err := <-ended; err != nil {
			t.Errorf("a question: %v", err)
		}
	})
}

// A System forgets how far it is with actors to which nothing is on its way. Those to which a
// message is on its way, or may still arrive, get their messages in order all the same.
func TestOrderHoldsWhenASystemForgets(t *testing.T) {
	t.Attr("rerun", "never")
	release, delayed, taken := make(chan struct{}), make(chan struct{}, 2), make(chan struct{}, 10)
	var first atomic.Int64
	host := system(t, true, &actor.Options{Server: &yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			name := call.Metadata["actor"]
			if name != "slow" && name != "doubt" {
				return next(ctx, call)
			}
			if first.Add(1) <= 2 {
				delayed <- struct{}{}
				<-release
				return next(ctx, call)
			}
			err := next(ctx, call)
			taken <- struct{}{}
			return err
		}
	}}}})
	slow, doubt := newProbe(), newProbe()
	toSlow, toDoubt := startProbe(t, host, "slow", slow, nil), startProbe(t, host, "doubt", doubt, nil)
	lost := make(chan actor.Ref, 10_000)
	o := &actor.Options{OnLost: func(to actor.Ref, _ string, _ error) { lost <- to }}
	from := system(t, false, o)
	o.SendTimeout = time.Second
	hasty := system(t, false, o)
	send := func(s *actor.System, to actor.Ref, text string) {
		t.Helper()
		if err := s.Send(t.Context(), to, &Tell{text}); err != nil {
			t.Fatal(err)
		}
	}
	send(from, toSlow, "first")
	send(hasty, toDoubt, "first")
	<-delayed
	<-delayed
	if to := <-lost; to != toDoubt {
		t.Fatalf("a message to %v is lost", to)
	}
	const many = 1100 // Systems forget when they have sent to 1024 actors
	for _, s := range []*actor.System{from, hasty} {
		for i := range many {
			send(s, actor.Ref{Addr: host.Addr(), Kind: "Probe", Name: fmt.Sprint("gone-", i)}, "x")
		}
		for range many {
			<-lost
		}
	}
	send(from, toSlow, "second")
	send(hasty, toDoubt, "second")
	doubt.waitFor(t, "tell second", 1)
	<-taken
	<-taken
	close(release)
	slow.waitFor(t, "tell second", 1)
	if _, err := ask(t, from, toDoubt, "last"); err != nil {
		t.Error(err)
	}
	if got := strings.Join(slow.all(), " "); !strings.Contains(got, "tell first tell second") {
		t.Errorf("a message that was on its way: %s", got)
	}
	if got := strings.Join(doubt.all(), " "); strings.Contains(got, "tell first") {
		t.Errorf("a message that was lost: %s", got)
	}
}

// Lost numbers overlap in any way, and messages that wait may be among them. Each message is
// answered, and none waits for one that is lost.
func TestSpansOfLostMessages(t *testing.T) {
	for name, test := range map[string]struct {
		first []string // orders of messages that wait
		then  []string // orders of messages after which all are handled
	}{
		"a span around another one":      {[]string{"s 12 1 4-5", "s 13 1 2-10"}, []string{"s 1 1", "s 11 1"}},
		"a span within another one":      {[]string{"s 12 1 2-10", "s 13 1 4-5"}, []string{"s 1 1", "s 11 1"}},
		"a span that ends within":        {[]string{"s 12 1 4-10", "s 13 1 2-5"}, []string{"s 1 1", "s 11 1"}},
		"a span that begins within":      {[]string{"s 12 1 2-5", "s 13 1 4-10"}, []string{"s 1 1", "s 11 1"}},
		"spans that touch":               {[]string{"s 12 1 2-5", "s 13 1 6-10"}, []string{"s 1 1", "s 11 1"}},
		"a message at the end of a span": {[]string{"s 3 1", "s 5 1 2-3"}, []string{"s 1 1", "s 4 4"}},
		"a message within a span":        {[]string{"s 3 1", "s 6 1 2-4"}, []string{"s 1 1", "s 5 5"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := mem.New()
				host, sink, _ := newSink(t, network)
				defer shutdown(t, host)
				c := newStreamer(t, network)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				ended := make(chan error, 10)
				for _, order := range slices.Concat(test.first, test.then) {
					c.begin(ctx, "send", order, func(err error) { ended <- err })
					synctest.Wait()
				}
				for range len(test.first) + len(test.then) {
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
				if got := sink.n.Load(); got != int64(len(test.first)+len(test.then)) {
					t.Errorf("%d messages were handled", got)
				}
			})
		})
	}
}
