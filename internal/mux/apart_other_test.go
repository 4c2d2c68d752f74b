// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package mux_test

// serveBench is for the benchmarks with two processes, which exist on unix only.
func serveBench(string) {}
