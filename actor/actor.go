// SPDX-License-Identifier: Apache-2.0

// Package actor runs actors: values with a name and an inbox, each of which handles one message at
// a time. Actors of any process send messages to each other and ask each other questions:
//
//	type Greeting struct{ Name string }
//	type Text struct{ Text string }
//
//	type Greeter struct{ greeted int }
//
//	func (g *Greeter) Greet(ctx context.Context, m *Greeting) (*Text, error) {
//		g.greeted++ // no lock: one message at a time
//		return &Text{"Hello " + m.Name}, nil
//	}
//
//	var greeters = actor.NewKind("Greeter", actor.Answer((*Greeter).Greet))
//
//	s := actor.NewSystem(nil)
//	ref, err := greeters.Start(s, "greeter", new(Greeter), nil)
//	text, err := actor.AskSync[Text](ctx, s, ref, &Greeting{"Ann"})
//
// A System hosts the actors of a process. With System.Listen it takes messages from other
// processes. A System that does not listen has actors too: a Ref to one of them works in the
// processes to which the System is connected.
//
// A message to an actor of kind K is a call of the method K.M, where M is the name of the message's
// type. Calls of actors therefore pass through the middleware of servers and clients, rules apply
// to them, and they have traces and metrics. Callers in other protocols call the same methods. The
// metadata "actor" of such a call is the name of the actor; without it, the call is for the actor
// that has the name of its kind.
//
// Messages of one System to one actor are handled in the order in which Send, Ask and AskSync were
// called, if these calls were made one after the other. A message may be lost, for example with its
// connection. It is never handled twice, and never after a later one.
//
// The package follows the RPC of Apache Spark, whose RpcEnv, RpcEndpoint and RpcEndpointRef are
// System, the actor's type and Ref. docs/actors.md compares them.
package actor

import (
	"context"
	"reflect"
	"strings"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// A Kind is a type of actors, and the messages that they take. Make one for each type, as a
// package-level variable. Its methods may be called concurrently.
type Kind[A any] struct {
	name     string
	handlers []Handler[A]
	err      error // of the definition
}

// A Handler handles the messages of one type: see On and Answer.
type Handler[A any] struct {
	message  reflect.Type // without pointer
	handler  handler
	inline   bool // it is for messages of Send
	register func(s *System, method string, h *handler)
}

// NewKind returns the kind of actors with a name and handlers. Name is the name of the service to
// which the messages belong, such as "shop.Cart". Start returns the error of a wrong definition.
func NewKind[A any](name string, handlers ...Handler[A]) *Kind[A] {
	k := &Kind[A]{name: name, handlers: handlers}
	if name == "" || len(name) > maxName || strings.ContainsAny(name, " /\t\n") {
		k.err = yodel.Errorf(yodel.InvalidArgument, "actor: %.60q is not a name of a kind: it is empty, has spaces or slashes, or more than %d bytes", name, maxName)
	}
	seen := make(map[string]reflect.Type, len(handlers))
	for _, h := range handlers {
		of, err := messageName(h.message)
		if err != nil && k.err == nil {
			k.err = err
		}
		if seen[of] != nil && k.err == nil {
			k.err = yodel.Errorf(yodel.InvalidArgument, "actor: kind %s has two handlers of messages called %s: %v and %v", name, of, seen[of], h.message)
		}
		seen[of] = h.message
	}
	return k
}

// On returns a Handler of messages that have no answer. An error of f goes to the actor's OnError,
// and to the caller if the message was sent by Ask. F must not keep ctx after it has returned.
func On[A, M any](f func(a *A, ctx context.Context, m *M) error) Handler[A] {
	h := Answer(func(a *A, ctx context.Context, m *M) (*struct{}, error) { return new(struct{}), f(a, ctx, m) })
	h.inline = true
	return h
}

// Answer returns a Handler of messages that have an answer. An error of f goes to the caller and to
// the actor's OnError. F may answer later: see Later. If the message was sent by Send, its answer
// is dropped.
func Answer[A, M, R any](f func(a *A, ctx context.Context, m *M) (*R, error)) Handler[A] {
	return Handler[A]{
		message: reflect.TypeFor[M](),
		handler: handler{
			run: func(a any, ctx context.Context, m any) (any, error) {
				return f(a.(*A), ctx, m.(*M)) //nolint:forcetypeassert // the System found a by the type, and decoded m
			},
		},
		register: func(s *System, method string, h *handler) {
			yodel.Method[M, R](method).Handle(s.server, func(ctx context.Context, m *M) (*R, error) {
				if accepted, err := s.receive(ctx, h, m); err != nil || !accepted {
					return nil, err // without an error, the reply comes later
				}
				return new(R), nil
			})
		},
	}
}

// maxName bounds the names of kinds and actors, in bytes.
const maxName = 128

// A Named message has another name than its type.
type Named interface {
	// MessageName returns the name of the message. It does not depend on the value.
	MessageName() string
}

// messageName returns the name of the messages of a type.
func messageName(t reflect.Type) (string, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := t.Name()
	if n, ok := reflect.TypeAssert[Named](reflect.New(t)); ok {
		name = n.MessageName()
	}
	if name == "" || strings.ContainsAny(name, "[]./ ") {
		return "", yodel.Errorf(yodel.InvalidArgument, "actor: messages of type %v have no name: define a type, or give it a method MessageName", t)
	}
	return name, nil
}

// A handler is a Handler without its type.
type handler struct {
	kind string
	run  func(a any, ctx context.Context, m any) (any, error)
}

// StartOptions configures an actor. The zero value works.
type StartOptions struct {
	// Inbox is how many messages wait in the actor's inbox. Senders of further messages wait.
	// Default Options.Inbox.
	Inbox int
	// Concurrent is how many messages the actor handles at the same time, once OnStart has
	// returned. Default 1: one after the other.
	Concurrent int
	// OwnGoroutine makes all methods of the actor run on one goroutine, which nothing else uses.
	// Concurrent must not be set. Without it, an actor with an empty inbox has no goroutine.
	OwnGoroutine bool
}

// Start makes a an actor of s. It returns at once: OnStart runs before the first message is
// handled. It fails if the name is taken, or if s is shut down. O may be nil.
func (k *Kind[A]) Start(s *System, name string, a *A, o *StartOptions) (Ref, error) {
	if o == nil {
		o = new(StartOptions)
	}
	switch {
	case k.err != nil:
		return Ref{}, k.err
	case a == nil:
		return Ref{}, yodel.Errorf(yodel.InvalidArgument, "actor: %s: the actor is nil", name)
	case o.OwnGoroutine && o.Concurrent > 1:
		return Ref{}, yodel.Errorf(yodel.InvalidArgument, "actor: %s: an actor with its own goroutine handles one message at a time, not %d", name, o.Concurrent)
	case !isName(name):
		return Ref{}, yodel.Errorf(yodel.InvalidArgument, "actor: %.60q is not a name of an actor: it is empty, has spaces or control characters, or more than %d bytes", name, maxName)
	}
	if err := k.register(s); err != nil {
		return Ref{}, err
	}
	return s.start(k.name, name, a, o)
}

// A registration makes the methods of a kind known to a server, once.
type registration struct {
	kind any
	done func() error
}

// register makes the methods of the kind known to the server of s.
func (k *Kind[A]) register(s *System) error {
	s.mu.Lock()
	r := s.kinds[k.name]
	if r == nil {
		r = &registration{kind: k, done: sync.OnceValue(func() error { return k.handle(s) })}
		s.kinds[k.name] = r
	}
	s.mu.Unlock()
	if r.kind != any(k) {
		return yodel.Errorf(yodel.AlreadyExists, "actor: there is another kind called %s", k.name)
	}
	return r.done()
}

// handle registers the methods of the kind.
func (k *Kind[A]) handle(s *System) (err error) {
	defer func() { // Method.Handle panics if a method of the program has the name
		if r := recover(); r != nil {
			err = yodel.Errorf(yodel.AlreadyExists, "actor: kind %s: %v", k.name, r)
		}
	}()
	for _, h := range k.handlers {
		name, _ := messageName(h.message)
		run := h.handler
		run.kind = k.name
		method := k.name + "." + name
		h.register(s, method, &run)
		// To put a message of Send into an inbox is short, but one that waits for room looks long.
		// If these messages ran on goroutines of their own, they would arrive out of order and wait
		// for each other too. Questions are answered later, which costs more on the reader
		// goroutine. Middleware may be long, so with middleware the server decides.
		if h.inline && len(s.opts.Server.Middleware) == 0 {
			s.server.MarkInline(method)
		}
	}
	return nil
}

// An actor may have these methods. They are called like handlers: after OnStart, and before OnStop.
type (
	// A Starter is told when it starts, before its first message. An error goes to OnError, and the
	// actor handles messages all the same.
	Starter interface {
		OnStart(ctx context.Context) error
	}
	// A Stopper is told when it stops, after its last message. An error goes to OnError.
	Stopper interface {
		OnStop(ctx context.Context) error
	}
	// An ErrorHandler gets the errors and panics of the actor's other methods. Without it, they are
	// logged.
	ErrorHandler interface {
		OnError(ctx context.Context, err error)
	}
	// A Watcher learns of each connection of its System, also of those that other actors use. Addr
	// is the address of the other System, and otherwise that of the socket.
	Watcher interface {
		OnConnected(ctx context.Context, addr string)
		OnDisconnected(ctx context.Context, addr string)
		// OnNetworkError is told why a connection could not be made, or broke.
		OnNetworkError(ctx context.Context, addr string, err error)
	}
)

// isName reports whether name can be the name of an actor.
func isName(name string) bool {
	return name != "" && len(name) <= maxName && strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' }) < 0
}

type contextKey struct{}

func envelopeOf(ctx context.Context) *envelope {
	e, _ := ctx.Value(contextKey{}).(*envelope)
	return e
}

// Self returns the actor whose method has the context ctx. It is zero for any other context, and in
// OnStop, because the actor takes no messages any more.
func Self(ctx context.Context) Ref {
	if e := envelopeOf(ctx); e != nil && e.kind != stopping {
		return e.cell.ref()
	}
	return Ref{}
}

// In returns the System of the actor whose method has the context ctx, or nil.
func In(ctx context.Context) *System {
	if e := envelopeOf(ctx); e != nil {
		return e.cell.system
	}
	return nil
}

// From returns the address of the System that sent the message which the handler with the context
// ctx handles. The sender chooses it, so do not use it for authorization. It is empty for callers
// that are not Systems.
func From(ctx context.Context) string {
	if e := envelopeOf(ctx); e != nil {
		return e.from
	}
	return ""
}

// Later lets a handler of Answer return without an answer. The handler returns nil, and passes the
// function on. The function answers the question, with a pointer to the answer or with an error. It
// may be called on any goroutine, and must be called in the end. Calls after the first do nothing.
// The function encodes the answer before it returns. The actor handles its next messages meanwhile.
// If the message was sent by Send, the function does nothing.
func Later(ctx context.Context) func(answer any, err error) {
	e := envelopeOf(ctx)
	if e == nil {
		panic("actor: Later was called without the context of a handler")
	}
	if e.kind != question {
		return func(any, error) {}
	}
	e.later = true
	return func(answer any, err error) {
		e.cell.mu.Lock()
		release := e.release
		e.cell.mu.Unlock()
		release()
		e.respond(answer, err)
	}
}
