// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
	"github.com/yodel-rpc/yodel/introspect"
)

// The tests of this file are the behaviors that the tests of kraps-rpc (K1 to K13) and of Apache
// Spark 3.5.5 (1 to 58, in org/apache/spark/rpc) check, in Go's terms. docs/actors.md has the
// table.

// quiet is a logger for what actors do wrong on purpose.
var quiet = slog.New(slog.DiscardHandler)

// A Probe does what its functions say, and notes what happens to it.
type Probe struct {
	start, stop func(ctx context.Context) error
	do          func(ctx context.Context, m *Do) (*Said, error)

	mu     sync.Mutex
	events []string
	errs   []error
	news   chan struct{} // gets a value for each event, if there is room
}

type (
	Do   struct{ Text string }
	Tell struct{ Text string }
)

func newProbe() *Probe { return &Probe{news: make(chan struct{}, 1000)} }

func (p *Probe) note(event string) {
	p.mu.Lock()
	p.events = append(p.events, event)
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

func (p *Probe) OnStart(ctx context.Context) error {
	p.note("start")
	if p.start != nil {
		return p.start(ctx)
	}
	return nil
}

func (p *Probe) OnStop(ctx context.Context) error {
	defer p.note("stop")
	if p.stop != nil {
		return p.stop(ctx)
	}
	return nil
}

func (p *Probe) OnError(_ context.Context, err error) {
	p.mu.Lock()
	p.errs = append(p.errs, err)
	p.mu.Unlock()
	p.note("error")
}

func (p *Probe) OnConnected(_ context.Context, addr string)    { p.note("connected " + addr) }
func (p *Probe) OnDisconnected(_ context.Context, addr string) { p.note("disconnected " + addr) }
func (p *Probe) OnNetworkError(_ context.Context, addr string, err error) {
	p.note("network error " + addr + ": " + err.Error())
}

func (p *Probe) Do(ctx context.Context, m *Do) (*Said, error) {
	p.note("do " + m.Text)
	if p.do != nil {
		return p.do(ctx, m)
	}
	return &Said{"did " + m.Text}, nil
}

func (p *Probe) Tell(ctx context.Context, m *Tell) error {
	p.note("tell " + m.Text)
	if p.do != nil {
		_, err := p.do(ctx, (*Do)(m))
		return err
	}
	return nil
}

// all returns what has happened so far.
func (p *Probe) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.events...)
}

// waitFor waits until an event with a prefix has happened n times.
func (p *Probe) waitFor(t *testing.T, event string, n int) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		count := 0
		for _, e := range p.all() {
			if strings.HasPrefix(e, event) {
				count++
			}
		}
		if count >= n {
			return
		}
		select {
		case <-p.news:
		case <-limit:
			t.Fatalf("%q has not happened %d times: %q", event, n, p.all())
		}
	}
}

var probes = actor.NewKind("Probe", actor.Answer((*Probe).Do), actor.On((*Probe).Tell))

func startProbe(t *testing.T, s *actor.System, name string, p *Probe, o *actor.StartOptions) actor.Ref {
	t.Helper()
	ref, err := probes.Start(s, name, p, o)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func shutdown(t *testing.T, s *actor.System) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// bothWays runs a test with a sender in the System of the actor, and with one in another System.
func bothWays(t *testing.T, o *actor.Options, f func(t *testing.T, host, from *actor.System)) {
	t.Helper()
	for _, far := range []bool{false, true} {
		name := "local"
		if far {
			name = "remote"
		}
		t.Run(name, func(t *testing.T) {
			host := system(t, true, o)
			from := host
			if far {
				from = system(t, false, o)
			}
			f(t, host, from)
		})
	}
}

func ask(t *testing.T, s *actor.System, to actor.Ref, text string) (string, error) {
	t.Helper()
	said, err := actor.AskSync[Said](t.Context(), s, to, &Do{text})
	if err != nil {
		return "", err
	}
	return said.Text, nil
}

// K1, 17, 18, 4, 5.
func TestAskGetsAnAnswer(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		ref := start(t, host, "echo")
		said, err := actor.AskSync[Said](t.Context(), from, ref, &Say{"hello"})
		if err != nil || said.Text != "HELLO" {
			t.Errorf("got %v, %v", said, err)
		}
	})
}

// K2.
type (
	Inner struct{ Name string }
	Wide  struct {
		Text string
		Max  int
		Min  int64
		Yes  bool
		In   Inner
	}
	GetWide struct{}
	Wider   struct{}
)

func (Wider) GetWide(context.Context, *GetWide) (*Wide, error) {
	return &Wide{"text", 1<<31 - 1, -1 << 63, true, Inner{"inner"}}, nil
}

var widers = actor.NewKind("Wider", actor.Answer(func(a *Wider, ctx context.Context, m *GetWide) (*Wide, error) { return a.GetWide(ctx, m) }))

func TestAnswersAreStructs(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		ref, err := widers.Start(host, "wide", new(Wider), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := actor.AskSync[Wide](t.Context(), from, ref, GetWide{})
		if want := (Wide{"text", 1<<31 - 1, -1 << 63, true, Inner{"inner"}}); err != nil || *got != want {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// K3, 37.
func TestActorsThatDoNotExist(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		startProbe(t, host, "probe", newProbe(), nil)
		_, err := from.Lookup(t.Context(), host.Addr(), "other")
		if yodel.CodeOf(err) != yodel.NotFound || !strings.Contains(err.Error(), `"other" at `+host.Addr()) {
			t.Errorf("Lookup: got %v", err)
		}
		if _, err := ask(t, from, actor.Ref{Addr: host.Addr(), Kind: "Probe", Name: "other"}, "x"); yodel.CodeOf(err) != yodel.NotFound || !strings.Contains(err.Error(), "other") {
			t.Errorf("Ask: got %v", err)
		}
		if _, err := ask(t, from, actor.Ref{Addr: host.Addr(), Kind: "Nothing", Name: "probe"}, "x"); yodel.CodeOf(err) != yodel.Unimplemented {
			t.Errorf("Ask of a kind that does not exist: got %v", err)
		}
	})
}

// K4, K5, 19, 20, 24: an error reaches the caller with its code and message, whatever it contains.
func TestErrorsReachTheCaller(t *testing.T) {
	for what, err := range map[string]error{
		"an Error":                   yodel.Errorf(yodel.FailedPrecondition, "not before noon"),
		"another error":              errors.New("disk full"),
		"one that cannot be encoded": unencodable{make(chan int)},
	} {
		t.Run(what, func(t *testing.T) {
			bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
				p := newProbe()
				p.do = func(context.Context, *Do) (*Said, error) { return nil, err }
				ref := startProbe(t, host, "probe", p, nil)
				_, got := ask(t, from, ref, "x")
				if yodel.CodeOf(got) != yodel.CodeOf(err) || !strings.Contains(got.Error(), err.Error()) {
					t.Errorf("got %v, want %v", got, err)
				}
				p.waitFor(t, "error", 1)
			})
		})
	}
}

type unencodable struct{ ch chan int }

func (unencodable) Error() string { return "an error with a channel" }

// K6, K7: addresses at which nobody listens, or that do not exist.
func TestSystemsThatCannotBeReached(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	from := system(t, false, &actor.Options{LookupTimeout: 5 * time.Second, Client: &yodel.ClientOptions{Logger: quiet}})
	for _, addr := range []string{l.Addr().String(), "no-such-host.invalid:7077"} {
		if _, err := from.Lookup(t.Context(), addr, "echo"); err == nil || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: got %v", addr, err)
		}
	}
	for _, addr := range []string{"", "host", "host:", ":7077", "127.0.0.1:0", "@"} {
		if _, err := from.Lookup(t.Context(), addr, "echo"); yodel.CodeOf(err) != yodel.InvalidArgument {
			t.Errorf("%q: got %v", addr, err)
		}
	}
}

// K8, 6, 33, 41: the error of a timeout names the option, once, and the address.
func TestTimeoutsNameTheirOption(t *testing.T) {
	bothWays(t, &actor.Options{AskTimeout: 50 * time.Millisecond}, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		p.do = func(ctx context.Context, _ *Do) (*Said, error) { <-ctx.Done(); return nil, ctx.Err() }
		ref := startProbe(t, host, "probe", p, nil)
		_, err := ask(t, from, ref, "x")
		if yodel.CodeOf(err) != yodel.DeadlineExceeded || strings.Count(err.Error(), "Options.AskTimeout is 50ms") != 1 {
			t.Errorf("got %v", err)
		}
		if from != host && !strings.Contains(err.Error(), host.Addr()) {
			t.Errorf("the error does not name the address: %v", err)
		}
		// A deadline of the caller is not blamed on the option.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := actor.AskSync[Said](ctx, from, ref, &Do{"x"}); yodel.CodeOf(err) != yodel.DeadlineExceeded || strings.Contains(err.Error(), "AskTimeout") {
			t.Errorf("got %v", err)
		}
	})
}

// 33: an actor that never answers.
func TestActorsThatNeverAnswer(t *testing.T) {
	bothWays(t, &actor.Options{AskTimeout: 50 * time.Millisecond, Logger: quiet}, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		p.do = func(ctx context.Context, m *Do) (*Said, error) {
			if m.Text == "later" {
				actor.Later(ctx)
			}
			return nil, nil
		}
		ref := startProbe(t, host, "probe", p, nil)
		if _, err := ask(t, from, ref, "later"); yodel.CodeOf(err) != yodel.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		if _, err := ask(t, from, ref, "now"); yodel.CodeOf(err) != yodel.Internal || !strings.Contains(err.Error(), "gave no answer") {
			t.Errorf("no answer and no Later: got %v", err)
		}
	})
}

// K9: a question is asked once.
func TestQuestionsAreAskedOnce(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		p.do = func(context.Context, *Do) (*Said, error) { return nil, yodel.Errorf(yodel.Unavailable, "bad") }
		ref := startProbe(t, host, "probe", p, nil)
		for i := range 3 {
			if _, err := ask(t, from, ref, "bad"); err == nil || !strings.Contains(err.Error(), "bad") {
				t.Errorf("got %v", err)
			}
			p.waitFor(t, "error", i+1)
		}
		if got := strings.Count(strings.Join(p.all(), "\n"), "do bad"); got != 3 {
			t.Errorf("the actor was asked %d times", got)
		}
	})
}

// K10: all options at once.
func TestAllOptions(t *testing.T) {
	o := &actor.Options{
		Server: &yodel.ServerOptions{MaxConns: 10}, Client: &yodel.ClientOptions{DialTimeout: time.Second}, Inbox: 10, Window: 10, AskTimeout: time.Second,
		SendTimeout: time.Second, LookupTimeout: time.Second, PortRetries: 3, OnLost: func(actor.Ref, string, error) {}, Logger: quiet,
	}
	bothWays(t, o, func(t *testing.T, host, from *actor.System) {
		ref := startProbe(t, host, "probe", newProbe(), &actor.StartOptions{Inbox: 5, Concurrent: 2})
		if got, err := ask(t, from, ref, "x"); err != nil || got != "did x" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// K11, 1, 2.
func TestSend(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		ref := startProbe(t, host, "probe", p, nil)
		if err := from.Send(t.Context(), ref, &Tell{"hello"}); err != nil {
			t.Fatal(err)
		}
		p.waitFor(t, "tell hello", 1)
		if err := from.Send(t.Context(), ref, Tell{"by value"}); err != nil {
			t.Fatal(err)
		}
		p.waitFor(t, "tell by value", 1)
		for _, none := range []any{nil, (*Tell)(nil)} {
			if err := from.Send(t.Context(), ref, none); yodel.CodeOf(err) != yodel.InvalidArgument {
				t.Errorf("nil: got %v", err)
			}
		}
	})
}

// 3: references in answers work.
type (
	GetRef struct{}
	Giver  struct{ ref actor.Ref }
)

func (g *Giver) GetRef(context.Context, *GetRef) (*actor.Ref, error) { return &g.ref, nil }

var givers = actor.NewKind("Giver", actor.Answer((*Giver).GetRef))

func TestReferencesInMessages(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		third := system(t, false, nil) // which does not listen
		p := newProbe()
		ref, err := givers.Start(host, "giver", &Giver{startProbe(t, host, "probe", p, nil)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*actor.System{from, third} {
			got, err := actor.AskSync[actor.Ref](t.Context(), s, ref, GetRef{})
			if err != nil {
				t.Fatal(err)
			}
			if said, err := ask(t, s, *got, "x"); err != nil || said != "did x" {
				t.Errorf("got %q, %v", said, err)
			}
		}
	})
}

// 7.
func TestAbort(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		ended := make(chan error, 1)
		p.do = func(ctx context.Context, _ *Do) (*Said, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		ref := startProbe(t, host, "probe", p, nil)
		q := actor.Ask[Said](t.Context(), from, ref, &Do{"x"})
		p.waitFor(t, "do x", 1)
		reason := errors.New("nobody wants to know any more")
		q.Abort(reason)
		if _, err := q.Get(); !errors.Is(err, reason) || yodel.CodeOf(err) != yodel.Canceled {
			t.Errorf("got %v", err)
		}
		<-ended // the actor learns of it
	})
}

// 8 to 16: the life of an actor.
func TestTheLifeOfAnActor(t *testing.T) {
	s := system(t, false, &actor.Options{Logger: quiet})
	p := newProbe()
	var selves []actor.Ref
	p.start = func(ctx context.Context) error {
		selves = append(selves, actor.Self(ctx))
		return errors.New("in OnStart")
	}
	p.do = func(ctx context.Context, _ *Do) (*Said, error) {
		selves = append(selves, actor.Self(ctx))
		return nil, errors.New("in Receive")
	}
	p.stop = func(ctx context.Context) error {
		selves = append(selves, actor.Self(ctx))
		return errors.New("in OnStop")
	}
	ref := startProbe(t, s, "probe", p, nil)
	if err := s.Send(t.Context(), ref, &Tell{"x"}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // stop twice
		s.Stop(ref)
	}
	p.waitFor(t, "error", 3)
	want := "start error tell x error stop error"
	if got := strings.Join(p.all(), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := errors.Join(p.errs...).Error(); got != "in OnStart\nin Receive\nin OnStop" {
		t.Errorf("errors: %q", got)
	}
	if len(selves) != 3 || selves[0] != ref || selves[1] != ref || !selves[2].IsZero() {
		t.Errorf("Self: %v", selves)
	}
	if err := s.Send(t.Context(), ref, &Tell{"y"}); yodel.CodeOf(err) != yodel.NotFound {
		t.Errorf("a message after Stop: %v", err)
	}
	startProbe(t, s, "probe", newProbe(), nil) // the name is free
	if _, err := probes.Start(s, "probe", newProbe(), nil); yodel.CodeOf(err) != yodel.AlreadyExists {
		t.Errorf("the name is taken: %v", err)
	}
}

// 15: messages to one actor need no lock.
type Counter struct{ n int }

type Inc struct{}

func (c *Counter) Inc(context.Context, *Inc) (*struct{}, error) { c.n++; return new(struct{}), nil }

var counters = actor.NewKind("Counter", actor.Answer((*Counter).Inc))

func TestOneMessageAtATime(t *testing.T) {
	s := actor.NewSystem(nil)
	var all []*Counter
	for i := range 20 {
		c := new(Counter)
		ref, err := counters.Start(s, "counter-"+strconv.Itoa(i), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		var senders sync.WaitGroup
		for range 10 {
			senders.Go(func() {
				for range 100 {
					if err := s.Send(t.Context(), ref, &Inc{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		senders.Wait()
	}
	shutdown(t, s)
	for i, c := range all {
		if c.n != 1000 {
			t.Errorf("counter %d is %d", i, c.n)
		}
	}
}

// 21 to 23, 49, 50: actors are told of connections.
func TestActorsAreToldOfConnections(t *testing.T) {
	for _, listens := range []bool{true, false} {
		host := system(t, true, nil)
		client := actor.NewSystem(nil)
		if listens {
			if err := client.Listen("127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
		}
		there, here := newProbe(), newProbe()
		ref := startProbe(t, host, "probe", there, nil)
		startProbe(t, client, "probe", here, nil)
		if _, err := ask(t, client, ref, "x"); err != nil {
			t.Fatal(err)
		}
		there.waitFor(t, "connected "+client.Addr(), 1)
		here.waitFor(t, "connected "+host.Addr(), 1)
		shutdown(t, client)
		there.waitFor(t, "disconnected "+client.Addr(), 1)
		for _, e := range there.all() {
			if strings.HasPrefix(e, "network error") {
				t.Errorf("the end of the other side is told as %q", e)
			}
		}
		// 35: a System that shuts down tells its own actors nothing but OnStop.
		if all := strings.Join(here.all(), "\n"); strings.Contains(all, "disconnected") || strings.Contains(all, "network error") || !strings.HasSuffix(all, "stop") {
			t.Errorf("listens %v: the actors of the System that ended were told:\n%s", listens, all)
		}
	}
}

func TestActorsAreToldOfNetworkErrors(t *testing.T) {
	s := system(t, false, &actor.Options{Client: &yodel.ClientOptions{Logger: quiet}})
	p := newProbe()
	startProbe(t, s, "probe", p, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := s.Lookup(t.Context(), l.Addr().String(), "x"); err == nil {
		t.Fatal("somebody answers")
	}
	p.waitFor(t, "network error "+l.Addr().String(), 1)
}

// 25: a port that is in use.
func TestTheNextPort(t *testing.T) {
	first := system(t, true, nil)
	_, port, err := net.SplitHostPort(first.Addr())
	if err != nil {
		t.Fatal(err)
	}
	second := system(t, false, nil)
	if err := second.Listen(first.Addr()); err != nil {
		t.Fatal(err)
	}
	if _, next, _ := net.SplitHostPort(second.Addr()); next == port {
		t.Errorf("both listen at port %s", port)
	}
	third := system(t, false, &actor.Options{PortRetries: -1})
	if err := third.Listen(first.Addr()); err == nil || !strings.Contains(err.Error(), "PortRetries") {
		t.Errorf("got %v", err)
	}
	for _, wrong := range []string{"", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		if err := third.Listen(wrong); yodel.CodeOf(err) != yodel.InvalidArgument {
			t.Errorf("%q: got %v", wrong, err)
		}
	}
	if err := second.Listen("127.0.0.1:0"); yodel.CodeOf(err) != yodel.FailedPrecondition {
		t.Errorf("a second address: got %v", err)
	}
}

// 36: an actor that waits does not hold others up, whatever GOMAXPROCS is.
func TestActorsThatWait(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, o := range []*actor.StartOptions{nil, {OwnGoroutine: true}, {Concurrent: 3}} {
		s := system(t, false, nil)
		free := make(chan struct{})
		waits, other := newProbe(), newProbe()
		waits.do = func(context.Context, *Do) (*Said, error) { <-free; return &Said{}, nil }
		blocked := startProbe(t, s, "waits", waits, o)
		ref := startProbe(t, s, "other", other, o)
		if err := s.Send(t.Context(), blocked, &Tell{"x"}); err != nil {
			t.Fatal(err)
		}
		waits.waitFor(t, "tell x", 1)
		if got, err := ask(t, s, ref, "y"); err != nil || got != "did y" {
			t.Errorf("got %q, %v", got, err)
		}
		close(free)
	}
}

// 38: the address that others use is not the one at which the System listens.
func TestTheAnnouncedAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	host := system(t, false, &actor.Options{Addr: addr})
	if err := host.Listen(addr); err != nil {
		t.Fatal(err)
	}
	if ref := startProbe(t, host, "probe", newProbe(), nil); ref.Addr != addr || host.Addr() != addr {
		t.Errorf("the address is %s", ref.Addr)
	}
}

// 40, 48: panics, and handlers that end their goroutine, are reported, and the actor goes on.
func TestPanicsAreReported(t *testing.T) {
	bothWays(t, &actor.Options{Logger: quiet}, func(t *testing.T, host, from *actor.System) {
		for _, o := range []*actor.StartOptions{nil, {OwnGoroutine: true}, {Concurrent: 3}} {
			p := newProbe()
			p.do = func(_ context.Context, m *Do) (*Said, error) {
				switch m.Text {
				case "panic":
					panic("secret")
				case "exit":
					runtime.Goexit()
				}
				return &Said{"well"}, nil
			}
			ref := startProbe(t, host, "probe", p, o)
			for i := range 10 {
				what := []string{"panic", "exit"}[i%2]
				if _, err := ask(t, from, ref, what); yodel.CodeOf(err) != yodel.Internal || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: got %v", what, err)
				}
				p.waitFor(t, "error", i+1)
			}
			if got, err := ask(t, from, ref, "x"); err != nil || got != "well" {
				t.Errorf("got %q, %v", got, err)
			}
			host.Stop(ref)
			p.waitFor(t, "stop", 1)
		}
	})
}

// OnError that panics, and a panic of an actor without OnError, are logged.
type Fragile struct{}

func (f *Fragile) Do(context.Context, *Do) (*Said, error) { panic("in Do") }

func (f *Fragile) OnError(context.Context, error) { panic("in OnError") }

type Plain struct{}

func (*Plain) Do(context.Context, *Do) (*Said, error) { panic("in Do") }

var (
	fragiles = actor.NewKind("Fragile", actor.Answer((*Fragile).Do))
	plains   = actor.NewKind("Plain", actor.Answer((*Plain).Do))
)

func TestPanicsAreLogged(t *testing.T) {
	var log safeBuffer
	s := actor.NewSystem(&actor.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	fragile, err := fragiles.Start(s, "fragile", new(Fragile), nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := plains.Start(s, "plain", new(Plain), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []actor.Ref{fragile, plain} {
		if _, err := ask(t, s, ref, "x"); yodel.CodeOf(err) != yodel.Internal {
			t.Errorf("got %v", err)
		}
	}
	shutdown(t, s)
	for _, want := range []string{"in OnError", `Plain plain`, "in Do"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q: %s", want, log.String())
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// 42, 43 are TestSend and TestAskGetsAnAnswer. 44: messages that race with Stop are handled or
// refused.
func TestStopWhileSending(t *testing.T) {
	for range 20 {
		s := actor.NewSystem(&actor.Options{Inbox: 10})
		p := newProbe()
		ref := startProbe(t, s, "probe", p, nil)
		var refused atomic.Int64
		var senders sync.WaitGroup
		for range 10 {
			senders.Go(func() {
				for range 100 {
					if err := s.Send(t.Context(), ref, &Tell{"x"}); yodel.CodeOf(err) == yodel.NotFound {
						refused.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		}
		p.waitFor(t, "tell", 5)
		s.Stop(ref)
		senders.Wait()
		shutdown(t, s)
		handled, starts, stops := 0, 0, 0
		for _, e := range p.all() {
			switch e {
			case "tell x":
				handled++
			case "start":
				starts++
			case "stop":
				stops++
			}
		}
		if handled+int(refused.Load()) != 1000 || starts != 1 || stops != 1 {
			t.Errorf("%d handled, %d refused, %d starts, %d stops", handled, refused.Load(), starts, stops)
		}
	}
}

// Questions that wait when an actor stops are answered.
func TestStopWhileAsking(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		free := make(chan struct{})
		p.do = func(_ context.Context, m *Do) (*Said, error) { <-free; return &Said{m.Text}, nil }
		ref := startProbe(t, host, "probe", p, nil)
		var all []*actor.Question[Said]
		for i := range 5 {
			all = append(all, actor.Ask[Said](t.Context(), from, ref, &Do{strconv.Itoa(i)}))
		}
		if from != host { // until they are in the inbox
			p.waitFor(t, "do 0", 1)
			await(t, host, func(s introspect.Actor) bool { return s.Inbox == 4 })
		}
		host.Stop(ref)
		close(free)
		for i, q := range all {
			if got, err := q.Get(); err != nil || got.Text != strconv.Itoa(i) {
				t.Errorf("got %v, %v", got, err)
			}
		}
		p.waitFor(t, "stop", 1)
	})
}

// 51 to 58: references as text.
func TestReferencesAsText(t *testing.T) {
	for _, want := range []actor.Ref{
		{"127.0.0.1:7077", "shop.Cart", "ann"}, {"[::1]:7077", "K", "a/b"}, {"@6ZQ", "K", "n%20"}, {"host:1", "K", "日本"},
	} {
		if got, err := actor.ParseRef(want.String()); err != nil || got != want {
			t.Errorf("%v: got %v, %v", want, got, err)
		}
	}
	for _, wrong := range []string{
		"", "abc", "spark://test@localhost:12345", "actor://", "actor://host/K/n", "actor://host:0/K/n", "actor://host:1/K", "actor://host:1//n",
		"actor://host:1/K/", "actor://host:1/K/n/m", "actor://@/K/n", "actor://host:1/K/%zz", "actor://host:1/K/a%20b",
	} {
		if got, err := actor.ParseRef(wrong); yodel.CodeOf(err) != yodel.InvalidArgument {
			t.Errorf("%q: got %v, %v", wrong, got, err)
		}
	}
}

// An actor that answers twice does no harm: K's own tests do.
func TestSecondAnswersAreDropped(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		p.do = func(ctx context.Context, _ *Do) (*Said, error) {
			answer := actor.Later(ctx)
			answer(&Said{"first"}, nil)
			answer(&Said{"second"}, nil)
			answer(nil, errors.New("third"))
			return nil, nil
		}
		ref := startProbe(t, host, "probe", p, nil)
		if got, err := ask(t, from, ref, "x"); err != nil || got != "first" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// A later answer from another goroutine, after the actor has handled further messages.
func TestLaterAnswers(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		var first func(any, error)
		p.do = func(ctx context.Context, m *Do) (*Said, error) {
			if m.Text == "first" {
				first = actor.Later(ctx)
				return nil, nil
			}
			go first(&Said{"after " + m.Text}, nil)
			return &Said{m.Text}, nil
		}
		ref := startProbe(t, host, "probe", p, nil)
		q := actor.Ask[Said](t.Context(), from, ref, &Do{"first"})
		if got, err := ask(t, from, ref, "second"); err != nil || got != "second" {
			t.Fatalf("got %q, %v", got, err)
		}
		if got, err := q.Get(); err != nil || got.Text != "after second" {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// The memory of a message is its receiver's own.
type (
	Box   struct{ Values []int }
	Taker struct{ got []int }
)

func (k *Taker) Box(_ context.Context, m *Box) (*Box, error) {
	k.got = m.Values
	k.got[0]++
	return &Box{k.got}, nil
}

var takers = actor.NewKind("Taker", actor.Answer((*Taker).Box))

func TestMessagesAreNotShared(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, host, from *actor.System) {
		k := new(Taker)
		ref, err := takers.Start(host, "taker", k, nil)
		if err != nil {
			t.Fatal(err)
		}
		sent := &Box{[]int{1, 2}}
		got, err := actor.AskSync[Box](t.Context(), from, ref, sent)
		if err != nil || got.Values[0] != 2 || sent.Values[0] != 1 {
			t.Fatalf("got %v, %v; sent is %v", got, err, sent)
		}
		got.Values[1] = 7
		sent.Values[1] = 8
		if again, err := actor.AskSync[Box](t.Context(), from, ref, &Box{[]int{0}}); err != nil || k.got[0] != 1 || again.Values[0] != 1 {
			t.Errorf("got %v, %v", again, err)
		}
	})
}

// A full inbox makes senders wait, and loses nothing.
func TestSendersWaitForRoom(t *testing.T) {
	bothWays(t, &actor.Options{Inbox: 5, Window: 5}, func(t *testing.T, host, from *actor.System) {
		p := newProbe()
		free := make(chan struct{})
		p.do = func(context.Context, *Do) (*Said, error) { <-free; return &Said{}, nil }
		ref := startProbe(t, host, "probe", p, nil)
		var sent atomic.Int64
		go func() {
			for range 100 {
				if err := from.Send(t.Context(), ref, &Tell{"x"}); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			}
		}()
		p.waitFor(t, "tell", 1)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		<-ctx.Done()
		if n := sent.Load(); n > 1+5+5+1 {
			t.Errorf("%d messages were sent to an inbox of 5", n)
		}
		if err := from.Send(ctx, ref, &Tell{"y"}); err == nil {
			t.Error("a message was sent with a context that had ended, to a full inbox")
		}
		close(free)
		p.waitFor(t, "tell", 100)
	})
}
