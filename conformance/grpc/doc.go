// SPDX-License-Identifier: Apache-2.0

// Package grpc tests yodel with other implementations of gRPC, gRPC-Web and Connect: the
// interoperability cases of grpc-go and grpc-java in both directions, the negative HTTP/2 cases,
// grpcio of Python, grpc-js and connect-node of Node.js, connect-web in Chromium, grpcurl, ghz,
// Google's own services Cloud KMS and Pub/Sub, retries, and statuses behind nginx, HAProxy and
// Caddy.
package grpc
