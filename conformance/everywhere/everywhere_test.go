// SPDX-License-Identifier: Apache-2.0

package everywhere_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	yodeltls "github.com/yodel-rpc/yodel/transport/tls"
)

// Ask is the request of the methods, and Told is their reply.
type (
	Ask struct {
		N int64 `json:"n" thrift:"1"`
	}
	Told struct {
		N int64 `json:"n" thrift:"1"`
	}
)

// JavaClassName implements an interface of hessian2, as the next one does.
func (Ask) JavaClassName() string { return "all.Ask" }

// JavaClassName implements an interface of hessian2.
func (Told) JavaClassName() string { return "all.Told" }

const (
	unary  yodel.Method[Ask, Told] = "All.Unary"
	feed   yodel.Feed[Ask, Told]   = "All.Feed"
	upload yodel.Upload[Ask, Told] = "All.Upload"
	duplex yodel.Duplex[Ask, Told] = "All.Duplex"
)

// A trial is one cell of the table: a server, and the options of a client that calls it.
type trial struct {
	options yodel.ServerOptions // before the server is made
	client  yodel.ClientOptions
	server  *yodel.Server
	control bool // what gives the guarantee is not there

	gate     chan struct{} // Unary waits until it is closed; nil if it does not wait
	fail     error         // of Unary
	act      func()        // all methods call it
	fails    func() error  // returns the error of all methods; nil if they succeed
	called   func()        // callbacks call it
	log      *slog.Logger  // of the server; nil if it has none
	tls      *tls.Config   // of the server; nil if it has none
	keys     atomic.Int64  // how many idempotency keys were used
	entered  atomic.Int64  // calls that the client has begun
	mirrored atomic.Int64  // by another server
	executed atomic.Int64  // by Unary
	running  atomic.Int64  // in Unary
	peak     atomic.Int64  // of running
}

// start makes the server.
func (tr *trial) start() {
	o := &tr.options
	o.Protocols, o.Codecs, o.Logger = protocols(), codecs(), silent
	if tr.log != nil {
		o.Logger = tr.log
	}
	tr.server = yodel.NewServer(o)
	unary.Handle(tr.server, tr.answer)
	say.Handle(tr.server, func(_ context.Context, in *Saying) (*Said, error) { return &Said{in.Text}, tr.do() })
	feed.Handle(tr.server, func(_ context.Context, in *Ask, send yodel.Send[Told]) error {
		return cmp.Or(tr.do(), send(&Told{in.N}))
	})
	upload.Handle(tr.server, func(_ context.Context, asked yodel.Recv[Ask]) (*Told, error) {
		told, err := sum(asked)
		return told, cmp.Or(tr.do(), err)
	})
	duplex.Handle(tr.server, func(_ context.Context, asked yodel.Recv[Ask], send yodel.Send[Told]) error {
		told, err := sum(asked)
		if err = cmp.Or(tr.do(), err); err != nil {
			return err
		}
		return send(told)
	})
}

// do does what all methods do, and returns their error.
func (tr *trial) do() error {
	if tr.act != nil {
		tr.act()
	}
	if tr.fails != nil {
		return tr.fails()
	}
	return nil
}

func sum(asked yodel.Recv[Ask]) (*Told, error) {
	told := new(Told)
	for in, err := range asked {
		if err != nil {
			return nil, err
		}
		told.N += in.N
	}
	return told, nil
}

// answer is Unary. It replies with how often it was executed.
func (tr *trial) answer(ctx context.Context, _ *Ask) (*Told, error) {
	n := tr.executed.Add(1)
	now := tr.running.Add(1)
	defer tr.running.Add(-1)
	for peak := tr.peak.Load(); now > peak && !tr.peak.CompareAndSwap(peak, now); {
		peak = tr.peak.Load()
	}
	if tr.gate != nil {
		select {
		case <-tr.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &Told{n}, cmp.Or(tr.fail, tr.do())
}

// serve starts s on loopback, and ends it with the test. Config is for TLS, and may be nil.
func serve(t *testing.T, s *yodel.Server, config *tls.Config) (addr string) {
	t.Helper()
	transport := yodel.TCP
	if config != nil {
		transport = &yodeltls.Transport{Server: config}
	}
	l, err := transport.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// patience bounds what a check waits for.
const patience = 20 * time.Second

// until waits until condition holds.
func until(ctx context.Context, condition func() bool) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// A guarantee is a row of the table.
type guarantee struct {
	name string
	// Needs reports whether a wire has what the guarantee is about. Nil means that every wire has.
	needs func(w *wire) bool
	// Middleware gives the guarantee. The table has it on the server once, and on the client once.
	middleware func(t *testing.T, tr *trial) yodel.Middleware
	// AtOnce is how many calls of the check have to run at once. Default 1.
	atOnce int
	// Options gives it in another way, on one side only.
	options func(tr *trial)
	// Prepare says what the methods do, with and without the guarantee.
	prepare func(tr *trial)
	// Check returns an error if the guarantee does not hold.
	check func(ctx context.Context, tr *trial, c yodel.Caller) error
}

// Every guarantee holds over every wire, on the server and on a client. Without what gives it, the
// check of each cell fails.
func TestEveryGuaranteeOverEveryWire(t *testing.T) {
	t.Attr("rerun", "never")
	for i := range wires {
		w := &wires[i]
		t.Run(w.name, func(t *testing.T) {
			for _, g := range guarantees {
				if g.needs != nil && !g.needs(w) {
					continue
				}
				t.Run(g.name, func(t *testing.T) { g.try(t, w) })
			}
		})
	}
}

// try tries a guarantee over w, on each side that it can be on.
func (g *guarantee) try(t *testing.T, w *wire) {
	places := map[string]func(t *testing.T, tr *trial){
		"server": func(t *testing.T, tr *trial) { tr.options.Middleware = []yodel.Middleware{g.middleware(t, tr)} },
		"client": func(t *testing.T, tr *trial) {
			tr.client.Middleware = append(tr.client.Middleware, g.middleware(t, tr))
		},
	}
	if w.dial != nil || w.oneAtATime && g.atOnce > 1 { // the caller is no client, or is many
		delete(places, "client")
	}
	if g.options != nil {
		places = map[string]func(t *testing.T, tr *trial){"by an option": func(_ *testing.T, tr *trial) { g.options(tr) }}
	}
	places["nowhere"] = func(*testing.T, *trial) {}
	for place, put := range places {
		t.Run(place, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tr := &trial{control: place == "nowhere"}
			if g.prepare != nil {
				g.prepare(tr)
			}
			put(t, tr)
			tr.start()
			err := g.check(ctx, tr, w.caller(t, tr, max(g.atOnce, 1)))
			switch {
			case tr.control && err == nil:
				t.Error("the check passes without what gives the guarantee")
			case !tr.control && err != nil:
				t.Error(err)
			}
		})
	}
}
