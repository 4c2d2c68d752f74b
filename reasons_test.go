// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/criticality"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/breaker"
	"github.com/yodel-rpc/yodel/middleware/hedge"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A record is printed as docs/explain.md shows it: of a call that was sent twice at a time, then
// once more, while a breaker kept it from one of the instances.
func TestARecordReadsAsDocumented(t *testing.T) {
	document, err := os.ReadFile("docs/explain.md")
	must(t, err)
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.dial, x.delay = 5*time.Millisecond, 2*time.Millisecond
		waits := func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				time.Sleep(15 * time.Millisecond)
				return next(ctx, call)
			}
		}
		shop := func(addr string, buy func(context.Context) error) {
			s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{waits}})
			handle(t, s, "Shop.Buy", func(ctx context.Context, _ *Args) (*Reply, error) { return nil, buy(ctx) })
			l, err := x.network.Listen(addr)
			must(t, err)
			serveOn(t, s, l)
		}
		tired := func(after time.Duration) func(context.Context) error {
			return func(context.Context) error {
				time.Sleep(after)
				return yodel.Errorf(yodel.Unavailable, "the stock is being counted")
			}
		}
		shop("10.0.0.1:8972", tired(300*time.Millisecond))
		shop("10.0.0.2:8972", tired(40*time.Millisecond))
		shop("10.0.0.3:8972", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		shop("10.0.0.4:8972", tired(0))
		shop("10.0.0.5:8972", tired(0))

		c := x.client(&yodel.ClientOptions{
			// which makes its waits 0
			Middleware:         []yodel.Middleware{hedge.After(100 * time.Millisecond), retry.With(&retry.Options{Times: 2, Backoff: 1})},
			EndpointMiddleware: []yodel.EndpointMiddleware{breaker.After(1, time.Hour)}, Balancer: inOrder, Timeout: time.Second,
		}, "10.0.0.1:8972", "10.0.0.2:8972", "10.0.0.3:8972", "10.0.0.4:8972", "10.0.0.5:8972")
		broken := &yodel.Call{Method: "Shop.Buy", Args: &Args{7, 8}, Endpoint: c.Endpoints()[3]}
		if err := c.Do(t.Context(), broken); !errors.Is(err, yodel.Unavailable) {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		call := &yodel.Call{Method: "Shop.Buy", Args: &Args{7, 8}, Idempotent: true, Budget: 3, Criticality: criticality.Critical, Tenant: "acme", Explain: true}
		text := fmt.Sprintf("%+v\n", c.Do(t.Context(), call))
		if !strings.Contains(string(document), "```text\n"+text+"```\n") {
			t.Errorf("docs/explain.md does not have this record:\n%s", text)
		}
	})
}

// An ordered call waits for those before it until they have been sent.
func TestARecordSaysHowLongACallWaitedForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExplained(t)
		x.dial = 40 * time.Millisecond
		x.serve("a", nil, idle)
		c := x.client(nil, "a")
		var calls [2]yodel.Call
		ended := make(chan error, len(calls))
		for i := range calls {
			calls[i] = *work()
			calls[i].Key, calls[i].Ordered = "k", true
			go func() { ended <- c.Do(t.Context(), &calls[i]) }()
			synctest.Wait()
		}
		for range calls {
			must(t, <-ended)
		}
		for i, want := range []time.Duration{0, x.dial} {
			if r := wantReport(t, &calls[i], 1); r.Turn != want || r.Took != x.dial || r.Attempts[0].Connecting != x.dial-want {
				t.Errorf("call %d waited %v for its turn, want %v: %v", i, r.Turn, want, r)
			}
		}
	})
}

// checkReport checks the record of the attempts, which errors of calls carry that came to an
// endpoint.
func checkReport(t *testing.T, e *yodel.Error, attempted bool) {
	t.Helper()
	var report *introspect.CallReport
	if found := errors.As(e, &report) && len(report.Attempts) > 0; found != attempted {
		t.Errorf("there is a report of attempts: got %t, want %t: %+v", found, attempted, e)
	}
	if report == nil || !attempted {
		return
	}
	ofAttempts := strings.HasPrefix(e.ID, "YDL140") // what the call failed with that is not made again
	if !ofAttempts && (report.Code != e.Code.String() || report.ID != e.ID) || report.Side != "client" || report.Took <= 0 ||
		report.Resolver == nil && !ofAttempts && e.ID != "YDL2010" {
		t.Errorf("the report is incomplete: %+v", report)
	}
	if len(report.Attempts) == 0 || report.Attempts[0].Addr == "" || report.Attempts[0].ID == "" || report.Attempts[0].Message == "" || report.Attempts[0].Took <= 0 {
		t.Errorf("the report is incomplete: %+v", report)
	}
	if !strings.HasSuffix(fmt.Sprintf("%+v", e), report.Error()) {
		t.Errorf("the long form does not end with the report: %+v", e)
	}
	if text, err := json.Marshal(report); err != nil || !strings.Contains(string(text), `"code":"`+report.Attempts[0].Code+`"`) {
		t.Errorf("the report in JSON is %s, %v", text, err)
	}
}

// docs/errors.md has a section for each error, under the catalogue's title, and no other.
func TestEveryErrorIsDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/errors.md")
	must(t, err)
	codes := catalogue.All()
	var documented []string
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		id, title, _ := strings.Cut(heading, ": ")
		documented = append(documented, id)
		if want, _, _ := (&yodel.Error{ID: id}).Explain(); title != want {
			t.Errorf("%s has the title %q, want %q", id, title, want)
		}
		for _, part := range []string{"Code `" + yodel.Code(codes[id].Code).String() + "`", "**Meaning.**", "**Causes.**", "**Fix.**"} {
			if !strings.Contains(body, part) {
				t.Errorf("%s has no %s", id, part)
			}
		}
	}
	if ids := slices.Sorted(maps.Keys(codes)); !slices.Equal(documented, ids) {
		t.Errorf("documented are %v, and there are %v", documented, ids)
	}
}

// What errors are about, by ID. An ID that is not listed says nothing of it, and neither does one
// that yodel does not know.
func TestWhatErrorsAreAbout(t *testing.T) {
	const message, connection, client, stale, notRepeated = "message", "connection", "client", "stale", "not repeated"
	about := map[string][]string{
		"YDL1001": {client}, "YDL1002": {client}, "YDL1003": {client}, "YDL1004": {client}, "YDL1005": {client}, "YDL1006": {client}, "YDL1007": {client},
		"YDL1009": {client}, "YDL1010": {client, notRepeated}, "YDL1201": {client}, "YDL1301": {client}, "YDL1401": {client}, "YDL1402": {client}, "YDL2009": {client},
		"YDL1101": {connection}, "YDL1102": {connection}, "YDL1103": {connection}, "YDL1104": {connection, stale}, "YDL1105": {connection}, "YDL1106": {connection},
		"YDL1107": {connection}, "YDL1108": {connection}, "YDL1109": {connection}, "YDL1110": {connection, stale},
		"YDL2101": {message}, "YDL2102": {message}, "YDL2103": {message}, "YDL2104": {message},
		"YDL2201": {message}, "YDL2202": {message}, "YDL2203": {message}, "YDL2204": {message},
		"YDL3004": {stale}, "YDL3005": {stale},
	}
	ids := []string{"", "SHOP7", "YDL", "YDL9999"}
	for n := 1000; n < 6000; n++ {
		ids = append(ids, fmt.Sprintf("YDL%d", n))
	}
	for _, id := range ids {
		e := &yodel.Error{Code: yodel.Unavailable, ID: id}
		var got []string
		for _, trait := range []struct {
			name string
			is   bool
		}{
			{message, e.AboutMessage()}, {connection, e.AboutConnection()}, {client, e.OfClient()}, {stale, e.Stale()}, {notRepeated, e.NotRepeated()},
		} {
			if trait.is {
				got = append(got, trait.name)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(about[id]) {
			t.Errorf("%q: got %v, want %v", id, got, about[id])
		}
	}
}

// Errors that the client itself makes have their traits.
func TestErrorsOfACallSayWhatTheyAreAbout(t *testing.T) {
	c := newClient(t, nil, serve(t, newServer(t, nil)))
	for name, test := range map[string]struct {
		call *yodel.Call
		is   func(e *yodel.Error) bool
	}{
		"a nil request":     {&yodel.Call{Method: "Arith.Mul", Args: (*Args)(nil), Reply: new(Reply)}, (*yodel.Error).AboutMessage},
		"no pointer":        {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Reply: Reply{}}, (*yodel.Error).AboutMessage},
		"a large request":   {&yodel.Call{Method: "Arith.Mul", Args: strings.Repeat("a", 17<<20)}, (*yodel.Error).AboutMessage},
		"an unknown method": {&yodel.Call{Method: "Arith.Nothing", Args: &Args{}}, func(e *yodel.Error) bool { return !e.AboutMessage() && !e.OfClient() }},
	} {
		err := c.Do(t.Context(), test.call)
		if e, ok := errors.AsType[*yodel.Error](err); !ok || !test.is(e) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestShutdownInHooksReturns(t *testing.T) { //nolint:tparallel // its parts run beside each other, and not beside other tests
	for name, put := range map[string]func(o *yodel.ServerOptions, end func()){
		"OnConn": func(o *yodel.ServerOptions, end func()) { o.OnConn = func(introspect.ConnEvent) { end() } },
		"Accept": func(o *yodel.ServerOptions, end func()) { o.Accept = func(net.Conn) error { end(); return nil } },
		"Connect": func(o *yodel.ServerOptions, end func()) {
			o.Connect = func(context.Context, *yodel.Peer) error { end(); return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *yodel.Server
			ended := make(chan error, 100)
			o := &yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}
			put(o, func() {
				// for those hooks that decide
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				ended <- s.Shutdown(ctx)
			})
			s = newServer(t, o)
			c := connect(t, s, nil)
			_ = c.Call(t.Context(), "Arith.Mul", &Args{}, nil)
			if err := receive(t, ended, "Shutdown has returned in the hook"); err != nil && name == "OnConn" {
				t.Errorf("Shutdown returned %v", err)
			}
		})
	}
}

// A call with a callback that user code interrupts before it is sent is not made a second time: its
// callback runs once, and the next call of its key runs too.
func TestAnInterruptedCallHasOneOutcome(t *testing.T) {
	for name, call := range map[string]yodel.Call{"usual": {}, "ordered": {Ordered: true, Key: "key"}, "one-way": {OneWay: true}, "ordered one-way": {Ordered: true, Key: "key", OneWay: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var armed atomic.Bool
				codec := hookCodec{encode: func(any) {
					if armed.Load() {
						panic("in the codec")
					}
				}}
				h := startHooked(t, mem.New(), &yodel.ServerOptions{Codecs: []yodel.Codec{hookCodec{}}},
					&yodel.ClientOptions{Codec: codec, Logger: slog.New(slog.DiscardHandler)})
				h.works(t, 42) // it is connected, so the next call is sent at once
				var outcomes []error
				makeCall := func() {
					made := call
					made.Method, made.Args = string(hookDouble), new(int)
					h.client.Go(t.Context(), &made, func(err error) { outcomes = append(outcomes, err) })
					synctest.Wait()
				}
				armed.Store(true)
				makeCall()
				if len(outcomes) != 1 || yodel.CodeOf(outcomes[0]) != yodel.Internal {
					t.Errorf("the callback got %v, want one error of the code Internal", outcomes)
				}
				armed.Store(false)
				if makeCall(); len(outcomes) != 2 || outcomes[1] != nil {
					t.Errorf("the callback of the next call got %v, want one nil", outcomes[1:])
				}
				h.close()
				h.stop()
			})
		})
	}
}

// The log says where a panic happened in words that people can read, and at Debug the whole stack.
func TestPanicsAreLoggedReadably(t *testing.T) {
	var book logbook
	s := newServer(t, &yodel.ServerOptions{Logger: book.logger(), Connect: func(context.Context, *yodel.Peer) error { panic("in the hook") }})
	c := connect(t, s, nil)
	_ = c.Call(t.Context(), "Arith.Mul", &Args{}, nil)
	var line string
	until(t, "the log has the panic", func() bool {
		for _, l := range book.with("in the hook") {
			line = l
		}
		return line != ""
	})
	if !strings.Contains(line, "reasons_test.go:") || strings.Contains(line, `\n`) || strings.Contains(line, "internal/mux") || len(line) > 400 {
		t.Errorf("the log says %s", line)
	}
}

// A missing error is a nil pointer in an error, a common mistake: each of its methods panics.
type missing struct{ text string }

func (e *missing) Error() string { return e.text }

// A flawed resolver fails with such an error, and then names an address.
type flawed struct {
	addr   string
	failed atomic.Bool
}

// Watch implements discovery.Resolver.
func (r *flawed) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	if r.failed.CompareAndSwap(false, true) {
		var none *missing
		return none
	}
	update([]discovery.Instance{{Addr: r.addr}})
	<-ctx.Done()
	return ctx.Err()
}

// The error of a hook whose methods panic refuses one connection, or one attempt of a resolver, and
// the processes go on.
func TestNilPointersInErrorsOfHooks(t *testing.T) {
	t.Parallel()
	var first atomic.Bool
	s := newServer(t, &yodel.ServerOptions{Connect: func(context.Context, *yodel.Peer) error {
		var none *missing
		if first.CompareAndSwap(false, true) {
			return none
		}
		return nil
	}})
	addr := serve(t, s)
	refused := yodel.NewClient(discovery.Static(addr), nil)
	defer refused.Close()
	if err := refused.Call(timely(t), "yodel.Ping", nil, nil); err == nil || !strings.Contains(err.Error(), "the Connect hook panicked") {
		t.Errorf("the refused client gets %v, want that the hook panicked", err)
	}
	c := yodel.NewClient(&flawed{addr: addr}, nil)
	defer c.Close()
	ctx := timely(t)
	for c.Call(ctx, "yodel.Ping", nil, nil) != nil { // until the resolver is asked again
		if ctx.Err() != nil {
			t.Fatal("the client does not find the server")
		}
	}
}

// A harmfulContext does harm in the calls of one method after the first ones.
type harmfulContext struct {
	context.Context
	at   string
	harm func()
	left atomic.Int32 // calls of the method that do no harm
}

func (x *harmfulContext) do(at string) {
	if x.at == at && x.left.Add(-1) < 0 {
		x.harm()
	}
}

func (x *harmfulContext) Done() <-chan struct{} { x.do("Done"); return x.Context.Done() }

func (x *harmfulContext) Err() error { x.do("Err"); return x.Context.Err() }

func (x *harmfulContext) Value(key any) any { x.do("Value"); return x.Context.Value(key) }

func (x *harmfulContext) Deadline() (time.Time, bool) { x.do("Deadline"); return x.Context.Deadline() }

// A context whose methods panic or end the goroutine harms only its own call, which may wait for a
// connection and may be canceled.
func TestContextsOfCallersAreUserCode(t *testing.T) {
	t.Parallel()
	s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{MaxOpen: 1}})
	begun := make(chan struct{}, 1000)
	handle(t, s, "Block", func(ctx context.Context, _ *Empty) (*Reply, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	c := newClient(t, nil, serve(t, s))
	ways := map[string]func(context.Context, string){
		"Call": func(ctx context.Context, method string) { _ = c.Call(ctx, method, &Empty{}, nil) },
		"Go": func(ctx context.Context, method string) {
			ended := make(chan struct{})
			c.Go(ctx, &yodel.Call{Method: method, Args: &Empty{}}, func(error) { close(ended) })
			<-ended
		},
	}
	for way, call := range ways {
		for _, at := range []string{"Done", "Err", "Value", "Deadline"} {
			for _, harm := range []func(){func() { panic("harm") }, runtime.Goexit} {
				for left := range int32(8) {
					parent, cancel := context.WithCancel(timely(t))
					ctx := &harmfulContext{Context: parent, at: at, harm: harm}
					ctx.left.Store(left)
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						defer func() { _ = recover() }() // it may panic here
						call(ctx, "Block")
					}()
					select {
					case <-begun:
					case <-ended:
					}
					cancel()
					receive(t, ended, way+" ends")
					until(t, fmt.Sprint(way, left, at, " no call is in flight"), func() bool { return c.Endpoints()[0].Inflight() == 0 })
					if err := c.Call(timely(t), "yodel.Ping", nil, nil); err != nil {
						t.Fatalf("%s: after harm in call %d of %s: %v", way, left, at, err)
					}
				}
			}
		}
	}
	for _, ep := range c.Endpoints() {
		until(t, "no call is in flight", func() bool { return ep.Inflight() == 0 })
	}
}
