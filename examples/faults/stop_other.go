// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

// stopped is nothing where processes cannot be stopped.
func stopped(int, server) []fault { return nil }
