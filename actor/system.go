// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/memory"
	"github.com/yodel-rpc/yodel/introspect"
)

// Options configures a System. The zero value works.
type Options struct {
	// Server configures the server that takes the messages. Its middleware sees the messages of
	// other Systems and of this one. Nil is the default server.
	Server *yodel.ServerOptions
	// Client configures the clients that send messages to other Systems. Its Codec encodes the
	// messages, and the server understands it too. Its Server and its ConnMetadata "actor-system"
	// are set by the System. Nil is the default client.
	Client *yodel.ClientOptions
	// Addr is the address at which other Systems reach this one, if that is not the address at
	// which it listens. Default: the address of Listen.
	Addr string
	// Inbox is how many messages wait in the inbox of an actor: see StartOptions.Inbox. Default
	// 1000.
	Inbox int
	// MaxMemory is how many bytes the messages in all inboxes of the System may take together. A
	// message counts with its encoded body, or with its copy if this System has sent it, and with
	// 4 KiB. It counts from when its inbox accepts it until the actor begins to handle it.
	// Questions of other Systems count in ServerOptions.MaxMemory instead. While there is no memory
	// for a message, its sender waits as for room in the inbox.
	//
	// A connection, an actor of this System, and the rest of its program get at most as much memory
	// each as remains free. So one of them gets at most half of MaxMemory, and its messages do not
	// make those of the others wait. Default: half of the default of ServerOptions.MaxMemory.
	MaxMemory int
	// Window is how many messages of Send to one actor may be on their way, before that actor's
	// inbox has accepted them. Then Send waits. Default 1000.
	Window int
	// AskTimeout limits Ask and AskSync if their context has no deadline. Default 2 min.
	AskTimeout time.Duration
	// SendTimeout limits how long a message of Send is on its way, before the inbox has accepted
	// it. Default 2 min.
	SendTimeout time.Duration
	// LookupTimeout limits Lookup if its context has no deadline. Default 2 min.
	LookupTimeout time.Duration
	// PortRetries is how many further ports Listen tries if a port is in use. Default 16; if
	// negative, none.
	PortRetries int
	// OnLost is called for each message of Send that did not reach an inbox, as far as is known. It
	// must return soon. Default: a line in the log.
	OnLost func(to Ref, message string, err error)
	// Logger gets the errors of actors without OnError. Default slog.Default().
	Logger *slog.Logger
}

// A System hosts actors, and sends messages to actors here and elsewhere. Its methods may be called
// concurrently.
type System struct {
	opts     Options
	server   *yodel.Server
	local    *parcels
	accounts *accounts // of the memory of inboxes
	id       string    // unique
	hidden   string    // the address without Listen
	where    atomic.Pointer[string]
	ctx      context.Context //nolint:containedctx // ends with the System
	end      context.CancelFunc
	served   chan struct{} // closed when Serve has returned, if it was called
	stopped  chan struct{} // closed at the end of Shutdown
	types    sync.Map      // of *messageType, by reflect.Type
	tasks    chan task     // for idle workers
	idle     atomic.Int64  // workers

	mu          sync.Mutex
	addr        string // where it listens
	kinds       map[string]*registration
	cells       map[string]*cell
	ending      map[*cell]bool // actors that Stop has stopped, until their OnStop has returned
	watchers    map[*cell]Watcher
	peers       map[string]*yodel.Peer // of Systems, by the address that begins with "@"
	sockets     map[string][]string    // the addresses of the clients connected, by those of their sockets
	clients     map[string]*client     // by address; nil after Shutdown
	outboxes    map[Ref]*outbox
	last        uint64 // outbox
	many        int    // outboxes, before unused ones are forgotten
	manyClients int    // the same for clients
	manyPeers   int    // the same for peers
	onWay       int    // messages of Send that no inbox has accepted
	sealed      bool   // Send fails
	allArrived  chan struct{}
	closing     bool
}

// The metadata of messages and connections.
const (
	keyActor  = "actor"        // the name of the actor
	keyWay    = "actor-way"    // "ask" or "send", the address of the sender's System, and the order or the number of a parcel
	keySystem = "actor-system" // of a connection: the address of the client's System

	verbSend, verbAsk = "send ", "ask " // the beginning of keyWay
)

// NewSystem returns a System without actors, which does not listen. O may be nil.
func NewSystem(o *Options) *System {
	s := &System{
		id: rand.Text()[:16], kinds: make(map[string]*registration), cells: make(map[string]*cell), ending: make(map[*cell]bool), watchers: make(map[*cell]Watcher),
		peers: make(map[string]*yodel.Peer), sockets: make(map[string][]string), clients: make(map[string]*client), outboxes: make(map[Ref]*outbox),
		stopped: make(chan struct{}), tasks: make(chan task), allArrived: make(chan struct{}),
	}
	if o != nil {
		s.opts = *o
	}
	s.opts.setDefaults()
	s.accounts = newAccounts(s.opts.MaxMemory)
	s.hidden = "@" + s.id
	s.where.Store(&s.hidden)
	if s.opts.Addr != "" {
		s.where.Store(&s.opts.Addr)
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	server, client := *s.opts.Server, *s.opts.Client
	server.OnConn, server.Connect = s.onConn(server.OnConn, true), s.connect(server.Connect)
	if client.Codec == nil {
		client.Codec = yodel.JSON
	}
	if !slices.ContainsFunc(server.Codecs, func(c yodel.Codec) bool { return c.Name() == client.Codec.Name() }) {
		server.Codecs = append(slices.Clone(server.Codecs), client.Codec)
	}
	server.Middleware = append(slices.Clone(server.Middleware), withoutAnswer)
	s.server = yodel.NewServer(&server)
	client.OnConn, client.Server = s.onConn(client.OnConn, false), s.server
	s.opts.Client = &client
	s.local = &parcels{codec: client.Codec, open: make(map[uint64]*parcel)}
	lookup.Handle(s.server, s.answerLookup)
	skip.Handle(s.server, s.answerSkip)
	status.Handle(s.server, s.answerList)
	return s
}

// withoutAnswer is middleware that leaves the answer to a message of Send out. The sender does not
// read the answer, and its codec may not carry a value that no handler has made.
func withoutAnswer(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		if !isStatement(call) {
			return next(ctx, call)
		}
		if call.Compressor != nil {
			_, _ = call.Body() // so that it is decompressed once, also for costOf; an error comes again
		}
		err := next(ctx, call)
		if err == nil {
			call.Reply = nil
		}
		return err
	}
}

// isStatement reports whether a call carries a message of Send.
func isStatement(call *yodel.Call) bool {
	return call.OneWay || strings.HasPrefix(call.Metadata[keyWay], verbSend)
}

// log returns the logger. The program may set the default one later.
func (o *Options) log() *slog.Logger { return cmp.Or(o.Logger, slog.Default()) }

func (o *Options) setDefaults() {
	if o.Server == nil {
		o.Server = new(yodel.ServerOptions)
	}
	if o.Client == nil {
		o.Client = new(yodel.ClientOptions)
	}
	for _, d := range []struct {
		of *int
		is int
	}{{&o.Inbox, 1000}, {&o.Window, 1000}, {&o.PortRetries, 16}} {
		if *d.of == 0 {
			*d.of = d.is
		}
	}
	if o.MaxMemory <= 0 {
		o.MaxMemory = memory.OrDefault(0) / 2
	}
	for _, of := range []*time.Duration{&o.AskTimeout, &o.SendTimeout, &o.LookupTimeout} {
		if *of == 0 {
			*of = 2 * time.Minute
		}
	}
	if o.OnLost == nil {
		o.OnLost = func(to Ref, message string, err error) {
			o.log().Warn("a message did not arrive", slog.String("to", to.String()), slog.String("message", message), slog.Any("err", err))
		}
	}
}

// Server returns the server of the System, for further methods and for its statistics.
func (s *System) Server() *yodel.Server { return s.server }

// Addr returns the address of the System in the Refs of its actors. It begins with "@" if the
// System does not listen.
func (s *System) Addr() string { return *s.where.Load() }

// Listen makes the System listen at an address, and returns when other Systems can connect. If the
// port is in use, Listen tries the next ports: see Options.PortRetries. References that were made
// before Listen have an address that begins with "@", so call Listen first.
func (s *System) Listen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return yodel.Errorf(yodel.InvalidArgument, "actor: %v", err)
	}
	first, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return yodel.Errorf(yodel.InvalidArgument, "actor: the port of %q is not a number up to 65535", addr)
	}
	transport := s.opts.Server.Transport
	if transport == nil {
		transport = yodel.TCP
	}
	for try := 0; ; try++ {
		at := net.JoinHostPort(host, strconv.FormatUint(nextPort(first, try), 10))
		l, err := transport.Listen(at)
		if err == nil {
			return s.serve(l)
		}
		if !errors.Is(err, syscall.EADDRINUSE) || try >= s.opts.PortRetries {
			return fmt.Errorf("actor: cannot listen at %s, after %d other ports (Options.PortRetries): %w", at, try, err)
		}
	}
}

// nextPort returns the port of a try. Ports go round between 1024 and 65535. Port 0 remains 0.
func nextPort(first uint64, try int) uint64 {
	if first == 0 || try == 0 {
		return first
	}
	const least, most = 1024, 65535
	return least + (max(first, least)-least+uint64(try))%(most-least+1)
}

// serve serves the messages that come to l.
func (s *System) serve(l net.Listener) error {
	s.mu.Lock()
	if s.closing || s.addr != "" {
		was := s.addr
		s.mu.Unlock()
		if err := l.Close(); err != nil {
			return err
		}
		if was != "" {
			return yodel.Errorf(yodel.FailedPrecondition, "actor: the System listens at %s already", was)
		}
		return errShutDown
	}
	s.addr, s.served = l.Addr().String(), make(chan struct{})
	if s.opts.Addr == "" {
		s.where.Store(&s.addr)
	}
	s.mu.Unlock()
	go func() {
		defer close(s.served)
		if err := s.server.Serve(context.Background(), l); err != nil && !errors.Is(err, yodel.ErrServerClosed) {
			s.opts.log().Error("an actor system has stopped serving", slog.Any("err", err))
		}
	}()
	return nil
}

var errShutDown = yodel.Errorf(yodel.Unavailable, "actor: the System has been shut down")

// start makes a an actor.
func (s *System) start(kind, name string, a any, o *StartOptions) (Ref, error) {
	c := &cell{system: s, kind: kind, name: name, actor: a, inbox: o.Inbox, concurrent: max(o.Concurrent, 1), ended: make(chan struct{})}
	if c.inbox <= 0 {
		c.inbox = s.opts.Inbox
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return Ref{}, errShutDown
	case s.cells[name] != nil:
		return Ref{}, yodel.Errorf(yodel.AlreadyExists, "actor: there is already an actor called %s", name)
	}
	s.cells[name] = c
	if w, ok := a.(Watcher); ok {
		s.watchers[c] = w
	}
	c.start(o.OwnGoroutine)
	return c.ref(), nil
}

// Stop stops an actor of this System. It returns at once. The actor handles the messages of its
// inbox, then its OnStop runs, and it takes no further messages: its name is free. Stop of an actor
// that does not exist, or has stopped, does nothing.
func (s *System) Stop(r Ref) {
	s.mu.Lock()
	c := s.cells[r.Name]
	if c == nil || c.kind != r.Kind {
		s.mu.Unlock()
		return
	}
	delete(s.cells, r.Name)
	delete(s.watchers, c)
	s.ending[c] = true
	s.mu.Unlock()
	c.stop()
}

// hasEnded notes that an actor's OnStop has returned.
func (s *System) hasEnded(c *cell) {
	s.mu.Lock()
	delete(s.ending, c)
	s.mu.Unlock()
	close(c.ended)
}

// find returns an actor.
func (s *System) find(kind, name string) *cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cells[name]; c != nil && c.kind == kind {
		return c
	}
	return nil
}

// Shutdown stops all actors. It waits until they, and those that Stop has stopped before, have
// handled the messages of their inboxes, and until the messages of Send have arrived. Then it
// closes all connections. If ctx ends first, Shutdown ends what is left, and returns an error.
// Actors are not informed that these connections end.
func (s *System) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		select {
		case <-s.stopped:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.closing = true
	cells := slices.AppendSeq(slices.Collect(maps.Values(s.cells)), maps.Keys(s.ending))
	clear(s.cells)
	clear(s.watchers)
	s.mu.Unlock()
	err := stopAll(ctx, cells)
	s.mu.Lock()
	if s.sealed = true; s.onWay == 0 {
		close(s.allArrived)
	}
	s.mu.Unlock()
	select {
	case <-s.allArrived:
	case <-ctx.Done(): // the clients end the calls below
	}
	err = errors.Join(err, s.server.Shutdown(ctx))
	s.mu.Lock()
	clients := s.clients
	s.clients = nil
	served := s.served
	s.mu.Unlock()
	for _, c := range clients {
		c.Close()
	}
	if served != nil {
		<-served
	}
	s.end()
	close(s.stopped)
	return err
}

// stopAll stops actors and waits until they have ended.
func stopAll(ctx context.Context, cells []*cell) error {
	for _, c := range cells {
		c.stop() //nolint:contextcheck,nolintlint // messages have their contexts
	}
	for _, c := range cells {
		select {
		case <-c.ended:
		case <-ctx.Done():
			return yodel.Errorf(yodel.DeadlineExceeded, "actor: %v has not stopped: %v", c, context.Cause(ctx))
		}
	}
	return nil
}

// Done returns a channel that is closed when Shutdown has ended.
func (s *System) Done() <-chan struct{} { return s.stopped }

// A task is work for another goroutine.
type task interface{ work() }

// maxIdle is how many workers wait for tasks. A worker that has run before has a stack that need
// not grow.
const maxIdle = 64

// run lets an idle worker, or else a new one, do a task.
func (s *System) run(t task) {
	select {
	case s.tasks <- t:
	default:
		go s.worker(t)
	}
}

func (s *System) worker(t task) {
	for {
		t.work()
		if s.idle.Add(1) > maxIdle {
			s.idle.Add(-1)
			return
		}
		select {
		case t = <-s.tasks:
			s.idle.Add(-1)
		case <-s.ctx.Done():
			return
		}
	}
}

// receive puts the message m of a call into the inbox of its actor. It reports whether the inbox
// has accepted it and the sender wants no answer. Otherwise the call is answered later.
func (s *System) receive(ctx context.Context, h *handler, m any) (accepted bool, err error) {
	call := yodel.CallFrom(ctx)
	name := call.Metadata[keyActor]
	if name == "" {
		name = h.kind
	}
	c := s.find(h.kind, name)
	if c == nil {
		return false, gone(h.kind, name)
	}
	_, way, _ := strings.Cut(call.Metadata[keyWay], " ")
	from, says, _ := strings.Cut(way, " ")
	e := &envelope{Context: ctx, cell: c, handler: h, message: m, what: call.Method, from: from, kind: question, call: call}
	if p := call.Peer(); p != nil && p.Conn == nil {
		if e.local = s.local.find(says); e.local != nil {
			says = ""
		}
	}
	if isStatement(call) {
		e.kind, e.Context, e.values = statement, s.ctx, ctx
	} else {
		e.reply = call.Later()
	}
	e.sender, e.cost = e.senderOf(), e.costOf()
	accepted, err = c.take(e, says) //nolint:contextcheck // e has the context
	return accepted && e.kind == statement, err
}

// The methods of a System.
const (
	lookup yodel.Method[lookupArgs, lookupReply]                   = "actors.Lookup"
	skip   yodel.Method[skipArgs, struct{}]                        = "actors.Skip"
	status yodel.Method[introspect.ActorsQuery, introspect.Actors] = "actors.List"
)

type lookupArgs struct{ Name string }

type lookupReply struct {
	Kind string // "" if there is no such actor
	Addr string // of the System
}

type skipArgs struct{ Kind, Name, Order string }

func (s *System) answerLookup(_ context.Context, in *lookupArgs) (*lookupReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &lookupReply{Addr: s.Addr()}
	if c := s.cells[in.Name]; c != nil {
		r.Kind = c.kind
	}
	return r, nil
}

func (s *System) answerSkip(_ context.Context, in *skipArgs) (*struct{}, error) {
	if c := s.find(in.Kind, in.Name); c != nil {
		if err := c.skip(in.Order); err != nil { //nolint:contextcheck // the messages have their contexts
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // an empty reply
}

func (c *cell) status() introspect.Actor {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := introspect.Actor{Kind: c.kind, Name: c.name, Inbox: c.queue.n, Handled: c.handled.Load()}
	for _, f := range c.streams.all() {
		status.Held += len(f.held)
	}
	return status
}

// maxListed is how many actors List returns.
const maxListed = 1000

// List returns the actors of the System with the longest inboxes, at most 1000, longest first. It
// counts the others. It has also the memory that the messages in all inboxes take.
func (s *System) List() *introspect.Actors { return s.list("") }

// list is List for the actors of a kind, or of all kinds if it is empty.
func (s *System) list(kind string) *introspect.Actors {
	s.mu.Lock()
	cells := make([]*cell, 0, len(s.cells))
	for _, c := range s.cells {
		if kind == "" || c.kind == kind {
			cells = append(cells, c)
		}
	}
	s.mu.Unlock()
	all := make([]introspect.Actor, 0, len(cells))
	waiting := 0
	for _, c := range cells {
		one := c.status()
		all = append(all, one)
		waiting += one.Inbox
	}
	slices.SortFunc(all, func(a, b introspect.Actor) int {
		return cmp.Or(b.Inbox-a.Inbox, strings.Compare(a.Name, b.Name))
	})
	listed := all[:min(len(all), maxListed)]
	return &introspect.Actors{
		Actors: slices.Clone(listed), Left: len(all) - len(listed), Waiting: waiting,
		Memory: s.accounts.limit.Used(), Limit: s.opts.MaxMemory,
	}
}

func (s *System) answerList(_ context.Context, q *introspect.ActorsQuery) (*introspect.Actors, error) {
	if !s.opts.Server.Diagnostics {
		return nil, yodel.Errorf(yodel.PermissionDenied, "actor: the list of actors needs ServerOptions.Diagnostics")
	}
	return s.list(q.Kind), nil
}
