// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A Protocol is a yodel.Protocol that TestProtocol checks, with the features that it has.
// TestProtocol skips a rule about a feature that the protocol does not have.
type Protocol struct {
	yodel.Protocol
	// Codecs are the codecs that the protocol needs in ServerOptions.Codecs.
	Codecs []yodel.Codec
	// Codes says whether the client learns the code of an error.
	Codes bool
	// Deadlines says whether requests carry a deadline.
	Deadlines bool
	// Metadata says whether requests carry metadata.
	Metadata bool
	// OneAtATime says whether a connection carries only one call at a time.
	OneAtATime bool
	// Middleware refuses calls in servers of the protocol, each in a server of its own. Default
	// none, because this package knows no middleware: pass those that your servers use.
	Middleware []ProtocolMiddleware
}

// A ProtocolMiddleware is a middleware that refuses calls, and what TestProtocol expects of it.
type ProtocolMiddleware struct {
	Name string
	// New returns the middleware of a new server.
	New func() yodel.Middleware
	// Passes is how many calls without metadata the middleware lets pass before it refuses one.
	// Default 0.
	Passes int
	// Code is the code of its error.
	Code yodel.Code
}

// TestProtocol checks that p fulfills the contract of yodel.Protocol and serves calls as yodel's
// own protocol does. It starts servers on loopback and calls them with a client of the protocol.
//
// Dial returns a client that makes calls over conn, which is a new connection. TestProtocol closes
// conn. It may call the client's Do concurrently. Do uses the fields Method, Args (a *string),
// Reply (a *string) and Metadata of the Call, and the deadline of its context. If the call fails,
// Do returns an error with the text that the client received. If Codes is set, it is a
// *yodel.Error.
//
// TestProtocol must not run in parallel with other tests, because it would regard their goroutines
// as the protocol's. Run it with the race detector.
func TestProtocol(t *testing.T, p Protocol, dial func(conn net.Conn) yodel.Caller) {
	t.Helper()
	rules := slices.Clone(protocolRules)
	for _, m := range p.Middleware {
		rules = append(rules, m.rule())
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			if rule.skip != nil && rule.skip(p) {
				t.Skip("the protocol does not have the feature")
			}
			if err := rule.try(p, dial, 30*time.Second); err != nil {
				t.Errorf("%v\nThe rule: %s", err, rule.why)
			}
		})
	}
}

// rule returns the rule about a middleware.
func (m ProtocolMiddleware) rule() protocolRule {
	return protocolRule{
		name:    "middleware: " + m.Name,
		why:     "Middleware that refuses a call of yodel's own protocol refuses it here too: the method does not run, and the caller gets the error.",
		options: yodel.ServerOptions{Middleware: []yodel.Middleware{m.New()}},
		check:   func(t *protocolTrial) error { return checkRefused(t, m) },
	}
}

// A protocolRule is one rule for protocols.
type protocolRule struct {
	name    string
	why     string
	skip    func(Protocol) bool // nil if the rule is for every protocol
	options yodel.ServerOptions
	check   func(*protocolTrial) error
}

var protocolRules = []protocolRule{
	{name: "unary", check: checkCalls, why: `A call returns what the handler returned, over a new connection and over a used one, with
messages of any size.`},
	{name: "many calls", check: checkManyCalls, why: "Concurrent calls do not see each other, on several connections and on one."},
	{name: "text of an error", check: checkFails("calls that fail", "Test.Fail", "it failed: no such thing"), why: "The caller gets the text of a handler's error."},
	{name: "code of an error", check: checkCodes, skip: func(p Protocol) bool { return !p.Codes }, why: "The caller gets the code of a handler's error."},
	{name: "unknown method", check: checkUnknown, why: "A call of a method that does not exist fails, and the connection remains usable."},
	{name: "panic", check: checkFails("calls whose handler panics", "Test.Panic", ""), why: `A handler that panics fails its own call, nothing of the panic reaches the caller, and the
connection remains usable.`},
	{name: "Goexit", check: checkFails("calls whose handler ends its goroutine", "Test.Exit", ""), why: `A handler that ends its goroutine fails its own call, and the connection remains usable. Run does
not return then: send the error of Served.Outcome in a deferred function.`},
	{name: "deadline", check: checkDeadline, skip: func(p Protocol) bool { return !p.Deadlines }, why: `The context of the handler has the deadline of the
request: set Call.Deadline before Admit.`},
	{name: "metadata", check: checkMetadata, skip: func(p Protocol) bool { return !p.Metadata }, why: `The handler sees the metadata of the request: set
Call.Metadata before Run.`},
	{name: "cancellation", check: checkLeaves, why: `The context of a handler ends when its client closes the connection: read the connection
while calls run.`},
	{name: "statistics", check: checkCounted, why: `Each call is run and ended once, so that the handler, the observers and the records see it
once, whether it succeeds or fails.`},
	{name: "auth by middleware", check: checkMiddleware, why: "Middleware sees the method, the body and the peer of each call, and can refuse it."},
	{name: "kind of a call", check: checkKinds, why: `To middleware, a call of a unary method is unary, and so is a call of a method that does not exist. Limits,
caches and idempotency keys are for unary calls.`},
	{name: "MaxOpen", check: checkMaxOpen, options: yodel.ServerOptions{MaxOpen: 2}, why: `No more calls run than ServerOptions.MaxOpen allows, and the others wait and
succeed: admit each call before its body is read, and wait.`},
	{name: "MaxMessage", check: checkMaxMessage, options: yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 64 << 10}},
		why: "A request larger than Limits.MaxMessage is refused. Other connections go on."},
	{name: "MaxConns", check: checkMaxConns, options: yodel.ServerOptions{MaxConns: 2}, why: `A connection of the protocol takes one place of ServerOptions.MaxConns until it ends:
Serve returns when the client has left.`},
	{name: "drain", check: checkDrain, why: `A call that runs when Shutdown begins is answered. Then the session ends, and an idle one ends soon: return when
Next returns io.EOF.`},
	{name: "Shutdown's deadline", check: checkCutOff, why: `When the context of Shutdown ends, so do the contexts of handlers and the connections, also
that of a client that has sent half a request.`},
	{name: "garbage", check: checkGarbage, why: `Whatever a client sends before it leaves, its connection ends and nothing panics. Other clients do not notice.`},
	{name: "cut requests", check: checkTruncated, why: `A connection that ends within a request ends its session and nothing else. The call is not executed.`},
	{name: "slow first bytes", check: checkSlow, why: `A request that arrives byte by byte is served.`},
	{name: "half a request", check: checkHalf, options: yodel.ServerOptions{Limits: yodel.Limits{KeepAlive: 50 * time.Millisecond, Handshake: 100 * time.Millisecond}},
		why: `A client that does not send the rest of a request loses its connection: call Session.Next before each request.`},
	{name: "unread replies", check: checkUnread, options: yodel.ServerOptions{MaxOpen: 1, Limits: yodel.Limits{KeepAlive: 100 * time.Millisecond}},
		why: `A client that does not read its replies does not hold the places of its calls: write with Session.Write.`},
}
