// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// grpcClient are the scenarios with the client program of grpc-go, unchanged. All but those of many
// connections have one connection.
var grpcClient = []Scenario{
	overGRPC("grpc-1", "1 caller", closed(1)),
	overGRPC("grpc-10", "10 callers", closed(10)),
	overGRPC("grpc-100", "100 callers", closed(100)),
	overGRPC("grpc-1000", "1000 callers", closed(1000)),

	overGRPC("grpc-small-10", "100 bytes echoed, 10 callers", large(100, 10)),
	overGRPC("grpc-small-100", "100 bytes echoed, 100 callers", large(100, 100)),
	overGRPC("grpc-small-1000", "100 bytes echoed, 1000 callers", large(100, 1000)),

	overGRPC("grpc-deadline-10", "a deadline of 5 s on each call, 10 callers", withDeadline(closed(10))),
	overGRPC("grpc-deadline-100", "a deadline of 5 s on each call, 100 callers", withDeadline(closed(100))),

	overGRPC("grpc-blocking-100", "a handler that blocks for 1 ms, 100 callers", blocking(100)),
	overGRPC("grpc-blocking-1000", "a handler that blocks for 1 ms, 1000 callers", blocking(1000)),

	overTLS("grpc-tls-10", "TLS 1.3, 10 callers", closed(10)),
	overTLS("grpc-tls-100", "TLS 1.3, 100 callers", closed(100)),

	overGRPC("grpc-feed", "server streaming: one caller, calls of 10,000 messages of 100 bytes", streams("stream")),
	overGRPC("grpc-duplex", "both sides stream: one caller, calls of 10,000 messages of 100 bytes, each sent back", streams("duplex")),
	overGRPC("grpc-large-1m", "1 MiB echoed, 4 callers", large(1<<20, 4)),

	overIdle("grpc-idle-1", "1 connection, one call a second: CPU µs are those of each second", oneASecond(1)),
	overIdle("grpc-idle-10000", "10,000 connections, one call a second on one of them: CPU µs are those of each second", oneASecond(10_000)),
	eachIdle("grpc-each-10000", "10,000 connections, one call a second on each of them", 10_000),
}

// overGRPC compares the servers of grpc-go, connect-go and yodel. Its rounds are its own: only the
// first four scenarios, which differ in their callers alone, share them.
func overGRPC(name, title string, load Load) Scenario {
	s := Scenario{
		Name: name, Title: "servers of the client of grpc-go, " + title, Client: "grpc-go", Load: load, Full: true,
		Peers: []string{"grpc-go", "connect-go"}, Variants: wires,
	}
	if name == fmt.Sprintf("grpc-%d", load.Callers) {
		s.Group = "grpc"
	}
	return s
}

func overTLS(name, title string, load Load) Scenario {
	s := overGRPC(name, title, load)
	s.TLS = true
	return s
}

// overIdle is measured for at least 10 s. Where there is one call a second, the figures for each
// call are those for each second.
func overIdle(name, title string, load Load) Scenario {
	s := overGRPC(name, title, load)
	s.Measure = 10 * time.Second
	return s
}

// eachIdle is measured for at least 3 s. A server that is too slow for it has its calls waited for.
func eachIdle(name, title string, conns int) Scenario {
	s := overGRPC(name, title, onceASecondEach(conns))
	s.Measure = 3 * time.Second
	return s
}

func oneASecond(conns int) Load {
	return Load{Work: "message", Mode: "open", Rate: 1, Callers: 1, Conns: conns}
}

// Callers that wait for a call to be due take turns, and each has a connection of its own.
func onceASecondEach(conns int) Load {
	return Load{Work: "message", Mode: "open", Rate: conns, Callers: conns, Conns: conns}
}

func withDeadline(load Load) Load {
	load.DeadlineMS = int((5 * time.Second).Milliseconds())
	return load
}

func blocking(callers int) Load { return Load{Work: "wait", Mode: "closed", Callers: callers} }

func streams(work string) Load {
	return Load{Work: work, Mode: "closed", Size: 100, Messages: 10_000, Callers: 1}
}
