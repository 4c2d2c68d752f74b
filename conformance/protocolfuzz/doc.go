// SPDX-License-Identifier: Apache-2.0

// Package protocolfuzz sends valid frames in random order to a real server and to a real client,
// and checks the rules of spec/wire.md. It has tests only:
//
//	go test -race ./conformance/protocolfuzz                           # a few seconds
//	go test -race ./conformance/protocolfuzz -fuzz.for=10m -timeout=20m
//	go test -race ./conformance/protocolfuzz -fuzz.seed=17             # one conversation, again
//	go test -fuzz=FuzzConversation ./conformance/protocolfuzz          # guided by coverage
//
// One side of each connection is a model. It knows which calls are open in both directions, and
// what the rules allow the real side to send. Both sides make calls: unary ones, one-way ones,
// ordered ones, large ones in pieces, and streams of all kinds. The model cancels calls, gives and
// withholds credit, changes limits, binds method numbers again, and ends by a drain, by a breach of
// the protocol, or by finishing what is open.
package protocolfuzz
