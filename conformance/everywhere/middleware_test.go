// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/accesslog"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/middleware/cache"
	"github.com/yodel-rpc/yodel/middleware/fallback"
	"github.com/yodel-rpc/yodel/middleware/fault"
	"github.com/yodel-rpc/yodel/middleware/limit"
	"github.com/yodel-rpc/yodel/middleware/mirror"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/middleware/rate"
	"github.com/yodel-rpc/yodel/middleware/recovery"
	"github.com/yodel-rpc/yodel/middleware/timeout"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var everyCell = flag.Bool("everywhere.all", false, "try all cells with the race detector too")

// inTurn reports whether a part of the cells is tried, so that each guarantee meets each wire. That
// is so with the race detector. The step of CI without it tries all cells, and make before-end
// tries all with it.
func inTurn() bool { return raceEnabled && !*everyCell }

// TestMain lets many cells run at a time, because most of them wait. With the race detector, fewer
// cells keep two processors busy.
func TestMain(m *testing.M) {
	flag.Parse()
	cells := "16"
	if raceEnabled {
		cells = "4"
	}
	if err := flag.Set("test.parallel", cells); err != nil {
		panic(err)
	}
	yodeltest.VerifyNoLeaks(m)
}

// Middleware holds over every wire, on the server and on a client.
func TestMiddlewareOverEveryWire(t *testing.T) {
	t.Parallel()
	overWires(t, middlewareGuarantees, inTurn())
}

// A maker makes a middleware for a trial.
type maker func(t *testing.T, tr *Trial) yodel.Middleware

func (m maker) server(t *testing.T, tr *Trial) {
	tr.Options.Middleware = append(tr.Options.Middleware, m(t, tr))
}

func (m maker) client(t *testing.T, tr *Trial) {
	tr.Client.Middleware = append(tr.Client.Middleware, m(t, tr))
}

// plain returns a maker of a middleware that needs nothing of the trial.
func plain(middleware func() yodel.Middleware) maker {
	return func(*testing.T, *Trial) yodel.Middleware { return middleware() }
}

var (
	limited = plain(func() yodel.Middleware {
		return limit.With(&limit.Options{Limit: 4, Queue: 4, Interval: time.Minute, Streams: true})
	})
	rated    = plain(func() yodel.Middleware { return rate.With(&rate.Limit{PerSecond: 1e-3, Burst: 2}) })
	stored   = plain(func() yodel.Middleware { return cache.For(time.Minute, string(unary)) })
	replaced = plain(func() yodel.Middleware {
		return fallback.With(&fallback.Options{Reply: &Told{-1}, Codes: []yodel.Code{yodel.Unavailable}})
	})
	faulty maker = func(t *testing.T, _ *Trial) yodel.Middleware {
		return injected(t, fault.Rule{Name: "all", Code: yodel.DataLoss})
	}
	admitted = plain(func() yodel.Middleware {
		return auth.Check(func(ctx context.Context, _, token string) (context.Context, error) {
			if token != "right" {
				return nil, yodel.Errorf(yodel.PermissionDenied, "wrong token")
			}
			return ctx, nil
		})
	})
	// Each caller has the identity in its token, and a rate of its own.
	identified = plain(func() yodel.Middleware {
		check := auth.Check(func(ctx context.Context, _, token string) (context.Context, error) {
			return auth.WithIdentity(ctx, &auth.Identity{Subject: token, Tenant: "of " + token}), nil
		})
		each := rate.With(&rate.Limit{PerSecond: 1e-3, Burst: 2, By: rate.User})
		return func(next yodel.Handler) yodel.Handler { return check(each(next)) }
	})
	timed        = plain(func() yodel.Middleware { return timeout.After(200 * time.Millisecond) })
	timedStreams = plain(func() yodel.Middleware { return timeout.Streams(200 * time.Millisecond) })
	recovered    = plain(func() yodel.Middleware {
		return recovery.With(func(context.Context, *yodel.Call, any, []byte) error {
			return yodel.Errorf(yodel.Aborted, "it was mended")
		})
	})
	validated = plain(validate.Messages)
	answered  = plain(func() yodel.Middleware { return answer(string(unary), &Told{99}) })
)

var middlewareGuarantees = []Guarantee{
	{Name: "limit", Prepare: closeGate, Server: limited.server, Client: limited.client, Check: checkLimit, AtOnce: 100},
	{Name: "rate", Server: rated.server, Client: rated.client, Check: CheckRate},
	{
		Name:   "once",
		Only:   OneExecution,
		Lacks:  LacksKeys,
		Server: func(_ *testing.T, tr *Trial) { tr.Options.Keys = once.With(nil) },
		Check:  func(ctx context.Context, c *Cell) error { return c.ExecutesOnce(ctx, c.Name()) },
	},
	{
		Name: "cache", Only: "it keeps whole replies",
		Server: stored.server, Client: stored.client,
		Check: func(ctx context.Context, c *Cell) error { return c.ExecutesOnce(ctx, "") },
	},
	{
		Name: "fallback", Only: "streams have no fallback",
		Prepare: func(tr *Trial) { tr.fail = always(yodel.Errorf(yodel.Unavailable, planned)) },
		Server:  replaced.server, Client: replaced.client,
		Check: func(ctx context.Context, c *Cell) error { return c.replies(ctx, -1) },
	},
	{Name: "mirror", Only: "streams are not mirrored", Server: maker(mirrored).server, Client: maker(mirrored).client, Check: checkMirror},
	{
		Name: "fault", Server: faulty.server, Client: faulty.client,
		Check: func(ctx context.Context, c *Cell) error { return c.refuses(ctx, yodel.DataLoss) },
	},
	{
		Name: "auth", Server: admitted.server, Check: checkAuth,
		Lacks: lacks(func(w *Wire) bool { return w.Metadata }, noToken),
	},
	{
		Name: "identity, and a rate for each user", Server: identified.server, Check: checkIdentity,
		Lacks: lacks(func(w *Wire) bool { return w.Metadata }, noToken),
		Prepare: func(tr *Trial) {
			tr.observe = func(ctx context.Context) {
				if id := auth.IdentityFrom(ctx); id != nil {
					tr.trace.Store(id.Subject + " " + yodel.CallFrom(ctx).Tenant)
				}
			}
		},
	},
	{Name: "timeout", Only: noStreams, Prepare: closeGate, Server: timed.server, Client: timed.client, Check: checkTimeout},
	{Name: "timeout of streams", Lacks: isNoStream, Prepare: closeGate, Server: timedStreams.server, Client: timedStreams.client, Check: checkTimeout},
	{
		Name: "accesslog",
		Server: func(_ *testing.T, tr *Trial) {
			tr.Options.Observers = append(tr.Options.Observers, accesslog.To(slog.New(slog.NewTextHandler(&tr.lines, nil)), nil))
		},
		Client: func(_ *testing.T, tr *Trial) {
			tr.Client.Observers = append(tr.Client.Observers, accesslog.To(slog.New(slog.NewTextHandler(&tr.lines, nil)), nil))
		},
		Check: checkLog,
	},
	{
		Name: "recovery", Prepare: func(tr *Trial) { tr.act = func() { panic(secret) } },
		Server: recovered.server,
		Check: func(ctx context.Context, c *Cell) error {
			_, err := c.Call(ctx, yodel.Call{})
			switch {
			case err == nil || c.executed.Load() != 1:
				return fmt.Errorf("the method did not panic: %w", err)
			case !strings.Contains(err.Error(), "it was mended") && yodel.CodeOf(err) == yodel.Internal:
				return NotHeld("the error is %w, want that of the function", err)
			case yodel.CodeOf(err) != yodel.Aborted:
				return fmt.Errorf("the code is %v: %w", yodel.CodeOf(err), err)
			}
			return nil
		},
	},
	{
		Name: "once, as recommended", Only: OneExecution,
		Lacks:  LacksKeys,
		Server: func(_ *testing.T, tr *Trial) { tr.Options = *recommended.Server(&tr.Options) },
		Check:  func(ctx context.Context, c *Cell) error { return c.ExecutesOnce(ctx, c.Name()) },
	},
	{
		Name: "limit, as recommended", Only: "recommended.Server does not limit streams",
		Prepare: func(tr *Trial) {
			tr.observe = func(ctx context.Context) { tr.limits.Store(int64(len(limit.Of(yodel.CallFrom(ctx))))) }
		},
		Server: func(_ *testing.T, tr *Trial) { tr.Options = *recommended.Server(&tr.Options) },
		Check: func(ctx context.Context, c *Cell) error {
			if _, err := c.Call(ctx, yodel.Call{}); err != nil {
				return err
			}
			if n := c.limits.Load(); n != 1 {
				return NotHeld("the call passed %d limits, want 1", n)
			}
			return nil
		},
	},
	{
		Name: "hidden errors",
		Prepare: func(tr *Trial) {
			tr.exposes = true
			tr.fail = func(int) error {
				return fmt.Errorf("read /etc/secret: %w", yodel.Errorf(yodel.NotFound, "no such user: %w", failedCall()))
			}
		},
		Lacks:  ownCallers,
		Server: func(_ *testing.T, tr *Trial) { tr.Options.HideErrors, tr.exposes = true, false },
		Check:  checkHidden,
	},
	{Name: "validation", Server: validated.server, Client: validated.client, Check: checkValidation},
	{Name: "errors of grpc-go", Server: failingAsGRPC.server, Client: failingAsGRPC.client, Check: checkGRPC},
	{
		Name: "a user's middleware", Only: "it answers unary calls",
		Server: answered.server, Client: answered.client,
		Check: func(ctx context.Context, c *Cell) error { return c.replies(ctx, 99) },
	},
}

// noToken says why some protocols cannot identify a caller by a token.
const noToken = "the protocol has no place for a token, so each call is refused: use auth.Conn, or auth.Certificate"

// belongs is the reason why errors are not hidden from some callers.
const belongs = "yodel's choice: callers in its own protocol and in the process belong to the program, and get all texts"

// ownCallers returns why errors are not hidden.
func ownCallers(w *Wire, _ Shape) string {
	switch w.Name {
	case "yodel", "in process", "server to client":
		return belongs
	}
	return ""
}

// closeGate makes the methods wait, and counts the calls of the client.
func closeGate(tr *Trial) {
	tr.gate = make(chan struct{})
	tr.Client.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			tr.entered.Add(1)
			return next(ctx, call)
		}
	}}
}

// answer answers the unary calls of a method itself.
func answer(method string, reply *Told) yodel.Middleware {
	return func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			name := strings.ReplaceAll(call.Method, "/", ".") // over HTTP, a method that does not exist has the name of its path
			if name != method || call.Streams() {
				return next(ctx, call)
			}
			e, err := (&yodel.Call{Method: call.Method, Args: reply, Codec: call.Encoding()}).Encode()
			if err != nil {
				return err
			}
			return call.Answer(e)
		}
	}
}

// failedCall returns the error of a call to an address at which no server listens. It has the
// address in its text.
func failedCall() error {
	c := yodel.NewClient(discovery.Static("secret"), &yodel.ClientOptions{Transport: mem.New()})
	defer c.Close()
	return c.Do(context.Background(), &yodel.Call{Method: "Bank.Pay", NoWait: true})
}

// checkHidden wants the caller to see what was written for callers, and nothing else.
func checkHidden(ctx context.Context, c *Cell) error {
	_, err := c.Call(ctx, yodel.Call{})
	switch {
	case err == nil || !strings.Contains(err.Error(), "no such user"):
		return fmt.Errorf("the error is %w, want what Errorf has made", err)
	case strings.Contains(err.Error(), "secret"):
		return NotHeld("the error is %w, want only what Errorf has made", err)
	}
	return nil
}

// Clients in yodel's own protocol and callers in the process get all texts, because they belong to
// the program.
func TestErrorsAreNotHiddenFromOwnCallers(t *testing.T) {
	for i := range Wires {
		w := &Wires[i]
		if ownCallers(w, Unary) == "" {
			continue
		}
		t.Run(w.Name, func(t *testing.T) {
			tr := &Trial{fail: always(errors.New("read /etc/secret"))}
			tr.Options.HideErrors = true
			tr.start()
			c := &Cell{Trial: tr, Wire: w, Shape: Unary, Caller: w.caller(t, tr, 1)}
			if _, err := c.Call(t.Context(), yodel.Call{}); err == nil || !strings.Contains(err.Error(), "/etc/secret") {
				t.Errorf("the error is %v, want its whole text", err)
			}
		})
	}
}

// checkLimit wants 4 of 100 calls to run at once, 4 to wait, and the rest to be refused.
func checkLimit(ctx context.Context, c *Cell) error {
	refused, wait := c.callAtOnce(ctx, 100)
	err := until(ctx, func() bool { return c.running.Load() > 4 || refused.Load() >= 92 && c.running.Load() == 4 })
	close(c.gate)
	wait()
	peak, n, failed := c.peak.Load(), c.executed.Load(), refused.Load()
	switch {
	case peak > 4:
		return NotHeld("%d calls ran at once, want 4", peak)
	case err != nil || peak != 4 || n != 8 || failed != 92:
		return errors.Join(err, fmt.Errorf("%d calls ran at once, %d in all, %d failed, want 4, 8 and 92", peak, n, failed))
	}
	return nil
}

// checkAuth wants calls without the right token to be refused.
func checkAuth(ctx context.Context, c *Cell) error {
	for _, call := range []struct {
		token string
		code  yodel.Code
	}{{"", yodel.Unauthenticated}, {"Bearer wrong", yodel.PermissionDenied}, {"Bearer right", 0}} {
		md := yodel.Metadata{"authorization": call.token}
		if call.token == "" {
			md = nil
		}
		var err error
		for range 100 { // a server of rpcx closes the connection of a call that it has refused
			if _, err = c.Call(ctx, yodel.Call{Metadata: md}); yodel.CodeOf(err) != yodel.Unavailable {
				break
			}
		}
		switch executed := c.executed.Load() != 0; {
		case executed && call.code != 0:
			return NotHeld("with the token %q, the call was executed: %w", call.token, err)
		case yodel.CodeOf(err) != call.code || !executed && call.code == 0:
			return fmt.Errorf("with the token %q: executed %t, %w", call.token, executed, err)
		}
	}
	return nil
}

// checkIdentity wants the method to know its caller, and each caller to have a rate of its own.
func checkIdentity(ctx context.Context, c *Cell) error {
	for _, user := range []string{"ann", "bob"} {
		call := func() error {
			_, err := c.Call(ctx, yodel.Call{Metadata: yodel.Metadata{"authorization": "Bearer " + user}, Tenant: "another"})
			return err
		}
		var err error
		passed := 0
		for range 100 {
			if err = call(); err == nil {
				passed++
			}
			if passed == 2 || err != nil && yodel.CodeOf(err) != yodel.Unavailable { // a server of rpcx closes the connection of a call that it has refused
				break
			}
		}
		switch code := yodel.CodeOf(err); {
		case code == yodel.ResourceExhausted:
			return NotHeld("call %d of %s is refused: %w", passed+1, user, err)
		case err != nil:
			return fmt.Errorf("call %d of %s: %w", passed+1, user, err)
		}
		if known := c.trace.Load(); known != user+" of "+user {
			return NotHeld("the method was called by %v, want %s", known, user)
		}
		switch err = call(); {
		case err == nil:
			return NotHeld("a third call of %s has passed", user)
		case yodel.CodeOf(err) != yodel.ResourceExhausted:
			return fmt.Errorf("a third call of %s: %w", user, err)
		}
	}
	return nil
}

// checkTimeout wants a call that waits forever to end, and the context of its method too.
func checkTimeout(ctx context.Context, c *Cell) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx)) // without a deadline, which would travel to the server
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Call(own, yodel.Call{})
		ended <- err
	}()
	var err error
	wait := func() bool {
		select {
		case err = <-ended:
			ended <- err
			return true
		default:
			return false
		}
	}
	defer func() { cancel(); close(c.gate); <-ended }() // a canceled one-way call may go on
	if e := until(ctx, func() bool { return c.running.Load() == 1 || wait() }); e != nil {
		return fmt.Errorf("the method does not begin: %w", e)
	}
	if e := c.Seen(ctx, "the call does not end", wait); e != nil {
		return e
	}
	if yodel.CodeOf(err) != yodel.DeadlineExceeded || c.Control && c.executed.Load() == 0 {
		return fmt.Errorf("the error is %w, want that the deadline has passed", err)
	}
	if c.Side == "client" && !c.Wire.deadline && !c.Wire.cancels {
		return nil // the server cannot know
	}
	return c.Seen(ctx, "the method goes on", func() bool { return c.running.Load() == 0 })
}

// checkLog wants one line for a call.
func checkLog(ctx context.Context, c *Cell) error {
	if err := c.works(ctx, 1); err != nil {
		return err
	}
	err := c.Seen(ctx, "the log does not have the call", func() bool { return strings.Contains(c.lines.String(), c.Method()) })
	if lines := c.lines.String(); err == nil && strings.Count(lines, "\n") != 1 {
		return NotHeld("the log is %q, want one line", lines)
	}
	return err
}

// mirrored copies the calls to a server of its own, which counts them.
func mirrored(t *testing.T, tr *Trial) yodel.Middleware {
	t.Helper()
	copies := yodel.NewServer(&yodel.ServerOptions{Codecs: codecs(), Logger: silent})
	unary.Handle(copies, func(context.Context, *Ask) (*Told, error) {
		tr.mirrored.Add(1)
		return &Told{}, nil
	})
	c := yodel.NewClient(discovery.Static(serve(t, copies, nil)), &yodel.ClientOptions{Logger: silent})
	t.Cleanup(c.Close)
	return mirror.To(c, nil)
}

func checkMirror(ctx context.Context, c *Cell) error {
	if err := c.works(ctx, 1); err != nil {
		return err
	}
	return c.Seen(ctx, "the call was not mirrored", func() bool { return c.mirrored.Load() == 1 })
}

// checkValidation wants a request that breaks a rule to be refused, with the field and the rule.
func checkValidation(ctx context.Context, c *Cell) error {
	c.pad = forbidden
	_, err := c.Call(ctx, yodel.Call{})
	got := validate.Of(err)
	switch {
	case c.executed.Load() != 0:
		return NotHeld("the call was executed: %w", err)
	case yodel.CodeOf(err) != yodel.InvalidArgument || !strings.Contains(err.Error(), brokenRule.Message):
		return fmt.Errorf("the error is %w, want that of the rule", err)
	case (c.Wire.details || c.Side == "client") && (len(got) != 1 || got[0] != brokenRule):
		return fmt.Errorf("the violations are %v, want %v", got, brokenRule)
	}
	c.pad = ""
	return c.works(ctx, 1)
}
