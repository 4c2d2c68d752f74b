// SPDX-License-Identifier: Apache-2.0

// Package gateway compares protocol/http/transcode with grpc-gateway. Both serve the services of
// grpc-gateway's own examples, and those of protos/shapes/shapes.proto, and get the same requests,
// which the test makes of the descriptors. A request must have the same status, message and
// response, or its difference stands in the table of docs/migrate/grpc.md. It is a module of its
// own, so that the root needs nothing but the standard library. Run it with
//
//	GOWORK=off go test ./...
//
// and with more requests, as make before-end does:
//
//	GOWORK=off go test -run=TestSameAnswers . -args -gateway.every=1 -gateway.random=100000
//
// The folder gen has the generated code. Its examples are those of the module of grpc-gateway that
// go.mod names, which has the BSD license, without the options for OpenAPI and without comments;
// a test compares them. To generate the code again, run
//
//	GOWORK=off go run ./generate
package gateway
