// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Load is what a client program is told to do: the fields of the line that it reads.
type Load struct {
	Work      string   `json:"work"` // message, wait, echo, kiss, plain, stream, duplex or send
	Addrs     []string `json:"addrs"`
	Size      int      `json:"size"`
	Callers   int      `json:"callers"`
	Conns     int      `json:"conns"` // 0: as many as suit the framework best
	Messages  int      `json:"messages"`
	Codec     string   `json:"codec,omitempty"` // of the work plain
	Local     bool     `json:"local,omitempty"` // the actors are in the client's process
	Idle      int      `json:"idle,omitempty"`  // further actors in the client's process, which do nothing
	Beside    Beside   `json:"beside"`
	Mode      string   `json:"mode"` // closed, open, async or fresh
	Rate      int      `json:"rate"`
	Window    int      `json:"window"`
	WarmupMS  int      `json:"warmup_ms"`
	MeasureMS int      `json:"measure_ms"`

	DeadlineMS  int    `json:"deadline_ms,omitempty"` // of each call; 0 is none
	Certificate string `json:"certificate,omitempty"` // of the servers, in PEM; empty is without TLS
}

// A Beside is what goes on beside the calls that are measured, on the same connections: an echo in
// a closed loop.
type Beside struct {
	Size    int `json:"size"`
	Callers int `json:"callers"`
}

// A Scenario is one row of the measurement's plan. All peers that can do its load run it, one after
// the other, in each round.
type Scenario struct {
	Name  string `json:"name"`
	Title string `json:"title"` // above its table
	Load  Load   `json:"load"`

	Group    string   `json:"group,omitempty"`    // scenarios of one group that follow each other share their rounds
	Servers  int      `json:"servers,omitempty"`  // how many server processes: 0 is 1
	Clients  int      `json:"clients,omitempty"`  // how many client processes, each with this load: 0 is 1
	Full     bool     `json:"full,omitempty"`     // only with -full, or when -run names it
	Java     bool     `json:"java,omitempty"`     // the peers on the JVM run it too
	Peers    []string `json:"peers,omitempty"`    // only these; nil is all
	Variants []string `json:"variants,omitempty"` // of yodel: those that take part, too

	// Client is the peer whose program makes the calls, whichever peer's program serves them. So
	// the peers are compared as servers of the same client. Empty: each peer calls itself.
	Client string `json:"client,omitempty"`

	TLS     bool          `json:"tls,omitempty"`     // the connections use TLS 1.3
	Measure time.Duration `json:"measure,omitempty"` // the least time to measure for
}

// Kinds of load that several scenarios share.
func closed(callers int) Load { return Load{Work: "message", Mode: "closed", Callers: callers} }

func open(rate int) Load { return Load{Work: "message", Mode: "open", Rate: rate, Callers: 1000} }

func each(callers int) Load {
	return Load{Work: "message", Mode: "closed", Callers: callers, Conns: callers}
}

func large(size, callers int) Load {
	return Load{Work: "echo", Mode: "closed", Size: size, Callers: callers}
}

func plain(codec string, callers int) Load {
	return Load{Work: "plain", Mode: "closed", Codec: codec, Callers: callers}
}

// Messages and questions of 128 bytes to actors of the server, or of the client itself.
func sends(callers int, local bool) Load {
	return Load{Work: "send", Mode: "closed", Size: 128, Messages: 10_000, Callers: callers, Local: local}
}

func asks(callers int, local bool) Load {
	return Load{Work: "echo", Mode: "closed", Size: 128, Callers: callers, Local: local}
}

func idleActors(n int) Load {
	return Load{Work: "echo", Mode: "closed", Size: 128, Callers: 1, Local: true, Idle: n}
}

func idle(conns int) Load {
	return Load{Work: "echo", Mode: "closed", Size: 128, Callers: 1, Conns: conns}
}

// reflective are those that find methods, and encode, by reflection.
var reflective = []string{yodel, "netrpc", "rpcx"}

// What only a variant of yodel is compared with, and the variants.
var (
	onlyYodel = []string{yodel}
	chain     = []string{yodelChain}
	still     = []string{yodelStill}
	wires     = []string{yodelWires}
	actors    = []string{yodelActors}
)

// The peers of actors. One of them is no framework: goroutines that receive from channels.
const (
	actorPeers    = "actors"
	actorsChannel = "actors-channel"
)

var (
	besideActors = []string{actorPeers}
	remoteActors = []string{"actors-protoactor", "kraps-rpc"}
)

// The closed loop with more and more callers: how throughput depends on them is a figure, too.
const growing = "closed"

// The scenarios, in the order in which they run.
var scenarios = slices.Concat(ownClients, grpcClient, connectClient, otherClients, ofActors)

// ownClients are those in which each peer calls itself.
var ownClients = []Scenario{
	{Name: "closed-1", Title: "1 caller", Group: growing, Load: closed(1), Java: true, Variants: still},
	{Name: "closed-10", Title: "10 callers", Group: growing, Load: closed(10), Java: true},
	{Name: "closed-100", Title: "100 callers", Group: growing, Load: closed(100), Java: true},
	{Name: "closed-500", Title: "500 callers", Group: growing, Load: closed(500), Java: true},
	{Name: "closed-1000", Title: "1000 callers", Group: growing, Load: closed(1000), Java: true},
	{Name: "closed-2000", Title: "2000 callers", Group: growing, Load: closed(2000), Java: true},
	{Name: "closed-5000", Title: "5000 callers", Group: growing, Load: closed(5000), Java: true},

	{Name: "async-message", Title: "asynchronous, one connection, one issuing goroutine, at most 1000 calls open", Java: true,
		Load: Load{Work: "message", Mode: "async", Conns: 1, Window: 1000, Callers: 1}},
	{Name: "async-echo", Title: "128 bytes echoed, asynchronous, one connection, one issuing goroutine, at most 1000 calls open", Java: true,
		Load: Load{Work: "echo", Mode: "async", Size: 128, Conns: 1, Window: 1000, Callers: 1}},
	{Name: "echo-100", Title: "128 bytes echoed, 100 callers", Full: true, Java: true,
		Load: Load{Work: "echo", Mode: "closed", Size: 128, Callers: 100}},

	{Name: "open-5k", Title: "open loop, 5,000 calls a second intended", Load: open(5_000), Full: true},
	{Name: "open-20k", Title: "open loop, 20,000 calls a second intended", Load: open(20_000)},
	{Name: "open-50k", Title: "open loop, 50,000 calls a second intended", Load: open(50_000), Full: true},
	{Name: "open-100k", Title: "open loop, 100,000 calls a second intended", Load: open(100_000), Full: true},

	{Name: "rare-100", Title: "open loop, one caller, 100 calls a second intended: what waiting costs", Full: true, Variants: still,
		Load: Load{Work: "message", Mode: "open", Rate: 100, Callers: 1}},

	{Name: "stream", Title: "server streaming: one caller, calls of 10,000 messages of 128 bytes",
		Load: Load{Work: "stream", Mode: "closed", Size: 128, Messages: 10_000, Callers: 1}},

	{Name: "large-64k", Title: "64 KiB echoed, 4 callers", Load: large(64<<10, 4), Full: true},
	{Name: "large-1m", Title: "1 MiB echoed, 4 callers", Load: large(1<<20, 4)},
	{Name: "large-16m", Title: "16 MiB echoed, 2 callers", Load: large(16<<20, 2), Full: true},

	{Name: "mixed", Title: "128 bytes echoed, 10 callers, beside 4 callers that echo 1 MiB, all on one connection: the small calls' figures", Full: true,
		Load: Load{Work: "echo", Mode: "closed", Size: 128, Conns: 1, Callers: 10, Beside: Beside{Size: 1 << 20, Callers: 4}}},

	{Name: "each-100", Title: "100 clients with a connection each", Load: each(100), Full: true},
	{Name: "each-500", Title: "500 clients with a connection each", Load: each(500), Full: true},
	{Name: "each-1000", Title: "1000 clients with a connection each", Load: each(1000), Full: true},
	{Name: "each-2000", Title: "2000 clients with a connection each", Load: each(2000), Full: true},
	{Name: "each-5000", Title: "5000 clients with a connection each", Load: each(5000), Full: true},

	{Name: "two-servers-100", Title: "one client over two servers, 100 callers", Load: closed(100), Servers: 2, Full: true},
	{Name: "two-servers-1000", Title: "one client over two servers, 1000 callers", Load: closed(1000), Servers: 2, Full: true},

	{Name: "chain-100", Title: "a full chain around each call beside none, three servers, 100 callers",
		Load: closed(100), Servers: 3, Full: true, Peers: onlyYodel, Variants: chain},
	{Name: "chain-1000", Title: "a full chain around each call beside none, three servers, 1000 callers",
		Load: closed(1000), Servers: 3, Full: true, Peers: onlyYodel, Variants: chain},

	{Name: "plain-gob-1", Title: "gob of a plain struct, 1 caller", Load: plain("gob", 1), Full: true, Peers: reflective},
	{Name: "plain-gob-100", Title: "gob of a plain struct, 100 callers", Load: plain("gob", 100), Full: true, Peers: reflective},
	{Name: "plain-json-1", Title: "JSON of a plain struct, 1 caller", Load: plain("json", 1), Full: true, Peers: reflective},
	{Name: "plain-json-100", Title: "JSON of a plain struct, 100 callers", Load: plain("json", 100), Full: true, Peers: reflective},
	{Name: "plain-msgpack-1", Title: "msgpack of a plain struct, 1 caller", Load: plain("msgpack", 1), Full: true, Peers: reflective},
	{Name: "plain-msgpack-100", Title: "msgpack of a plain struct, 100 callers", Load: plain("msgpack", 100), Full: true, Peers: reflective},

	{Name: "kiss-K1", Title: "kiss-rpc K1: asynchronous, one connection", Full: true,
		Load: Load{Work: "kiss", Mode: "async", Conns: 1, Window: 10_000, Callers: 1}},
	{Name: "kiss-K2", Title: "kiss-rpc K2: asynchronous, 1000 connections", Full: true,
		Load: Load{Work: "kiss", Mode: "async", Conns: 1000, Window: 10_000, Callers: 1}},
	{Name: "kiss-K3-T1", Title: "kiss-rpc K3 and T1: one caller, one long connection", Full: true,
		Load: Load{Work: "kiss", Mode: "closed", Conns: 1, Callers: 1}},
	{Name: "kiss-K4", Title: "kiss-rpc K4: 1000 callers, 1000 connections", Full: true,
		Load: Load{Work: "kiss", Mode: "closed", Conns: 1000, Callers: 1000}},
	{Name: "kiss-K4-7", Title: "kiss-rpc K4 as its thread pool ran it: 7 callers, 1000 connections", Full: true,
		Load: Load{Work: "kiss", Mode: "closed", Conns: 1000, Callers: 7}},
	{Name: "kiss-T2", Title: "kiss-rpc T2: one caller, a new connection for each call", Full: true,
		Load: Load{Work: "kiss", Mode: "fresh", Conns: 1, Callers: 1}},
	{Name: "kiss-T3", Title: "kiss-rpc T3: four client processes, one caller and one long connection each", Clients: 4, Full: true,
		Load: Load{Work: "kiss", Mode: "closed", Conns: 1, Callers: 1}},

	{Name: "idle-1", Title: "memory with one connection", Load: idle(1), Full: true},
	{Name: "idle-10000", Title: "memory with 10,000 connections, all but one of them idle", Load: idle(10_000), Full: true},
}

// otherClients are those of unchanged clients of other frameworks than grpc-go and connect-go.
var otherClients = slices.Concat(
	ofClient("rpcx", "rpcx"), ofClient("thrift", "Apache Thrift"),
)

// ofClient returns the scenarios of the client of a peer, which has a name.
func ofClient(of, name string) (all []Scenario) {
	for _, callers := range []int{1, 10, 100, 1000} {
		title := fmt.Sprintf("servers of the client of %s, %d callers", name, callers)
		if callers == 1 {
			title = strings.TrimSuffix(title, "s")
		}
		all = append(all, Scenario{
			Name: fmt.Sprintf("%s-%d", of, callers), Title: title, Group: of, Client: of, Load: closed(callers), Full: true, Peers: []string{of}, Variants: wires,
		})
	}
	return all
}

// ofActors are those of actors.
var ofActors = []Scenario{
	{Name: "actor-local-send-1", Title: "messages to an actor of the same process, 1 sender", Load: sends(1, true), Full: true,
		Peers: besideActors, Variants: actors},
	{Name: "actor-local-send-10", Title: "messages to 10 actors of the same process, 10 senders", Load: sends(10, true), Full: true,
		Peers: besideActors, Variants: actors},
	{Name: "actor-local-ask-1", Title: "questions to an actor of the same process, 1 caller", Load: asks(1, true), Full: true,
		Peers: besideActors, Variants: actors},
	{Name: "actor-local-ask-100", Title: "questions to an actor of the same process, 100 callers", Load: asks(100, true), Full: true,
		Peers: besideActors, Variants: actors},
	{Name: "actor-send-1", Title: "messages to an actor of another process, 1 sender", Load: sends(1, false), Full: true,
		Peers: remoteActors, Variants: actors},
	{Name: "actor-send-10", Title: "messages to 10 actors of another process, 10 senders", Load: sends(10, false), Full: true,
		Peers: remoteActors, Variants: actors},
	{Name: "actor-ask-1", Title: "questions to an actor of another process, 1 caller", Load: asks(1, false), Full: true, Java: true,
		Peers: remoteActors, Variants: actors},
	{Name: "actor-ask-100", Title: "questions to an actor of another process, 100 callers", Load: asks(100, false), Full: true, Java: true,
		Peers: remoteActors, Variants: actors},
	{Name: "actor-idle-1", Title: "memory with one idle actor", Load: idleActors(1), Full: true, Peers: besideActors, Variants: actors},
	{Name: "actor-idle-1m", Title: "memory with a million idle actors", Load: idleActors(millionActors), Full: true,
		Peers: besideActors, Variants: actors},
}

const millionActors = 1_000_000

// takes says whether a peer has a part in the scenario. It may still decline.
func (s Scenario) takes(p program) bool {
	if p.callsOnly {
		return false
	}
	if p.kind == kindVariant {
		return slices.Contains(s.Variants, p.key)
	}
	if p.kind == kindJava && !s.Java {
		return false
	}
	if s.Peers == nil {
		return !selects(actorPeers, p.key)
	}
	return slices.ContainsFunc(s.Peers, func(name string) bool { return selects(name, p.key) })
}

// yodel is the peer that stands for yodel in the scenario.
func (s Scenario) yodel() string {
	if s.Client != "" {
		return yodelWires
	}
	return yodel
}

// connecting is how long a client may take to make its connections and its actors, beyond all other
// patience.
func (s Scenario) connecting() time.Duration {
	return time.Duration(max(s.Load.Conns, s.Load.Callers))*10*time.Millisecond + time.Duration(s.Load.Idle)*100*time.Microsecond
}

// catchingUp is how long a client may take to make the calls of an open loop that the peer was too
// slow for. Who makes less than 2,000 a second is not waited for.
func (s Scenario) catchingUp(t timing) time.Duration {
	return time.Duration(float64(s.Load.Rate) * float64(t.warmup+t.measure) / 2_000)
}

func orOne(n int) int { return max(n, 1) }
