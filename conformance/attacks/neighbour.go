// SPDX-License-Identifier: Apache-2.0

package attacks

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/auth"
)

// neighbourRole is that of the good client.
const neighbourRole = "neighbour"

const (
	callsEvery   = 5 * time.Millisecond
	callDeadline = 2 * time.Second
	token        = "good" // which servers with authorization accept
)

// A Window is what became of the good client's calls that ended in some span of time.
type Window struct {
	Calls, Errors int
	Error         string // the first one
	P50, P99      time.Duration
}

// A neighbour is the good client: it makes 200 calls a second to one victim after the other.
type neighbour struct {
	mu    sync.Mutex
	took  []time.Duration
	fails []string
	stop  func()
}

// serveNeighbour is the neighbour's process. The commands are "call ADDRESS", "stop" and "window".
func serveNeighbour() {
	n := &neighbour{stop: func() {}}
	answer(func(command string) any {
		verb, arg, _ := strings.Cut(command, " ")
		switch verb {
		case "call":
			n.stop()
			return n.call(arg)
		case "stop":
			n.stop()
			n.stop = func() {}
			return n.window()
		default:
			return n.window()
		}
	})
}

// call begins to make calls, and returns the error of the first one.
func (n *neighbour) call(addr string) string {
	ctx, cancel := context.WithCancel(context.Background())
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{
		Codec: raw.Codec, Middleware: []yodel.Middleware{auth.Token(token)},
	})
	var calls sync.WaitGroup
	n.stop = func() {
		cancel()
		calls.Wait()
		c.Close()
	}
	one := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callDeadline)
		defer cancel()
		in := []byte("the call of a good client")
		began := time.Now()
		_, err := Echo.Call(ctx, c, &in)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.took = append(n.took, time.Since(began)); err != nil {
			n.fails = append(n.fails, err.Error())
		}
		return err
	}
	if err := one(); err != nil {
		return err.Error()
	}
	calls.Go(func() {
		tick := time.NewTicker(callsEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				calls.Go(func() { _ = one() }) // it is in the window
			case <-ctx.Done():
				return
			}
		}
	})
	return ""
}

// window returns what became of the calls since the last window, and begins the next one.
func (n *neighbour) window() Window {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := Window{Calls: len(n.took), Errors: len(n.fails), P50: quantile(n.took, 0.5), P99: quantile(n.took, 0.99)}
	if w.Errors > 0 {
		w.Error = n.fails[0]
	}
	n.took, n.fails = nil, nil
	return w
}

func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

// A goodClient is two neighbours, as the test sees them: one calls the victim, the other a server
// that nobody attacks. What slows both down is the machine and not the attack.
type goodClient struct{ victim, other *Process }

func startNeighbour(t testing.TB) *goodClient {
	t.Helper()
	a := &Attacker{TB: t}
	g := &goodClient{StartRole(t, neighbourRole, ""), StartRole(t, neighbourRole, "")}
	addr, err := StartRole(t, victimRole, "").Line()
	if err != nil {
		t.Fatal(err)
	}
	a.call(g.other, addr)
	return g
}

func (a *Attacker) call(p *Process, addr string) {
	a.Helper()
	var failed string
	if a.ask(p, "call "+addr, &failed); failed != "" {
		a.Fatalf("the first call of the good client: %s", failed)
	}
}

// call begins to call the victim.
func (g *goodClient) call(a *Attacker, addr string) {
	a.Helper()
	a.call(g.victim, addr)
}

// windows returns what became of the calls since it was called last.
func (g *goodClient) windows(a *Attacker) (victim, other Window) {
	a.Helper()
	a.ask(g.victim, "window", &victim)
	a.ask(g.other, "window", &other)
	return victim, other
}

func (g *goodClient) stop(a *Attacker) {
	a.Helper()
	a.ask(g.victim, "stop", new(Window))
}
