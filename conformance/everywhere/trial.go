// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/rules"
	yodeltls "github.com/yodel-rpc/yodel/transport/tls"
)

// Ask is the request of the methods.
type Ask struct {
	N   int64  `json:"n" thrift:"1"`
	Pad string `json:"pad,omitempty" thrift:"2"`
}

// Told is the reply of the methods: how many calls the trial had executed with this one.
type Told struct {
	N int64 `json:"n" thrift:"1"`
}

// Validate refuses one text. Only middleware/validate calls it.
func (a Ask) Validate() error {
	if a.Pad == forbidden {
		return validate.Violations{brokenRule}
	}
	return nil
}

const forbidden = "forbidden"

var brokenRule = validate.Violation{Field: "pad", Rule: "allowed", Message: "must not be forbidden"}

// JavaClassName implements an interface of hessian2, as the next one does.
func (Ask) JavaClassName() string { return "all.Ask" }

// JavaClassName implements an interface of hessian2.
func (Told) JavaClassName() string { return "all.Told" }

const (
	unary  yodel.Method[Ask, Told] = "All.Unary"
	feed   yodel.Feed[Ask, Told]   = "All.Feed"
	upload yodel.Upload[Ask, Told] = "All.Upload"
	duplex yodel.Duplex[Ask, Told] = "All.Duplex"

	other yodel.Method[Ask, Told] = "All.Other" // called in controls
)

// A Trial is one cell of the table: servers, and the options of a client that calls them. Its
// exported fields are set before the servers are made.
type Trial struct {
	Options yodel.ServerOptions // of all servers; the codecs, the protocols and the logger are set later
	Client  yodel.ClientOptions // of clients of yodel; the codec and the wire are set later
	Control bool                // what gives the guarantee is not there
	// NewServer and NewClient make the servers and the clients. Nil means those of package yodel.
	NewServer func(o *yodel.ServerOptions) *yodel.Server
	NewClient func(r discovery.Resolver, o *yodel.ClientOptions) *yodel.Client

	count    int // how many servers there are; 0 means 1
	server   *yodel.Server
	servers  []*yodel.Server
	addrs    []string                                                // of the servers that a client of yodel calls
	speaks   []string                                                // the protocols that the servers announce
	resolver discovery.Resolver                                      // names the servers
	resolve  func(instances []discovery.Instance) discovery.Resolver // nil means that of the addresses

	gate     chan struct{}                            // the methods wait until it is closed; nil if they do not wait
	waits    func(n int64) bool                       // whether a call with this number waits for the gate; nil means that all do
	fail     func(server int) error                   // returns the error of a server's methods; nil if they succeed
	act      func()                                   // all methods call it
	observe  func(ctx context.Context)                // all methods call it
	called   func()                                   // callbacks call it
	log      *slog.Logger                             // of the servers; nil if they have none
	tls      *tls.Config                              // of the servers; nil if they have none
	keys     atomic.Int64                             // how many idempotency keys were used
	entered  atomic.Int64                             // calls that the client has begun
	mirrored atomic.Int64                             // by another server
	executed atomic.Int64                             // by all methods
	by       [3]atomic.Int64                          // by the methods of each server
	running  atomic.Int64                             // in the methods
	peak     atomic.Int64                             // of running
	lines    buffer                                   // of a log
	exposes  bool                                     // the servers send the texts of all errors over HTTP too
	budget   int                                      // of the calls; 0 means none
	rules    rules.Registry                           // with the rules of the service; nil if it has none
	more     func(s *yodel.Server)                    // registers more methods; nil if there are none
	each     func(server int, o *yodel.ServerOptions) // changes the options of one server
	bad      atomic.Bool                              // the methods fail
	begun    atomic.Int64                             // calls that an observer has seen
	ended    atomic.Int64                             // those that have ended well
	limits   atomic.Int64                             // that the last call has passed
	failed   atomic.Int64                             // those that have failed
	outcomes chan error                               // of one-way calls, as the servers see them
	failure  atomic.Pointer[error]                    // of the first call that has failed in a drain
	held     atomic.Pointer[hold]                     // nil if no call waits
	deadline atomic.Value                             // of the context of the last call, a time.Time
	metadata atomic.Value                             // a value of the metadata of the last call, a string
	trace    atomic.Value                             // the trace context of the last call, a string
}

// A hold makes the calls of a server wait until over is closed.
type hold struct {
	server int
	calls  atomic.Int64 // how many wait or have waited
	over   chan struct{}
}

// A buffer is text that several goroutines write.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// first returns the error of the first call that has failed in a drain, or nil.
func (tr *Trial) first() error {
	if err := tr.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// watchOutcomes adds an observer of the outcomes of one-way calls to the servers.
func (tr *Trial) watchOutcomes() {
	tr.outcomes = make(chan error, 1000)
	tr.Options.Observers = append(tr.Options.Observers, yodel.Observer{End: func(_ context.Context, call *yodel.Call, err error) {
		if call.OneWay {
			tr.outcomes <- err
		}
	}})
}

// start makes the servers.
func (tr *Trial) start() {
	for i := range max(tr.count, 1) {
		tr.servers = append(tr.servers, tr.newServer(i))
	}
	tr.server = tr.servers[0]
}

func (tr *Trial) newServer(i int) *yodel.Server {
	o := tr.Options
	o.Protocols, o.Codecs, o.Logger = tr.protocols(), codecs(), silent
	if tr.log != nil {
		o.Logger = tr.log
	}
	o.Instance = discovery.Instance{Version: fmt.Sprint(i), Protocols: tr.speaks}
	if tr.each != nil {
		tr.each(i, &o)
	}
	create := yodel.NewServer
	if tr.NewServer != nil {
		create = tr.NewServer
	}
	s := create(&o)
	unary.Handle(s, func(ctx context.Context, in *Ask) (*Told, error) { return tr.execute(ctx, i, in.N) })
	other.Handle(s, func(context.Context, *Ask) (*Told, error) { return &Told{}, tr.do(i) })
	if tr.more != nil {
		tr.more(s)
	}
	feed.Handle(s, func(ctx context.Context, in *Ask, send yodel.Send[Told]) error {
		told, err := tr.execute(ctx, i, in.N)
		if err != nil {
			return err
		}
		return send(told)
	})
	upload.Handle(s, func(ctx context.Context, asked yodel.Recv[Ask]) (*Told, error) {
		n, err := drain(asked)
		if err != nil {
			return nil, err
		}
		return tr.execute(ctx, i, n)
	})
	duplex.Handle(s, func(ctx context.Context, asked yodel.Recv[Ask], send yodel.Send[Told]) error {
		n, err := drain(asked)
		if err != nil {
			return err
		}
		told, err := tr.execute(ctx, i, n)
		if err != nil {
			return err
		}
		return send(told)
	})
	return s
}

// drain receives all messages, and returns the number in the last one.
func drain(asked yodel.Recv[Ask]) (n int64, err error) {
	for in, err := range asked {
		if err != nil {
			return 0, err
		}
		n = in.N
	}
	return n, nil
}

// do does what all methods do, and returns their error.
func (tr *Trial) do(server int) error {
	if tr.act != nil {
		tr.act()
	}
	if tr.fail != nil {
		return tr.fail(server)
	}
	return nil
}

// execute is what each method of a server does. Asked is the number in the request.
func (tr *Trial) execute(ctx context.Context, server int, asked int64) (*Told, error) {
	n := tr.executed.Add(1)
	tr.by[server].Add(1)
	now := tr.running.Add(1)
	defer tr.running.Add(-1)
	for peak := tr.peak.Load(); now > peak && !tr.peak.CompareAndSwap(peak, now); {
		peak = tr.peak.Load()
	}
	if tr.observe != nil {
		tr.observe(ctx)
	}
	if h := tr.held.Load(); h != nil && h.server == server {
		h.calls.Add(1)
		select {
		case <-h.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if tr.gate != nil && (tr.waits == nil || tr.waits(asked)) {
		select {
		case <-tr.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &Told{n}, tr.do(server)
}

// always returns one error.
func always(err error) func(int) error { return func(int) error { return err } }

// serve starts s on loopback, and ends it with the test. Config is for TLS, and may be nil.
func serve(t *testing.T, s *yodel.Server, config *tls.Config) (addr string) {
	t.Helper()
	return serveAt(t, s, config, "127.0.0.1:0")
}

func serveAt(t *testing.T, s *yodel.Server, config *tls.Config, at string) (addr string) {
	t.Helper()
	transport := yodel.TCP
	if config != nil {
		transport = &yodeltls.Transport{Server: config}
	}
	l, err := transport.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, yodel.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// patience bounds what a check waits for, and brief what a control waits for in vain.
const (
	patience = 20 * time.Second
	brief    = 200 * time.Millisecond
)

// limit returns how long a check waits.
func (tr *Trial) limit() time.Duration {
	if tr.Control {
		return brief
	}
	return patience
}

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
